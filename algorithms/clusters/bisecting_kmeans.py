"""Bisecting k-means: clusters by splits in two, as a tree. Never reads data or a clock."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from msgspec import Meta

from flegel.algorithm import Algorithm, Evaluation, Sample
from flegel.algorithms.kmeans.kmeans import Centroids, KMeans, KMeansSums, PointReassignment
from flegel.algorithms.kmeans.point import reassign
from flegel.algorithms.points import squared_distance
from flegel.algorithms.seeding import (
    ALSO_CALLED_K,
    check_enough,
    origin_of,
    prepared,
    several_lloyd,
    some_weighted,
    squared_lengths,
    weighted_rows,
)
from flegel.configuration.active import active
from flegel.core.code_cache import njit
from flegel.core.pytree import Array
from flegel.core.shard import DataPoint
from flegel.declarations.accepts import Accepts
from flegel.declarations.figures import ReportedFigures
from flegel.declarations.hidden_state import HiddenState
from flegel.declarations.hyper_names import HyperNames
from flegel.declarations.learning import Learning
from flegel.declarations.placement import ParameterPlacement
from flegel.errors import UsageError
from flegel.wording import setting

NOBODY = -1.0  # the parent of a split that was not made: no cluster could be split any more


class SplitTree(NamedTuple):
    """θ. Split s divides cluster `parents[s]` of those before: who is nearer to `ways[s, 1]` than to `ways[s, 0]` goes
    to cluster s + 1. `centroids` are the means of the clusters at the end. `origin` and `parents` never change."""

    ways: Array
    parents: Array
    centroids: Array
    origin: Array


class BisectingKMeans(Algorithm):
    """Partition points into k clusters by k − 1 splits in two, each k-means with two centres (bisecting k-means).

    Which cluster is split is decided on the sample: that of the greatest scatter, or of the most points. Then every
    split follows all points that come to it: its two centres are their means on both sides, made of the sums of the
    clusters below. State of a point: its cluster, found by a walk down the tree, which costs the depth of the tree
    rather than k. Statistics: those of k-means.
    Objective: Σ ‖x − μ_z(x)‖² about the means of the clusters.
    Reference: M. Steinbach, G. Karypis, V. Kumar, A comparison of document clustering techniques (2000).
    """

    accepts = Accepts(weighted=True, labels="ignored")
    state = HiddenState(memoryless=True)
    learning = Learning(tolerance=1e-6, trivial="one cluster", auxiliary=("parents", "origin"))
    placement = ParameterPlacement(unsent=("centroids",))
    figures = ReportedFigures(followed=("mean_squared_distance",))
    hyper_names = HyperNames(also_called=ALSO_CALLED_K)

    k: Annotated[int, Meta(ge=1, description="number of clusters")] = 10
    split: Annotated[
        Literal["inertia", "size"], Meta(description="the cluster that is split: of most scatter, or of most points")
    ] = "inertia"
    n_init: Annotated[int, Meta(ge=1, description="starts by k-means++ of each split, on the sample")] = 3

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> SplitTree:
        """The whole tree, on some rows of the sample."""
        check_enough(self.k, sample.weights, "BisectingKMeans")
        rows, weights = weighted_rows(np.asarray(sample.features, np.float64), sample.weights)
        some, own = some_weighted(rows, weights, active().starts.kmeans_most_trial_rows // 2, rng)
        origin, mass = origin_of(rows), np.ones(len(some)) if own is None else own
        some = some - origin
        ways, parents = np.zeros((self.k - 1, 2, sample.columns)), np.full(self.k - 1, NOBODY)
        leaf = np.zeros(len(some), int)
        wide, splittable = self._importance(some, mass), True
        importance = np.array([wide])
        for s in range(self.k - 1):
            parent = int(importance.argmax())
            splittable = splittable and importance[parent] > 0
            if not splittable:
                break
            mine = np.flatnonzero(leaf == parent)
            trials = several_lloyd(prepared(some[mine]), 2, [rng] * self.n_init, mass[mine])
            centres = min(trials, key=lambda trial: trial.squared_distances).centres
            beyond = mine[_leaves(some[mine], centres[None], np.zeros(1)) == 1]
            ways[s], parents[s], leaf[beyond] = centres + origin, parent, s + 1
            sides = [self._importance(some[leaf == j], mass[leaf == j]) for j in (parent, s + 1)]
            importance[parent] = sides[0]
            importance = np.append(importance, sides[1])
        counts = np.bincount(leaf, mass, minlength=self.k)
        sums = np.stack([np.bincount(leaf, mass * column, minlength=self.k) for column in some.T], axis=1)
        means = origin + sums / np.maximum(counts, 1e-300)[:, None]
        return SplitTree(ways, parents, _with_nobody(means, parents), origin)

    def _importance(self, rows: Array, mass: Array) -> float:
        """What decides which cluster is split; 0 where its rows are all equal."""
        if len(rows) < 2:
            return 0.0
        mean = mass @ rows / mass.sum()
        scatter = float(mass @ squared_lengths(rows - mean))
        if scatter <= 1e-12 * float(mass @ squared_lengths(rows)):
            return 0.0
        return float(mass.sum()) if self.split == "size" else scatter

    def initState(self, points: int, columns: int, rng: np.random.Generator) -> Array:
        return np.full((points, 1), -1, np.int32)

    def stateLimits(self, parameter: SplitTree) -> tuple[float, float]:
        return -1.0, len(parameter.centroids) - 1.0

    def initAggregator(self, sample: Sample, parameter: SplitTree) -> KMeansSums:
        return KMeansSums(np.zeros_like(parameter.centroids), np.zeros(self.k), np.zeros(self.k))

    def updateDataPoint(self, dataPoint: DataPoint, parameter: SplitTree, iterationNum: int) -> PointReassignment:
        row, last = dataPoint.features, dataPoint.state[0]
        leaf = _leaf(row, parameter.ways, parameter.parents)
        dataPoint.state[0] = leaf
        return PointReassignment(row, parameter.origin, last, leaf, dataPoint.weight)

    def aggregate(self, target: KMeansSums, change: PointReassignment) -> KMeansSums:
        """Add one point's change of cluster to the sums."""
        row, origin, last, nearest, weight = change
        if last == nearest:
            return target
        square = weight * reassign(row, origin, last, nearest, weight, target.sums)
        target.counts[nearest] += weight
        target.squares[nearest] += square
        if last >= 0:
            target.counts[last] -= weight
            target.squares[last] -= square
        return target

    def updateParameter(self, aggregator: KMeansSums, oldParameter: SplitTree) -> SplitTree:
        """From the last split to the first, the clusters on its two sides are put together again."""
        old, ways = oldParameter, np.array(oldParameter.ways)
        sums, counts = np.array(aggregator.sums), np.array(aggregator.counts)
        least = 1e-9 * float(counts.sum()) / self.k  # what rounding leaves of weights in an empty cluster is below
        means = sums / np.maximum(counts, 1e-300)[:, None]
        centroids = _with_nobody(np.where(counts[:, None] > least, old.origin + means, old.centroids), old.parents)
        for s in reversed(range(self.k - 1)):
            if old.parents[s] == NOBODY:
                continue
            parent = int(old.parents[s])
            for side, j in enumerate((parent, s + 1)):
                if counts[j] > least:
                    ways[s, side] = old.origin + sums[j] / counts[j]
            sums[parent] += sums[s + 1]
            counts[parent] += counts[s + 1]
        return old._replace(ways=ways, centroids=centroids)

    def objective(self, aggregator: KMeansSums, parameter: SplitTree) -> float:
        return KMeans(k=self.k).objective(aggregator, Centroids(parameter.centroids, parameter.origin))

    def baseline(self, aggregator: KMeansSums, parameter: SplitTree) -> float:
        return KMeans(k=self.k).baseline(aggregator, Centroids(parameter.centroids, parameter.origin))

    def warnings(self, aggregator: KMeansSums, parameter: SplitTree) -> list[str]:
        counts = np.asarray(aggregator.counts)
        found = int((counts > 1e-9 * float(counts.sum()) / self.k).sum())
        if found == self.k:
            return []
        return [f"Of k={self.k} clusters {found} have points, because others are all equal; use {setting('k', found)}."]

    def validate(self, sample: Sample) -> None:
        if self.k > sample.points:
            raise UsageError(f"BisectingKMeans: k={self.k} is more than the number of points, {sample.points}.")

    def model(self, parameter: SplitTree) -> dict[str, Array]:
        return {"centroids": parameter.centroids, "ways": parameter.ways, "parents": parameter.parents}

    def work(self, columns: int) -> float:
        return float(2.0 * np.ceil(np.log2(self.k + 1)) * columns)

    def predict(self, features: Any, parameter: SplitTree) -> Array:
        """The cluster of each row, int32, by the splits from the first to the last."""
        rows, columns = np.asarray(features), len(parameter.origin)
        if rows.ndim != 2 or rows.shape[1] != columns:
            raise UsageError(f"BisectingKMeans: rows of shape {rows.shape} do not fit a model of {columns} columns.")
        return np.asarray(_leaves(np.ascontiguousarray(rows), parameter.ways, parameter.parents))

    def evaluate(self, features: Any, labels: Array | None, parameter: SplitTree) -> Evaluation:
        found = self.predict(features, parameter)
        inertia = float(squared_lengths(np.asarray(features) - parameter.centroids[found]).sum())
        clusters = float(len(np.unique(found)))
        mean = inertia / max(len(found), 1)
        return Evaluation(inertia, {"inertia": inertia, "mean_squared_distance": mean, "clusters": clusters})


def _with_nobody(centroids: Array, parents: Array) -> Array:
    """Clusters that no split made have the centre of the first one, so that no row is nearer to them than to it."""
    centroids[1:][parents == NOBODY] = centroids[0]
    return centroids


@njit(nogil=True, cache=True, error_model="numpy")
def _leaf(row, ways, parents):
    """The cluster at the end of a row's way."""
    leaf = 0
    for s in range(parents.shape[0]):
        if parents[s] == leaf:
            here = squared_distance(row, ways[s, 0])
            if squared_distance(row, ways[s, 1]) < here:
                leaf = s + 1
    return leaf


@njit(nogil=True, cache=True, error_model="numpy")
def _leaves(rows, ways, parents):
    """`_leaf` of each row."""
    found = np.empty(rows.shape[0], np.int32)
    for i in range(rows.shape[0]):
        found[i] = _leaf(rows[i], ways, parents)
    return found
