"""Groups as a part of a coordinator: it contributes at barriers, and waits for the others at its end. Pure.

Life cycle:   … → training ⇄ resting → auditing → evaluating → … → over.

The objective of the result is that of its θ over all rows that were evaluated under this very θ: those of this group,
and of the others where training ended in all of them with one result (evaluating).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from flegel.configuration.active import active
from flegel.errors import GroupReplaced
from flegel.machine.coordinator.events import Note, SetTimer, Timer
from flegel.machine.coordinator.part import CoordinatorPart, EndingStep
from flegel.machine.group.events import EndsHeard, Fenced, FromGroup, Stalled
from flegel.machine.group.exchange import GroupExchange, GroupStep
from flegel.plan.termination import Verdict
from flegel.sync.policy import Started, Updated


class GroupPart(CoordinatorPart):
    """Trains one job together with those of other groups."""

    name = "groups"
    events = (FromGroup,)
    timers = ("group", "evaluating")
    needs_every_report = True

    def __init__(self, exchange: GroupExchange, waits: bool = False, longest_wait: float = 0.0) -> None:
        """`waits`: nobody trains from a contribution until its result has come, for `longest_wait` seconds at most; the
        paper's global barrier. Otherwise groups train on meanwhile."""
        self.exchange = exchange
        self._waits, self._longest_wait = waits, longest_wait
        self._held: Updated | None = None
        """What the model will hear when the result has come."""

    def begun(self, now: float) -> None:
        if self.coordinator.state.phase == "training":
            self.exchange.begin(self.coordinator.state)

    def before_model(self, event: Updated, now: float) -> bool:
        state = self.coordinator.state
        self.exchange.at_commit(state, now)
        if not (self._waits and self.exchange.awaits_result):
            return False
        self._held = event
        state.reason = f"waits for the result of round {self.exchange.round} of all groups"
        state.out.append(SetTimer(now + self._longest_wait, Timer("group", -self.exchange.round)))
        return True

    def workers_changed(self, now: float) -> None:
        self._held = None  # training begins anew

    def seen(self) -> Mapping[str, Any]:
        found = self.exchange.seen
        if found is None:
            return {}
        return {"sites": msgspec.structs.replace(found, why=self.exchange.why_ended)}

    def happened(self, event: FromGroup | Timer, now: float) -> None:
        """Route what the group's thread says: replaced by another process, final statistics of the groups, or news of
        rounds."""
        match event:
            case FromGroup(Fenced(why)):
                self.coordinator.finish(GroupReplaced(why))
            case FromGroup(EndsHeard() as heard):
                self._evaluated(heard, now)
            case Timer("evaluating"):
                self._evaluated(EndsHeard({}), now)
            case _:
                self._on_news(event, now)

    def _on_news(self, event: FromGroup | Timer, now: float) -> None:
        """News of other groups: their statistics or θ, a joiner, the end."""
        job, state = self.coordinator, self.coordinator.state
        if self._held is not None and self._given_up(event):
            state.out.append(Note("the other groups did not synchronize in time; this group trains on"))
            return self._go_on(now)
        step = self.exchange.heard(state, event, now)
        if step is not GroupStep.NOTHING:
            job.commits.restart(now)
            job.termination.rebased()
            job.step_back.rebased(state)
        if self._held is not None and not self.exchange.awaits_result and step is not GroupStep.END:
            self.exchange.go_on(state)
            self._go_on(now)
        elif step is GroupStep.RESUME:
            state.phase, state.verdict = "training", None
            job.decide(Started(), now)
        elif step is GroupStep.END and state.phase == "resting":
            job.over(now)
        elif step is GroupStep.END and state.verdict is not None:
            job.end(state.verdict, now)

    def _given_up(self, event: FromGroup | Timer) -> bool:
        """The wait for a result is over without one."""
        match event:
            case Timer("group", tag):
                return tag == -self.exchange.round and self.exchange.awaits_result
            case FromGroup(Stalled()):
                return True
        return False

    def _go_on(self, now: float) -> None:
        """Training goes on after the wait, unless it has ended meanwhile or goes on already."""
        held, self._held = self._held, None
        state = self.coordinator.state
        if held is not None and self.coordinator.steady and not state.view.training():
            self.coordinator.commits.restart(now)
            self.coordinator.decide(held, now)

    def end_wait(self, verdict: Verdict, now: float) -> bool:
        """A limit, or somebody who wants the end, also ends a rest."""
        state = self.coordinator.state
        if state.phase != "resting":
            return False
        self.exchange.done, state.verdict = True, verdict
        self.coordinator.over(now)
        return True

    def endings(self) -> dict[str, EndingStep]:
        return {"agree": self._agree, "evaluate": self._evaluate}

    def _agree(self, now: float) -> bool:
        """Training has come to an end here; it is over when it has in the other groups too."""
        rests = self.exchange.rest(self.coordinator.state, now)
        if rests:
            self.coordinator.state.phase = "resting"
        return rests

    def _evaluate(self, now: float) -> bool:
        """All points of this group are counted under the last θ: what is that worth on the rows of all groups?"""
        state = self.coordinator.state
        count = state.final_count
        if count is None or count.own_statistics is None:
            return False
        if not self.exchange.agreed or state.phase != "auditing":
            count.evaluate_over(state, [])
            return False
        state.phase = "evaluating"
        self.exchange.evaluate(state, count.own_statistics)
        state.out.append(SetTimer(now + active().groups.wait_for_evaluation_seconds, Timer("evaluating")))
        return True

    def _evaluated(self, heard: EndsHeard, now: float) -> None:
        state = self.coordinator.state
        if state.phase == "evaluating" and state.final_count is not None:
            state.final_count.evaluate_over(state, self.exchange.ends_heard(heard))
            self.coordinator.continue_ending(now)
