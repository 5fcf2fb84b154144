"""Metrics and settings of a job as a run of Weights & Biases. Needs the package wandb and, unless offline, a login."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flegel.callbacks.callback import Callback
from flegel.callbacks.scalars import scalars, settings
from flegel.errors import require

if TYPE_CHECKING:
    from flegel.job import Job
    from flegel.machine.coordinator.observation import JobSnapshot
    from flegel.results.result import Result


class WandbWriter(Callback):
    """Everything else, such as the mode, is read by wandb from its own environment variables."""

    def __init__(self, project: str) -> None:
        require("wandb", "wandb")
        self.project = project
        self._run: Any = None

    def before_training(self, job: Job) -> None:
        import wandb

        self._run = wandb.init(project=self.project, config=settings(job), reinit="create_new")

    def after_barrier(self, snapshot: JobSnapshot) -> None:
        self._run.log(scalars(snapshot), step=snapshot.iteration)

    def after_training(self, result: Result | None) -> None:
        if self._run is None:
            return
        if result is not None:
            self._run.summary["reason"] = result.reason
        self._run.finish(exit_code=0 if result is not None else 1)
