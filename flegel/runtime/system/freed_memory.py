"""Memory that a process has freed goes back to the system at once, also where arrays of some megabytes come and go.

The C library raises the size from which on it asks the system for each block of its own, up to 32 MB, when such blocks
are freed: slices of a large θ then share a heap that never shrinks. A fixed size ends that. Does nothing where the
library has no such setting.
"""

from __future__ import annotations

import ctypes

RETURNED_FROM_BYTES = 1 << 20
"""Bytes from which on a block is the system's."""
M_MMAP_THRESHOLD = -3  # malloc.h


def return_freed_memory() -> None:
    """Have this process return freed memory to the system at once, from now on."""
    try:
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, RETURNED_FROM_BYTES)
    except (OSError, AttributeError):
        return
