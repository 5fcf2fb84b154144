"""Processes that user code has started: found by their parents in /proc, and ended with the job. Linux only.

A process whose parent has died becomes a child of the nearest ancestor that adopts orphans, so a hook cannot leave
anything behind by forking twice. Where there is no /proc, nothing is found and nothing is ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
MAX_DESCENDANT_SEARCHES = 20
"""Looks for descendants; one that forks faster than that is left to its own limits."""


def adopt_orphans() -> None:
    """From now on descendants whose parents have died become children of this process."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def descendants(pid: int) -> list[int]:
    """Children of a process, their children, and so on."""
    found: list[int] = []
    left = [pid]
    while left:
        children = list(_children(left.pop()))
        found += children
        left += children
    return found


def _children(pid: int) -> Iterator[int]:
    """The children of all threads of a process; none of a process that has ended."""
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                yield from map(int, (task / "children").read_text().split())


def kill_descendants(pid: int, keep: Collection[int] = ()) -> int:
    """Kill what a process has started, except `keep`; how many processes that were."""
    killed: set[int] = set()
    for _ in range(MAX_DESCENDANT_SEARCHES):
        strays = [found for found in descendants(pid) if found not in keep and found not in killed]
        if not strays:
            break
        for found in strays:
            with contextlib.suppress(OSError):
                os.kill(found, signal.SIGKILL)
        killed.update(strays)
    return len(killed)


@contextlib.contextmanager
def ended_with_this_block() -> Iterator[None]:
    """End whatever is started in the block together with it; for a process that exists for one job."""
    adopt_orphans()
    try:
        yield
    finally:
        kill_descendants(os.getpid())
