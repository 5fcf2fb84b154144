"""K-means as incremental EM: the model, its statistics and the plain per-point hooks.

The hooks are the specification, one point at a time; `kernel.py` computes the same for whole tiles.
Never reads data or a clock.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from flegel.algorithm import Algorithm, Evaluation, Kernel, Sample
from flegel.algorithms.kmeans.kernel import kernel_for
from flegel.algorithms.seeding import (
    DRAWN,
    START_FILE,
    lloyd,
    more_rows,
    origin_of,
    some_weighted,
    start_rows,
    weighted_rows,
)
from flegel.core import pytree
from flegel.core.pytree import Array
from flegel.core.shard import DataPoint, Shard
from flegel.errors import UsageError

ROUNDING = 2.0**-50  # relative to a sum of squares: the error of a difference of two such sums in float64
SPARE = 64  # rows of the sample, at most, that θ keeps as places for clusters that become empty
TRIAL_ROWS = 32768  # rows of the sample, at most, on which starts are tried
TRIAL_WORK = 2**26  # multiplications in a pass over them, at most: fewer rows where k·d is large


class Centroids(NamedTuple):
    """θ. `origin` never changes: statistics are taken about it, so a large mean costs no digits.

    Nor do `spare`, rows of the data far from the start, where an empty cluster may go, and `points`, how many there
    are, or what they weigh.
    """

    centroids: Array
    origin: Array
    spare: Array = np.empty((0, 0))
    points: Array = np.zeros(())


class KMeansSums(NamedTuple):
    """s, per cluster: Σ(x − origin), the number of points, and Σ‖x − origin‖²; each point as often as it weighs."""

    sums: Array
    counts: Array
    squares: Array


class PointReassignment(NamedTuple):
    """A point's change: it leaves cluster `last` (−1: it was in none) for `nearest`."""

    point: Array
    origin: Array
    last: int
    nearest: int
    weight: float = 1.0


class KMeans(Algorithm):
    """Partition points into k clusters around their means (squared Euclidean distance).

    Model: centroids μ_1 … μ_k. State of a point: the cluster of its last visit, −1 before the first.
    Statistics (paper, Section 2.2), over the points last assigned to j: S_j = Σ (x − origin), C_j = number of points,
    q_j = Σ ‖x − origin‖². A point that stays changes nothing.
    M-step: μ_j = origin + S_j / C_j. A cluster that is empty when every point has been visited goes to the spare row
    that is furthest from all centroids, and waits there for its points; that changes no sum, and the objective can
    only fall. Before that, or if no spare row is left, it keeps its centroid.
    Objective: Σ ‖x − μ_z(x)‖² over visited points, each at the cluster of its last visit, from the statistics
    alone: with m_j = S_j / C_j it is Σ [q_j − C_j ‖m_j‖² + C_j ‖(μ_j − origin) − m_j‖²]. The origin is the
    mean of the sample without outliers, so the error is about 1e-15 of the scatter about it, however large it is.
    It never rises between barriers: a visit lowers a point's own term, the M-step lowers the sum.
    Start: the best of `n_init`, each a few passes over the sample from a start by k-means++. Other starts are taken as
    they are.
    Reference: S. Lloyd, Least squares quantization in PCM (1982); R. Neal, G. Hinton, A view of the EM
    algorithm that justifies incremental, sparse, and other variants (1998).
    """

    layout = "tiles"
    torch_program = "flegel.algorithms.kmeans.torch_program:KMeansProgram"
    weighted = True
    ignores_labels = True
    auxiliary = ("spare", "points")
    default_tolerance = 1e-6
    memoryless = True
    trivial = "one cluster"

    k: Annotated[int, Meta(ge=1, description="number of clusters")] = 10
    init: Annotated[
        str | np.ndarray[Any, Any],
        Meta(description="k-means++, random, first, a .npy file of k centroids, or an array of them"),
        START_FILE,
    ] = "k-means++"
    n_init: Annotated[int, Meta(ge=1, description="starts by k-means++ that are tried on the sample")] = 3

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> Centroids:
        rows, weights = weighted_rows(np.asarray(sample.features), sample.weights)
        origin = origin_of(rows)
        size = max(TRIAL_WORK // (self.k * sample.columns), 2048, 20 * self.k)
        some, own = some_weighted(rows, weights, min(size, TRIAL_ROWS), rng)
        some = some - origin
        if isinstance(self.init, str) and self.init == DRAWN:
            if self.k > len(some):
                raise UsageError(f"KMeans: k={self.k} is more than the {len(some)} points drawn; lower k.")
            trials = [lloyd(some, self.k, rng, own) for _ in range(self.n_init)]
            start = min(trials, key=lambda trial: trial[2])[0] + origin
        else:
            start = start_rows(rows, self.k, self.init, sample.columns, rng, "KMeans", weights)
        spare = more_rows(some, start - origin, min(self.k, SPARE), rng, own) + origin
        spare = spare.astype(rows.dtype).astype(np.float64)
        return Centroids(start, origin, spare, np.array([sample.mass]))

    def continueParameter(self, previous: Centroids, sample: Sample, rng: np.random.Generator) -> Centroids:
        return type(self)(**{**self.hyper(), "init": previous.centroids}).initParameter(sample, rng)

    def initState(self, points: int, columns: int, rng: np.random.Generator) -> Array:
        return np.full((points, 1), -1, np.int32)

    def initAggregator(self, sample: Sample, parameter: Centroids) -> KMeansSums:
        return KMeansSums(np.zeros_like(parameter.centroids), *np.zeros((2, len(parameter.centroids))))

    def updateDataPoint(self, dataPoint: DataPoint, parameter: Centroids, iterationNum: int) -> PointReassignment:
        x = np.asarray(dataPoint.features)  # dense: KMeans does not take sparse rows
        last = dataPoint.state[0]
        nearest, least = 0, np.inf
        for j in range(parameter.centroids.shape[0]):
            distance = 0.0
            for t in range(x.shape[0]):
                difference = x[t] - parameter.centroids[j, t]
                distance += difference * difference
            if distance < least or (distance == least and j == last):  # a point moves only to a strictly nearer cluster
                nearest, least = j, distance
        dataPoint.state[0] = nearest
        return PointReassignment(x, parameter.origin, last, nearest, dataPoint.weight)

    def aggregate(self, target: KMeansSums, change: PointReassignment | KMeansSums) -> KMeansSums:
        if len(change) == 3:  # KMeansSums, a worker's report; numba removes this branch for a PointReassignment
            pytree.add(target, change)
            return target
        x, origin, last, nearest, weight = change
        if last == nearest:
            return target
        square = 0.0
        for t in range(x.shape[0]):
            away = x[t] - origin[t]
            square += away * away
            target.sums[nearest, t] += weight * away
            if last >= 0:
                target.sums[last, t] -= weight * away
        target.counts[nearest] += weight
        target.squares[nearest] += weight * square
        if last >= 0:
            target.counts[last] -= weight
            target.squares[last] -= weight * square
        return target

    def updateParameter(self, aggregator: KMeansSums, oldParameter: Centroids) -> Centroids:
        filled = aggregator.counts > 0
        centroids = np.array(oldParameter.centroids, dtype=np.float64)
        centroids[filled] = oldParameter.origin + aggregator.sums[filled] / aggregator.counts[filled, None]
        if not filled.all() and aggregator.counts.sum() >= oldParameter.points[0]:
            centroids = _relocated(centroids, filled, oldParameter.spare)
        return oldParameter._replace(centroids=centroids)

    def objective(self, aggregator: KMeansSums, parameter: Centroids) -> float:
        filled = aggregator.counts > 0
        counts = aggregator.counts[filled]
        means = aggregator.sums[filled] / counts[:, None]
        away = (parameter.centroids[filled] - parameter.origin) - means
        within = aggregator.squares[filled] - counts * (means**2).sum(axis=1)
        within = np.where(counts > 1, np.maximum(within, 0.0), 0.0)
        return float(within.sum() + counts @ (away**2).sum(axis=1))

    def baseline(self, aggregator: KMeansSums, parameter: Centroids) -> float:
        """The scatter about the mean, and what rounding may add to it."""
        sums, squares = aggregator.sums.sum(axis=0), float(aggregator.squares.sum())
        return squares - float(sums @ sums) / max(float(aggregator.counts.sum()), 1.0) + ROUNDING * squares

    def kernel(self, share: Shard) -> Kernel | None:
        return kernel_for(share, self.k) if share.layout == "tiles" else None

    def validate(self, sample: Sample) -> None:
        if self.k > sample.points:
            raise UsageError(f"KMeans: k={self.k} is more than the number of points, {sample.points}.")

    def warnings(self, aggregator: KMeansSums, parameter: Centroids) -> list[str]:
        found = []
        empty = np.flatnonzero(aggregator.counts <= 0)
        if len(empty):
            found.append(
                f"{len(empty)} of {len(aggregator.counts)} clusters are empty ({_some(empty)}): no row of the sample "
                "was left for them that is not a centroid already. Fewer clusters may fit better."
            )
        shared = aggregator.counts > 1  # the scatter of a single point is exactly 0
        coarse = ROUNDING * float(np.abs(aggregator.squares[shared]).sum())
        value = self.objective(aggregator, parameter)
        if coarse > 1e-6 * value and coarse > 0:
            found.append(
                f"points lie so far from the others that float64 sums give the objective to ±{coarse:.2g} only; "
                "`evaluate` gives it exactly."
            )
        return found

    def distances(self, features: Any, parameter: Centroids) -> Array:
        """Euclidean distances to all centroids."""
        return np.sqrt(_squared_distances(np.asarray(features), parameter))

    def scores(self, features: Any, parameter: Centroids) -> Array:
        """Minus the squared distance to the nearest centroid; their sum is minus the objective."""
        return -_nearest(np.asarray(features), parameter)[1]

    def model(self, parameter: Centroids) -> dict[str, Array]:
        return {"centroids": parameter.centroids}

    def work(self, columns: int) -> float:
        return float(self.k * columns)

    def predict(self, features: Any, parameter: Centroids) -> Array:
        """The nearest cluster of each row, int32."""
        return _nearest(np.asarray(features), parameter)[0]

    def evaluate(self, features: Any, labels: Array | None, parameter: Centroids) -> Evaluation:
        nearest, distances = _nearest(np.asarray(features), parameter)
        total = float(distances.sum())
        used = float(len(np.unique(nearest)))
        return Evaluation(total, {"inertia": total, "mean": total / len(nearest), "clusters": used})


def _relocated(centroids: Array, filled: Array, spare: Array) -> Array:
    """Centroids with each empty one at the spare row that is furthest from all others.

    One that is at a spare row already stays: its points have not been visited since it went there.
    """
    waiting = ~filled & (centroids[:, None, :] == spare).all(axis=2).any(axis=1)
    least = np.full(len(spare), np.inf)
    for centroid in centroids[filled | waiting]:
        least = np.minimum(least, ((spare - centroid) ** 2).sum(axis=1))
    moved = centroids.copy()
    for j in np.flatnonzero(~filled & ~waiting):
        far = int(least.argmax())
        if not least[far] > 0:
            break
        moved[j] = spare[far]
        least = np.minimum(least, ((spare - spare[far]) ** 2).sum(axis=1))
    return moved


def _squared_distances(rows: Array, parameter: Centroids, chunk: int = 16384) -> Array:
    """(rows, centroids), in float64, by differences: no digits are lost where a row is near a centroid."""
    found = np.empty((len(rows), len(parameter.centroids)))
    for at in range(0, len(rows), chunk):
        part = rows[at : at + chunk].astype(np.float64)
        for j, centroid in enumerate(parameter.centroids):
            found[at : at + chunk, j] = ((part - centroid) ** 2).sum(axis=1)
    return found


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
