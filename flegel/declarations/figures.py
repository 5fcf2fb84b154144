"""What a class tells about its model: figures beside the objective, answers for rows, files, remarks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flegel.core.pytree import Array, Tree
from flegel.declarations.field_types import TypedFields
from flegel.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ReportedFigures(TypedFields):
    """`figures = ReportedFigures(shown=("accuracy",))`. Without it the result shows those of `metrics`."""

    shown: tuple[str, ...] = ()
    """Figures of `evaluate` that are shown with the result beside those of `metrics`, because they need rows, such as
    the accuracy. They are of the sample that θ(0) was chosen from: all rows of training where these are few."""
    followed: tuple[str, ...] = ()
    """Figures of `evaluate` that are followed on rows held out by `validate`; all of them where empty."""


class ModelHooks:
    """Methods that a class may define; otherwise these answer."""

    def metrics(self, aggregator: Tree, parameter: Tree) -> dict[str, float]:
        """A few figures beside the objective that people know by name, from the statistics and θ alone: the log-loss,
        BIC, RMSE. Shown while the job runs and with its result, in this order; empty while nothing is known."""
        return {}

    def score(self: Any, features: Any, labels: Array | None, parameter: Tree) -> float:
        """How good the model is on these rows; larger is better: the accuracy where `evaluate` tells it, otherwise the
        objective, or minus the objective where it is minimized."""
        found = self.evaluate(features, labels, parameter)
        if found is None:
            raise UsageError(f"{type(self).__name__} defines no evaluate, so its model cannot be scored.")
        return float(found.metrics.get("accuracy", found.objective if self.learning.maximize else -found.objective))

    def warnings(self, aggregator: Tree, parameter: Tree) -> list[str]:
        """Remarks on the finished model that a user should read (empty clusters and the like)."""
        return []

    def description(self, aggregator: Tree, parameter: Tree) -> list[str]:
        """What the finished model is like, in a line or two that end the job's report: the sizes of clusters."""
        return []

    def probabilities(self, features: Any, parameter: Tree) -> Array:
        """A row of numbers that sum to 1 for each row: of its classes, or of its clusters."""
        raise UsageError(f"{type(self).__name__} gives no probabilities; use predict.")

    def distances(self, features: Any, parameter: Tree) -> Array:
        """Distances of each row to every centroid."""
        raise UsageError(f"{type(self).__name__} gives no distances; use predict.")

    def scores(self, features: Any, parameter: Tree) -> Array:
        """One number for each row, or one for each of its classes; larger is better or more likely."""
        raise UsageError(f"{type(self).__name__} gives no scores; use predict.")

    def model(self, parameter: Tree) -> dict[str, Array] | None:
        """The trained model by name, for users; None: θ as it is. What is left out is in `Result.internals`."""
        return None

    def model_files(self, parameter: Tree) -> dict[str, bytes]:
        """Files that are saved beside the model, for other programs: their content by name."""
        return {}

    def to_sklearn(self, parameter: Tree, classes: list[str] | None) -> Any:
        """The model as a fitted estimator of scikit-learn; `classes` are the names of text labels."""
        raise UsageError(f"{type(self).__name__} has no counterpart in scikit-learn.")
