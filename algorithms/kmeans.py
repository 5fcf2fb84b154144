"""K-means as incremental EM: the model, its statistics and the plain per-point hooks.

The hooks are the specification, one point at a time; `kmeans_kernel` does the same to whole tiles, fast.
Never reads data or a clock.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from flegel.algorithm import Algorithm, Evaluation, Kernel, Sample
from flegel.algorithms.kmeans_kernel import kernel_for
from flegel.algorithms.seeding import origin_of, start_rows
from flegel.core import pytree
from flegel.core.pytree import Array
from flegel.core.shard import DataPoint, Shard
from flegel.errors import UsageError


class Centroids(NamedTuple):
    """θ. `origin` never changes: statistics are taken about it, so a large mean costs no digits."""

    centroids: Array
    origin: Array


class Sums(NamedTuple):
    """s: per cluster Σ(x − origin) and the number of points; over all visited points Σ‖x − origin‖²."""

    sums: Array
    counts: Array
    squares: Array


class Move(NamedTuple):
    """A point's change: it leaves cluster `last` (−1: it was in none) for `nearest`."""

    point: Array
    origin: Array
    last: int
    nearest: int


class KMeans(Algorithm):
    """Partition points into k clusters around their means (squared Euclidean distance).

    Model: centroids μ_1 … μ_k. State of a point: the cluster of its last visit, −1 before the first.
    Statistics (paper, Section 2.2): S_j = Σ (x − origin) and C_j = number of points, over the points last
    assigned to j, and q = Σ ‖x − origin‖² over all visited points. A point that stays changes nothing.
    M-step: μ_j = origin + S_j / C_j; an empty cluster keeps its centroid.
    Objective: Σ ‖x − μ_z(x)‖² over visited points, each at the cluster of its last visit, from the statistics
    alone: with m_j = S_j / C_j it is q − Σ C_j ‖m_j‖² + Σ C_j ‖(μ_j − origin) − m_j‖². The origin is the
    mean of the sample, so the error is about 1e-15 of the scatter about the mean, however large that mean is.
    It never rises between barriers: a visit lowers a point's own term, the M-step lowers the sum.
    Reference: S. Lloyd, Least squares quantization in PCM (1982); R. Neal, G. Hinton, A view of the EM
    algorithm that justifies incremental, sparse, and other variants (1998).
    """

    layout = "tiles"

    k: Annotated[int, Meta(ge=1, description="number of clusters")] = 10
    init: Annotated[
        str | np.ndarray[Any, Any],
        Meta(description="k-means++, random, first, a .npy file of k centroids, or an array of them"),
    ] = "k-means++"

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> Centroids:
        rows = np.asarray(sample.features)
        start = start_rows(rows, self.k, self.init, sample.columns, rng, "KMeans")
        return Centroids(start, origin_of(rows))

    def initState(self, points: int, columns: int, rng: np.random.Generator) -> Array:
        return np.full((points, 1), -1, np.int32)

    def initAggregator(self, sample: Sample, parameter: Centroids) -> Sums:
        return Sums(np.zeros_like(parameter.centroids), np.zeros(len(parameter.centroids)), np.zeros(1))

    def updateDataPoint(self, dataPoint: DataPoint, parameter: Centroids, iterationNum: int) -> Move:
        x = dataPoint.features
        last = dataPoint.state[0]
        nearest, least = 0, np.inf
        for j in range(parameter.centroids.shape[0]):
            distance = 0.0
            for t in range(x.shape[0]):
                difference = x[t] - parameter.centroids[j, t]
                distance += difference * difference
            if distance < least or (distance == least and j == last):  # moves only to what is strictly nearer
                nearest, least = j, distance
        dataPoint.state[0] = nearest
        return Move(x, parameter.origin, last, nearest)

    def aggregate(self, target: Sums, change: Move | Sums) -> Sums:
        if len(change) == len(target):  # a whole report; numba drops this branch when it compiles for a Move
            return pytree.add(target, change)
        x, origin, last, nearest = change
        if last == nearest:
            return target
        target.counts[nearest] += 1
        for t in range(x.shape[0]):
            target.sums[nearest, t] += x[t] - origin[t]
        if last >= 0:
            target.counts[last] -= 1
            for t in range(x.shape[0]):
                target.sums[last, t] -= x[t] - origin[t]
        else:
            for t in range(x.shape[0]):
                target.squares[0] += (x[t] - origin[t]) ** 2
        return target

    def updateParameter(self, aggregator: Sums, oldParameter: Centroids) -> Centroids:
        filled = aggregator.counts > 0
        centroids = np.array(oldParameter.centroids, dtype=np.float64)
        centroids[filled] = oldParameter.origin + aggregator.sums[filled] / aggregator.counts[filled, None]
        return Centroids(centroids, oldParameter.origin)

    def objective(self, aggregator: Sums, parameter: Centroids) -> float:
        filled = aggregator.counts > 0
        counts = aggregator.counts[filled]
        means = aggregator.sums[filled] / counts[:, None]
        away = (parameter.centroids[filled] - parameter.origin) - means
        within = aggregator.squares[0] - counts @ (means**2).sum(axis=1)
        return float(max(within, 0.0) + counts @ (away**2).sum(axis=1))

    def kernel(self, share: Shard) -> Kernel | None:
        return kernel_for(share, self.k) if share.layout == "tiles" else None

    def validate(self, sample: Sample) -> None:
        if self.k > sample.points:
            raise UsageError(f"KMeans: k={self.k} is more than the number of points, {sample.points}.")

    def warnings(self, aggregator: Sums, parameter: Centroids) -> list[str]:
        empty = np.flatnonzero(aggregator.counts <= 0)
        if len(empty) == 0:
            return []
        return [
            f"{len(empty)} of {len(aggregator.counts)} clusters are empty ({_some(empty)}); "
            "they keep the last centroid they had. Fewer clusters or another init may fit better."
        ]

    def predict(self, features: Any, parameter: Centroids) -> Array:
        """The nearest cluster of each row, int32."""
        return _nearest(np.asarray(features), parameter)[0]

    def evaluate(self, features: Any, labels: Array | None, parameter: Centroids) -> Evaluation:
        nearest, distances = _nearest(np.asarray(features), parameter)
        total = float(distances.sum())
        used = float(len(np.unique(nearest)))
        return Evaluation(total, {"inertia": total, "mean": total / len(nearest), "clusters": used})


def _nearest(rows: Array, parameter: Centroids, chunk: int = 16384) -> tuple[Array, Array]:
    """Cluster and squared distance of each row, in float64."""
    columns = len(parameter.origin)
    if rows.ndim != 2 or rows.shape[1] != columns:
        raise UsageError(f"KMeans: rows of shape {rows.shape} do not fit a model of {columns} columns.")
    centres = parameter.centroids - parameter.origin
    half = 0.5 * (centres**2).sum(axis=1)
    nearest = np.empty(len(rows), np.int32)
    distances = np.empty(len(rows))
    for at in range(0, len(rows), chunk):
        shifted = rows[at : at + chunk] - parameter.origin
        nearest[at : at + chunk] = (half - shifted @ centres.T).argmin(axis=1)
        distances[at : at + chunk] = ((shifted - centres[nearest[at : at + chunk]]) ** 2).sum(axis=1)
    return nearest, distances


def _some(numbers: Array, most: int = 8) -> str:
    text = ", ".join(str(int(n)) for n in numbers[:most])
    return text + (", …" if len(numbers) > most else "")
