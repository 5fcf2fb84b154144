"""When a job's state is stored: checkpoints on their own clock, a commit record up to ten times a second. Pure.

A checkpoint needs a moment at which every worker has committed. Models with barriers have one at each barrier. Others
(`ssp`, `asp`) are stopped for it; so is a flexible round that lasts longer
than `checkpoints.wait_for_barrier_seconds`. Each worker copies its points'
states before it trains on, and sends them while it trains. What is in a checkpoint is `machine/checkpoint/snapshot.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from flegel.configuration.active import active
from flegel.machine.checkpoint.events import BeginCheckpoint, SaveCommit, Suspend
from flegel.machine.coordinator.events import Milestone, SetTimer, Timer
from flegel.machine.coordinator.state import JobState
from flegel.messages import CheckpointPart, TakeCheckpoint
from flegel.sync.policy import Updated

Snapshot = Callable[[Updated, float], dict[str, Any]]
"""Makes the coordinator's side of a checkpoint: what the model hears next, and the time."""


class CheckpointSchedule:
    """Remembers what is due and whose part is awaited; the coordinator asks it wherever it is at rest."""

    def __init__(self, every: float, number: int = 0) -> None:
        """`every`: seconds between checkpoints; `number`: of the last one, where a job continues."""
        self.every = every
        self.forced = False
        """Everybody was stopped for a checkpoint; the model is not asked before it is taken."""
        self.suspending = ""
        """Why the job is to stop after the next checkpoint; empty while it is not."""
        self.suspended = self._gave_up = False
        """That checkpoint has begun, or could not be taken in time."""
        self._checkpoint_is_due = False
        self._number = number
        self._awaited: set[int] = set()
        """Workers whose parts of the checkpoint under way are not here yet."""
        self._asked_at = 0.0
        self._committed_at = -math.inf

    @property
    def complete(self) -> bool:
        """Every part of the last checkpoint is here."""
        return not self._awaited

    def took(self, worker: int, kept: CheckpointPart) -> bool:
        """A part came; False where it belongs to a checkpoint that was given up."""
        if kept.number != self._number or worker not in self._awaited:
            return False
        self._awaited.discard(worker)
        return True

    def lost(self) -> None:
        """A worker is gone: the checkpoint under way lacks its part, and a job that is suspended needs another one."""
        if self._awaited or self.suspended:
            self._checkpoint_is_due = True
        self._awaited = set()
        self.forced = self.suspended = False

    def heard(self, job: JobState, event: Timer | Suspend, now: float, steady: bool) -> bool:
        """A checkpoint is due, or the job is to be suspended. True: the job ends at once, without a checkpoint. While
        members change (not `steady`) no worker is stopped for it: all of them come to rest anyway."""
        flexible = job.policy.flexible
        force = flexible and bool(job.view.training())
        match event:
            case Timer("checkpoint"):
                self._checkpoint_is_due = True
                job.out.append(SetTimer(now + self.every, Timer("checkpoint")))
                if flexible:
                    wait = min(active().checkpoints.wait_for_barrier_seconds, self.every / 2)
                    job.out.append(SetTimer(now + wait, Timer("force")))
                force = self.forced  # a stop that has begun continues; this checkpoint first waits for a barrier
            case Suspend(why):
                self._checkpoint_is_due, self.suspending = True, why
                job.out.append(SetTimer(now + active().checkpoints.suspend_within_seconds, Timer("leave")))
            case Timer("leave"):
                self._gave_up = not self.suspended
        self.forced = steady and self._checkpoint_is_due and force
        return self._gave_up or bool(self.suspending and job.phase == "loading")

    def at_rest(self, job: JobState, event: Updated, now: float, snapshot: Snapshot) -> None:
        """A commit is done, and the model has not been asked yet what comes next."""
        if now - self._committed_at >= active().checkpoints.seconds_between_commits:
            self._committed_at = now
            seconds = now - job.began
            job.out.append(SaveCommit(job.view.round, job.iteration, seconds, job.objective, job.store.parameter))
        if self._checkpoint_is_due and not job.view.training() and (self.complete or self.suspending):
            self.suspended = bool(self.suspending)
            self.begin(job, event, now, snapshot)
        self.forced = False

    def begin(self, job: JobState, event: Updated, now: float, snapshot: Snapshot) -> None:
        """Store this moment: the coordinator's side at once, the workers' as they send it."""
        workers = tuple(job.view.workers)
        self._number += 1
        self._awaited = set(workers)
        self._checkpoint_is_due, self._asked_at = False, now
        state, seconds = snapshot(event, now), now - job.began
        job.out.append(
            BeginCheckpoint(
                self._number, state, workers, job.iteration, job.view.round, seconds, job.objective, len(job.trace)
            )
        )
        for worker in workers:
            job.send(worker, TakeCheckpoint(self._number))
        job.out.append(Milestone("checkpoint"))

    def overdue(self, worker: int, timeout: float, now: float) -> str:
        """What to say of a worker whose part of the last checkpoint is late; empty where all is well."""
        waited = now - self._asked_at
        if worker not in self._awaited or waited <= timeout:
            return ""
        return f"Worker {worker} did not send its part of the last checkpoint within {waited:.0f} s."
