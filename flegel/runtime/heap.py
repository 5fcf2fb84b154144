"""One heap for all threads of a process that lives long.

glibc gives each thread a heap of its own, and what a thread of ZeroMQ allocates there is freed by another one; the gaps
that this leaves are the likely reason why a master with little to do grew by some megabytes an hour, without holding
more objects. With one heap it grew by less than we can measure in a minute; the soak run watches it for longer.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys

M_ARENA_MAX = -8


def share_heap() -> None:
    """For daemons, before they start threads. Where the C library is another one, nothing happens."""
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
