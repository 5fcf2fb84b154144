"""Things to do at virtual times. Knows nothing of workers, and no real clock."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import Any


class EventQueue:
    """A calendar: what is due first comes first; of what is due at the same time, what was entered first."""

    def __init__(self) -> None:
        self.now = 0.0
        self.over = False
        """No further event is run."""
        self.count = 0
        """Entries so far."""
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def at(self, when: float, what: Callable[..., None], *args: Any) -> None:
        """Call `what(*args)` then, or now where that is past."""
        self.count += 1
        heappush(self._heap, (when if when > self.now else self.now, self.count, what, args))

    @property
    def idle(self) -> bool:
        """Nothing is left to do."""
        return not self._heap

    def run(self, limit: int) -> None:
        """Run events until `over` is set, nothing is left to do, or `limit` of them were run."""
        heap = self._heap
        for _ in range(limit):
            if self.over or not heap:
                return
            self.now, _, what, args = heappop(heap)
            what(*args)


@contextmanager
def no_collections() -> Iterator[None]:
    """Very many small objects live long here and none form cycles; looking for cycles takes a third of the time."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
