"""One whole pass under one θ before a model goes on: how a job resumes from a commit that is newer than its statistics.

After that pass every point has its term under this θ, so F(Q, θ) is at least as good as it was at that commit, and the
model goes on from there. Composed around any model; it has no memory of its own beyond where it stands.
"""

from __future__ import annotations

from flegel.sync.policy import NOTHING, Decision, Event, Policy, Reported, Started, TrainWorkers, Update, Updated, View


class RebuildStatistics:
    """Wraps a model; `started`: it has run before, so it hears `Updated` afterwards, else `Started`."""

    flexible = False

    def __init__(self, model: Policy, started: bool) -> None:
        self.name = model.name
        self.model = model
        self._started = started
        self._phase = "due"

    @property
    def interval(self) -> float | None:
        return self.model.interval if self._phase == "done" else None

    @property
    def choice(self) -> str:
        return self.model.choice

    def decide(self, event: Event, view: View, now: float) -> Decision:
        """Order one round of whole passes under the last θ; from then on the wrapped model decides."""
        if self._phase == "done":
            return self.model.decide(event, view, now)
        match event:
            case Started() | Updated() if self._phase == "due":
                self._phase = "passing"
                return Decision((TrainWorkers(tuple(view.workers)),), "statistics anew from one pass under the last θ")
            case Reported() if view.all_reported():
                return Decision((Update(tuple(view.workers)),), "every point has its term under the last θ")
            case Updated():
                self._phase = "done"
                self.flexible = self.model.flexible
                return self.model.decide(event if self._started else Started(), view, now)
        return NOTHING
