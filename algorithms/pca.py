"""Principal components and truncated singular value decomposition, from second moments: one pass, exact."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from flegel.algorithm import Evaluation, Sample
from flegel.algorithms.estimators import fitted_components
from flegel.algorithms.moments import MomentModel, Moments, centred
from flegel.algorithms.number_range import check_squares
from flegel.algorithms.rows import row_parts, rows_of, times
from flegel.core.pytree import Array
from flegel.core.shard import Sparse
from flegel.declarations.accepts import Accepts
from flegel.declarations.hyper_names import HyperNames
from flegel.declarations.learning import Learning
from flegel.declarations.placement import ParameterPlacement
from flegel.errors import UsageError


class Plane(NamedTuple):
    """θ. Variances are divided by the mass less 1 (PCA), or by the mass (SVD, whose `centre` is 0)."""

    components: Array
    """(k, columns), orthonormal, the largest variance first; the largest number of each is positive."""
    centre: Array
    variances: Array
    """Along each component."""
    mean: Array
    scatter: Array
    """Σ (row − mean)·(row − mean)ᵀ: what later rows are added to, and covariances of all columns."""
    mass: Any
    internal_origin: Array


class PCA(MomentModel):
    """The k directions along which rows vary most: eigenvectors of their covariance matrix.

    Statistics: moments of the rows about the mean of a sample; they do not depend on θ, so one pass is exact.
    Objective: Σ of squared distances between rows and the plane through the mean along the components.
    """

    accepts = Accepts(sparse=True, weighted=True, labels="ignored", small_sample=True)
    learning = Learning(trivial="the mean", auxiliary=("scatter", "mean", "mass", "internal_origin"))
    placement = ParameterPlacement(
        unsharded="eigenvectors are found from all pairs of columns at once",
        unsent=("components", "centre", "variances", "mean", "scatter", "mass"),
    )
    hyper_names = HyperNames(also_called={"n_components": "k"})

    k: Annotated[int, Meta(ge=0, description="number of components; 0: as many as columns")] = 0
    _centred = True

    def validate(self, sample: Sample) -> None:
        super().validate(sample)
        check_squares(sample, type(self).__name__)
        if self.k > sample.columns:
            raise UsageError(f"{type(self).__name__}: k={self.k} is more than the {sample.columns} columns.")

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> Plane:
        self.validate(sample)
        origin = self.origin(sample) if self._centred else np.zeros(sample.columns)
        k, columns = self.k or sample.columns, sample.columns
        scatter = np.zeros((columns, columns))
        return Plane(np.eye(k, columns), np.zeros(columns), np.zeros(k), origin, scatter, 0.0, origin)

    def updateParameter(self, aggregator: Moments, oldParameter: Plane) -> Plane:
        mean, scatter = centred(aggregator, oldParameter.internal_origin)
        mass = float(aggregator.mass)
        spread = scatter / max(mass - 1.0, 1e-300) if self._centred else aggregator.squares / max(mass, 1e-300)
        variances, components = principal(spread, len(oldParameter.components))
        centre = mean if self._centred else np.zeros_like(mean)
        return Plane(components, centre, variances, mean, scatter, mass, oldParameter.internal_origin)

    def objective(self, aggregator: Moments, parameter: Plane) -> float:
        whole = parameter.scatter if self._centred else aggregator.squares
        inside = np.einsum("kt,tu,ku->", parameter.components, whole, parameter.components, optimize=True)
        return max(float(np.trace(whole) - inside), 0.0)

    def baseline(self, aggregator: Moments, parameter: Plane) -> float:
        return float(np.trace(parameter.scatter if self._centred else aggregator.squares))

    def metrics(self, aggregator: Moments, parameter: Plane) -> dict[str, float]:
        whole = self.baseline(aggregator, parameter)
        return {"explained": 1.0 - self.objective(aggregator, parameter) / whole} if whole > 0 else {}

    # -- use -----------------------------------------------------------------------------------------------

    def predict(self, features: Any, parameter: Plane) -> Array:
        """Coordinates of rows along the components."""
        return np.asarray(times(features, parameter.components.T) - parameter.components @ parameter.centre)

    def evaluate(self, features: Any, labels: Array | None, parameter: Plane) -> Evaluation:
        left = whole = 0.0
        for _, _, rows in row_parts(features, len(parameter.centre)):
            away = dense(rows, len(parameter.centre)) - parameter.centre
            inside = away @ np.asarray(parameter.components).T
            whole += float((away**2).sum())
            left += float(((away - inside @ parameter.components) ** 2).sum())
        return Evaluation(left, {"explained": 1.0 - left / whole if whole > 0 else 0.0})

    def model(self, parameter: Plane) -> dict[str, Array]:
        return {
            "components": parameter.components,
            "centre": parameter.centre,
            "explained_variance": parameter.variances,
        }

    def to_sklearn(self, parameter: Plane, classes: list[str] | None) -> Any:
        return fitted_components(parameter, self._centred)


class SVD(PCA):
    """The k largest singular vectors of the rows as they are, without a mean: PCA that is not centred.

    Objective: Σ of squared distances between rows and the plane through 0 along the components.
    """

    learning = Learning(trivial="zeros", auxiliary=PCA.learning.auxiliary)
    _centred = False


def principal(spread: Array, k: int) -> tuple[Array, Array]:
    """The k largest eigenvalues of a matrix, and its eigenvectors as rows, with scikit-learn's signs."""
    values, vectors = np.linalg.eigh(spread)
    components = np.ascontiguousarray(vectors[:, ::-1].T[:k])
    largest = components[np.arange(k), np.abs(components).argmax(axis=1)]
    components *= np.where(largest < 0, -1.0, 1.0)[:, None]
    return np.maximum(values[::-1][:k], 0.0), components


def dense(rows: Any, columns: int) -> Array:
    """Rows of either kind as a matrix in float64."""
    if not isinstance(rows, Sparse):
        return np.asarray(rows, np.float64)
    made = np.zeros((rows_of(rows), columns))
    made[np.repeat(np.arange(len(made)), np.diff(rows.indptr)), rows.indices] = rows.values
    return made
