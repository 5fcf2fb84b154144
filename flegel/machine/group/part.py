"""Groups as a part of a coordinator: it contributes at barriers, and waits for the others at its end. Pure.

Life cycle:   … → training ⇄ resting → auditing → evaluating → … → over.

The objective of the result is that of its θ over all rows that were evaluated under this very θ: those of this group,
and of the others where training ended in all of them with one result (evaluating).
"""

from __future__ import annotations

from flegel.configuration.active import active
from flegel.errors import GroupReplaced
from flegel.machine.coordinator.events import SetTimer, Timer
from flegel.machine.coordinator.part import CoordinatorPart, EndingStep
from flegel.machine.group.events import EndsHeard, Fenced, FromGroup
from flegel.machine.group.exchange import GroupExchange, GroupStep
from flegel.plan.termination import Verdict
from flegel.sync.policy import Started, Updated


class GroupPart(CoordinatorPart):
    """Trains one job together with those of other groups."""

    name = "groups"
    events = (FromGroup,)
    timers = ("group", "evaluating")

    def __init__(self, exchange: GroupExchange) -> None:
        self.exchange = exchange

    def begun(self, now: float) -> None:
        if self.coordinator.state.phase == "training":
            self.exchange.begin(self.coordinator.state)

    def before_model(self, event: Updated, now: float) -> bool:
        self.exchange.at_commit(self.coordinator.state, now)
        return False

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
        step = self.exchange.heard(state, event, now)
        if step is not GroupStep.NOTHING:
            job.commits.restart(now)
            job.termination.rebased()
            job.step_back.rebased(state)
        if step is GroupStep.RESUME:
            state.phase, state.verdict = "training", None
            job.decide(Started(), now)
        elif step is GroupStep.END and state.phase == "resting":
            job.over(now)
        elif step is GroupStep.END and state.verdict is not None:
            job.end(state.verdict, now)

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
