"""Bulk synchronous parallelism, full batch (the paper's BSPB): everybody does one pass, everybody waits."""

from __future__ import annotations

from flegel.sync.policy import (
    NOTHING,
    Decision,
    Event,
    Reported,
    Started,
    SyncModel,
    TrainWorkers,
    Update,
    Updated,
    View,
)


class BSP(SyncModel):
    """A barrier after each pass over the data."""

    name = "bsp"
    summary = "full-batch barrier: every worker does one pass, everybody waits"
    repeatable = True
    all_report = True

    def decide(self, event: Event, view: View, now: float) -> Decision:
        """Order a pass of all workers, and update when all have reported."""
        match event:
            case Reported():
                if view.all_reported():
                    return Decision((Update(tuple(view.workers)),), "every worker finished its pass")
            case Started() | Updated():
                return Decision((TrainWorkers(tuple(view.workers)),), f"pass {view.round + 1}")
        return NOTHING
