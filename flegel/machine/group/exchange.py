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
from flegel.core.precision import SMALLEST_DIVISOR
from flegel.core.pytree import Array, Tree
from flegel.errors import UsageError
from flegel.machine.coordinator.events import Note, SetTimer, Timer
from flegel.machine.coordinator.observation import SitesSnapshot
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
    SitesSeen,
    Stalled,
    StatusChanged,
    Synchronized,
    ToGroup,
    Waiting,
    Withheld,
)
from flegel.machine.group.fragments import ALL_FRAGMENTS
from flegel.machine.group.link_meter import WireFinder
from flegel.machine.group.outliers import told_outliers
from flegel.machine.group.pending_change import PendingChange, VisitCounts
from flegel.machine.group.quorum import ages_told
from flegel.machine.group.schedule import Every, SendSchedule
from flegel.params.protocol import Fold
from flegel.plan.termination import Verdict

FATAL_OUTCOMES = ("diverged", "unsound", "stuck", "worse")
PASSING_OUTCOMES = ("stuck", "worse", "stalled")
"""Where statistics are exchanged, these hold only until those of other groups arrive."""


_OUTCOMES = {
    "leaving": "the next round is without its rows",
    "left out": "its rows are not in the model",
    "absent": "its last statistics stand",
    "parameters": "its rows are no longer trained on, and what it sent before stays in the model",
}
"""Of the loss of a group: `leaving` when it is noticed, the others in the result as well."""


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
        f"{type(algorithm).__name__} cannot be trained by groups: its statistics are used up at each barrier, and "
        f"{algorithm.placement.not_additive}."
    )


def additive_fields(algorithm: Algorithm, theta: Tree) -> list[Array]:
    """Copies of the fields of θ that may be added; all of a θ without fields."""
    named = zip(pytree.names(theta), pytree.flatten(theta), strict=True)
    return [np.array(a) for name, a in named if name in algorithm.placement.additive or not pytree.is_bundle(theta)]


class GroupExchange:
    """One group as its coordinator sees it."""

    def __init__(
        self,
        algorithm: Algorithm,
        every: Every,
        silence: float,
        base: Sequence[Array] = (),
        least_rows: int = 1,
        wire: str = "full",
        fragments: int = 1,
    ) -> None:
        """`base`: additive fields of the θ(0) that all groups began with, where θ is exchanged. `least_rows`: nothing
        that tells of fewer rows is sent. `fragments`: parts of θ, one of which is exchanged in a round; `every` is
        about all of θ."""
        self._least_rows, self.form = least_rows, WireFinder(wire)
        self.withheld = 0
        """Contributions that were not sent because they tell of too few rows."""
        self.kind = exchange_of(algorithm)
        self._change = PendingChange(base, fragments)
        self._schedule = SendSchedule(every.of_part(self._change.fragments.count))
        self._silence = silence
        self.round = 0
        """The round that is open; 0 while that is not known."""
        self.done = False
        """Training is over for this group."""
        self.groups: tuple[str, ...] = ()
        """Those of the last result."""
        self.rounds = 0
        self.awaits_result = False
        """This group has contributed to the open round while it trains, and the result has not come."""
        self.agreed = False
        """Training ended with the last result in every group that is in it: all of them have this θ."""
        self.together = False
        """And nobody ended before that, was lost or is missing, as far as this group knows."""
        self.lost: dict[str, str] = {}  # what happened to groups that are not waited for and have not come back
        self._joined: set[str] = set()  # other groups that ever took part
        self.ages: dict[str, int] = {}
        """Rounds by which contributions to the last result are older than it, where they are."""
        self.outliers: dict[str, int] = {}
        """How often the change of a group was an outlier."""
        self.seen: SitesSnapshot | None = None  # the groups as they were last seen
        self.why_ended = ""  # the last round, where a quorum ended it
        self.excluded = False
        """Its model was not good enough too often: what it has sent is taken out of the model."""
        self.evaluated: tuple[str, ...] = ()
        """Other groups whose rows are in the objective that is reported."""
        self._is_closing = self._is_resting = False
        self._objective_at_rest: float | None = None
        """Objective when this group last rested."""
        self._fragment = 0  # of θ that the open round is for
        self._sent_statistics: tuple[Array, ...] = ()
        """The statistics that were sent last."""
        self._visits = VisitCounts(self._change.fragments.count)

    @property
    def fragments(self) -> int:
        """Parts of θ, one of which is exchanged in a round."""
        return self._change.fragments.count

    # -- what goes out -------------------------------------------------------------------------------------

    def begin(self, job: JobState) -> None:
        """Training begins."""
        self._tell(job, "training")

    def at_commit(self, job: JobState, now: float) -> None:
        """θ is new: contribute where it is time."""
        visits = job.trace[-1].visits if job.trace else 0
        self._visits.made(visits)
        value = job.objective if job.objective is None or not job.algorithm.learning.maximize else -job.objective
        if self._schedule.commit(now, visits, job.points, value) and self.round:
            self._offer(job, settled=False, now=now)
            self.awaits_result = True

    def rest(self, job: JobState, now: float) -> bool:
        """Training has come to an end here; True: wait for the others."""
        if self.done or job.verdict is None:
            return False
        passing = self.kind == "statistics" and job.verdict.outcome in PASSING_OUTCOMES
        if (job.verdict.outcome in FATAL_OUTCOMES and not passing) or job.totals.unseen:
            self.done = True
            return False
        self._is_resting = True
        self._is_closing = job.verdict.outcome != "converged" and not passing
        self._tell(job, "resting")
        if self._is_closing:
            job.out.append(SetTimer(now + self._silence, Timer("group", 1)))
        if self.round:
            self._offer_at_rest(job, now)
        return True

    def _offer_at_rest(self, job: JobState, now: float) -> None:
        before, value = self._objective_at_rest, job.objective
        tolerance = job.criteria.tolerance or 0.0
        same = (
            before is not None
            and value is not None
            and abs(value - before) <= tolerance * max(abs(before), SMALLEST_DIVISOR)
        )
        self._objective_at_rest = value
        same = same and self._moved_by(pytree.flatten(job.store.own_statistics())) <= math.sqrt(tolerance)
        self._offer(job, self._is_closing or same or self.kind == "parameters", now)

    def _moved_by(self, statistics: list[Array]) -> float:
        """The largest relative change of a field since the last contribution. The objective alone does not tell: groups
        that answer each other in turn may come back to the same one."""
        if not self._sent_statistics:
            return math.inf
        pairs = zip(statistics, self._sent_statistics, strict=True)
        sizes = [(float(np.linalg.norm(a - b)), float(np.linalg.norm(b))) for a, b in pairs]
        return max((apart / max(size, SMALLEST_DIVISOR) for apart, size in sizes if apart), default=0.0)

    def _offer(self, job: JobState, settled: bool, now: float) -> None:
        """Send the other groups copies of the statistics or, for additive parameters, what changed since the last
        exchange."""
        if self._change.is_pending:
            return  # it was late, and is counted in a later round; what was learned since follows after that
        self._schedule.sent(now)
        self._tell(job, "resting" if self._is_resting else "training")  # workers and load of now
        fragment = ALL_FRAGMENTS if settled or self.fragments == 1 else self._fragment
        covered = self._change.fragments.of(fragment)
        visits = self._visits.of(covered)
        if self._least_rows > 1 and self._rows_told(job, visits) < self._least_rows:
            self._withhold(job, visits)
            return
        store = job.store
        theta = tuple(np.array(a) for a in pytree.flatten(store.parameter))
        changed: tuple[float, ...] = ()
        if self.kind == "statistics":
            arrays = self._sent_statistics = tuple(np.array(a) for a in pytree.flatten(store.own_statistics()))
        else:
            changes, changed = self._change.of(fragment, self._additive(job))
            if told := self.form.next(sum(change.size for change in changes), now):
                job.out.append(Note(told))
            arrays, theta = self._change.send(fragment, self.form.readable(changes)), ()
        self._visits.send(covered)
        offer = Offered(
            self.round,
            arrays,
            theta,
            visits,
            job.points,
            settled,
            job.objective,
            self._schedule.commits,
            self.form.wire or "full",
            fragment,
            changed,
        )
        job.out.append(ToGroup(offer))

    def _rows_told(self, job: JobState, visits: float) -> int:
        """Rows of this group that a contribution made now would tell of: those that were visited, for changes of θ
        since the last one."""
        if self.kind == "statistics":
            return job.points - job.totals.unseen
        return int(min(visits, job.points))

    def _withhold(self, job: JobState, visits: float) -> None:
        """Send nothing in this round, and say so the first time."""
        if not self.withheld:
            told = f"it would tell of {self._rows_told(job, visits)} rows, fewer than {self._least_rows}"
            job.out.append(Note(f"nothing was sent to round {self.round}: {told}"))
        self.withheld += 1
        job.out.append(ToGroup(Offered(self.round, (), (), 0.0, 0, False, None, self._schedule.commits)))

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
            case FromGroup(RoundOpened(round_, fragment)):
                self.round, self._fragment, self.awaits_result = round_, fragment, False
                self._schedule.opened(now)
                if self._is_resting:
                    self._offer_at_rest(job, now)
            case FromGroup(GroupJoined(group)):
                self._schedule.joined(now)
                self._joined.add(group)
                self.lost.pop(group, None)
                job.out.append(Note(f"group {group} joined"))
                job.news.append(f"group {group} joined")
            case FromGroup(Withheld()):
                self._change.is_pending = False
            case FromGroup(GroupLost(group, why, stands)):
                self._group_lost(job, group, why, stands)
            case FromGroup(Waiting(why, line)):
                job.waits_for = why
                if line:
                    job.out.append(Note(f"this group {why}"))
            case FromGroup(SitesSeen(seen)):
                self.seen = seen
            case FromGroup(Remark(text)):
                job.out.append(Note(text))
            case FromGroup(Stalled(why)) if self._is_resting and self._is_closing:
                return self._end(job, why, job.verdict)
            case FromGroup(Stalled(why)) if self._is_resting:
                told = f"this group ended without the others: {why}"
                return self._end(job, told, Verdict(converged=False, reason=told, outcome="unsynchronized"))
            case FromGroup(Excluded(why)):
                self.excluded = True
                return self._end(job, why, Verdict(converged=False, reason=why, outcome="excluded"))
            case Timer("group", 1) if self._is_resting and self._is_closing:
                return self._end(job, "the other groups did not synchronize in time", job.verdict)
            case Timer("group", 0) if self._is_resting and self.round:
                self._offer_at_rest(job, now)
            case _:
                pass
        return GroupStep.NOTHING

    def go_on(self, job: JobState) -> None:
        """Training was held until the result had come: θ is that of all groups before anybody trains."""
        if self.kind == "statistics":
            self._update(job)

    def evaluate(self, job: JobState, own_statistics: Sequence[Array]) -> None:
        """Tell the other groups what the last θ is worth on the rows of this one."""
        job.out.append(ToGroup(Evaluated(tuple(own_statistics))))

    def ends_heard(self, event: EndsHeard) -> list[tuple[Array, ...]]:
        """Statistics of all rows of other groups under the last θ."""
        self.evaluated = tuple(sorted(event.statistics))
        self.together = self.together and len(self.evaluated) + 1 >= len(self.groups)
        return [event.statistics[group] for group in self.evaluated]

    @property
    def goodput(self) -> float | None:
        """Of all visits of this group, those that a result of all groups has counted; None before the first visit."""
        return self._visits.goodput

    def without(self) -> list[str]:
        """A sentence on each group that was lost, for the result; where statistics are exchanged also on one that came
        and is not in the last result."""
        absent = self._joined - set(self.groups) if self.kind == "statistics" else ()
        missing = dict.fromkeys(absent, "did not take part in the last round")
        return [f"group {group} {why}; {self._outcome(group)}" for group, why in sorted((missing | self.lost).items())]

    def _outcome(self, group: str) -> str:
        """What the model holds of a group that is not there."""
        if self.kind == "parameters":
            return _OUTCOMES["parameters"]
        return _OUTCOMES["absent" if group in self.groups else "left out"]

    def _group_lost(self, job: JobState, group: str, why: str, stands: bool) -> None:
        self.lost[group] = why
        outcome = "absent" if stands else "leaving" if self.kind == "statistics" else self.kind
        told = f"group {group} {why}; {_OUTCOMES[outcome]}"
        job.out.append(Note(told))
        job.news.append(told)

    def _end(self, job: JobState, why: str, verdict: Verdict | None) -> GroupStep:
        job.out.append(Note(why))
        self.done, self.awaits_result, job.waits_for = True, False, ""
        job.verdict = verdict
        return GroupStep.END

    def _synchronized(self, job: JobState, result: Synchronized, now: float) -> GroupStep:
        """A round of groups is complete: apply it, and train on, rest or end."""
        comparable = result.groups == self.groups
        self.round, self.groups, self.rounds = result.round + 1, result.groups, self.rounds + 1
        self._fragment = result.next_fragment
        self.awaits_result, self.form.link = False, result.link
        self._schedule.opened(now, comparable, joins=not job.iteration)
        self._tell_ages(job, result)
        job.out += [Note(f"round {result.round} of groups: {told}") for told in told_outliers(result.outliers)]
        for group in result.outliers:
            self.outliers[group] = self.outliers.get(group, 0) + 1
        if why := self._schedule.explain():
            job.out.append(Note(f"interval between groups: {why}"))
        if job.phase == "over" or self.done:
            return GroupStep.NOTHING
        partial = result.included and self._change.is_partial
        over = self._is_resting and (result.final or (self._is_closing and not partial))
        changed = self._apply(job, result, over)
        if self._is_resting and self._is_closing and partial:
            self._offer_at_rest(job, now)  # all that was not counted yet, before this group ends
            return GroupStep.NOTHING
        if not self._is_resting:
            return GroupStep.CHANGED if changed else GroupStep.NOTHING
        if over:
            self.done = True
            self._update(job)
            self.agreed = result.final and result.included
            self.together = self.agreed and result.together
            if result.final and job.verdict is not None and job.verdict.outcome == "converged":
                others = f"all {len(result.groups)} groups are at rest"
                job.verdict = Verdict(converged=True, reason=f"{others}; {job.verdict.reason}", outcome="converged")
            return GroupStep.END
        if not changed:
            job.out.append(SetTimer(now + active().groups.contribute_again_seconds, Timer("group", 0)))
            return GroupStep.NOTHING
        self._is_resting = False
        self._update(job)
        self._tell(job, "training")
        return GroupStep.RESUME

    def _tell_ages(self, job: JobState, result: Synchronized) -> None:
        """Note in the trace whose contributions are of earlier rounds, when that changes."""
        if set(result.ages) != set(self.ages):
            why = f" ({result.why})" if result.why else ""
            told = ages_told(result.ages) or "every contribution is of this round again"
            job.out.append(Note(f"round {result.round} of groups: {told}{why}"))
        self.ages, self.why_ended = dict(result.ages), result.why

    def _apply(self, job: JobState, result: Synchronized, over: bool) -> bool:
        """Take over the statistics or θ of a round; returns whether that changed anything. What was trained since
        stays in θ."""
        store = job.store
        if result.included:
            self._visits.counted()
        if self.kind == "statistics":
            if not job.iteration and result.parameter:
                self._start_from(job, result.parameter)
            return store.set_remote(result.remote)
        now = self._additive(job)
        new = self._change.apply(result, now, over)
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
