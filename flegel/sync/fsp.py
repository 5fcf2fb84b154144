"""Flexible synchronous parallelism (paper Section 3): the barrier is made by time, not by workload.

Every round has the same θ on every worker. The round ends η seconds after it began, or earlier, when too much of the
workers' speed is idle because they have visited all points of their shards: visiting a point twice under one θ teaches
nothing. As much as one worker of mean speed is too much; a slow worker that has finished because it was left only a few
points is not, and waits. Where a barrier is expensive, more may be idle: training goes on as long as the idle part of
all workers is smaller than the part of a round's time that its barrier takes, φ / (φ + T).
This file holds the barrier; an `Interval` says how long η is. The coordinator sends a signal at the barrier; with
`semi`, workers that react slowly to signals stop by their own clocks, at η + δ_i.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import ClassVar

from flegel.configuration.active import active
from flegel.plan.interval.environment import Recent
from flegel.plan.interval.interval import FixedInterval, Interval, Round, Step
from flegel.plan.interval.multi_stage import MultiStage
from flegel.plan.interval.rollback_stages import RollbackStages
from flegel.sync.local_timers import EveryTimer, LocalTimers
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

    def __init__(self, interval: Interval, coordination: str, timers: str = "late", round_end: str = "idle") -> None:
        """`interval` finds η; `coordination`: workers stop by their own clocks (`semi`) or by a signal
        (`centralized`); `timers`: which of them have a clock of their own; `round_end`: a round ends early when too
        much speed is idle, or with the first worker that has traversed its shard."""
        self._interval = interval
        self._arrivals: LocalTimers | EveryTimer | None = None
        if coordination == "semi":
            self._arrivals = EveryTimer() if timers == "all" else LocalTimers()
        self._first_ends_round = round_end == "first"
        self._step = Step(None)
        self._stopped = False
        """All workers have been told to end this round."""
        self._idle_speed = self._idle_speed_limit = 0.0
        """Points a second of workers that have finished their shards, and how much of that ends the round; 0 while no
        speed is known."""
        self._finished_at: list[float] = []
        """When each of them finished, in seconds of the job."""
        self._round_ended_at = 0.0
        self._phi: deque[float] = deque(maxlen=5)
        """Seconds of the last barriers, without the time in which workers that had finished waited for the signal."""

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
                waited = sum(self._round_ended_at - at for at in self._finished_at) / max(len(event.workers), 1)
                self._phi.append(max(event.barrier_cost - waited, 0.0))
                self._step = self._interval.next(summary(event, view, self._limit(view)))
                return self._begin(view, now)
            case Woken(tag=tag) if tag == view.round:
                if not self._stopped:
                    self._round_ended_at = now
                return self._stop(view)
            case Reported(worker=worker, exhausted=exhausted, moving=moving):
                timers = None if self._step.whole else self._arrivals  # without a signal, no worker reacts slowly to it
                if timers:
                    timers.arrived(worker, now, moving)
                if not self._stopped:
                    self._round_ended_at = now
                    if exhausted:
                        self._finished_at.append(now)
                if view.all_reported():
                    if timers:
                        timers.close()
                    return Decision((Update(tuple(view.workers)),))
                if exhausted:
                    self._idle_speed += view.workers[worker].rate
                    speeds_known = self._idle_speed_limit > 0.0
                    enough_idle = self._idle_speed >= self._idle_speed_limit
                    if self._first_ends_round or (enough_idle and (speeds_known or self._half_have_finished(view))):
                        if timers:
                            timers.cut(now)
                        return self._stop(view)
        return NOTHING

    def _begin(self, view: View, now: float) -> Decision:
        """Orders of the next round: who trains how many points, the workers' own timers, and when the signal is due."""
        workers, eta, self._stopped = tuple(view.workers), self._step.seconds, False
        self._idle_speed, self._idle_speed_limit = 0.0, self._limit(view)
        self._finished_at, self._round_ended_at = [], now
        points = None
        if self._step.fraction < 1.0:
            points = {w.id: max(1, round(self._step.fraction * w.points)) for w in view.workers.values()}
        if eta is None:
            return Decision((TrainWorkers(workers, points, cursor=self._step.cursor),), self._step.reason)
        if self._step.whole:
            self._idle_speed_limit, usual = math.inf, eta + (median(self._phi) if self._phi else 0.0)
            return Decision(
                (TrainWorkers(workers), Wake(now + active().barriers.whole_pass_patience * usual, view.round)),
                self._step.reason,
            )
        own = None
        if self._arrivals:
            limit = self._idle_speed_limit
            idle_after = seconds_until_idle(list(view.workers.values()), limit) if limit else eta
            own = self._arrivals.begin(min(eta, idle_after), workers if view.in_batches else ())
            eta += self._arrivals.patience
        train = TrainWorkers(workers, points, own, cursor=self._step.cursor)
        return Decision((train, Wake(now + eta, view.round)), self._step.reason)

    def _half_have_finished(self, view: View) -> bool:
        """While speeds are unknown, a round ends when half of the workers have finished: the other half has trained as
        long. So the first update rests on the points of all workers, and no single one decides it."""
        return 2 * len(self._finished_at) >= sum(w.points > 0 for w in view.workers.values())

    def _limit(self, view: View) -> float:
        """Points a second that may stand idle before it is better to begin a new round; 0 while no speed is known."""
        seen = list(view.workers.values())
        one = speed_of_one_worker(seen)
        if one and self._first_ends_round:
            return min(w.rate for w in seen if w.points)
        if not one or not self._phi:
            return one
        phi = median(self._phi)
        return max(one, sum(w.rate for w in seen) * phi / max(phi + seconds_until_idle(seen), 1e-9))

    def _stop(self, view: View) -> Decision:
        if self._stopped:
            return NOTHING
        self._stopped = True
        training = tuple(w for w in view.training() if not view.workers[w].stopping)
        return Decision((StopWorkers(training),)) if training else NOTHING


class FSP(FlexibleBarrier):
    """Flexible barriers; the interval is given, or chosen stage by stage."""

    name = "fsp"
    summary = "flexible barriers by time; finds its own interval, stage by stage (the default)"
    stored: ClassVar = {
        LocalTimers: (),
        EveryTimer: (),
        MultiStage: (),
        RollbackStages: (),
        Recent: (),
        FixedInterval: (),
        Step: (),
    }

    def __init__(
        self,
        interval: Seconds | None = None,
        coordination: str = "semi",
        probes: str = "bracketed",
        timers: str = "late",
        round_end: str = "idle",
    ) -> None:
        first = active().interval.first_seconds or None
        search: Interval = RollbackStages(first) if probes == "rollback" else MultiStage(first)
        super().__init__(FixedInterval(interval) if interval else search, coordination, timers, round_end)


class PublishedFSP(FSP):
    """What Sections 3.3, 4.2 and 5.2 of the paper say, where ours differs; each option can be given alone, too."""

    name = "fsp:published"
    summary = (
        "fsp as its paper prints it: rollback probes, δ for all workers, pairwise moves, first worker ends a round"
    )
    matching = "pairs"

    def __init__(
        self,
        interval: Seconds | None = None,
        coordination: str = "semi",
        probes: str = "rollback",
        timers: str = "all",
        round_end: str = "first",
    ) -> None:
        super().__init__(interval, coordination, probes, timers, round_end)


def speed_of_one_worker(workers: Sequence[WorkerView]) -> float:
    """Points a second that count as one worker when they are idle: a part of the mean speed. 0 while the speed of some
    worker is unknown."""
    if not workers or any(w.rate <= 0 for w in workers if w.points):
        return 0.0
    return active().barriers.idle_speed_ending_round * sum(w.rate for w in workers) / len(workers)


def seconds_until_idle(workers: Sequence[WorkerView], enough: float | None = None) -> float:
    """Seconds until workers with `enough` points a second (default: as one worker) have finished their shards."""
    times = [(w.points / w.rate, w.rate) for w in workers if w.rate > 0 and w.points]
    return _first(times, speed_of_one_worker(workers) if enough is None else enough)


def summary(event: Updated, view: View, enough: float | None = None) -> Round:
    """The round as an interval sees it. No round is longer than until `enough` points a second stand idle."""
    workers = [view.workers[w] for w in event.workers if w in view.workers]
    quickest = seconds_until_idle(workers, enough)
    return Round(
        visits=event.visits,
        seconds=event.seconds,
        barrier_cost=event.barrier_cost,
        gain=event.gain,
        full_pass=sum(min(w.rate * quickest, float(w.points)) for w in workers) or float(view.points),
        points=float(view.points),
        laps=-_first([(-w.passes, w.rate) for w in workers], speed_of_one_worker(workers)),
        worth=event.worth,
        noise=event.noise,
        held=event.held,
        alike=equally_fast(workers),
        local_updates=len(workers) == 1 and workers[0].local_updates,
        alone=len(workers) == 1,
        call=median([w.call for w in workers]) if workers else 0.0,
    )


def equally_fast(workers: Sequence[WorkerView]) -> bool:
    """No worker is much slower than the mean, over all rounds: single ones of some milliseconds say too little."""
    rates = [w.visits / w.compute for w in workers if w.compute > 0]
    return len(rates) == len(workers) > 0 and min(rates) > active().barriers.equal_speed * sum(rates) / len(rates)


def _first(values: list[tuple[float, float]], enough: float) -> float:
    """The smallest value for which the workers with values up to it have `enough` speed together. `values`: of each
    worker a value, and its speed."""
    together = 0.0
    for value, rate in sorted(values):
        together += rate
        if together >= enough:
            return value
    return max((value for value, _ in values), default=0.0)
