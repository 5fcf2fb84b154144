"""Limits the linear algebra of a coordinator's process to one thread while its job runs. Touches no other process.

Libraries such as OpenBLAS split a product of some thousand numbers over one thread per processor, and these threads
spin for tens of milliseconds afterwards in case another product follows. A hook such as `objective` runs at every
barrier, so they would spin all the time, on processors that the workers need.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from functools import lru_cache

from threadpoolctl import ThreadpoolController

_limiting = threading.Lock()


@contextlib.contextmanager
def by_one_thread() -> Iterator[None]:
    """Of several jobs in one process the first one sets the limit and restores it when it ends: a second one must not
    restore what the first one still needs."""
    if not _limiting.acquire(blocking=False):
        yield
        return
    try:
        with _controller(len(sys.modules)).limit(limits=1, user_api="blas"):
            yield
    finally:
        _limiting.release()


@lru_cache(maxsize=1)
def _controller(modules: int) -> ThreadpoolController:
    """Finding the libraries of this process takes 5 ms; they are looked for again when modules were imported."""
    return ThreadpoolController()
