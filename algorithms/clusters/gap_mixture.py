"""Gaussian mixtures of rows with gaps: the observed numbers alone count. Never reads data or a clock."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from msgspec import Meta

from flegel.algorithm import Evaluation, Sample
from flegel.algorithms.every_point import EveryPoint, all_counted
from flegel.algorithms.kmeans.trial_start import best_start
from flegel.algorithms.seeding import (
    ALSO_CALLED_K,
    check_enough,
    nearest_centre,
    some_weighted,
    standard_units,
    weighted_rows,
)
from flegel.configuration.active import active
from flegel.core.gaps import GAP, observed, unobserved
from flegel.core.pytree import Array
from flegel.core.shard import DataPoint
from flegel.declarations.accepts import Accepts
from flegel.declarations.figures import ReportedFigures
from flegel.declarations.hidden_state import HiddenState
from flegel.declarations.hyper_names import HyperNames
from flegel.declarations.learning import Learning
from flegel.errors import UsageError


class GapMixture(NamedTuple):
    """θ, of y = (x − origin) / unit; both never change, nor `floor`, the least variance of each column, and `total`,
    what all points weigh. `logs`: log(2π·variance)/2 in the units of the data."""

    weights: Array
    means: Array
    variances: Array
    logs: Array
    origin: Array
    unit: Array
    floor: Array
    total: Array


class ObservedMoments(NamedTuple):
    """s, per component: Σ r; per column Σ r, Σ r·y and Σ r·y² of what is observed; and the sum of entropies."""

    counts: Array
    known: Array
    sums: Array
    squares: Array
    entropy: Array


class ObservedShares(NamedTuple):
    """By how much a visit has changed a point's shares, and (last) their entropy."""

    point: Any
    changes: Array
    origin: Array
    unit: Array
    weight: float


class GapGMM(EveryPoint):
    """Fit a mixture of k Gaussians, diagonal or spherical, to rows with gaps: a row's density is that of what is
    observed of it, and nothing is filled in.

    State of a point: its responsibilities and their entropy. Statistics: their sums with y and y² over observed numbers
    (y: in units of the column). Update, once every point has been visited: means and variances of what is observed,
    none below `regularization` times the column's variance without outliers; a column of which a component has seen
    nothing keeps its numbers. Objective (maximized): the free energy, which never falls and ends at the log-likelihood
    of the observed numbers. Without gaps this is `GMM`, which is faster.
    Reference: Z. Ghahramani, M. Jordan, Supervised learning from incomplete data via an EM approach (1994).
    """

    accepts = Accepts(weighted=True, labels="ignored", gaps=True)
    state = HiddenState(memoryless=True)
    learning = Learning(
        maximize=True, tolerance=1e-6, slow_gains=True, auxiliary=("logs", "origin", "unit", "floor", "total")
    )
    figures = ReportedFigures(followed=("log_likelihood",))
    hyper_names = HyperNames(also_called=ALSO_CALLED_K)

    k: Annotated[int, Meta(ge=1, description="number of components")] = 10
    covariance: Annotated[
        Literal["diagonal", "diag", "spherical"],
        Meta(description="shape of a component: diagonal (or diag), spherical"),
    ] = "diagonal"
    regularization: Annotated[
        float, Meta(ge=0, description="least variance, as a fraction of a column's variance without its outliers")
    ] = 1e-6
    least_variance: Annotated[float, Meta(ge=0, description="least variance, in the units of the data")] = 0.0
    n_init: Annotated[int, Meta(ge=1, description="starts that are tried on the sample")] = 4

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> GapMixture:
        """Of several starts by k-means on some rows whose gaps are filled in with 0 the one that EM over these rows, as
        they are, takes furthest."""
        check_enough(self.k, sample.weights, "GapGMM")
        rows, weights = weighted_rows(np.asarray(sample.features, np.float64), sample.weights)
        blank = self._units(rows, sample.mass)
        places, own = some_weighted(np.arange(len(rows)), weights, active().starts.gmm_most_trial_rows, rng)
        y, known = _in_units(rows[places], blank)
        mass, best, most = np.ones(len(y)) if own is None else own, blank, -np.inf
        for _ in range(self.n_init):
            nearest = nearest_centre(y, best_start(y, self.k, 1, rng, own))
            shares = np.asarray(nearest[:, None] == np.arange(self.k), np.float64)
            theta, value = blank, -np.inf
            for _ in range(active().starts.gmm_trial_passes):
                theta = self._updated(_moments(y, known, shares * mass[:, None]), theta)
                shares, densities = _expected(y, known, theta)
                before, value = value, float(mass @ densities)
                if value - before <= active().starts.gmm_ends_below_gain * abs(value):
                    break
            if value > most:
                best, most = theta, value
        return best

    def _units(self, rows: Array, total: float) -> GapMixture:
        """k components that are the standard normal distribution, with origin, unit and floor of these rows."""
        known, columns = observed(rows), rows.shape[1]
        each = [standard_units(rows[known[:, t], t][:, None] if known[:, t].any() else np.zeros((1, 1)))
                for t in range(columns)]  # fmt: skip
        origin, unit, deviation = (np.array([float(one[i][0]) for one in each]) for i in range(3))
        if self.covariance == "spherical":
            unit, deviation = np.full(columns, unit.max()), np.full(columns, deviation.max())
        floor = np.maximum(max(self.regularization, 1e-12) * deviation**2, self.least_variance) / unit**2
        shape = self.k, columns
        blank = GapMixture(
            np.full(self.k, 1.0 / self.k), np.zeros(shape), np.ones(shape), np.zeros(shape), origin, unit, floor,
            np.array([total]),
        )  # fmt: skip
        return blank._replace(logs=_logs(blank.variances, unit))

    def _updated(self, moments: ObservedMoments, old: GapMixture) -> GapMixture:
        seen = moments.known > 1e-9 * max(float(moments.counts.sum()), 1e-300) / self.k
        known = np.where(seen, moments.known, 1.0)
        means = np.where(seen, moments.sums / known, old.means)
        scatter = np.maximum(moments.squares - known * means**2, 0.0) * seen
        if self.covariance == "spherical":
            whole = (moments.known * seen).sum(axis=1, keepdims=True)
            scatter = np.where(whole > 0, scatter.sum(axis=1, keepdims=True) / np.maximum(whole, 1e-300), old.variances)
            variances = np.maximum(scatter, old.floor)
        else:
            variances = np.where(seen, np.maximum(scatter / known, old.floor), old.variances)
        counts = np.maximum(moments.counts, 0.0)
        weights = counts / max(float(counts.sum()), 1e-300)
        return old._replace(weights=weights, means=means, variances=variances, logs=_logs(variances, old.unit))

    def initState(self, points: int, columns: int, rng: np.random.Generator) -> Array:
        return np.zeros((points, self.k + 1))

    def initAggregator(self, sample: Sample, parameter: GapMixture) -> ObservedMoments:
        table = np.zeros_like(parameter.means)
        return ObservedMoments(np.zeros(self.k), table, table.copy(), table.copy(), np.zeros(1))

    def updateDataPoint(self, dataPoint: DataPoint, parameter: GapMixture, iterationNum: int) -> ObservedShares:
        row: Any = dataPoint.features
        k, top, total, entropy = parameter.means.shape[0], -np.inf, 0.0, 0.0
        shares = np.zeros(k + 1)
        for j in range(k):
            value = math.log(max(parameter.weights[j], 1e-300))
            for t in range(row.shape[0]):
                if row[t] < GAP:
                    away = (row[t] - parameter.origin[t]) / parameter.unit[t] - parameter.means[j, t]
                    value -= parameter.logs[j, t] + 0.5 * away * away / parameter.variances[j, t]
            shares[j], top = value, max(top, value)
        for j in range(k):
            shares[j] = math.exp(shares[j] - top)
            total += shares[j]
        for j in range(k):
            share = shares[j] / total
            if share > 0.0:
                entropy -= share * math.log(share)
            shares[j] = share - dataPoint.state[j]
            dataPoint.state[j] = share
        shares[k] = entropy - dataPoint.state[k]
        dataPoint.state[k] = entropy
        return ObservedShares(row, shares, parameter.origin, parameter.unit, dataPoint.weight)

    def aggregate(self, target: ObservedMoments, change: ObservedShares) -> ObservedMoments:
        """Add the change of one row's shares to the sums."""
        row, changes, origin, unit, weight = change
        k = changes.shape[0] - 1
        for j in range(k):
            share = weight * changes[j]
            target.counts[j] += share
            if share != 0.0:
                for t in range(row.shape[0]):
                    if row[t] < GAP:
                        y = (row[t] - origin[t]) / unit[t]
                        target.known[j, t] += share
                        target.sums[j, t] += share * y
                        target.squares[j, t] += share * y * y
        target.entropy[0] += weight * changes[k]
        return target

    def updateParameter(self, aggregator: ObservedMoments, oldParameter: GapMixture) -> GapMixture:
        return (
            self._updated(aggregator, oldParameter)
            if all_counted(aggregator.counts.sum(), oldParameter)
            else oldParameter
        )

    def objective(self, aggregator: ObservedMoments, parameter: GapMixture) -> float:
        known, means = aggregator.known, parameter.means
        away = np.maximum(aggregator.squares - 2.0 * means * aggregator.sums + means**2 * known, 0.0)
        inside = known * parameter.logs + 0.5 * away / parameter.variances
        chosen = aggregator.counts @ np.log(np.maximum(parameter.weights, 1e-300))
        return float(chosen - inside.sum() + aggregator.entropy[0])

    def validate(self, sample: Sample) -> None:
        if self.k > sample.points:
            raise UsageError(f"GapGMM: k={self.k} is more than the number of points, {sample.points}.")
        if len(sample.features) == sample.points and (blank := unobserved(observed(sample.features).sum(axis=0))):
            raise UsageError(f"GapGMM: {blank}; leave it out.")

    def warnings(self, aggregator: ObservedMoments, parameter: GapMixture) -> list[str]:
        blank = unobserved(np.asarray(aggregator.known).sum(axis=0))
        return [f"{blank}: what components say there means nothing; leave it out."] if blank else []

    def model(self, parameter: GapMixture) -> dict[str, Array]:
        means = parameter.means * parameter.unit + parameter.origin
        return {"weights": parameter.weights, "means": means, "covariances": parameter.variances * parameter.unit**2}

    def work(self, columns: int) -> float:
        return 4.0 * self.k * columns

    def transform(self, features: Any, parameter: GapMixture) -> tuple[Array, Array]:
        """Responsibilities of the components for rows, and the logarithms of the rows' densities; gaps may be NaN."""
        rows, columns = np.asarray(features), len(parameter.origin)
        if rows.ndim != 2 or rows.shape[1] != columns:
            raise UsageError(f"GapGMM: rows of shape {rows.shape} do not fit a model of {columns} columns.")
        return _expected(*_in_units(rows, parameter), parameter)

    def predict(self, features: Any, parameter: GapMixture) -> Array:
        """The most responsible component of each row, int32."""
        return np.asarray(self.transform(features, parameter)[0].argmax(axis=1), dtype=np.int32)

    def probabilities(self, features: Any, parameter: GapMixture) -> Array:
        return self.transform(features, parameter)[0]

    def evaluate(self, features: Any, labels: Array | None, parameter: GapMixture) -> Evaluation:
        densities = self.transform(features, parameter)[1]
        return Evaluation(float(densities.sum()), {"log_likelihood": float(densities.mean())})


def _in_units(rows: Array, theta: GapMixture) -> tuple[Array, Array]:
    """y, 0 in place of gaps, and where a number is observed."""
    known = observed(rows)
    return np.where(known, (np.where(known, rows, 0.0) - theta.origin) / theta.unit, 0.0), known


def _logs(variances: Array, unit: Array) -> Array:
    return np.asarray(0.5 * np.log(2.0 * np.pi * variances) + np.log(unit))


def _moments(y: Array, known: Array, shares: Array) -> ObservedMoments:
    """Of rows whose gaps are 0, under (weighted) responsibilities."""
    counted = shares.T @ known.astype(np.float64)
    return ObservedMoments(shares.sum(axis=0), counted, shares.T @ y, shares.T @ y**2, np.zeros(1))


def _expected(y: Array, known: Array, theta: GapMixture) -> tuple[Array, Array]:
    """Responsibilities, and logarithms of the densities of what is observed."""
    joint = np.empty((len(y), len(theta.means)))
    for j, weight in enumerate(theta.weights):
        away = np.where(known, y - theta.means[j], 0.0) ** 2
        joint[:, j] = np.log(max(float(weight), 1e-300)) - known @ theta.logs[j] - away @ (0.5 / theta.variances[j])
    top = joint.max(axis=1, keepdims=True)
    chance = np.exp(joint - top)
    total = chance.sum(axis=1, keepdims=True)
    return chance / total, (top + np.log(total))[:, 0]
