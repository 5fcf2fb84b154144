"""Stale synchronous parallelism: a worker may be at most `staleness` batches ahead of the slowest one.

Staleness 0 is BSP: no worker is released before all have reported, and all reports are folded in together. Without a
bound it is `asp`. A report is held while no worker can be released, and folded in when one is.

While a report and the next θ travel, its worker stands still, or trains on under the θ that it has (`waiting`), where
that keeps it within the bound whatever the others do meanwhile.
"""

from __future__ import annotations

import math
from collections import Counter

from flegel.sync.policy import (
    NOTHING,
    USUAL_BATCHES_PER_PASS,
    Decision,
    Event,
    Regrouped,
    Reported,
    Started,
    SyncModel,
    TrainWorkers,
    Update,
    Updated,
    View,
    names,
    train_on,
)


class SSP(SyncModel):
    """Bounded staleness; `batches` reports a pass."""

    name = "ssp"
    summary = "a worker may be a few batches ahead of the slowest, not more"
    flexible = True
    transient = ("_clocks",)

    def __init__(self, staleness: int = 1, batches: int = USUAL_BATCHES_PER_PASS, waiting: str = "idle") -> None:
        """`waiting`: who trains on until the next θ comes: nobody, those that a new θ can interrupt, or all."""
        self.staleness: float = staleness
        self.batches = batches
        self._waiting = waiting
        self._clocks = _Clocks()

    def decide(self, event: Event, view: View, now: float) -> Decision:
        """Release every worker that is at most `staleness` batches ahead of the slowest one."""
        clocks = self._clocks
        match event:
            case Started():
                clocks.look(view)
                bound = "no bound" if math.isinf(self.staleness) else f"at most {self.staleness:g} batches"
                free = tuple(view.workers)
                return self._train(view, free, f"{self.batches} batches a pass, {bound} ahead of the slowest")
            case Reported(worker=worker):
                clocks.reported(worker, view)
                if any(self._may_go(w, view) for w in clocks.candidates((worker,))):
                    return Decision((Update(tuple(sorted(clocks.held))),))
                ahead = view.workers[worker].clock - clocks.least
                return Decision((), f"worker {worker} is {ahead} batches ahead and waits")
            case Regrouped():
                clocks.look(view)
            case Updated(workers=workers):
                clocks.folded(workers, view)
                free = tuple(sorted(w for w in clocks.candidates(workers) if self._may_go(w, view)))
                clocks.advanced = False
                return self._train(view, free, f"released: {names(free)}") if free else NOTHING
        return NOTHING

    def _may_go(self, worker: int, view: View) -> bool:
        """Not too far ahead."""
        return view.workers[worker].clock - self._clocks.least <= self.staleness

    def _train(self, view: View, free: tuple[int, ...], reason: str) -> Decision:
        self._clocks.released(free)
        points = {w: max(1, math.ceil(view.workers[w].points / self.batches)) for w in free}
        on = tuple(w for w in free if self._trains_on(w, view))
        off = tuple(w for w in free if w not in on)
        actions = tuple(TrainWorkers(who, {w: points[w] for w in who}, linger=who is on) for who in (on, off) if who)
        return Decision(actions, reason)

    def _trains_on(self, worker: int, view: View) -> bool:
        """After its next report, too, it is within the bound, so that it will be released and not have to stop."""
        return train_on(self._waiting, view) and view.workers[worker].clock + 1 - self._clocks.least <= self.staleness


class _Clocks:
    """How many workers have made how many reports, and who stands still: in a few steps for each report, because
    looking at all workers for each of their reports is too slow for thousands."""

    def __init__(self) -> None:
        self.least = 0
        """Reports of the worker that has made fewest."""
        self.advanced = False
        """The slowest has moved on, so that somebody who stood still may go."""
        self.held: set[int] = set()
        """Reported, and not folded in."""
        self._parked: set[int] = set()
        """Folded in, and too far ahead to go on."""
        self._count: Counter[int] = Counter()
        self._workers = 0

    def look(self, view: View) -> None:
        """Count the clocks of all workers anew: in the beginning, and when workers came or went."""
        self._count = Counter(w.clock for w in view.workers.values())
        self._workers = len(view.workers)
        self.least, self.advanced = min(self._count, default=0), True
        self.held = set(view.reported())
        self._parked = {w.id for w in view.workers.values() if w.phase == "idle"}

    def reported(self, worker: int, view: View) -> None:
        """A worker has finished a round: count its clock, and note where the slowest clock has moved on."""
        clock = view.workers[worker].clock
        if len(view.workers) != self._workers or not self._count[clock - 1]:
            self.look(view)
            return
        self._count[clock - 1] -= 1
        self._count[clock] += 1
        self.held.add(worker)
        while not self._count[self.least]:
            del self._count[self.least]
            self.least += 1
            self.advanced = True

    def folded(self, workers: tuple[int, ...], view: View) -> None:
        """Count anew after a fold of all workers: some may have come or gone, and reports of such a round are not told
        one by one."""
        if len(view.workers) != self._workers or len(workers) == self._workers:
            self.look(view)
        self.held.difference_update(workers)
        self._parked.update(workers)

    def candidates(self, changed: tuple[int, ...]) -> set[int]:
        """Who may be released now: while the slowest stands still, only those that changed."""
        return self.held | self._parked if self.advanced else set(changed)

    def released(self, workers: tuple[int, ...]) -> None:
        self._parked.difference_update(workers)
