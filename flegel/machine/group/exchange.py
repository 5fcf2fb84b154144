"""The coordinator's side of a group: what a commit contributes, and what a result of all groups does to the job. Pure.

Kept statistics: every other group is one owner in the ledger; a result replaces all of them, so a lost group is a
subtraction and θ follows from all points everywhere. Spent fields (gradients): the change of θ since the last result
goes out, and what comes back is applied as result + (now − sent): training never waits. A contribution that was too
late is carried over: the next one holds it.

A group that has converged rests until a result changes something; training is over when every group rests, and
rested before the last result with the same objective.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum

import numpy as np

from flegel.algorithm import Algorithm
from flegel.configuration.active import active
from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.errors import UsageError
from flegel.machine.coordinator.events import Note, SetTimer, Timer
from flegel.machine.coordinator.state import JobState
from flegel.machine.group.events import (
    EndsHeard,
    Evaluated,
    Excluded,
    FromGroup,
    GroupJoined,
    GroupLost,
    Offered,
    Remark,
    RoundOpened,
    Stalled,
    StatusChanged,
    Synchronized,
    ToGroup,
    Waiting,
)
from flegel.machine.group.outer_step import less, moved
from flegel.machine.group.schedule import Every, SendSchedule
from flegel.params.protocol import Fold
from flegel.plan.termination import Verdict

FATAL_OUTCOMES = ("diverged", "unsound", "stuck", "worse")
PASSING_OUTCOMES = ("stuck", "worse", "stalled")
"""Where statistics are exchanged, these hold only until those of other groups arrive."""


_OUTCOMES = {
    "statistics": "its rows are no longer in the model",
    "parameters": "its rows are no longer trained on, and what it sent before stays in the model",
}
"""Of the loss of a group."""


class GroupStep(Enum):
    """What the coordinator does next."""

    NOTHING = "nothing"
    CHANGED = "changed"
    """Statistics or θ are others than before: nothing is measured across that."""
    RESUME = "resume"
    """It rested, and trains again."""
    END = "end"


def exchange_of(algorithm: Algorithm) -> str:
    """statistics or parameters; refuses algorithms that can do neither."""
    if not algorithm.statistics.spent:
        return "statistics"
    if algorithm.placement.additive:
        return "parameters"
    raise UsageError(
        f"{type(algorithm).__name__} cannot be trained by groups: its statistics are used up at each barrier, and it "
        "declares no fields of θ that may be added (`ParameterPlacement.additive`)."
    )


def additive_fields(algorithm: Algorithm, theta: Tree) -> list[Array]:
    """Copies of the fields of θ that may be added; all of a θ without fields."""
    named = zip(pytree.names(theta), pytree.flatten(theta), strict=True)
    return [np.array(a) for name, a in named if name in algorithm.placement.additive or not pytree.is_bundle(theta)]


class GroupExchange:
    """One group as its coordinator sees it."""

    def __init__(self, algorithm: Algorithm, every: Every, silence: float, base: Sequence[Array] = ()) -> None:
        """`base`: additive fields of the θ(0) that all groups began with, where θ is exchanged."""
        self.kind = exchange_of(algorithm)
        self._schedule = SendSchedule(every)
        self._silence = silence
        self.round = 0
        """The round that is open; 0 while that is not known."""
        self.done = False
        self.groups: tuple[str, ...] = ()
        """Those of the last result."""
        self.rounds = 0
        self.agreed = False
        """Training ended with the last result in every group that is in it: all of them have this θ."""
        self.together = False
        """And nobody ended before that, was lost or is missing, as far as this group knows."""
        self.lost: dict[str, str] = {}
        """What happened to groups that are not waited for any more."""
        self.evaluated: tuple[str, ...] = ()
        """Other groups whose rows are in the objective that is reported."""
        self._closing = self._resting = False
        self._rested_at: float | None = None
        """Objective when this group last rested."""
        self._base = list(base)
        self._sent: list[Array] = []
        self._last: tuple[Array, ...] = ()
        """The statistics that were sent last."""
        self._visits = 0.0
        self._sent_visits = 0.0

    # -- what goes out -------------------------------------------------------------------------------------

    def begin(self, job: JobState) -> None:
        """Training begins."""
        self._tell(job, "training")

    def at_commit(self, job: JobState, now: float) -> None:
        """θ is new: contribute where it is time."""
        visits = job.trace[-1].visits if job.trace else 0
        self._visits += visits
        value = job.objective if job.objective is None or not job.algorithm.learning.maximize else -job.objective
        if self._schedule.commit(now, visits, job.points, value) and self.round:
            self._offer(job, False, now)

    def rest(self, job: JobState, now: float) -> bool:
        """Training has come to an end here; True: wait for the others."""
        if self.done or job.verdict is None:
            return False
        passing = self.kind == "statistics" and job.verdict.outcome in PASSING_OUTCOMES
        if (job.verdict.outcome in FATAL_OUTCOMES and not passing) or job.totals.unseen:
            self.done = True
            return False
        self._resting = True
        self._closing = job.verdict.outcome != "converged" and not passing
        self._tell(job, "resting")
        if self._closing:
            job.out.append(SetTimer(now + self._silence, Timer("group", 1)))
        if self.round:
            self._offer_at_rest(job, now)
        return True

    def _offer_at_rest(self, job: JobState, now: float) -> None:
        before, value = self._rested_at, job.objective
        tolerance = job.criteria.tolerance or 0.0
        same = before is not None and value is not None and abs(value - before) <= tolerance * max(abs(before), 1e-300)
        self._rested_at = value
        same = same and self._moved_by(pytree.flatten(job.store.own_statistics())) <= math.sqrt(tolerance)
        self._offer(job, self._closing or same or self.kind == "parameters", now)

    def _moved_by(self, statistics: list[Array]) -> float:
        """The largest relative change of a field since the last contribution. The objective alone does not tell: groups
        that answer each other in turn may come back to the same one."""
        if not self._last:
            return math.inf
        pairs = zip(statistics, self._last, strict=True)
        sizes = [(float(np.linalg.norm(a - b)), float(np.linalg.norm(b))) for a, b in pairs]
        return max((apart / max(size, 1e-300) for apart, size in sizes if apart), default=0.0)

    def _offer(self, job: JobState, settled: bool, now: float) -> None:
        """Send the other groups copies of the statistics or, for additive parameters, what changed since the last
        exchange."""
        self._schedule.sent(now)
        self._tell(job, "resting" if self._resting else "training")  # workers and load of now
        store = job.store
        theta = tuple(np.array(a) for a in pytree.flatten(store.parameter))
        if self.kind == "statistics":
            arrays = self._last = tuple(np.array(a) for a in pytree.flatten(store.own_statistics()))
        else:
            self._sent, self._sent_visits = self._additive(job), self._visits
            arrays, theta = tuple(less(self._sent, self._base)), ()
        offer = Offered(
            self.round, arrays, theta, self._visits, job.points, settled, job.objective, self._schedule.commits
        )
        job.out.append(ToGroup(offer))

    def _additive(self, job: JobState) -> list[Array]:
        return additive_fields(job.algorithm, job.store.parameter) if self.kind == "parameters" else []

    def _tell(self, job: JobState, state: str) -> None:
        workers = len(job.view.workers)
        job.out.append(ToGroup(StatusChanged(state, self._schedule.commits, workers, float(workers))))

    # -- what comes back -----------------------------------------------------------------------------------

    def heard(self, job: JobState, event: FromGroup | Timer, now: float) -> GroupStep:
        """A result, a joiner, or that waiting is over."""
        match event:
            case FromGroup(Synchronized() as result):
                return self._synchronized(job, result, now)
            case FromGroup(RoundOpened(round_)):
                self.round = round_
                self._schedule.opened(now)
                if self._resting:
                    self._offer_at_rest(job, now)
            case FromGroup(GroupJoined(group)):
                self._schedule.joined(now)
                job.out.append(Note(f"group {group} joined"))
                job.news.append(f"group {group} joined")
            case FromGroup(GroupLost(group, why)):
                self._group_lost(job, group, why)
            case FromGroup(Waiting(why, line)):
                job.waits_for = why
                if line:
                    job.out.append(Note(f"this group {why}"))
            case FromGroup(Remark(text)):
                job.out.append(Note(text))
            case FromGroup(Stalled(why)) if self._resting and self._closing:
                return self._end(job, why, job.verdict)
            case FromGroup(Stalled(why)) if self._resting:
                told = f"this group ended without the others: {why}"
                return self._end(job, told, Verdict(False, told, "unsynchronized"))
            case FromGroup(Excluded(why)):
                return self._end(job, why, Verdict(False, why, "stopped"))
            case Timer("group", 1) if self._resting and self._closing:
                return self._end(job, "the other groups did not synchronize in time", job.verdict)
            case Timer("group", 0) if self._resting and self.round:
                self._offer_at_rest(job, now)
            case _:
                pass
        return GroupStep.NOTHING

    def evaluate(self, job: JobState, own: Sequence[Array]) -> None:
        """Tell the other groups what the last θ is worth on the rows of this one."""
        job.out.append(ToGroup(Evaluated(tuple(own))))

    def ends_heard(self, event: EndsHeard) -> list[tuple[Array, ...]]:
        """Statistics of all rows of other groups under the last θ."""
        self.evaluated = tuple(sorted(event.statistics))
        self.together = self.together and len(self.evaluated) + 1 >= len(self.groups)
        return [event.statistics[group] for group in self.evaluated]

    def without(self) -> list[str]:
        """Sentences on groups that are not part of the model any more, for the result."""
        return [
            f"group {group} {why}; {_OUTCOMES[self.kind]}"
            for group, why in sorted(self.lost.items())
            if group not in self.groups
        ]

    def _group_lost(self, job: JobState, group: str, why: str) -> None:
        self.lost[group] = why
        told = f"group {group} {why}; {_OUTCOMES[self.kind]}"
        job.out.append(Note(told))
        job.news.append(told)

    def _end(self, job: JobState, why: str, verdict: Verdict | None) -> GroupStep:
        job.out.append(Note(why))
        self.done, job.waits_for = True, ""
        job.verdict = verdict
        return GroupStep.END

    def _synchronized(self, job: JobState, result: Synchronized, now: float) -> GroupStep:
        """A round of groups is complete: apply it, and train on, rest or end."""
        comparable = result.groups == self.groups
        self.round, self.groups, self.rounds = result.round + 1, result.groups, self.rounds + 1
        self._schedule.opened(now, comparable)
        if why := self._schedule.explain():
            job.out.append(Note(f"interval between groups: {why}"))
        if job.phase == "over" or self.done:
            return GroupStep.NOTHING
        over = self._resting and (result.final or self._closing)
        changed = self._apply(job, result, over)
        if not self._resting:
            return GroupStep.CHANGED if changed else GroupStep.NOTHING
        if over:
            self.done = True
            self._update(job)
            self.agreed, self.together = result.final, result.together
            if result.final and job.verdict is not None and job.verdict.outcome == "converged":
                others = f"all {len(result.groups)} groups are at rest"
                job.verdict = Verdict(True, f"{others}; {job.verdict.reason}", "converged")
            return GroupStep.END
        if not changed:
            job.out.append(SetTimer(now + active().groups.contribute_again_seconds, Timer("group", 0)))
            return GroupStep.NOTHING
        self._resting = False
        self._update(job)
        self._tell(job, "training")
        return GroupStep.RESUME

    def _apply(self, job: JobState, result: Synchronized, over: bool) -> bool:
        """Take over the statistics or θ of a round; returns whether that changed anything. What was trained since
        stays in θ."""
        store = job.store
        if self.kind == "statistics":
            if not job.iteration and result.parameter:
                self._start_from(job, result.parameter)
            return store.set_remote(result.remote)
        fields = list(result.parameter)
        now = self._additive(job)
        since = self._sent if result.included else self._base
        new = [np.array(a) for a in fields] if over and result.included else moved(fields, now, since)
        if result.included:
            self._visits -= self._sent_visits
        self._base, self._sent = [np.array(a) for a in fields], []
        theta = store.parameter
        replaced = iter(new)
        named = zip(pytree.names(theta), pytree.flatten(theta), strict=True)
        chosen = [
            next(replaced) if name in job.algorithm.placement.additive or not pytree.is_bundle(theta) else a
            for name, a in named
        ]
        changed = any(not np.array_equal(a, b) for a, b in zip(new, now, strict=True))
        store.set_parameter(pytree.unflatten(theta, chosen))
        return changed

    def _start_from(self, job: JobState, parameter: tuple[Array, ...]) -> None:
        """A joiner begins with θ of those who are there."""
        own = pytree.flatten(job.store.parameter)
        if [a.shape for a in own] == [a.shape for a in parameter] and all(np.isfinite(a).all() for a in parameter):
            fresh = [np.array(a, dtype=o.dtype) for a, o in zip(parameter, own, strict=True)]
            job.store.set_parameter(pytree.unflatten(job.store.parameter, fresh))

    def _update(self, job: JobState) -> None:
        """θ and objective from the statistics of all groups, at rest."""
        if self.kind != "statistics":
            return
        folded = job.store.fold(Fold(0, (), (), job.place))
        if folded is not None and not folded.diverged:
            job.objective = folded.objective
