"""Flexible synchronous parallelism (paper Section 3): the barrier is made by time, not by workload.

Every round has the same θ on every worker. The round ends η seconds after it began, or as soon as one worker has
gone through its whole share, because visiting a point twice under one θ teaches nothing. This file holds the
barrier; an `Interval` says how long η is.
"""

from __future__ import annotations

from typing import Protocol

from flegel.sync.base import (
    NOTHING,
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


class Interval(Protocol):
    """Says how long the next round should be."""

    def first(self, view: View) -> tuple[float, str]: ...

    def next(self, event: Updated, view: View) -> tuple[float, str]: ...


class FixedInterval:
    """η as the user gave it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def first(self, view: View) -> tuple[float, str]:
        return self.seconds, f"fixed interval {self.seconds * 1e3:g} ms"

    def next(self, event: Updated, view: View) -> tuple[float, str]:
        return self.seconds, ""


class FSP:
    """Flexible barriers; the coordinator's signal ends each round."""

    name = "fsp"

    def __init__(self, interval: Interval) -> None:
        self._interval = interval
        self._eta: float | None = None

    @property
    def interval(self) -> float | None:
        return self._eta

    def decide(self, event: Event, view: View, now: float) -> Decision:
        match event:
            case Started():
                self._eta, reason = self._interval.first(view)
                return self._begin(view, now, reason)
            case Updated():
                self._eta, reason = self._interval.next(event, view)
                return self._begin(view, now, reason)
            case Woken(tag=tag) if tag == view.round:
                return self._stop(view, f"interval of {self._eta or 0:.4g} s is over")
            case Reported() if view.all_reported():
                return Decision((Update(tuple(view.workers)),), "all committed")
            case Reported(worker=worker, exhausted=True):
                return self._stop(view, f"worker {worker} finished a full pass")
        return NOTHING

    def _begin(self, view: View, now: float, reason: str) -> Decision:
        assert self._eta is not None
        return Decision((TrainWorkers(tuple(view.workers)), Wake(now + self._eta, view.round)), reason)

    def _stop(self, view: View, reason: str) -> Decision:
        late = tuple(w for w in view.training() if not view.workers[w].stopping)
        return Decision((StopWorkers(late),), reason) if late else NOTHING
