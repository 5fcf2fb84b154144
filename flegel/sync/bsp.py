"""Bulk synchronous parallelism, full batch (the paper's BSPB): everybody does one pass, everybody waits."""

from __future__ import annotations

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


class BSP(TimedBarrier):
    """A barrier after each pass over the data."""

    name = "bsp"
    summary = "full-batch barrier: every worker does one pass, everybody waits"
    repeatable = True
    all_report = True

    def __init__(self, barrier_timeout: Seconds | None = None) -> None:
        super().__init__(barrier_timeout)

    def decide(self, event: Event, view: View, now: float) -> Decision:
        """Order a pass of all workers, and update when all have reported."""
        match event:
            case Reported():
                if view.all_reported():
                    return Decision((Update(tuple(view.workers)),), "every worker finished its pass")
                return self.begin_waiting(view, now)
            case Woken(tag):
                return self.end_waiting(tag, view)
            case Started() | Updated():
                return Decision((TrainWorkers(tuple(view.workers)),), f"pass {view.round + 1}")
        return NOTHING
