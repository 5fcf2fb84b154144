"""Flexible synchronous parallelism (paper Section 3): the barrier is made by time, not by workload.

Every round has the same θ on every worker. The round ends η seconds after it began, or as soon as one worker has
gone through its whole share, because visiting a point twice under one θ teaches nothing. This file holds the
barrier; an `Interval` says how long η is. The barrier is signalled by the coordinator (`centralized`), or kept by
each worker's own clock at η + δ_i with the coordinator's signal as a fallback (`semi`).
"""

from __future__ import annotations

from flegel.plan.interval import Interval, Round, Step
from flegel.sync.arrival import Arrivals
from flegel.sync.base import (
    NOTHING,
    Action,
    Decision,
    Event,
    Reported,
    Started,
    StopWorkers,
    TrainWorkers,
    Update,
    Updated,
    View,
    Wake,
    Woken,
)


class FSP:
    """Flexible barriers."""

    flexible = True

    def __init__(self, interval: Interval, semi: bool = True, name: str = "fsp") -> None:
        self.name = name
        self._interval = interval
        self._arrivals = Arrivals() if semi else None
        self._step = Step(None)
        self._stopped = False
        """Everybody has been told to end this round."""

    @property
    def interval(self) -> float | None:
        return self._step.seconds

    @property
    def deltas(self) -> dict[int, float]:
        """δ by worker, as learned so far."""
        return dict(self._arrivals.delta) if self._arrivals else {}

    def decide(self, event: Event, view: View, now: float) -> Decision:
        match event:
            case Started():
                self._step = self._interval.first(view.least)
                return self._begin(view, now)
            case Updated():
                self._step = self._interval.next(summary(event, view))
                return self._begin(view, now)
            case Woken(tag=tag) if tag == view.round:
                return self._stop(view)
            case Reported(worker=worker, exhausted=exhausted):
                if self._arrivals:
                    self._arrivals.arrived(worker, now)
                if view.all_reported():
                    if self._arrivals:
                        self._arrivals.close()
                    return Decision((Update(tuple(view.workers)),))
                if exhausted:
                    if self._arrivals:
                        self._arrivals.cut()
                    return self._stop(view)
        return NOTHING

    def _begin(self, view: View, now: float) -> Decision:
        workers, eta, self._stopped = tuple(view.workers), self._step.seconds, False
        points = None
        if self._step.fraction < 1.0:
            points = {w.id: max(1, round(self._step.fraction * w.points)) for w in view.workers.values()}
        actions: tuple[Action, ...]
        if eta is None:
            actions = (TrainWorkers(workers, points),)
        elif self._arrivals is None:
            actions = (TrainWorkers(workers, points), Wake(now + eta, view.round))
        else:
            seconds = self._arrivals.begin(now, eta, workers)
            actions = (TrainWorkers(workers, points, seconds), Wake(self._arrivals.fallback, view.round))
        return Decision(actions, self._step.reason)

    def _stop(self, view: View) -> Decision:
        if self._stopped:
            return NOTHING
        self._stopped = True
        late = tuple(w for w in view.training() if not view.workers[w].stopping)
        return Decision((StopWorkers(late),)) if late else NOTHING


def summary(event: Updated, view: View) -> Round:
    """The round as an interval sees it."""
    workers = [view.workers[w] for w in event.workers]
    laps = [w.points / w.rate for w in workers if w.rate > 0 and w.points]
    quickest = min(laps, default=0.0)
    return Round(
        visits=event.visits,
        seconds=event.seconds,
        barrier_cost=event.barrier_cost,
        gain=event.gain,
        full_pass=sum(w.rate * quickest for w in workers) or float(view.points),
        laps=max((w.passes for w in workers), default=0.0),
    )
