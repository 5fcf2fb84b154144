"""Memory for shards: in RAM up to a limit, above it in a mapped scratch file that the system can page out.

The limit is `FLEGEL_MEMORY` (bytes, or with K, M, G, T) for one array, or half of the memory available at the time of
the allocation. Never reads data.
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


def memory_limit() -> int:
    """Bytes that one array may take in RAM."""
    configured = configured_limit()
    return available() // 2 if configured is None else configured


def configured_limit() -> int | None:
    """The value of `FLEGEL_MEMORY` in bytes, or None where it is not set."""
    text = os.environ.get("FLEGEL_MEMORY", "").strip().upper().removesuffix("B")
    if not text:
        return None
    unit = _UNITS.get(text[-1], 1)
    try:
        size = int(float(text[:-1] if unit > 1 else text) * unit)
    except ValueError:
        raise UsageError(f"FLEGEL_MEMORY={text!r} is no size; use a number of bytes, or for example 4G.") from None
    return size


def available() -> int:
    """Bytes that can be allocated without swapping."""
    try:
        with open("/proc/meminfo") as lines:  # noqa: PTH123 - not a file of ours
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An uninitialized C-ordered array; above the limit it is a map of an unnamed scratch file."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if size <= memory_limit():
        return np.empty(shape, dtype)
    try:
        with tempfile.TemporaryFile(prefix="flegel-shard-", dir=os.environ.get("FLEGEL_SCRATCH")) as file:
            file.truncate(size)
            return np.memmap(file, dtype, "r+", shape=shape)
    except OSError as error:
        raise DataError(
            f"A shard of {size:,} bytes is above the memory limit and cannot be put into a scratch file "
            f"({error.strerror or error}); point FLEGEL_SCRATCH to a folder with space that you may write to."
        ) from None


def release(array: Array, lo: int, hi: int) -> None:
    """Free the pages of rows lo … hi of a mapped array; they are read again on the next access."""
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
