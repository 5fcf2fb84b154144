"""One simulated site: the real state machine of a group and the real exchange over a toy job, on virtual time.

`VirtualSite` is what all simulated sites have in common (`training.py` has those that train). Of a `SimulatedSite` a
commit adds 1 to the group's own component, in statistics or in θ. So what a contribution holds can be compared with
what was done: nothing may be lost, and nothing counted twice. A site with a last commit comes to rest there, as one
that has converged or has reached a limit, and ends when the exchange says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from flegel.algorithm import Algorithm
from flegel.core.pytree import Array
from flegel.declarations.placement import ParameterPlacement
from flegel.declarations.statistics import Statistics
from flegel.job import Criteria
from flegel.machine.coordinator.events import SetTimer, Timer, TraceRow
from flegel.machine.coordinator.state import JobState
from flegel.machine.group.events import (
    Answered,
    Fenced,
    FromGroup,
    GroupEvent,
    Offered,
    SendHint,
    StatusChanged,
    StoreCommand,
    Synchronized,
    TimePassed,
    ToGroup,
)
from flegel.machine.group.exchange import GroupExchange, GroupStep
from flegel.machine.group.group import Group, GroupSettings
from flegel.machine.group.schedule import Every
from flegel.params.local import LocalStore
from flegel.params.protocol import Fold
from flegel.plan.termination import FAILED_OUTCOMES, Verdict

SHORTEST_WAIT = 0.01  # seconds between two looks of a site
StoreCall = Callable[[StoreCommand, float, Callable[[Answered, float], None]], None]


class StepCounts(NamedTuple):
    """Commits by group."""

    steps: Array


class CountedSteps(Algorithm):
    """θ counts the commits of every group; its statistics are kept."""

    def updateParameter(self, aggregator: StepCounts, oldParameter: Array) -> Array:
        return np.asarray(aggregator.steps)

    def objective(self, aggregator: StepCounts, parameter: Array) -> float:
        return float(np.sum(parameter))


class SpentSteps(CountedSteps):
    """The same with statistics that are used up, so that θ is exchanged."""

    statistics = Statistics(spent=("steps",))

    def updateParameter(self, aggregator: StepCounts, oldParameter: Array) -> Array:
        return np.asarray(oldParameter) + aggregator.steps


class SpentStepsOfGroups(SpentSteps):
    placement = ParameterPlacement(additive=("value",))


@dataclass(frozen=True)
class LastCommit:
    """After so many commits a site has converged, or has reached a limit of its own."""

    commits: int
    limit: bool = False


class VirtualSite:
    """A group on virtual time, whatever its job is: the real state machine, exchange and store. `call` does a store
    call; `told` hears what it offers and applies; `at` is called to have something done later."""

    def __init__(
        self,
        settings: GroupSettings,
        job: JobState,
        exchange: GroupExchange,
        machine: Group,
        call: StoreCall,
        told: Callable[[Any, Offered | Synchronized, float], None],
        hint: Callable[[Any, bytes, float], None] | None = None,
        at: Callable[[float, Callable[[float], None]], None] | None = None,
    ) -> None:
        self.settings, self.job, self.exchange, self.machine = settings, job, exchange, machine
        self.alive = True
        self._call, self._told, self._hint, self._at = call, told, hint, at
        self.ended = ""
        """How it ended, in one word; empty while it has not."""
        self.applied = 0
        """The round that was applied last."""
        self._wakes_at = -math.inf

    def begin(self, now: float) -> None:
        self.exchange.begin(self.job)
        self._flush(now)

    def stopped_until(self, now: float) -> float:
        """`now` where this site runs; otherwise when it goes on."""
        return now

    def _plan_wake(self, now: float) -> None:
        """Every event may make it due to look again sooner, such as an answer of the store."""
        if self._at is None or not self.alive or (self.ended and self.machine.over):
            return
        soon = max(self.machine.next_at(now), now + SHORTEST_WAIT)
        if self._wakes_at <= now or soon < self._wakes_at:
            self._wakes_at = soon
            self._at(soon, self._come)

    def _come(self, now: float) -> None:
        if now != self._wakes_at or not self.alive:
            return  # it was planned anew
        goes_on = self.stopped_until(now)
        if goes_on > now and self._at is not None:
            self._wakes_at = goes_on
            self._at(goes_on, self._come)
        else:
            self.handle(TimePassed(), now)

    def _followed(self, step: GroupStep, now: float) -> None:
        """What the coordinator would do after news of other groups."""
        if step is GroupStep.RESUME:
            self.job.phase, self.job.verdict = "training", None
        elif step is GroupStep.END and self.job.verdict is not None:
            self._conclude(self.job.verdict.outcome, now)

    def _conclude(self, outcome: str, now: float) -> None:
        self.ended, self.job.phase = outcome, "over"
        self._flush(now)
        self.handle(StatusChanged("left" if outcome in FAILED_OUTCOMES else "finished"), now)

    def wake(self, now: float) -> float:
        """Time has passed; when to come again."""
        self.handle(TimePassed(), now)
        return self.machine.next_at(now)

    def handle(self, event: GroupEvent, now: float) -> None:
        for command in self.machine.handle(event, now):
            if isinstance(command, StoreCommand):
                self._call(command, now, self._answered)
                continue
            if isinstance(command, SendHint):
                if self._hint is not None:
                    self._hint(self, command.content, now)
                continue
            if self.ended:
                continue
            if isinstance(command, Fenced):
                self._conclude("replaced", now)
                continue
            step = self.exchange.heard(self.job, FromGroup(command), now)
            if isinstance(command, Synchronized):
                self.applied = command.round
                self._told(self, command, now)
            self._followed(step, now)
        if self.job.out:
            self._flush(now)
        self._plan_wake(now)

    def _timer(self, timer: Timer, now: float) -> None:
        if self.alive and not self.ended:
            self._followed(self.exchange.heard(self.job, timer, now), now)
            self._flush(now)

    def _answered(self, answer: Answered, now: float) -> None:
        goes_on = self.stopped_until(now)
        if goes_on > now and self._at is not None:
            self._at(goes_on, lambda t: self._answered(answer, t))
        elif self.alive:
            self.handle(answer, now)

    def _flush(self, now: float) -> None:
        commands, self.job.out = self.job.out, []
        for command in commands:
            if isinstance(command, ToGroup):
                if isinstance(command.body, Offered):
                    self._told(self, command.body, now)
                self.handle(command.body, now)
            elif isinstance(command, SetTimer) and self._at is not None:
                self._at(command.at, lambda t, timer=command.timer: self._timer(timer, t))  # type: ignore[misc]


class SimulatedSite(VirtualSite):
    """A group that commits in its own rhythm, and counts its commits."""

    def __init__(
        self,
        settings: GroupSettings,
        index: int,
        groups: int,
        every: int,
        now: float,
        call: StoreCall,
        told: Callable[[SimulatedSite, Offered | Synchronized, float], None],
        make: type[Group] = Group,
        hint: Callable[[SimulatedSite, bytes, float], None] | None = None,
        wire: str = "full",
        last: LastCommit | None = None,
        at: Callable[[float, Callable[[float], None]], None] | None = None,
    ) -> None:
        """`last`: where training ends here; `at` is then called to have something done later."""
        kept = settings.exchange == "statistics"
        algorithm: Algorithm = CountedSteps() if kept else SpentStepsOfGroups()
        numbers = groups * settings.fragments  # each fragment counts the commits of every group
        theta, zero = np.zeros(numbers), StepCounts(np.zeros(numbers))
        self.own = slice(index, None, groups)
        self.index, self.frozen_until = index, now
        self.store = LocalStore(algorithm, theta, zero)
        base: Sequence[Array] = [] if kept else [np.zeros(numbers)]
        super().__init__(
            settings,
            JobState(algorithm, cast("Any", None), Criteria(), self.store, phase="training"),
            GroupExchange(
                algorithm,
                Every(commits=every * settings.fragments),  # of each fragment
                settings.silence,
                base,
                wire=wire if base else "full",
                fragments=settings.fragments,
            ),
            make(settings, [(numbers,)], base, now),
            call,
            told,
            hint,
            at,
        )
        self.commits = 0
        self._last = last
        self.begin(now)

    @property
    def life(self) -> tuple[str, int]:
        return self.settings.name, self.settings.life

    def stopped_until(self, now: float) -> float:
        return max(self.frozen_until, now)

    def commit(self, now: float) -> None:
        """A barrier of the group, whatever its bucket does."""
        if self.ended or self.job.phase == "resting":
            return
        if self._last is not None and self.commits >= self._last.commits:
            self._come_to_rest(self._last, now)
            return
        self.commits += 1
        change = np.zeros_like(self.store.parameter)
        change[self.own] = 1.0
        self.store.fold(Fold(self.commits, (0,), (StepCounts(change),), "a commit"))
        self.job.iteration += 1
        self.job.trace = [TraceRow(now, self.commits, None, None, None, 1, 0.0, "")]
        self.exchange.at_commit(self.job, now)
        self._flush(now)

    def _come_to_rest(self, last: LastCommit, now: float) -> None:
        self.job.objective = float(np.sum(self.store.parameter))
        outcome = "limit" if last.limit else "converged"
        self.job.verdict, self.job.phase = Verdict(not last.limit, "the last commit", outcome), "resting"
        self.exchange.rest(self.job, now)
        self._flush(now)
