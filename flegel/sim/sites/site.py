"""One simulated site: the real state machine of a group and the real exchange over a toy job, on virtual time.

A commit adds 1 to the group's own component, in statistics or in θ. So what a contribution holds can be compared with
what was done: nothing may be lost, and nothing counted twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from flegel.algorithm import Algorithm
from flegel.core.pytree import Array
from flegel.job import Criteria
from flegel.machine.coordinator.events import FromGroup, ToGroup, TraceRow
from flegel.machine.coordinator.state import JobState
from flegel.machine.group.events import Answered, GroupEvent, Offered, SendHint, StoreCommand, Synchronized, TimePassed
from flegel.machine.group.exchange import GroupExchange
from flegel.machine.group.group import Group, GroupSettings
from flegel.machine.group.schedule import Every
from flegel.params.local import LocalStore
from flegel.params.protocol import Fold


class StepCounts(NamedTuple):
    """Commits by group."""

    steps: Array


class CountedSteps(Algorithm):
    """θ counts the commits of every group; its statistics are kept."""

    def updateParameter(self, aggregator: StepCounts, oldParameter: Array) -> Array:
        return np.asarray(aggregator.steps)


class SpentSteps(CountedSteps):
    """The same with statistics that are used up, so that θ is exchanged."""

    spent = ("steps",)

    def updateParameter(self, aggregator: StepCounts, oldParameter: Array) -> Array:
        return np.asarray(oldParameter) + aggregator.steps


class SpentStepsOfGroups(SpentSteps):
    additive = ("value",)


class SimulatedSite:
    """A group that commits in its own rhythm. `call` does a store call; `told` hears what it offers and applies."""

    def __init__(
        self,
        settings: GroupSettings,
        index: int,
        groups: int,
        every: int,
        now: float,
        call: Callable[[StoreCommand, float, Callable[[Answered, float], None]], None],
        told: Callable[[SimulatedSite, Offered | Synchronized, float], None],
        make: type[Group] = Group,
        hint: Callable[[SimulatedSite, bytes, float], None] | None = None,
    ) -> None:
        kept = settings.exchange == "statistics"
        algorithm: Algorithm = CountedSteps() if kept else SpentStepsOfGroups()
        theta, zero = np.zeros(groups), StepCounts(np.zeros(groups))
        self.settings, self.index, self.alive, self.frozen_until = settings, index, True, now
        self.store = LocalStore(algorithm, theta, zero)
        self.job = JobState(algorithm, cast("Any", None), Criteria(), self.store, phase="training")
        base: Sequence[Array] = [] if kept else [np.zeros(groups)]
        self.exchange = GroupExchange(algorithm, Every(commits=every), settings.silence, base)
        self.machine = make(settings, [(groups,)], base, now)
        self.commits = 0
        self._call, self._told, self._hint = call, told, hint
        self.exchange.begin(self.job)
        self._flush(now)

    @property
    def life(self) -> tuple[str, int]:
        return self.settings.name, self.settings.life

    def commit(self, now: float) -> None:
        """A barrier of the group, whatever its bucket does."""
        self.commits += 1
        change = np.zeros_like(self.store.parameter)
        change[self.index] = 1.0
        self.store.fold(Fold(self.commits, (0,), (StepCounts(change),), "a commit"))
        self.job.iteration += 1
        self.job.trace = [TraceRow(now, self.commits, None, None, None, 1, 0.0, "")]
        self.exchange.at_commit(self.job, now)
        self._flush(now)

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
            self.exchange.heard(self.job, FromGroup(command), now)
            if isinstance(command, Synchronized):
                self._told(self, command, now)
        if self.job.out:
            self._flush(now)

    def _answered(self, answer: Answered, now: float) -> None:
        if self.alive:
            self.handle(answer, now)

    def _flush(self, now: float) -> None:
        commands, self.job.out = self.job.out, []
        for command in commands:
            if isinstance(command, ToGroup):
                if isinstance(command.body, Offered):
                    self._told(self, command.body, now)
                self.handle(command.body, now)
