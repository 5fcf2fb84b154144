"""Checkpoints as a part of a coordinator: when its state is stored, and how a job is suspended. Pure: no file."""

from __future__ import annotations

from typing import Any

from flegel.core.pytree import Array
from flegel.machine.checkpoint import snapshot
from flegel.machine.checkpoint.checkpoint_schedule import CheckpointSchedule
from flegel.machine.checkpoint.events import SaveCheckpointPart, Suspend
from flegel.machine.coordinator.events import SetTimer, Timer
from flegel.machine.coordinator.part import CoordinatorPart, CoordinatorPort, EndingStep
from flegel.messages import CheckpointPart
from flegel.sync.policy import Updated


class CheckpointsPart(CoordinatorPart):
    """Has the state of one job stored."""

    name = "checkpoints"
    answers = (CheckpointPart,)
    timers = ("checkpoint", "force", "leave")
    events = (Suspend,)

    def __init__(self, schedule: CheckpointSchedule) -> None:
        self.schedule = schedule

    def begin(self, now: float, fresh: bool) -> None:
        self.coordinator.state.out.append(SetTimer(now + self.schedule.every, Timer("checkpoint")))

    def happened(self, event: Timer | Suspend, now: float) -> None:
        """A checkpoint is due, or the job is to be suspended: all workers stop for it where the schedule says so."""
        job, state = self.coordinator, self.coordinator.state
        if state.phase not in ("loading", "training") or state.verdict is not None:
            return
        ends = self.schedule.heard(state, event, now, steady=job.membership.steady)
        state.model_waits = self.schedule.forced
        if ends:
            job.finish()
        elif self.schedule.forced:
            job.orders.stop_all(now)

    def before_model(self, event: Updated, now: float) -> bool:
        """Where a checkpoint is due and no worker trains, it is taken before the model decides."""
        state = self.coordinator.state
        self.schedule.at_rest(state, event, now, self.snapshot)
        state.model_waits = self.schedule.forced
        if self.schedule.suspended:
            state.phase = "checkpointing"
        return self.schedule.suspended

    def lost(self, worker: int) -> None:
        job = self.coordinator
        if worker not in {*job.membership.roster.hired, *job.state.resting}:
            self.schedule.lost()
            job.state.model_waits = self.schedule.forced

    def answered(self, worker: int, body: CheckpointPart, arrays: tuple[Array, ...], now: float) -> None:
        job = self.coordinator
        job.state.out.append(SaveCheckpointPart(worker, body, arrays))
        if self.schedule.took(worker, body) and self.schedule.complete and job.state.phase == "checkpointing":
            job.finish() if self.schedule.suspended else job.continue_ending(now)

    def endings(self) -> dict[str, EndingStep]:
        return {"store": self._store_last}

    def _store_last(self, now: float) -> bool:
        """A last checkpoint, of the state in which the job ended."""
        last = self.coordinator.commits.last
        if last is None:
            return False
        self.coordinator.state.phase = "checkpointing"
        self.schedule.begin(self.coordinator.state, last, now, self.snapshot)
        return True

    def overdue(self, worker: int, waited: float, now: float) -> str:
        state = self.coordinator.state
        return self.schedule.overdue(worker, state.timeouts.report, now) if state.phase == "checkpointing" else ""

    def snapshot(self, event: Updated, now: float) -> dict[str, Any]:
        """The coordinator's side of a checkpoint; `event` is what the model hears next."""
        return snapshot_of(self.coordinator, event, now)


def snapshot_of(job: CoordinatorPort, event: Updated, now: float) -> dict[str, Any]:
    """The state of a coordinator and its parts as plain data, at a moment when every worker has committed; `event` is
    what the model hears next."""
    state = job.state
    members: dict[str, snapshot.StatefulPart] = {"job": state, "commits": job.commits, "store": state.store}
    objects = {"view": state.view, "policy": state.policy, "termination": job.termination}
    kept = {part.name: part.stored() for part in job.parts}
    objects |= {name: value for name, value in kept.items() if value is not None}
    return snapshot.take(members, objects, state.algorithm, event, now)
