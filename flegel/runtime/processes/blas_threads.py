"""Limits the linear algebra of a coordinator's process to one thread while its job runs. Touches no other process.

Libraries such as OpenBLAS split a product of some thousand numbers over one thread per processor, and these threads
spin for tens of milliseconds afterwards in case another product follows. A hook such as `objective` runs at every
barrier, so they would spin all the time, on processors that the workers need.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from flegel.runtime.system.processors import numeric_libraries


class _Limit:
    """Set by the first job of this process that needs it, lifted by the last one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._lifted = contextlib.ExitStack()

    def enter(self) -> None:
        with self._lock:
            if not self._users:
                self._lifted.enter_context(numeric_libraries().limit(limits=1, user_api="blas"))
            self._users += 1

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._lifted.close()


_limit = _Limit()


@contextlib.contextmanager
def by_one_thread() -> Iterator[None]:
    """Several jobs of one process may be inside at once, and end in any order."""
    limit = _limit
    limit.enter()
    try:
        yield
    finally:
        limit.leave()


def _forget() -> None:
    """In a forked process, where the jobs of its parent do not end."""
    global _limit
    _limit = _Limit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
