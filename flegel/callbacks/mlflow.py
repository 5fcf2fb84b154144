"""Metrics and settings of a job as a run of MLflow, in a SQLite file or at a server. Needs the package mlflow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flegel.callbacks.callback import Callback
from flegel.callbacks.scalars import scalars, settings
from flegel.errors import require
from flegel.runtime import clock

if TYPE_CHECKING:
    from flegel.job import Job
    from flegel.machine.coordinator.observation import JobSnapshot
    from flegel.results.result import Result

METRICS_PER_REQUEST = 1000  # MLflow refuses more in one request
WRITE_SECONDS = 2.0  # between two writes: each is a transaction of the database


class MlflowWriter(Callback):
    """`place`: a path of a SQLite file, or an address that MLflow understands (http://…, sqlite:///…)."""

    def __init__(self, place: str | os.PathLike[str], experiment: str = "flegel") -> None:
        """Opens the store at once: a new SQLite file takes MLflow seconds, which no barrier should wait for."""
        require("mlflow", "track")
        from mlflow import MlflowClient

        text = os.fspath(place)
        self.address = text if "://" in text or text.startswith("sqlite:") else f"sqlite:///{Path(text).absolute()}"
        self.run_id = ""
        self._client: Any = MlflowClient(tracking_uri=self.address)
        known = self._client.get_experiment_by_name(experiment)
        self._experiment = known.experiment_id if known is not None else self._client.create_experiment(experiment)
        self._pending_metrics: list[Any] = []
        self._flush_at = 0.0

    def before_training(self, job: Job) -> None:
        from mlflow.entities import Param

        self.run_id = self._client.create_run(self._experiment).info.run_id
        params = [Param(name, str(value)) for name, value in settings(job).items() if value not in (None, "")]
        self._client.log_batch(self.run_id, params=params[:100])

    def after_barrier(self, snapshot: JobSnapshot) -> None:
        from mlflow.entities import Metric

        stamp = clock.microseconds() // 1000
        self._pending_metrics += [Metric(k, v, stamp, snapshot.iteration) for k, v in scalars(snapshot).items()]
        if clock.now() >= self._flush_at or len(self._pending_metrics) >= METRICS_PER_REQUEST:
            self._flush()

    def _flush(self) -> None:
        while self._pending_metrics:
            self._client.log_batch(self.run_id, metrics=self._pending_metrics[:METRICS_PER_REQUEST])
            del self._pending_metrics[:METRICS_PER_REQUEST]
        self._flush_at = clock.now() + WRITE_SECONDS

    def after_training(self, result: Result | None) -> None:
        self._flush()
        if result is not None:
            self._client.set_tag(self.run_id, "reason", result.reason)
        self._client.set_terminated(self.run_id, "FINISHED" if result is not None else "FAILED")
