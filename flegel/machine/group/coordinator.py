"""The coordinator of a job that trains together with other groups: rests when it has converged, hears of the others.

Life cycle:   … → training ⇄ resting → auditing → evaluating → … → over. Everything else is that of `Coordinator`.

The objective of the result is that of its θ over all rows that were evaluated under this very θ: those of this group,
and of the others where training ended in all of them with one result (evaluating). Pure.
"""

from __future__ import annotations

from typing import Any

from flegel.errors import GroupReplaced
from flegel.machine.coordinator import events
from flegel.machine.coordinator.coordinator import Coordinator
from flegel.machine.coordinator.events import Event, FromGroup, SetTimer, Timer
from flegel.machine.group.events import EndsHeard, Fenced
from flegel.machine.group.exchange import GroupExchange, GroupStep
from flegel.plan.termination import Verdict
from flegel.sync.policy import Started, Updated

LONGEST_EVALUATION = 660.0  # seconds: longer than the group itself waits for the others


class GroupCoordinator(Coordinator):
    """A coordinator with one part more, the exchange."""

    def __init__(self, exchange: GroupExchange, **parts: Any) -> None:
        super().__init__(**parts)
        self.exchange = exchange

    def _begin(self, now: float) -> None:
        super()._begin(now)
        if self.state.phase == "training":
            self.exchange.begin(self.state)

    def _route(self, event: Event, now: float) -> None:
        match event:
            case FromGroup(Fenced(why)):
                self._finish(GroupReplaced(why))
            case FromGroup(EndsHeard() as heard):
                self._evaluated(heard, now)
            case Timer("evaluating"):
                self._evaluated(EndsHeard({}), now)
            case FromGroup() | Timer("group"):
                self._on_group(event, now)
            case events.EndJob(why) if self.state.phase == "resting":
                self._end(Verdict(False, why, "stopped"), now)
            case _:
                super()._route(event, now)

    def _proceed(self, event: Updated, now: float) -> None:
        self.exchange.at_commit(self.state, now)
        super()._proceed(event, now)

    def _end(self, verdict: Verdict, now: float) -> None:
        """A limit, or somebody who wants the end, also ends a rest."""
        if self.state.phase == "resting":
            self.exchange.done, self.state.verdict = True, verdict
            self._over(now)
        else:
            super()._end(verdict, now)

    def _over(self, now: float) -> None:
        """Training has come to an end here; it is over when it has in the other groups too."""
        self.state.ended = now
        if self.exchange.rest(self.state, now):
            self.state.phase = "resting"
        else:
            super()._over(now)

    def _store_last(self, now: float) -> None:
        """The books are checked: what is the last θ worth on all rows?"""
        audit, state = self.audit, self.state
        if audit is None or audit.own_statistics is None:
            return super()._store_last(now)
        if not self.exchange.agreed or state.phase != "auditing":
            audit.evaluate_over(state, [])
            return super()._store_last(now)
        state.phase = "evaluating"
        self.exchange.evaluate(state, audit.own_statistics)
        state.out.append(SetTimer(now + LONGEST_EVALUATION, Timer("evaluating")))
        return None

    def _evaluated(self, heard: EndsHeard, now: float) -> None:
        if self.state.phase == "evaluating" and self.audit is not None:
            self.audit.evaluate_over(self.state, self.exchange.ends_heard(heard))
            super()._store_last(now)

    def _on_group(self, event: FromGroup | Timer, now: float) -> None:
        """News of other groups: their statistics or θ, a joiner, the end."""
        state = self.state
        step = self.exchange.heard(state, event, now)
        if step is not GroupStep.NOTHING:
            self.commits.restart(now)
            self.termination.rebased()
            self.step_back.rebased(state)
        if step is GroupStep.RESUME:
            state.phase, state.verdict = "training", None
            self._decide(Started(), now)
        elif step is GroupStep.END and state.phase == "resting":
            self._over(now)
        elif step is GroupStep.END and state.verdict is not None:
            self._end(state.verdict, now)
