"""A few threads that carry out calls to the store of a group. None of them keeps its process from ending.

The pools of the standard library are joined at the end of a process, so that a call to a store that hangs would keep it
alive. What is under way here when a process ends is given up, as at a crash: every call may have happened or not.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class StoreThreads:
    """Calls run in the order in which they come, as many at a time as there are threads."""

    def __init__(self, count: int) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"flegel-bucket-{at}", daemon=True) for at in range(count)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def submit(self, call: Callable[[], None]) -> None:
        """Calls must not raise."""
        self._calls.put(call)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None and not self._closed:
            call()

    def close(self) -> None:
        """Begin no further call."""
        self._closed = True
        for _ in self._threads:
            self._calls.put(None)
