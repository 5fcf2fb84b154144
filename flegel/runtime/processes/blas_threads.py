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

_limiting = threading.Lock()


@contextlib.contextmanager
def by_one_thread() -> Iterator[None]:
    """Of several jobs in one process the first one sets the limit and restores it when it ends: a second one must not
    restore what the first one still needs. Only the thread that has set a limit can lift it, so a job that lasts longer
    than the first one does without."""
    limiting = _limiting
    if not limiting.acquire(blocking=False):
        yield
        return
    try:
        with numeric_libraries().limit(limits=1, user_api="blas"):
            yield
    finally:
        limiting.release()


def _forget() -> None:
    """In a forked process, where the jobs of its parent do not end."""
    global _limiting
    _limiting = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
