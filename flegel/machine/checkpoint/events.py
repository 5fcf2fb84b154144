"""What checkpoints add to a coordinator's events and commands. Plain records, no decisions."""

from __future__ import annotations

from typing import Any

from flegel.core.pytree import Array, Tree
from flegel.machine.coordinator.events import PartCommand, PartEvent
from flegel.messages import CheckpointPart


class Suspend(PartEvent, frozen=True):
    """Somebody wants the job to end, to be resumed later: one last checkpoint, then nothing more."""

    why: str


class BeginCheckpoint(PartCommand, frozen=True):
    """A checkpoint begins: the coordinator's side of it, and who will send a part."""

    number: int
    state: dict[str, Any]
    workers: tuple[int, ...]
    iteration: int
    round: int
    seconds: float
    objective: float | None
    rows: int
    """Lines of the trace that belong to it."""


class SaveCheckpointPart(PartCommand, frozen=True):
    """What one worker holds, for the checkpoint under way."""

    worker: int
    kept: CheckpointPart
    arrays: tuple[Array, ...]


class SaveCommit(PartCommand, frozen=True):
    """θ after a commit: enough to go on from there, with one pass to make the statistics anew."""

    round: int
    iteration: int
    seconds: float
    objective: float | None
    parameter: Tree
