"""Memory for shares: in RAM where they fit, in a scratch file that the system may page out where they do not.

Never reads data. The limit is `FLEGEL_MEMORY` (bytes, or with K, M, G) for one process, or half of what the
machine has free at the time of the first question.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Any

import numpy as np

from flegel.core.pytree import Array
from flegel.errors import DataError, UsageError

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def limit() -> int:
    """How many bytes one array may take in RAM."""
    told_size = told()
    return available() // 2 if told_size is None else told_size


def told() -> int | None:
    """What `FLEGEL_MEMORY` says, in bytes."""
    text = os.environ.get("FLEGEL_MEMORY", "").strip().upper().removesuffix("B")
    if not text:
        return None
    unit = _UNITS.get(text[-1], 1)
    try:
        size = int(float(text[:-1] if unit > 1 else text) * unit)
    except ValueError:
        raise UsageError(f"FLEGEL_MEMORY={text!r} is no size; write bytes or for example 4G.") from None
    return size


def available() -> int:
    """Bytes that can be had without swapping."""
    try:
        with open("/proc/meminfo") as lines:  # noqa: PTH123 - not a file of ours
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An uninitialized C-ordered array; over the limit it lives in an unnamed scratch file."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if size <= limit():
        return np.empty(shape, dtype)
    try:
        with tempfile.TemporaryFile(prefix="flegel-share-", dir=os.environ.get("FLEGEL_SCRATCH")) as file:
            file.truncate(size)
            return np.memmap(file, dtype, "r+", shape=shape)
    except OSError as error:
        raise DataError(
            f"A share of {size:,} bytes is over the limit of memory and cannot be put into a scratch file "
            f"({error.strerror or error}); point FLEGEL_SCRATCH to a folder with space that you may write to."
        ) from None


def release(array: Array, lo: int, hi: int) -> None:
    """Hand rows lo … hi of a mapped array back to the system; they are read again when they are used."""
    base = array.base if isinstance(array, np.memmap) else None
    if not isinstance(array, np.memmap) or not isinstance(base, mmap.mmap):
        return
    skip = array.offset % mmap.ALLOCATIONGRANULARITY
    start = -(-(skip + lo * array.strides[0]) // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (skip + hi * array.strides[0]) // mmap.PAGESIZE * mmap.PAGESIZE - start
    if length > 0:
        if array.mode != "r":
            base.flush(start, length)
        base.madvise(mmap.MADV_DONTNEED, start, length)
