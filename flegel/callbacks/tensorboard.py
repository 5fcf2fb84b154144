"""Scalars for TensorBoard, one event file a job. Needs the package tensorboard; neither TensorFlow nor torch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from flegel.callbacks.callback import Callback
from flegel.callbacks.scalars import scalars
from flegel.errors import require

if TYPE_CHECKING:
    from flegel.job import Job
    from flegel.machine.coordinator.observation import JobSnapshot
    from flegel.results.result import Result


class TensorBoardWriter(Callback):
    """Writes to a folder; the step is the barrier. TensorBoard keeps scalars as float32."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        require("tensorboard", "track")
        self.folder = os.fspath(folder)
        self._writer: Any = None

    def before_training(self, job: Job) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(self.folder)

    def after_barrier(self, snapshot: JobSnapshot) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars(snapshot).items()]
        self._writer.add_event(Event(wall_time=wall_seconds(), step=snapshot.iteration, summary=Summary(value=values)))

    def after_training(self, result: Result | None) -> None:
        if self._writer is not None:
            self._writer.close()


def wall_seconds() -> float:
    from flegel.runtime import clock

    return clock.microseconds() / 1e6
