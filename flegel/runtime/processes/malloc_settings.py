"""The C library's allocator, told what it cannot guess. Where that is another library, nothing happens.

One heap: glibc gives each thread a heap of its own, and what a thread of ZeroMQ allocates there is freed by another
one; the gaps that this leaves are the likely reason why a master with little to do grew by some megabytes an hour,
without holding more objects. With one heap it grew by less than we can measure in a minute; the soak run watches it for
longer.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8


def share_heap() -> None:
    """One heap for all threads: for daemons, before they start some."""
    _tell(M_ARENA_MAX, 1)


def keep_buffers(largest: int, together: int) -> None:
    """Keep freed memory of up to `together` bytes, in pieces of up to `largest`, for the next time.

    Else every message that is received into fresh memory pays for its first touch.
    """
    _tell(M_MMAP_THRESHOLD, largest)
    _tell(M_TRIM_THRESHOLD, together)


def _tell(switch: int, value: int) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).mallopt(switch, value)
