"""Ends a job whose objective no longer improves. Looks at barriers only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flegel.callbacks.callback import Callback
from flegel.errors import UsageError

if TYPE_CHECKING:
    from flegel.machine.coordinator.observation import JobSnapshot


class EarlyStopping(Callback):
    """Stop when the objective has not improved by `least`, relatively, during `patience` passes over the data.

    Patience is counted in passes, because the number of barriers of a pass depends on the synchronization model.
    """

    def __init__(self, patience: float = 5.0, least: float = 1e-4) -> None:
        if not patience > 0 or not least >= 0:
            raise UsageError("EarlyStopping needs a patience of more than 0 passes, and least must be 0 or more.")
        self.patience, self.least = patience, least
        self._best_objective: float | None = None
        self._passes_at_best = 0.0

    def after_barrier(self, snapshot: JobSnapshot) -> str | None:
        """End the job, with a reason, where the objective has not improved enough during `patience` passes."""
        value = snapshot.objective
        if value is None or not snapshot.points:
            return None
        passes = snapshot.visits / snapshot.points
        better = -1.0 if snapshot.maximize else 1.0
        if self._best_objective is None or better * (self._best_objective - value) > self.least * abs(
            self._best_objective
        ):
            self._best_objective, self._passes_at_best = value, passes
            return None
        if passes - self._passes_at_best < self.patience:
            return None
        return f"the objective has not improved by {self.least:g} during {self.patience:g} passes"
