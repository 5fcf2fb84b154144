"""Flexible synchronous parallelism (paper Section 3): the barrier is made by time, not by workload.

Every round has the same θ on every worker. The round ends η seconds after it began, or as soon as workers that
matter have gone through their whole shares, because visiting a point twice under one θ teaches nothing. One usual
worker matters; a slow one that is through because it was left only a few points does not, it may as well wait. Where
a barrier is dear, more of them have to be through: it pays to go on as long as the part of all workers that stands
idle is smaller than the part of its time that a round loses to its barrier, φ / (φ + T).
This file holds the barrier; an `Interval` says how long η is. The barrier is signalled by the coordinator; with `semi`
workers that answer late to signals keep it by their own clocks, at η + δ_i.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import ClassVar

from flegel.configuration.active import active
from flegel.plan.interval.interval import FixedInterval, Interval, Round, Step
from flegel.plan.interval.multi_stage import MultiStage, Recent
from flegel.sync.local_timers import LocalTimers
from flegel.sync.policy import (
    NOTHING,
    Decision,
    Event,
    Reported,
    Seconds,
    Started,
    StopWorkers,
    SyncModel,
    TrainWorkers,
    Update,
    Updated,
    View,
    Wake,
    Woken,
    WorkerView,
)


class FlexibleBarrier(SyncModel):
    """Flexible barriers at intervals that an `Interval` chooses; the models below and in fsp_binary.py say which."""

    flexible = True
    balances = True
    all_report = True

    def __init__(self, interval: Interval, coordination: str) -> None:
        self._interval = interval
        self._arrivals = LocalTimers() if coordination == "semi" else None
        self._step = Step(None)
        self._stopped = False
        """Everybody has been told to end this round."""
        self._idle = self._matters = 0.0
        """Points a second of those that are through with their shares, and how much of that ends the round."""
        self._through: list[float] = []
        """When they were."""
        self._ended = 0.0
        self._phi: deque[float] = deque(maxlen=5)
        """Cost of the last barriers, without the waiting of those that were through."""

    @property
    def interval(self) -> float | None:  # type: ignore[override]
        return self._step.seconds

    @property
    def deltas(self) -> dict[int, float]:
        """δ by worker, as learned so far."""
        return dict(self._arrivals.delta) if self._arrivals else {}

    def decide(self, event: Event, view: View, now: float) -> Decision:
        """A round ends at the signal, or as soon as workers that make up enough of the speed have no points left."""
        match event:
            case Started():
                self._step = self._interval.first(view.least)
                return self._begin(view, now)
            case Updated():
                waited = sum(self._ended - at for at in self._through) / max(len(event.workers), 1)
                self._phi.append(max(event.barrier_cost - waited, 0.0))
                self._step = self._interval.next(summary(event, view, self._limit(view)))
                return self._begin(view, now)
            case Woken(tag=tag) if tag == view.round:
                if not self._stopped:
                    self._ended = now
                return self._stop(view)
            case Reported(worker=worker, exhausted=exhausted, moving=moving):
                timers = None if self._step.whole else self._arrivals  # no signal, so nobody is late for it
                if timers:
                    timers.arrived(worker, now, moving)
                if not self._stopped:
                    self._ended = now
                    if exhausted:
                        self._through.append(now)
                if view.all_reported():
                    if timers:
                        timers.close()
                    return Decision((Update(tuple(view.workers)),))
                if exhausted:
                    self._idle += view.workers[worker].rate
                    if self._idle >= self._matters and (self._matters or self._half_through(view)):
                        if timers:
                            timers.cut(now)
                        return self._stop(view)
        return NOTHING

    def _begin(self, view: View, now: float) -> Decision:
        """Orders of the next round: who trains how many points, the workers' own timers, and when the signal is due."""
        workers, eta, self._stopped = tuple(view.workers), self._step.seconds, False
        self._idle, self._matters = 0.0, self._limit(view)
        self._through, self._ended = [], now
        points = None
        if self._step.fraction < 1.0:
            points = {w.id: max(1, round(self._step.fraction * w.points)) for w in view.workers.values()}
        if eta is None:
            return Decision((TrainWorkers(workers, points),), self._step.reason)
        if self._step.whole:
            self._matters, usual = math.inf, eta + (median(self._phi) if self._phi else 0.0)
            return Decision(
                (TrainWorkers(workers), Wake(now + active().barriers.whole_pass_patience * usual, view.round)),
                self._step.reason,
            )
        own = None
        if self._arrivals:
            through = lap(list(view.workers.values()), self._matters) if self._matters else eta
            own = self._arrivals.begin(min(eta, through), workers if view.in_batches else ())
            eta += self._arrivals.patience
        return Decision((TrainWorkers(workers, points, own), Wake(now + eta, view.round)), self._step.reason)

    def _half_through(self, view: View) -> bool:
        """While speeds are unknown: half of the workers are through with what they were given, and the others have had
        as much time. So the first update rests on the points of all workers, and no single one decides it."""
        return 2 * len(self._through) >= sum(w.points > 0 for w in view.workers.values())

    def _limit(self, view: View) -> float:
        """Points a second that may stand idle before it is better to begin a new round."""
        seen = list(view.workers.values())
        least = matters(seen)
        if not least or not self._phi:
            return least
        phi = median(self._phi)
        return max(least, sum(w.rate for w in seen) * phi / max(phi + lap(seen), 1e-9))

    def _stop(self, view: View) -> Decision:
        if self._stopped:
            return NOTHING
        self._stopped = True
        late = tuple(w for w in view.training() if not view.workers[w].stopping)
        return Decision((StopWorkers(late),)) if late else NOTHING


class FSP(FlexibleBarrier):
    """Flexible barriers; the interval is given, or chosen stage by stage."""

    name = "fsp"
    summary = "flexible barriers by time; finds its own interval, stage by stage (the default)"
    stored: ClassVar = {LocalTimers: (), MultiStage: (), Recent: (), FixedInterval: (), Step: ()}

    def __init__(self, interval: Seconds | None = None, coordination: str = "semi") -> None:
        search = MultiStage(active().interval.first_seconds or None)
        super().__init__(FixedInterval(interval) if interval else search, coordination)


def matters(workers: Sequence[WorkerView]) -> float:
    """Points a second that count as a worker; none where the speed of somebody is unknown yet."""
    if not workers or any(w.rate <= 0 for w in workers if w.points):
        return 0.0
    return active().barriers.idle_speed_ending_round * sum(w.rate for w in workers) / len(workers)


def lap(workers: Sequence[WorkerView], enough: float | None = None) -> float:
    """Seconds until workers that matter, or so many points a second, have gone through their shares."""
    laps = [(w.points / w.rate, w.rate) for w in workers if w.rate > 0 and w.points]
    return _first(laps, matters(workers) if enough is None else enough)


def summary(event: Updated, view: View, enough: float | None = None) -> Round:
    """The round as an interval sees it. No round is longer than until `enough` points a second stand idle."""
    workers = [view.workers[w] for w in event.workers if w in view.workers]
    quickest = lap(workers, enough)
    return Round(
        visits=event.visits,
        seconds=event.seconds,
        barrier_cost=event.barrier_cost,
        gain=event.gain,
        full_pass=sum(min(w.rate * quickest, float(w.points)) for w in workers) or float(view.points),
        points=float(view.points),
        laps=-_first([(-w.passes, w.rate) for w in workers], matters(workers)),
        worth=event.worth,
        noise=event.noise,
        held=event.held,
        alike=alike(workers),
    )


def alike(workers: Sequence[WorkerView]) -> bool:
    """Nobody is slow, by all that was computed so far: single rounds of some milliseconds are disturbed too often."""
    rates = [w.visits / w.compute for w in workers if w.compute > 0]
    return len(rates) == len(workers) > 0 and min(rates) > active().barriers.equal_speed * sum(rates) / len(rates)


def _first(values: list[tuple[float, float]], enough: float) -> float:
    """The smallest value at which workers with values up to it are fast enough together."""
    together = 0.0
    for value, rate in sorted(values):
        together += rate
        if together >= enough:
            return value
    return max((value for value, _ in values), default=0.0)
