"""Large arrays in files without a name: the coordinator's copy of θ, which it reads now and then, takes no memory.

Pages are given back to the system after each write; what is read comes from the system's cache or from the disk. The
files lie in the folder for temporary files (`TMPDIR`) and vanish with their arrays. Where there is no room, and where
arrays are small, they lie in memory. Decides nothing else.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable

import numpy as np

from flegel.core.pytree import Array

FILE_ARRAY_FROM_BYTES = 16 << 20
"""Bytes; smaller arrays lie in memory."""
COPIED_BYTES_BETWEEN_RELEASES = 8 << 20
"""Bytes that are copied before their pages are given back."""


class FileArrays:
    """The `ArrayStorage` of a job with parameter servers."""

    def empty(self, like: Array) -> Array:
        """Of the same form; its contents are anything."""
        return _empty_file(like) if like.nbytes >= FILE_ARRAY_FROM_BYTES else np.empty_like(like)

    def let_go(self, arrays: Iterable[Array]) -> None:
        """These arrays are not read soon: their pages may leave memory."""
        for array in arrays:
            held = _mapping(array)
            if held is not None:
                held.madvise(mmap.MADV_DONTNEED)

    def moved(self, array: Array) -> Array:
        """A large array, copied to a file piece by piece."""
        if array.nbytes < FILE_ARRAY_FROM_BYTES or not array.any():  # zeros that were never written take no memory
            return array
        there = self.empty(array)
        rows = max(COPIED_BYTES_BETWEEN_RELEASES // max(array[:1].nbytes, 1), 1)
        for at in range(0, len(array), rows):
            there[at : at + rows] = array[at : at + rows]
            self.let_go([there])
        return there


def _empty_file(like: Array) -> Array:
    """An array of the same shape in a file without a name, so that its pages may leave memory; in memory where no file
    can be made."""
    try:
        with tempfile.TemporaryFile(prefix="flegel-") as file:
            os.posix_fallocate(file.fileno(), 0, like.nbytes)  # a full disk is an error here, not a signal later
            held = mmap.mmap(file.fileno(), like.nbytes)
    except OSError:
        return np.empty_like(like)
    return np.frombuffer(held, like.dtype).reshape(like.shape)


def _mapping(array: Array) -> mmap.mmap | None:
    base = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
        if isinstance(base, memoryview):
            base = base.obj
    return base if isinstance(base, mmap.mmap) and hasattr(base, "madvise") else None
