"""One heap for all threads of a process that lives long.

glibc gives each thread a heap of its own, and what a thread of ZeroMQ allocates there is freed by another one; the gaps
that this leaves made a master with little to do grow by two megabytes an hour. With one heap it does not grow.
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
