"""K-means with limits on the sizes of clusters. Never reads data or a clock."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from flegel.algorithm import Evaluation, Sample
from flegel.algorithms.clusters.transport import Sizes, assign
from flegel.algorithms.clusters.turns import WEIGHT_ROUNDING, PlaceChange, TurnClusters, TurnSums, all_visited
from flegel.algorithms.kmeans.kmeans import Centroids, KMeans, KMeansSums
from flegel.algorithms.points import squared_distance
from flegel.algorithms.seeding import ALSO_CALLED_K, KMEANS_PLUS_PLUS, START_FILE, as_often_as_they_weigh, weighted_rows
from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.core.shard import DataPoint
from flegel.declarations.accepts import Accepts
from flegel.declarations.figures import ReportedFigures
from flegel.declarations.hidden_state import HiddenState
from flegel.declarations.hyper_names import HyperNames
from flegel.declarations.learning import Learning
from flegel.declarations.placement import ParameterPlacement
from flegel.errors import UsageError

ROWS_AT_ONCE = 1 << 13  # whose distances are computed together: they stay in the cache of a core


class PricedCentroids(NamedTuple):
    """θ: centroids, and a price for each cluster. `origin`, `total` (the weight of all points) and `rows`, some rows on
    which the prices are found, never change. `shift`: by how much the clusters of these rows are larger, in proportion,
    than those of all points; 0 where these rows are all. `turn`: 0 and 1 by turns, another one with each new θ.
    `recent`: objectives of the last θ, the oldest first."""

    centroids: Array
    prices: Array
    origin: Array
    total: Array
    rows: Array
    shift: Array
    turn: Array
    recent: Array


class Settled(NamedTuple):
    """Clusters whose sizes hold exactly: θ, the cluster of each row, and the sum of squared distances."""

    parameter: PricedCentroids
    labels: Array
    inertia: float


class SizedKMeans(TurnClusters):
    """Partition points into k clusters around their means, none smaller than `size_min` or larger than `size_max`.

    Model: centroids μ_j and prices p_j; a point belongs to the cluster with the least ‖x − μ_j‖² + p_j. State of a
    point: its cluster, and the turn of its last visit.
    Statistics: those of k-means, and how much of all points is of each turn.
    Update, each time that every point has been visited with this θ, which the turns tell under every synchronization
    model: centroids are means, and prices those of the best assignment of some rows (`transport`) to the new centroids.
    Limits for these rows are raised by as much as their clusters were larger, in proportion, than those of all points.
    θ stays when the last passes have gained nothing: many equal rows, which prices cannot part, go to and fro.
    Objective: Σ ‖x − μ_z(x)‖² + Σ_j p_j⁺ (C_j − size_max) + p_j⁻ (size_min − C_j), the Lagrangian: where sizes hold it
    is the sum of squared distances, and it is never above that of the best assignment with these centroids.
    `predict` goes by prices, row by row, and equal rows stay together, so sizes hold nearly (of 100,000 different rows
    0.03 to 0.3 % were too many); `settled` has all rows at hand, and they hold exactly. Without limits this is k-means,
    for which `KMeans` is faster.
    Reference: P. Bradley, K. Bennett, A. Demiriz, Constrained k-means clustering (2000).
    """

    accepts = Accepts(weighted=True, labels="ignored")
    state = HiddenState(memoryless=True)
    learning = Learning(tolerance=1e-5, auxiliary=("origin", "total", "rows", "shift", "turn", "recent"))
    placement = ParameterPlacement(unsent=("rows", "shift", "recent"))
    figures = ReportedFigures(followed=("mean_squared_distance",))
    hyper_names = HyperNames(also_called=ALSO_CALLED_K, starting=("init",))

    k: Annotated[int, Meta(ge=1, le=10_000, description="number of clusters")] = 10
    size_min: Annotated[int | None, Meta(description="fewest points of a cluster; None: any")] = None
    size_max: Annotated[int | None, Meta(description="most points of a cluster; None: any")] = None
    init: Annotated[
        str | np.ndarray[Any, Any],
        Meta(description="k-means++, random, first, a .npy file of k centroids, or an array of them"),
        START_FILE,
    ] = "k-means++"
    n_init: Annotated[int, Meta(ge=1, description="starts by k-means++ that are tried on the sample")] = 3

    def sizes(self, part: float = 1.0) -> Sizes:
        """The limits, for a part of all points."""
        high = np.inf if self.size_max is None else self.size_max
        return Sizes(np.full(self.k, part * (self.size_min or 0)), np.full(self.k, part * high))

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> PricedCentroids:
        """The start of k-means, balanced on some rows of the sample with limits in proportion."""
        rows, weights = weighted_rows(np.asarray(sample.features), sample.weights)
        begun = KMeans(k=self.k, init=self.init, n_init=self.n_init).initParameter(sample, rng)
        rules = active().sizes
        size = max(rules.sample_rows, rules.rows_per_cluster * self.k)
        some = as_often_as_they_weigh(rows, weights, size, rng)
        some, zero = some.astype(np.float64), np.zeros(self.k)
        total = np.array([sample.mass])
        recent = np.full(rules.passes_that_gain, np.finfo(np.float64).max)
        start = PricedCentroids(begun.centroids, zero, begun.origin, total, some, zero, np.zeros(1), recent)
        if not (isinstance(self.init, str) and self.init == KMEANS_PLUS_PLUS):
            return start._replace(prices=self._prices(start, sample.mass))
        return self._settled(some, start, self._part_sizes(start, sample.mass)).parameter

    def continueParameter(self, previous: PricedCentroids, sample: Sample, rng: np.random.Generator) -> PricedCentroids:
        return type(self)(**{**self.hyper(), "init": previous.centroids}).initParameter(sample, rng)

    def _part_sizes(self, theta: PricedCentroids, total: float) -> Sizes:
        """Limits for the rows in θ: in proportion to the weight of all points, and shifted; whole numbers that these
        rows can have."""
        count = len(theta.rows)
        sizes = self.sizes(count / total)
        low = np.clip(np.floor(sizes.low + theta.shift), 0, count)
        high = np.clip(np.ceil(np.minimum(sizes.high, count) + theta.shift), low, count)
        low = low - max(np.ceil((low.sum() - count) / self.k), 0.0)
        return Sizes(low, high + max(np.ceil((count - high.sum()) / self.k), 0.0))

    def _prices(self, theta: PricedCentroids, total: float) -> Array:
        if self.size_min is None and self.size_max is None:
            return np.zeros(self.k)
        costs = _squared_distances(theta.rows, theta.centroids)
        return assign(costs, theta.prices, self._part_sizes(theta, total)).prices

    def stateLimits(self, parameter: PricedCentroids) -> tuple[float, float]:
        return -1.0, 2.0 * len(parameter.prices) - 1.0

    def initAggregator(self, sample: Sample, parameter: PricedCentroids) -> TurnSums:
        return TurnSums(np.zeros_like(parameter.centroids), np.zeros(self.k), np.zeros(self.k), np.zeros(2))

    def updateDataPoint(self, dataPoint: DataPoint, parameter: PricedCentroids, iterationNum: int) -> PlaceChange:
        last, best, least = dataPoint.state[0], 0, np.inf
        for j in range(parameter.prices.shape[0]):
            cost = squared_distance(dataPoint.features, parameter.centroids[j]) + parameter.prices[j]
            if cost < least:
                best, least = j, cost
        state = 2 * best + int(parameter.turn[0])
        dataPoint.state[0] = state
        return PlaceChange(dataPoint.features, parameter.origin, last, state, dataPoint.weight)

    def updateParameter(self, aggregator: TurnSums, oldParameter: PricedCentroids) -> PricedCentroids:
        old, counts = oldParameter, aggregator.counts
        seen, turn = float(counts.sum()), int(old.turn[0])
        if not all_visited(aggregator, float(old.total[0]), turn):
            return old
        objective = self.objective(aggregator, old)
        if not objective < old.recent[0] - WEIGHT_ROUNDING * abs(objective):
            return old
        means = old.origin + aggregator.sums / np.maximum(counts, 1e-300)[:, None]
        centroids = np.where(counts[:, None] > WEIGHT_ROUNDING * seen, means, old.centroids)
        foreseen = np.bincount(self.predict(old.rows, old), minlength=self.k)
        missing = foreseen - counts * (len(old.rows) / seen)
        shift = old.shift + active().sizes.corrected * (missing - old.shift)
        recent = np.append(old.recent[1:], objective)
        new = old._replace(centroids=centroids, shift=shift, turn=np.array([1.0 - turn]), recent=recent)
        return new._replace(prices=self._prices(new, seen))

    def holds(self, parameter: PricedCentroids) -> bool:
        return True

    def objective(self, aggregator: TurnSums, parameter: PricedCentroids) -> float:
        part = min(1.0, float(aggregator.counts.sum()) / float(parameter.total[0]))
        return self._inertia(aggregator, parameter) + self._penalty(aggregator.counts, parameter.prices, part)

    def _inertia(self, aggregator: TurnSums, parameter: PricedCentroids) -> float:
        plain = Centroids(parameter.centroids, parameter.origin)
        return KMeans(k=self.k).objective(KMeansSums(*aggregator[:3]), plain)

    def _penalty(self, counts: Array, prices: Array, part: float) -> float:
        sizes, priced = self.sizes(part), prices != 0
        limits = np.where(prices > 0, sizes.high, sizes.low)[priced]
        return float(prices[priced] @ (counts[priced] - limits))

    def validate(self, sample: Sample) -> None:
        if self.k > sample.points:
            raise UsageError(f"SizedKMeans: k={self.k} is more than the number of points, {sample.points}.")
        slack = 1.0 if sample.weights is None else 1.06  # what all points weigh is estimated by the sample
        low, high = (float(limit.sum()) for limit in self.sizes())
        if low > sample.mass * slack or high * slack < sample.mass:
            raise UsageError(
                f"SizedKMeans: {sample.mass:.6g} points do not fit into {self.k} clusters of {self.size_min or 0} to "
                f"{'any number' if self.size_max is None else self.size_max}; change k, size_min or size_max."
            )

    def metrics(self, aggregator: TurnSums, parameter: PricedCentroids) -> dict[str, float]:
        counts = aggregator.counts
        return {
            "inertia": self._inertia(aggregator, parameter),
            "smallest": float(counts.min()),
            "largest": float(counts.max()),
        }

    def model(self, parameter: PricedCentroids) -> dict[str, Array]:
        return {"centroids": parameter.centroids, "prices": parameter.prices}

    def work(self, columns: int) -> float:
        return 2.0 * self.k * columns

    def settled(self, features: Any, parameter: PricedCentroids) -> Settled:
        """Clusters of the rows of the training, with sizes that hold exactly: the best assignment for these centroids,
        their means, and so on while it helps."""
        rows, sizes = np.asarray(features), self.sizes()
        if not sizes.low.sum() <= len(rows) <= sizes.high.sum():
            raise UsageError(f"SizedKMeans: {len(rows)} rows cannot have these sizes; give the rows of the training.")
        return self._settled(rows, parameter, sizes)

    def _settled(self, rows: Array, parameter: PricedCentroids, sizes: Sizes) -> Settled:
        theta, best = parameter, Settled(parameter, np.zeros(0, np.int32), np.inf)
        for _ in range(active().sizes.most_rounds):
            costs = _squared_distances(rows, theta.centroids)
            labels, prices = assign(costs, theta.prices, sizes)
            inertia = float(np.take_along_axis(costs, labels[:, None], axis=1).sum())
            gain = best.inertia - inertia
            if gain >= 0:
                best = Settled(theta._replace(prices=prices), labels, inertia)
            if not gain > active().sizes.settled_gain * inertia:
                break
            theta = best.parameter._replace(centroids=_means(rows, labels, theta))
        return best

    def predict(self, features: Any, parameter: PricedCentroids) -> Array:
        """The cluster of each row by distance and price, int32."""
        return self.assigned(features, parameter)[0]

    def assigned(self, features: Any, parameter: PricedCentroids) -> tuple[Array, Array]:
        """The cluster of each row by distance and price, and the squared distance to its centroid."""
        squared = _squared_distances(self._checked(features, parameter), parameter.centroids)
        labels = (squared + parameter.prices).argmin(axis=1)
        return labels.astype(np.int32), np.take_along_axis(squared, labels[:, None], axis=1)[:, 0]

    def distances(self, features: Any, parameter: PricedCentroids) -> Array:
        """Euclidean distances to all centroids, without prices."""
        return np.asarray(np.sqrt(_squared_distances(self._checked(features, parameter), parameter.centroids)))

    def _checked(self, features: Any, parameter: PricedCentroids) -> Array:
        rows, columns = np.asarray(features), len(parameter.origin)
        if rows.ndim != 2 or rows.shape[1] != columns:
            raise UsageError(f"SizedKMeans: rows of shape {rows.shape} do not fit a model of {columns} columns.")
        return rows

    def evaluate(self, features: Any, labels: Array | None, parameter: PricedCentroids) -> Evaluation:
        found, squared = self.assigned(features, parameter)
        counts, inertia = np.bincount(found, minlength=self.k), float(squared.sum())
        part = min(1.0, len(found) / float(parameter.total[0]))
        return Evaluation(
            inertia + self._penalty(counts, parameter.prices, part),
            {
                "inertia": inertia,
                "mean_squared_distance": inertia / max(len(found), 1),
                "smallest": float(counts.min()),
                "largest": float(counts.max()),
            },
        )

    def to_sklearn(self, parameter: PricedCentroids, classes: list[str] | None) -> Any:
        raise UsageError("scikit-learn's k-means knows no sizes; use flegel.sklearn.KMeansConstrained there.")


def _squared_distances(rows: Array, centroids: Array) -> Array:
    """(rows, centroids), in float64, by differences."""
    found = np.empty((len(rows), len(centroids)))
    for j, centroid in enumerate(centroids):
        for at in range(0, len(rows), ROWS_AT_ONCE):
            away = rows[at : at + ROWS_AT_ONCE] - centroid
            found[at : at + ROWS_AT_ONCE, j] = np.einsum("ij,ij->i", away, away)
    return found


def _means(rows: Array, labels: Array, theta: PricedCentroids) -> Array:
    """The mean of each cluster; an empty one stays."""
    counts = np.bincount(labels, minlength=len(theta.centroids))[:, None]
    sums = np.stack([np.bincount(labels, column, minlength=len(counts)) for column in (rows - theta.origin).T], axis=1)
    return np.asarray(np.where(counts > 0, theta.origin + sums / np.maximum(counts, 1), theta.centroids))
