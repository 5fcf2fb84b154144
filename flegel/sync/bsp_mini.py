"""Mini-batch bulk synchronous parallelism (the paper's BSPV): a barrier after the same share of a pass everywhere.

The size of the batch is searched at the beginning, by cost and benefit: it is doubled while the objective then
improves faster per second, barriers and waiting included. Afterwards it is fixed.
"""

from __future__ import annotations

from typing import ClassVar

from flegel.configuration.active import active
from flegel.plan.interval.search import Search
from flegel.sync.policy import (
    NOTHING,
    Decision,
    Event,
    Reported,
    Seconds,
    Started,
    TrainWorkers,
    Update,
    Updated,
    View,
    Woken,
)
from flegel.sync.timed_barrier import TimedBarrier


class BSPMini(TimedBarrier):
    """A barrier after each batch."""

    name = "bsp-mini"
    summary = "a barrier after each mini-batch; its size is searched at the start"
    stored: ClassVar = {Search: ()}
    all_report = True

    def __init__(self, batches: int | None = None, factor: float = 2.0, barrier_timeout: Seconds | None = None) -> None:
        super().__init__(barrier_timeout)
        self._search = Search(1.0 / (batches or active().barriers.bsp_mini_first_batches), factor, grow=True, most=1.0)
        self._search.settled = batches is not None

    @property
    def fraction(self) -> float:
        """Of a pass, in the coming round."""
        return self._search.trial

    def decide(self, event: Event, view: View, now: float) -> Decision:
        """Order a part of a pass from all workers, update when all have reported, and search for the best size of that
        part."""
        match event:
            case Started():
                self._search.size = max(self._search.size, 0.0 if self._search.settled else view.least)
                return self._train(view, "")
            case Updated(gain=gain, seconds=seconds):
                return self._train(view, self._search.feed(gain, seconds))
            case Reported() if view.all_reported():
                return Decision((Update(tuple(view.workers)),))
            case Reported():
                return self.begin_waiting(view, now)
            case Woken(tag):
                return self.end_waiting(tag, view)
        return NOTHING

    def _train(self, view: View, why: str) -> Decision:
        points = {w.id: max(1, round(self.fraction * w.points)) for w in view.workers.values()}
        text = f"{why} → batches of {self.fraction:.3g} of a pass" if why or view.round == 0 else ""
        return Decision((TrainWorkers(tuple(view.workers), points),), text.removeprefix(" → "))
