"""One line of a CSV file for each barrier, written as it happens. Overwrites the file."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from flegel.callbacks.callback import Callback
from flegel.callbacks.scalars import FIGURE_NAMES
from flegel.runtime.job import result_store

if TYPE_CHECKING:
    from flegel.job import Job
    from flegel.machine.coordinator.observation import JobSnapshot
    from flegel.results.result import Result


class CsvWriter(Callback):
    """The columns of the trace that are single figures, and the reason; a missing figure is an empty cell."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        result_store.check_file(self.path, "--track csv:")
        self._stream: IO[str] | None = None
        self._rows: Any = None

    def before_training(self, job: Job) -> None:
        self._stream = self.path.open("w", newline="", encoding="utf-8")
        self._rows = csv.writer(self._stream)
        self._rows.writerow([*FIGURE_NAMES, "reason"])

    def after_barrier(self, snapshot: JobSnapshot) -> None:
        assert self._stream is not None
        values = [getattr(snapshot, name) for name in FIGURE_NAMES]
        self._rows.writerow(["" if v is None else repr(v) for v in values] + [snapshot.reason])
        self._stream.flush()

    def after_training(self, result: Result | None) -> None:
        if self._stream is not None:
            self._stream.close()
