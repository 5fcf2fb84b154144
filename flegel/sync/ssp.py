"""Stale synchronous parallelism: a worker may be at most `staleness` batches ahead of the slowest one.

Staleness 0 is BSP: nobody is released before all have reported, and all reports are folded in together. Without a
bound it is `asp`. A report is held while nobody can be released, and folded in when somebody is.
"""

from __future__ import annotations

import math

from flegel.sync.base import (
    NOTHING,
    Decision,
    Event,
    Reported,
    Started,
    TrainWorkers,
    Update,
    Updated,
    View,
    names,
)


class SSP:
    """Bounded staleness; `batches` reports a pass."""

    flexible = True
    interval: float | None = None

    def __init__(self, staleness: float, batches: int, name: str = "ssp") -> None:
        self.name = name
        self.staleness = staleness
        self.batches = batches

    def decide(self, event: Event, view: View, now: float) -> Decision:
        match event:
            case Started():
                bound = "no bound" if math.isinf(self.staleness) else f"at most {self.staleness:g} batches"
                return self._train(view, f"{self.batches} batches a pass, {bound} ahead of the slowest")
            case Reported():
                if self._released(view):
                    return Decision((Update(view.reported()),))
                ahead = view.workers[event.worker].clock - self._slowest(view)
                return Decision((), f"worker {event.worker} is {ahead} batches ahead and waits")
            case Updated():
                return self._train(view, "")
        return NOTHING

    def _slowest(self, view: View) -> int:
        return min(w.clock for w in view.workers.values())

    def _released(self, view: View) -> tuple[int, ...]:
        """Who is not training and not too far ahead."""
        least = self._slowest(view)
        return tuple(w.id for w in view.workers.values() if w.phase != "training" and w.clock - least <= self.staleness)

    def _train(self, view: View, reason: str) -> Decision:
        free = self._released(view)
        if not free:
            return NOTHING
        points = {w: max(1, math.ceil(view.workers[w].points / self.batches)) for w in free}
        return Decision((TrainWorkers(free, points),), reason or f"released: {names(free)}")
