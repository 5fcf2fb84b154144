"""Arrays that are maps of files: their pages are given back once they were written or read. Opens no file."""

from __future__ import annotations

import mmap

import numpy as np

from flegel.core.pytree import Array


def release(array: Array, lo: int, hi: int) -> None:
    """Free the pages of rows lo … hi of a mapped array; they are read again on the next access."""
    base = array.base if isinstance(array, np.memmap) else None
    if not isinstance(array, np.memmap) or not isinstance(base, mmap.mmap):
        return
    skip = array.offset % mmap.ALLOCATIONGRANULARITY
    start = -(-(skip + lo * array.strides[0]) // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (skip + min(hi, len(array)) * array.strides[0]) // mmap.PAGESIZE * mmap.PAGESIZE - start
    if length > 0:
        if array.mode != "r":
            base.flush(start, length)
        base.madvise(mmap.MADV_DONTNEED, start, length)


def read_in_order(array: Array) -> None:
    """The rows of a mapped array will be read one after the other, again and again: read ahead, and give back first
    what was read first."""
    base = array.base if isinstance(array, np.memmap) else None
    if isinstance(base, mmap.mmap):
        base.madvise(mmap.MADV_SEQUENTIAL)
