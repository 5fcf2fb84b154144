"""Settings of glibc's allocator. With another C library nothing happens.

glibc gives each thread a heap of its own, and what a thread of ZeroMQ allocates there is freed by another thread. The
gaps that this leaves are the likely reason why an idle master grew by some megabytes an hour without holding more
objects. With one heap its growth within a minute is too small to measure; the soak run watches it for longer.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # malloc.h


def share_heap() -> None:
    """One heap for all threads. Daemons call this before they start threads."""
    _mallopt(M_ARENA_MAX, 1)


def keep_buffers(largest: int, total: int) -> None:
    """Keep up to `total` bytes of freed memory, in blocks of up to `largest`, for reuse.

    Otherwise every received message is written to fresh pages and pays for their first touch.
    """
    _mallopt(M_MMAP_THRESHOLD, largest)
    _mallopt(M_TRIM_THRESHOLD, total)


def _mallopt(option: int, value: int) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).mallopt(option, value)
