"""Linear regression, ridge, lasso and elastic net, from second moments of rows and labels: one pass, exact.

The moments are all that is needed of the rows: other penalties, and whole paths of them, need no further pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from flegel.algorithm import Evaluation, Sample
from flegel.algorithms.class_labels import refuse_words
from flegel.algorithms.estimators import fitted_linear
from flegel.algorithms.moments import MomentModel, Moments, centred, moments_of
from flegel.algorithms.number_range import check_squares, units_of
from flegel.algorithms.rows import times
from flegel.core.entry_point import EntryPoint
from flegel.core.pytree import Array
from flegel.core.shard import Sparse
from flegel.declarations.accepts import Accepts
from flegel.declarations.learning import Learning
from flegel.declarations.placement import ParameterPlacement

LOST_DIGITS = (
    "Columns that are almost collinear, or a row that is far longer than the others, leave products of columns less "
    "than two digits: the weights may be short of the minimum. Leave that column or row out, or use a penalty (ridge)."
)
NO_DIGITS, FEW_DIGITS = 2.0, 100.0
"""Times the rounding error, up to which the square of a direction has no digits, and less than two."""

_DESCEND = EntryPoint("flegel.algorithms.coordinate_descent", "descend")
LABELS = Accepts(sparse=True, weighted=True, labels="required", small_sample=True)
COLUMNS = Accepts(sparse=True, weighted=True, labels="ignored", small_sample=True)


class Regression(NamedTuple):
    """θ. Moments are those of columns and targets side by side."""

    weights: Array
    """(targets, columns)."""
    bias: Array
    gap: Array
    """How far the objective of each target may be from its minimum; 0 where that is solved directly."""
    sweeps: Array
    mass: Any
    mean: Array
    scatter: Array
    """Σ (z − mean)·(z − mean)ᵀ of z = (row, targets), in the units of `internal_unit`."""
    internal_origin: Array
    internal_unit: Array
    """By column and target: 1, but for columns whose squares float64 cannot hold."""


class Penalties(NamedTuple):
    """l1·‖w‖₁ + ½·l2·‖w‖² on half the mean squared error."""

    l1: float
    l2: float

    def of(self, weights: Array) -> float:
        """Squares of weights of columns that are next to 0 may be infinite: without l2 they do not count."""
        absolute = self.l1 * float(np.abs(weights).sum()) if self.l1 else 0.0
        return absolute + (0.5 * self.l2 * float((weights**2).sum()) if self.l2 else 0.0)


class LinearRegression(MomentModel):
    """Least squares: minimized is half the mean squared error, in which rows count at their weights, and penalties.

    θ follows from Σ z·zᵀ of z = (row, label): by one decomposition, or with absolute penalties or positive weights by
    coordinate descent until the duality gap is within 1e-8 of the objective of zeros.
    """

    learning = Learning(
        trivial="the mean label",
        averaged=True,
        auxiliary=("gap", "sweeps", "mass", "mean", "scatter", "internal_origin", "internal_unit"),
    )
    placement = ParameterPlacement(
        unsharded="all pairs of columns are solved at once",
        unsent=("weights", "bias", "gap", "sweeps", "mass", "mean", "scatter"),
    )
    absolute = False
    """Absolute penalties, which know no units of columns."""

    intercept: Annotated[bool, Meta(description="fit a bias besides the weights")] = True
    positive: Annotated[bool, Meta(description="weights are not below 0")] = False
    targets: Annotated[int, Meta(ge=0, description="the last so many columns are the targets, not labels")] = 0
    tolerance: Annotated[float, Meta(gt=0, description="duality gap, as a part of the objective of zeros")] = 1e-8
    sweeps: Annotated[int, Meta(ge=1, description="of coordinate descent, at most")] = 10_000

    @property
    def accepts(self) -> Accepts:  # type: ignore[override]
        return replace(COLUMNS, targets=self.targets) if self.targets else LABELS

    def validate(self, sample: Sample) -> None:
        super().validate(sample)
        refuse_words(sample, type(self).__name__)
        if not self._has_units:
            check_squares(sample, type(self).__name__, every=True, small=not self.absolute)

    @property
    def _has_units(self) -> bool:
        return not self.absolute and not self.positive

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> Regression:
        self.validate(sample)
        origin, targets = self.origin(sample), self.targets or 1
        columns, unit = len(origin) - targets, np.ones(len(origin))
        if self._has_units:
            small = not self.penalties(1.0).l2  # with a penalty their weights are 0
            unit[:columns] = units_of(sample, origin[: sample.columns], small)[:columns]
        zeros, whole = np.zeros(targets), np.zeros((len(origin), len(origin)))
        return Regression(np.zeros((targets, columns)), zeros, zeros, zeros, 0.0, origin, whole, origin, unit)

    def contributions(self, features: Any, labels: Array, weights: Array | None, parameter: Regression) -> Any:
        if (parameter.internal_unit == 1.0).all():
            return super().contributions(features, labels, weights, parameter)
        unit = parameter.internal_unit[: features.columns if isinstance(features, Sparse) else features.shape[1]]
        if isinstance(features, Sparse):
            features = features._replace(values=features.values / unit[features.indices])
        else:
            features = features / unit
        origin = parameter.internal_origin / parameter.internal_unit
        return moments_of(features, labels if self.accepts.supervised else None, weights, origin)

    def updateParameter(self, aggregator: Moments, oldParameter: Regression) -> Regression:
        unit = oldParameter.internal_unit
        mean, scatter = centred(aggregator, oldParameter.internal_origin / unit)
        known = oldParameter._replace(mass=float(aggregator.mass), mean=mean * unit, scatter=scatter)
        return self.solved(known, self.penalties(float(aggregator.mass)), oldParameter.weights)

    def penalties(self, mass: float) -> Penalties:
        return Penalties(0.0, 0.0)

    def solved(self, known: Regression, penalties: Penalties, start: Array) -> Regression:
        """θ for these penalties, from the moments in θ; `start`: weights to begin with where steps are taken."""
        gram, cross, power = normal_equations(known, len(start), self.intercept)
        weights, gaps, sweeps = np.array(start, np.float64), np.zeros(len(start)), np.zeros(len(start))
        if not penalties.l1 and not self.positive:
            weights = exact(gram + ridge(known, penalties, len(gram)), cross) / known.internal_unit[: len(gram)]
        else:
            for k in range(len(start)):
                goal, row = self.tolerance * max(float(power[k]), 1e-300), np.ascontiguousarray(weights[k])
                given = (gram, np.ascontiguousarray(cross[k]), float(power[k]), *map(float, penalties), row)
                gaps[k], sweeps[k] = _DESCEND(*given, goal, self.sweeps, self.positive)
                weights[k] = row
        columns = weights.shape[1]
        bias = known.mean[columns:] - weights @ known.mean[:columns] if self.intercept else np.zeros(len(weights))
        return known._replace(weights=weights, bias=bias, gap=gaps, sweeps=sweeps)

    def path(self, known: Regression, penalties: Sequence[Penalties]) -> list[Regression]:
        """θ for each of these penalties in turn, each begun from the one before; from the moments, without a pass."""
        found = [known]
        for each in penalties:
            found.append(self.solved(known, each, found[-1].weights))
        return found[1:]

    def objective(self, aggregator: Moments, parameter: Regression) -> float:
        error = float(self._squared_errors(parameter).sum())
        return max(0.5 * error, 0.0) + self.penalties(float(aggregator.mass)).of(parameter.weights)

    def _squared_errors(self, parameter: Regression) -> Array:
        """The mean squared error of each target over all rows, from the moments; rounding may take it below 0."""
        gram, cross, power = normal_equations(parameter, len(parameter.weights), self.intercept)
        w = parameter.weights * parameter.internal_unit[: len(gram)]
        return np.asarray(power - 2.0 * (w * cross).sum(axis=1) + ((w @ gram) * w).sum(axis=1))

    def baseline(self, aggregator: Moments, parameter: Regression) -> float:
        return float(0.5 * normal_equations(parameter, len(parameter.weights), self.intercept)[2].sum())

    def metrics(self, aggregator: Moments, parameter: Regression) -> dict[str, float]:
        squares = np.maximum(self._squared_errors(parameter), 0.0)
        spread = normal_equations(parameter, len(squares), intercept=True)[2]
        return {"mse": float(squares.sum()), "r2": _explained(squares, spread)}

    def warnings(self, aggregator: Moments, parameter: Regression) -> list[str]:
        gram, _, power = normal_equations(parameter, len(parameter.weights), self.intercept)
        penalties = self.penalties(float(parameter.mass))
        if not penalties.l1 and not self.positive:
            return [LOST_DIGITS] if has_lost_digits(gram + ridge(parameter, penalties, len(gram))) else []
        reached = parameter.gap <= self.tolerance * np.maximum(power, 1e-300)
        if reached.all() or parameter.sweeps.max() < self.sweeps:
            return []
        return [f"The minimum is not reached after {self.sweeps} sweeps; scale the columns, or raise sweeps."]

    # -- use -----------------------------------------------------------------------------------------------

    def predict(self, features: Any, parameter: Regression) -> Array:
        found = times(features, np.asarray(parameter.weights).T) + parameter.bias
        return np.asarray(found if self.targets > 1 else found[:, 0])

    def evaluate(self, features: Any, labels: Array | None, parameter: Regression) -> Evaluation | None:
        if labels is None and not self.targets:
            return None
        labels, found = self._told_and_found(features, labels, parameter)
        squares = ((labels - found) ** 2).mean(axis=0) if len(labels) else np.zeros(1)
        spread = labels.var(axis=0) if len(labels) else np.zeros(1)
        penalty = self.penalties(float(parameter.mass)).of(parameter.weights)
        mse = float(squares.sum())
        return Evaluation(0.5 * mse + penalty, {"mse": mse, "r2": _explained(squares, spread)})

    def _told_and_found(self, features: Any, labels: Array | None, parameter: Regression) -> tuple[Array, Array]:
        """Labels and predictions, with a column for each target; targets are the last columns of the features."""
        if not self.targets:
            return np.asarray(labels, np.float64)[:, None], self.predict(features, parameter)[:, None]
        inputs = parameter.weights.shape[1]
        chosen = np.eye(inputs + self.targets)[:, inputs:]
        weights = np.vstack([parameter.weights.T, np.zeros((self.targets, self.targets))])
        return times(features, chosen), times(features, weights) + parameter.bias

    def score(self, features: Any, labels: Array | None, parameter: Regression) -> float:
        found = self.evaluate(features, labels, parameter)
        return float("nan") if found is None else found.metrics["r2"]

    def model(self, parameter: Regression) -> dict[str, Array]:
        return {"weights": parameter.weights, "bias": parameter.bias}

    def to_sklearn(self, parameter: Regression, classes: list[str] | None) -> Any:
        return fitted_linear(type(self).__name__, self.hyper(), parameter.weights, parameter.bias)


class Ridge(LinearRegression):
    """Least squares with ½·alpha·‖w‖² on half the *sum* of squared errors, as in scikit-learn."""

    alpha: Annotated[float, Meta(ge=0, description="strength of the penalty")] = 1.0

    def penalties(self, mass: float) -> Penalties:
        return Penalties(0.0, self.alpha / max(mass, 1e-300))


class ElasticNet(LinearRegression):
    """Least squares with alpha·(l1_ratio·‖w‖₁ + ½·(1 − l1_ratio)·‖w‖²) on half the mean squared error."""

    absolute = True

    alpha: Annotated[float, Meta(ge=0, description="strength of the penalty")] = 1.0
    l1_ratio: Annotated[float, Meta(ge=0, le=1, description="part of it that is absolute")] = 0.5

    def penalties(self, mass: float) -> Penalties:
        return Penalties(self.alpha * self.l1_ratio, self.alpha * (1.0 - self.l1_ratio))


class Lasso(ElasticNet):
    """Least squares with alpha·‖w‖₁ on half the mean squared error."""

    l1_ratio: Annotated[float, Meta(ge=0, le=1, description="part of it that is absolute")] = 1.0


def _explained(squares: Array, spread: Array) -> float:
    """R², the mean over targets; 0 of a target without variance."""
    return float(np.where(spread > 0, 1.0 - squares / np.where(spread > 0, spread, 1.0), 0.0).mean())


def normal_equations(known: Regression, targets: int, intercept: bool) -> tuple[Array, Array, Array]:
    """A, b of each target, and the mean of its squares, of the columns less their means where there is an intercept; in
    the units of columns."""
    whole = np.asarray(known.scatter) / max(float(known.mass), 1e-300)
    if not intercept:
        mean = known.mean / known.internal_unit
        whole = whole + np.outer(mean, mean)
    columns = len(whole) - targets
    power = np.diagonal(whole)[columns:].copy()
    return np.ascontiguousarray(whole[:columns, :columns]), whole[columns:, :columns].copy(), power


def ridge(known: Regression, penalties: Penalties, columns: int) -> Array:
    """What the squared penalty adds to A."""
    unit = known.internal_unit[:columns]
    return np.diag(penalties.l2 / unit / unit)


def has_lost_digits(matrix: Array) -> bool:
    """Whether `exact` went by directions of which rounding leaves less than two digits: after columns that are almost
    collinear, or with a row that is far longer than the others. Exactly collinear columns have no such direction."""
    unit, _ = _of_one_scale(matrix)
    if _has_digits(unit):
        return False
    values = np.linalg.eigvalsh(unit)
    error = len(unit) * np.finfo(np.float64).eps * float(values.max(initial=0.0))
    return bool(((values > NO_DIGITS * error) & (values < FEW_DIGITS * error)).any())


def _has_digits(unit: Array) -> bool:
    """Whether every direction of a matrix of one scale surely has two digits, in a tenth of the time that its
    directions take: its largest value is at most the number of columns."""
    rounding = len(unit) * np.finfo(np.float64).eps
    try:
        np.linalg.cholesky(unit - FEW_DIGITS * rounding * len(unit) * np.eye(len(unit)))
    except np.linalg.LinAlgError:
        return False
    return True


def _of_one_scale(matrix: Array) -> tuple[Array, Array]:
    """The matrix of columns of length 1, and their lengths; a column of zeros stays, with the length 1."""
    size = np.sqrt(np.maximum(np.diagonal(matrix), 0.0))
    lengths = np.where(size > 0, size, 1.0)
    return matrix / lengths / lengths[:, None], lengths


def exact(matrix: Array, cross: Array) -> Array:
    """w of matrix·w = cross for each row of `cross`; of several solutions the shortest, as in scikit-learn.

    Columns are brought to one scale first, so that directions are left out because columns are collinear, not because
    their numbers are small."""
    scaled, unit = _of_one_scale(matrix)
    if _has_digits(scaled):
        return np.asarray(np.linalg.solve(scaled, (cross / unit).T).T / unit)
    values, directions = np.linalg.eigh(scaled)
    kept = values > len(values) * np.finfo(np.float64).eps * max(float(values.max(initial=0.0)), 1e-300)
    inverse = directions[:, kept] / values[kept]
    weights = (cross / unit) @ inverse @ directions[:, kept].T / unit
    if not kept.all():
        free, _ = np.linalg.qr(directions[:, ~kept] / unit[:, None])
        weights = weights - (weights @ free) @ free.T
    return np.asarray(weights)
