"""When a job's state is kept: checkpoints on their own clock, a commit record a few times a second. Pure.

A checkpoint needs a moment at which every worker has committed. Models with barriers have one at each barrier. Others
(`ssp`, `asp`) are stopped for it; so is a flexible round that lasts longer than `GRACE`. Each worker copies its points'
states before it trains on, and sends them while it trains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flegel.machine.coordinator import snapshot
from flegel.machine.coordinator.events import BeginCheckpoint, Command, SaveCommit, Send, SetTimer, Suspend, Timer
from flegel.messages import CheckpointPart, TakeCheckpoint
from flegel.sync.policy import Updated

if TYPE_CHECKING:
    from flegel.machine.coordinator.coordinator import Coordinator

GRACE = 1.0  # seconds, or half the time between two: then a round that may be stopped is stopped for a checkpoint
LEAVE = 10.0  # seconds that a job which was told to leave waits for its barrier
COMMIT_EVERY = 0.1  # seconds between two commit records at least


class CheckpointSchedule:
    """Remembers what is due and whose part is awaited; the coordinator asks it wherever it is at rest."""

    def __init__(self, every: float, number: int = 0) -> None:
        self.every = every
        self.forced = False
        """Everybody was stopped for a checkpoint; the model is not asked before it is taken."""
        self.leaving = ""
        """Why the job is to stop after the next checkpoint; empty while it is not."""
        self.left = self.gave_up = False
        """That checkpoint has begun, or could not be taken in time."""
        self._due = False
        self._number = number
        self.awaited: set[int] = set()
        """Workers whose parts of the checkpoint under way are not here yet."""
        self.asked_at = 0.0
        self._committed_at = -COMMIT_EVERY

    @property
    def complete(self) -> bool:
        """Every part of the last checkpoint is here."""
        return not self.awaited

    def took(self, worker: int, kept: CheckpointPart) -> bool:
        """A part came; False where it belongs to a checkpoint that was given up."""
        if kept.number != self._number or worker not in self.awaited:
            return False
        self.awaited.discard(worker)
        return True

    def lost(self) -> None:
        """A worker is gone: the checkpoint under way lacks its part, and those who are to leave need another one."""
        if self.awaited or self.left:
            self._due = True
        self.awaited = set()
        self.forced = self.left = False

    def heard(self, job: Coordinator, event: Timer | Suspend, now: float) -> list[Command]:
        """It is time, or somebody wants the job to leave."""
        out: list[Command] = []
        match event:
            case Timer("checkpoint"):
                self._due = True
                out.append(SetTimer(now + self.every, Timer("checkpoint")))
                if job.policy.flexible:
                    out.append(SetTimer(now + min(GRACE, self.every / 2), Timer("force")))
                return out
            case Suspend(why):
                self._due, self.leaving = True, why
                out.append(SetTimer(now + LEAVE, Timer("leave")))
            case Timer("leave"):
                self.gave_up = not self.left
        self.forced = self._due and job.policy.flexible and bool(job.view.training())
        return out

    def at_rest(self, job: Coordinator, event: Updated, now: float) -> list[Command]:
        """A commit is done, and the model has not been asked yet what comes next."""
        out: list[Command] = []
        if now - self._committed_at >= COMMIT_EVERY:
            self._committed_at = now
            out.append(SaveCommit(job.view.round, job.iteration, now - job.began, job.objective, job.parameter))
        if self._due and not job.view.training() and (self.complete or self.leaving):
            self.left = bool(self.leaving)
            out += self.begin(job, event, now)
        self.forced = False
        return out

    def begin(self, job: Coordinator, event: Updated, now: float) -> list[Command]:
        """Keep this moment: the coordinator's side at once, the workers' as they send it."""
        workers = tuple(job.view.workers)
        self._number += 1
        self.awaited = set(workers)
        self._due, self.asked_at = False, now
        state = snapshot.take(job, event, now)
        seconds, rows = now - job.began, len(job.trace)
        save = BeginCheckpoint(
            self._number, state, workers, job.iteration, job.view.round, seconds, job.objective, rows
        )
        return [save, *(Send(worker, TakeCheckpoint(self._number)) for worker in workers)]
