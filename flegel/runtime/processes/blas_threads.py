"""Linear algebra by one thread while a job is on its way, in the process of its coordinator.

Libraries like OpenBLAS give a product of some thousand numbers to a thread for each processor, and these spin for tens
of milliseconds when it is done, in case another one comes. A hook like `objective` comes at every barrier, so they
would spin all the time, on the processors that belong to the workers.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from threadpoolctl import ThreadpoolController

_limiting = threading.Lock()


@contextlib.contextmanager
def by_one_thread() -> Iterator[None]:
    """Of jobs beside each other in one process the first one limits threads, until it ends: whoever sets a limit has to
    take it back, and must not take back that of another."""
    if not _limiting.acquire(blocking=False):
        yield
        return
    try:
        with ThreadpoolController().limit(limits=1, user_api="blas"):
            yield
    finally:
        _limiting.release()
