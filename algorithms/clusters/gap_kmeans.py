"""K-means of rows with gaps: the observed numbers alone count. Never reads data or a clock."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from flegel.algorithm import Evaluation, Sample
from flegel.algorithms.every_point import EveryPoint, all_counted
from flegel.algorithms.kmeans.trial_start import best_start
from flegel.algorithms.seeding import (
    ALSO_CALLED_K,
    KMEANS_PLUS_PLUS,
    START_FILE,
    check_enough,
    some_weighted,
    start_rows,
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


class GapCentroids(NamedTuple):
    """θ. `origin`, about which sums are taken, never changes, nor `total`, what all points weigh."""

    centroids: Array
    origin: Array
    total: Array


class ObservedSums(NamedTuple):
    """s, per cluster: Σ(x − origin) and the weight of the observed numbers of each column, Σ‖x − origin‖² over all of
    them, and the weight of the points."""

    sums: Array
    weights: Array
    squares: Array
    counts: Array


class ObservedChange(NamedTuple):
    """A point's change from cluster `last` (-1: none) to `nearest`."""

    point: Any
    origin: Array
    last: int
    nearest: int
    weight: float


class GapKMeans(EveryPoint):
    """Partition rows with gaps into k clusters: distances and means are those of the observed numbers (k-POD).

    State of a point: its cluster. Statistics: for each cluster and column the sum and the weight of what is observed.
    Update: means of what is observed, once every point has been visited; a column of which a cluster has seen nothing
    keeps its number. Objective: Σ (x_t − μ_t)² over the observed numbers. A row of gaps alone is in the first cluster.
    Start: gaps of some rows of the sample become the means of their columns; k-means++ and passes on these, then passes
    on what is observed.
    Without gaps this is k-means, for which `KMeans` is faster.
    Reference: J. Chi, E. Chi, R. Baraniuk, k-POD: a method for k-means clustering of missing data (2016).
    """

    accepts = Accepts(weighted=True, labels="ignored", gaps=True)
    state = HiddenState(memoryless=True)
    learning = Learning(tolerance=1e-6, auxiliary=("origin", "total"))
    figures = ReportedFigures(followed=("mean_squared_distance",))
    hyper_names = HyperNames(also_called=ALSO_CALLED_K, starting=("init",))

    k: Annotated[int, Meta(ge=1, description="number of clusters")] = 10
    init: Annotated[
        str | np.ndarray[Any, Any],
        Meta(description="k-means++, random, first, a .npy file of k centroids, or an array of them"),
        START_FILE,
    ] = KMEANS_PLUS_PLUS
    n_init: Annotated[int, Meta(ge=1, description="starts by k-means++ that are tried on the sample")] = 3

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> GapCentroids:
        """The best start on some rows whose gaps are filled in, then passes over these rows as they are."""
        check_enough(self.k, sample.weights, "GapKMeans")
        rows, weights = weighted_rows(np.asarray(sample.features, np.float64), sample.weights)
        known = observed(rows)
        origin = np.where(known, rows, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
        filled = np.where(known, rows - origin, 0.0)
        rules = active().starts
        places, own = some_weighted(np.arange(len(rows)), weights, rules.kmeans_most_trial_rows, rng)
        if isinstance(self.init, str) and self.init == KMEANS_PLUS_PLUS:
            centres = best_start(filled[places], self.k, self.n_init, rng, own) + origin
        else:
            given = rows if isinstance(self.init, str) else filled
            known_rows = np.where(known, given, origin)
            centres = start_rows(known_rows, self.k, self.init, sample.columns, rng, "GapKMeans", weights)
        theta = GapCentroids(centres, origin, np.array([sample.mass]))
        if not isinstance(self.init, str) or self.init != KMEANS_PLUS_PLUS:
            return theta
        mass = np.ones(len(places)) if own is None else own
        value = np.inf
        for _ in range(rules.lloyd_passes):
            costs = _squared(rows[places], theta)
            before, value = value, float(mass @ costs.min(axis=1))
            if not value < before:
                break
            marks = (costs.argmin(axis=1)[:, None] == np.arange(self.k)) * mass[:, None]
            sums, weighed = marks.T @ filled[places], marks.T @ known[places]
            theta = theta._replace(centroids=_means(sums, weighed, theta))
        return theta

    def initState(self, points: int, columns: int, rng: np.random.Generator) -> Array:
        return np.full((points, 1), -1, np.int32)

    def stateLimits(self, parameter: GapCentroids) -> tuple[float, float]:
        return -1.0, len(parameter.centroids) - 1.0

    def initAggregator(self, sample: Sample, parameter: GapCentroids) -> ObservedSums:
        table = np.zeros_like(parameter.centroids)
        return ObservedSums(table, table.copy(), np.zeros(len(table)), np.zeros(len(table)))

    def updateDataPoint(self, dataPoint: DataPoint, parameter: GapCentroids, iterationNum: int) -> ObservedChange:
        row: Any = dataPoint.features
        last, nearest, least = dataPoint.state[0], 0, np.inf
        for j in range(parameter.centroids.shape[0]):
            cost = 0.0
            for t in range(row.shape[0]):
                if row[t] < GAP:
                    away = row[t] - parameter.centroids[j, t]
                    cost += away * away
            if cost < least:
                nearest, least = j, cost
        dataPoint.state[0] = nearest
        return ObservedChange(row, parameter.origin, last, nearest, dataPoint.weight)

    def aggregate(self, target: ObservedSums, change: ObservedChange) -> ObservedSums:
        """Move a point of this weight from one cluster to another."""
        row, origin, last, nearest, weight = change
        if last == nearest:
            return target
        square = 0.0
        for t in range(row.shape[0]):
            if row[t] < GAP:
                away = row[t] - origin[t]
                square += away * away
                target.sums[nearest, t] += weight * away
                target.weights[nearest, t] += weight
                if last >= 0:
                    target.sums[last, t] -= weight * away
                    target.weights[last, t] -= weight
        target.counts[nearest] += weight
        target.squares[nearest] += weight * square
        if last >= 0:
            target.counts[last] -= weight
            target.squares[last] -= weight * square
        return target

    def updateParameter(self, aggregator: ObservedSums, oldParameter: GapCentroids) -> GapCentroids:
        if not all_counted(aggregator.counts.sum(), oldParameter):
            return oldParameter
        centroids = _means(aggregator.sums, aggregator.weights, oldParameter)
        return oldParameter._replace(centroids=centroids)

    def objective(self, aggregator: ObservedSums, parameter: GapCentroids) -> float:
        weights, means = aggregator.weights, aggregator.sums / np.maximum(aggregator.weights, 1e-300)
        within = np.maximum(aggregator.squares - (weights * means**2).sum(axis=1), 0.0)
        away = parameter.centroids - parameter.origin - np.where(weights > 0, means, 0.0)
        return float(within.sum() + (weights * away**2).sum())

    def validate(self, sample: Sample) -> None:
        if self.k > sample.points:
            raise UsageError(f"GapKMeans: k={self.k} is more than the number of points, {sample.points}.")
        if len(sample.features) == sample.points and (blank := unobserved(observed(sample.features).sum(axis=0))):
            raise UsageError(f"GapKMeans: {blank}; leave it out.")

    def warnings(self, aggregator: ObservedSums, parameter: GapCentroids) -> list[str]:
        blank = unobserved(np.asarray(aggregator.weights).sum(axis=0))
        return [f"{blank}: what centroids say there means nothing; leave it out."] if blank else []

    def model(self, parameter: GapCentroids) -> dict[str, Array]:
        return {"centroids": parameter.centroids}

    def work(self, columns: int) -> float:
        return 2.0 * self.k * columns

    def squared_distances(self, features: Any, parameter: GapCentroids) -> Array:
        """Of each row to every centroid, over what is observed; gaps may be NaN."""
        rows, columns = np.asarray(features), len(parameter.origin)
        if rows.ndim != 2 or rows.shape[1] != columns:
            raise UsageError(f"GapKMeans: rows of shape {rows.shape} do not fit a model of {columns} columns.")
        return _squared(rows, parameter)

    def predict(self, features: Any, parameter: GapCentroids) -> Array:
        """The nearest cluster of each row, int32."""
        return np.asarray(self.squared_distances(features, parameter).argmin(axis=1), dtype=np.int32)

    def evaluate(self, features: Any, labels: Array | None, parameter: GapCentroids) -> Evaluation:
        each = self.squared_distances(features, parameter).min(axis=1)
        inertia = float(each.sum())
        return Evaluation(inertia, {"inertia": inertia, "mean_squared_distance": inertia / max(len(each), 1)})


def _squared(rows: Array, theta: GapCentroids) -> Array:
    """(rows, centroids)."""
    known, found = observed(rows), np.empty((len(rows), len(theta.centroids)))
    about = np.where(known, rows - theta.origin, 0.0)
    for j, centre in enumerate(theta.centroids - theta.origin):
        away = np.where(known, about - centre, 0.0)
        found[:, j] = np.einsum("ij,ij->i", away, away)
    return found


def _means(sums: Array, weights: Array, theta: GapCentroids) -> Array:
    """Means of what is observed; a number of which a cluster has seen nothing stays."""
    means = theta.origin + sums / np.maximum(weights, 1e-300)
    return np.asarray(np.where(weights > 1e-9 * theta.total[0] / len(sums), means, theta.centroids))
