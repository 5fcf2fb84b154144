"""Commits: reports are held, a fold of them is requested, and its answer becomes a row of the trace. Pure.

A commit has two phases. `request` hands the held reports of some workers over; the coordinator passes the request to
the parameter store. `finish` takes the store's answer, in the same event or in a later one. A report leaves `held` when
it is handed over, so it can neither be handed over twice nor be dropped with a worker that is lost meanwhile.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from numbers import Real
from typing import Any, cast

import numpy as np

from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.declarations.learning import LearningHooks
from flegel.declarations.optional import defines, hook
from flegel.errors import AlgorithmError, ProtocolError
from flegel.machine.coordinator.events import Note, TraceRow
from flegel.machine.coordinator.orders import WorkerOrders
from flegel.machine.coordinator.reported_times import checked
from flegel.machine.coordinator.state import JobState
from flegel.messages import Report
from flegel.params import hook_values
from flegel.params.hooks import call_hook, guarded
from flegel.params.objective_error import objective_error
from flegel.params.protocol import Fold, Folded
from flegel.plan.interval.interval import PARTS
from flegel.plan.termination import Progress
from flegel.sync.policy import Updated, WorkerView
from flegel.wording import counted

SPANS_UP_TO = 256  # workers; beyond that the trace holds sums only

Span = tuple[int, float, float, int, float, float, float]


class Commits:
    """Reports that wait for their fold, and what is known of the last one."""

    def __init__(self, job: JobState, orders: WorkerOrders, debug: bool = False) -> None:
        """`debug`: check the conservation laws at each commit."""
        self._job, self._orders, self._debug = job, orders, debug
        self.held: dict[int, Tree] = {}
        """By worker: the change that it reported."""
        self.staleness: dict[int, int] = {}
        self.abandoned = 0
        """Visits that workers have abandoned, because a point was too expensive."""
        """How often a report was made under a θ so many updates old."""
        self.updated_at = 0.0
        self.last: Updated | None = None
        """What the model heard of the last commit, or will hear next."""
        self._spans: dict[int, Span] = {}
        self._wrong_clocks: set[int] = set()
        """Workers whose times were wrong once; that is said once for each."""
        self._number = 0
        self._estimate: float | None = None
        self._gain: float | None = None
        self._diverged = ""
        self._worth: tuple[int, Array | None] = (0, None)
        """For so many workers: what the algorithm says of intervals."""

    def hold(self, worker: int, body: Report, arrays: tuple[Array, ...], now: float) -> WorkerView:
        """Keep the change that a worker reported until it is folded, and note its visits and times; returns the
        worker's view."""
        job = self._job
        seen = job.view.workers[worker]
        change = job.store.reported(worker, body.round, arrays, body.sparse)
        if worker in self.held:  # it was asked for the rest, because workers come or go
            change = job.store.merged(self.held[worker], change)
        self.held[worker] = change
        self.abandoned += body.abandoned
        body = self._with_checked_times(worker, body, seen.rate, now)
        seen.hear(body.visits, body.compute, body.respond, body.wait, body.call)
        seen.caught_up += max(0, min(body.caught_up, body.visits))
        seen.local_updates = body.local_updates
        seen.unseen, seen.halted, seen.exhausted = body.unseen, body.halted, body.exhausted
        if len(job.view.workers) <= SPANS_UP_TO:
            sent, here = self._orders.sent_at[worker] - job.began, now - job.began
            self._spans[worker] = (worker, sent, here, body.visits, body.compute, body.respond, body.wait)
        return seen

    def _with_checked_times(self, worker: int, said: Report, rate: float, now: float) -> Report:
        """Replace times in a report that cannot be true, and say so once for each worker."""
        job = self._job
        # A worker goes on after a report, so what it tells now began after the order before its last one.
        body = checked(said, rate, now - self._orders.before_last.get(worker, job.began))
        if body is not said and worker not in self._wrong_clocks:
            self._wrong_clocks.add(worker)
            job.out.append(
                Note(
                    f"worker {worker} counted {said.compute:.3g} s of computing, {said.respond:.3g} s of reacting and "
                    f"{said.wait:.3g} s of waiting in round {said.round}, which cannot be; its clock was set or is "
                    "broken. What its clock could not have counted is estimated from earlier rounds"
                )
            )
        return body

    def hold_again(self, request: Fold) -> None:
        """The fold was undone: its reports are as they were before it."""
        self.held.update(zip(request.workers, request.changes, strict=True))

    def forget(self, worker: int) -> int:
        """The worker is lost: what it reported and was not handed over does not count. Returns the visits of that."""
        self._spans.pop(worker, None)
        seen = self._job.view.workers.get(worker)
        return seen.last_visits if self.held.pop(worker, None) is not None and seen is not None else 0

    # -- phase one -----------------------------------------------------------------------------------------

    def request(self, workers: tuple[int, ...]) -> Fold:
        """The held reports of these workers, for a new θ."""
        fixed = sorted(workers)  # so that the same reports give the same bits
        return self._fold(fixed, update=True)

    def request_accounts(self, without: Collection[int]) -> Fold:
        """All held reports, for the statistics alone; those of some workers are dropped, for they begin again."""
        for worker in sorted(set(self.held) & set(without)):
            self._job.view.workers[worker].phase = "idle"
            del self.held[worker]
        return self._fold(sorted(self.held), update=False)

    def _fold(self, workers: list[int], update: bool) -> Fold:
        held, self._number = self.held, self._number + 1
        views = self._job.view.workers.values() if self._job.store.train_version >= 0 else ()
        resting = [seen.id for seen in views if seen.phase != "training"]
        return Fold(self._number, workers, [held.pop(worker) for worker in workers], self._job.place, resting, update)

    # -- phase two -----------------------------------------------------------------------------------------

    def finish_accounts(self, request: Fold, folded: Folded) -> None:
        """The statistics hold these reports; θ is as before."""
        views = [self._job.view.workers[worker] for worker in request.workers]
        self._attribute(views, folded)
        for seen in views:
            seen.phase = "idle"

    def finish(self, request: Fold, workers: tuple[int, ...], folded: Folded, now: float) -> Updated:
        """θ is new: a row of the trace, and what the model hears of it. `workers`: in the order that the model gave."""
        job = self._job
        views = [job.view.workers[worker] for worker in request.workers]
        self._attribute(views, folded)
        for seen in views:
            seen.phase = "idle"
        visits = sum([seen.last_visits for seen in views])
        compute = sum([seen.last_compute for seen in views])
        self._count_staleness(request.workers)
        if self._debug and (gap := job.store.discrepancy()) > 1e-10:
            raise ProtocolError(f"Statistics and the sum over owners differ by {gap:.2g} in {job.place}.")
        self._diverged = folded.diverged
        job.iteration += 1
        seconds = now - self.updated_at
        cost = max(0.0, seconds - compute / max(len(workers), 1))
        self.updated_at = now
        self._evaluate(folded, workers)
        job.trace.append(
            TraceRow(
                now - job.began,
                job.iteration,
                job.objective,
                job.policy.interval,
                self._estimate,
                visits,
                cost,
                job.reason,
                [self._spans.pop(w) for w in request.workers if w in self._spans],
                [w.passes for w in job.view.workers.values()] if len(job.view.workers) <= SPANS_UP_TO else [],
                job.in_flight,
                job.moved_bytes,
                [w.gain for w in job.view.workers.values()] if job.attribute else [],
            )
        )
        job.reason = ""
        job.view.round += 1
        exact = job.totals.unseen == 0
        self.last = Updated(
            job.view.round,
            workers,
            self._estimate,
            exact,
            visits,
            cost,
            self._gain,
            seconds,
            self._interval_worth(),
            self._noise(),
            bool(self._ask("holds", job.store.parameter)),
        )
        return self.last

    def _attribute(self, views: list[WorkerView], folded: Folded) -> None:
        if folded.gains:
            for seen in views:
                if not seen.unseen:
                    seen.gain += folded.gains.get(seen.id, 0.0)

    def _count_staleness(self, workers: Collection[int]) -> None:
        orders, staleness = self._orders.round_of, self.staleness
        for asked, number in Counter([orders[worker] for worker in workers]).items():
            behind = self._job.view.round - asked
            staleness[behind] = staleness.get(behind, 0) + number

    def _evaluate(self, folded: Folded, workers: tuple[int, ...]) -> None:
        """Objective and estimate after this commit, and how much better the estimate is than before."""
        job = self._job
        job.totals.count(workers)
        unseen = job.totals.unseen
        job.objective = folded.objective if not unseen else None
        estimate = self._scaled(folded.objective, unseen)
        better = -1.0 if job.algorithm.learning.maximize else 1.0
        before = self._estimate
        self._gain = better * (before - estimate) if before is not None and estimate is not None else None
        self._estimate = estimate

    def _scaled(self, value: float | None, unseen: int) -> float | None:
        """The objective of the points that were visited, scaled up to all, while some are unseen; None while all
        are."""
        points = self._job.totals.points
        if unseen and (unseen >= points or self._job.store.remote):
            return None
        if value is None or self._job.algorithm.learning.averaged or not unseen:
            return value
        return value * points / max(points - unseen, 1)

    def _interval_worth(self) -> Array | None:
        """What the algorithm says of intervals; asked again when the number of workers is another."""
        workers = len(self._job.view.workers)
        if self._worth[0] != workers:
            self._worth = (workers, interval_worth(self._job, workers))
        return self._worth[1]

    def _noise(self) -> float | None:
        """The gradient noise scale, where the algorithm has one."""
        return cast("float | None", self._ask("noise_scale", self._job.store.parameter))

    # -- figures -------------------------------------------------------------------------------------------

    def ask_for_the_end(self, progress: Progress) -> tuple[bool, Progress]:
        """What the user's class says once a pass: whether the job is over, how far it is from the minimum, and how good
        a trivial model is."""
        check = hook_values.truth(
            self._ask("terminationCheck", self._job.store.statistics, self._job.iteration),
            "terminationCheck",
            self._job.place,
        )
        return check, replace(
            progress,
            optimality=self._ask_number("optimality"),
            baseline=self._ask_number("baseline") if progress.exact else None,
            trivial=self._job.algorithm.learning.trivial,
            error=self._objective_error,
        )

    def _objective_error(self) -> float:
        """By how much the objective may be off because statistics are rounded; 0 where the statistics of all points are
        not here."""
        job = self._job
        if job.objective is None or job.store.remote or job.store.train_version >= 0:
            return 0.0  # statistics of all points are not here
        theta = job.store.parameter
        return objective_error(
            lambda statistics: self._ask("objective", statistics, theta),
            job.store.statistics,
            job.objective,
            job.rounding,
        )

    def _ask_number(self, hook: str) -> float | None:
        store = self._job.store
        return hook_values.number(self._ask(hook, store.statistics, store.parameter), hook, self._job.place)

    def final_parameter(self) -> Tree:
        """θ as the result."""
        store = self._job.store
        if not defines(self._job.algorithm, LearningHooks.finalParameter) and store.train_version >= 0:
            return store.parameter  # made anew by each fold: a large one is not copied
        made = self._ask("finalParameter", store.statistics, store.parameter)
        return hook_values.tree(made, "finalParameter", lambda value: pytree.as_typed(value, store.parameter))

    def _ask(self, hook: str, *args: Any) -> Any:
        return call_hook(self._job.algorithm, self._job.place, hook, *args)

    def progress(self, now: float) -> Progress:
        """What the criteria of termination look at."""
        job, totals = self._job, self._job.totals
        return Progress(
            iteration=job.iteration,
            seconds=now - job.began,
            objective=job.trace[-1].estimate,
            exact=totals.unseen == 0,
            slowest_pass=totals.slowest_pass,
            halted=totals.halted,
            points=totals.points,
            diverged=self._diverged,
            finished=self._ask("finished", job.store.parameter),
            constant=job.algorithm.statistics.constant,
            workers=job.view.workers,
        )

    def restart(self, now: float) -> None:
        """The statistics changed without a new θ, or time passed without training: no gain is measured across that."""
        self._estimate, self.updated_at, self._job.totals.stale = None, now, True

    def continue_from(self, now: float) -> None:
        """A job goes on under a θ that is newer than its statistics."""
        self._estimate = self._gain = None
        self.updated_at = now

    # -- checkpoints ---------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {
            "updated_at": self.updated_at,
            "estimate": self._estimate,
            "gain": self._gain,
            "diverged": self._diverged,
            "staleness": self.staleness,
            "abandoned": self.abandoned,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.updated_at, self._estimate, self._gain = state["updated_at"], state["estimate"], state["gain"]
        self._diverged, self.staleness = state["diverged"], state["staleness"]
        self.abandoned = state.get("abandoned", 0)


def interval_worth(job: JobState, workers: int) -> Array | None:
    """The hook `efficiency` for every part of a pass; None where the algorithm says nothing."""
    if not defines(job.algorithm, LearningHooks.efficiency):
        return None
    efficiency = hook(job.algorithm, LearningHooks.efficiency)
    said = guarded(
        job.algorithm,
        "efficiency",
        f"coordinator, {job.place}",
        lambda: [efficiency(part, workers) for part in PARTS.tolist()],
    )
    worth = None if any(value is None for value in said) else np.array([_number(v) for v in said])
    if worth is not None and not (worth.min() >= 0.0 < worth.max() < math.inf):
        wrong = np.flatnonzero(~((worth >= 0.0) & (worth < math.inf)))
        at = int(wrong[0]) if len(wrong) else 0
        raise AlgorithmError(
            f"efficiency must return a number from 0 to 1, or None, and not 0 for every part of a pass; it "
            f"returned {said[at]!r} for {PARTS[at]:.3g} of a pass and {counted(workers, 'worker')}."
        )
    return worth


def _number(value: object) -> float:
    return float(value) if isinstance(value, Real) else math.nan
