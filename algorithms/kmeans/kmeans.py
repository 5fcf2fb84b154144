"""K-means as incremental EM: the model, its statistics and the plain per-point hooks.

The hooks are the specification, one point at a time; `kernel.py` computes the same for whole tiles.
Never reads data or a clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from msgspec import Meta

from flegel.algorithm import Algorithm, Evaluation, Sample
from flegel.algorithms.estimators import fitted_kmeans, unit_before
from flegel.algorithms.kmeans.point import nearest_centroid, reassign
from flegel.algorithms.kmeans.shapes import (
    WIDE_K,
    is_wide,
    kernel_choice,
    kernel_for,
    kernel_sizes,
    starts_on_a_sample,
)
from flegel.algorithms.kmeans.sparse import (
    SparseKernel,
    best_sparse_lloyd,
    candidates_at_once,
    dense_rows,
    distances_of,
    distances_within,
    far_rows,
    nearest_of,
    squared_norms,
    take_rows,
)
from flegel.algorithms.kmeans.spread_out import places_of_useless, squared_distances_of
from flegel.algorithms.kmeans.swaps import swapped
from flegel.algorithms.kmeans.trial_start import best_start, drawn_by_scatter, rows_by_scatter
from flegel.algorithms.kmeans.wide import WideKernel
from flegel.algorithms.kmeans.wide_start import follow, start_of
from flegel.algorithms.number_range import LEAST_SQUARED
from flegel.algorithms.rows import rows_of
from flegel.algorithms.seeding import (
    ALSO_CALLED_K,
    KMEANS_PLUS_PLUS,
    NAMED,
    START_FILE,
    check_enough,
    coverage,
    covered,
    given_rows,
    holds,
    more_rows,
    nearest_centre,
    origin_of,
    some_weighted,
    squared_lengths,
    start_rows,
    unseen_weight,
    weighted_rows,
)
from flegel.configuration.active import active
from flegel.core import pytree
from flegel.core.parallel_parts import in_parts
from flegel.core.pytree import Array
from flegel.core.shard import DataPoint, Shard, Sparse, SparseRow, unit_rows
from flegel.core.sharding import Sharding
from flegel.core.unit_rows import lengths_of
from flegel.declarations.accepts import Accepts
from flegel.declarations.figures import ReportedFigures
from flegel.declarations.hidden_state import HiddenState
from flegel.declarations.hyper_names import HyperNames
from flegel.declarations.kernels import Kernel, Kernels
from flegel.declarations.learning import Learning
from flegel.declarations.placement import ParameterPlacement
from flegel.errors import UsageError
from flegel.wording import setting

ROUNDING = 2.0**-50  # relative to a sum of squares: the error of a difference of two such sums in float64
SINGLE_POINT_ROUNDING = 2.0**-40
"""Scatter of a cluster that weighs 1 or less, relative to its sum of squares, below which it is rounding: that of a
single point is exactly 0. Clusters of many points may weigh less than 1, too."""
LARGEST_SUM = 1.7e308  # of float64
SQUARED_AT_ONCE = 2**18  # of rows whose squares are summed: the cache of a core
LISTED_SIZES = 20  # clusters whose sizes are listed; of more the range is told
TOUCHING = 1e-9  # part of a squared length below which a distance by products may be rounding


class Centroids(NamedTuple):
    """θ. `origin` never changes: statistics are taken about it, so a large mean costs no digits.

    Nor do `spare`, rows of the data far from the start, where an empty cluster may go, and `shares`, the part of the
    sample in each cluster of the start. `points` is the `coverage` of the first pass.
    """

    centroids: Array
    origin: Array
    spare: Array = np.empty((0, 0))
    shares: Array = np.empty(0)
    points: Array = np.zeros(4)


class KMeansSums(NamedTuple):
    """s, per cluster: Σ(x − origin), the number of points, and Σ‖x − origin‖²; each point as often as it weighs."""

    sums: Array
    counts: Array
    squares: Array


class PointReassignment(NamedTuple):
    """A point's change: it leaves cluster `last` (−1: it was in none) for `nearest`."""

    point: Array | SparseRow
    origin: Array
    last: int
    nearest: int
    weight: float = 1.0


class KMeans(Algorithm):
    """Partition points into k clusters around their means (squared Euclidean distance), or around their mean directions
    (`metric="cosine"`, spherical k-means).

    Model: centroids μ_1 … μ_k. State of a point: the cluster of its last visit, −1 before the first.
    Statistics (paper, Section 2.2), over the points last assigned to j: S_j = Σ (x − origin), C_j = number of points,
    q_j = Σ ‖x − origin‖². A point that stays changes nothing.
    M-step: μ_j = origin + S_j / C_j; before every point has been visited, the sample counts for those that are missing
    (`seeding.unseen_weight`). A cluster that is empty when every point has been visited goes to the spare row
    that is furthest from all centroids, and waits there for its points, or beside the centroid of a wide cluster if no
    spare row is left; that changes no sum, and the objective can only fall. Before that it keeps its centroid.
    Objective: Σ ‖x − μ_z(x)‖² over visited points, each at the cluster of its last visit, from the statistics
    alone: with m_j = S_j / C_j it is Σ [q_j − C_j ‖m_j‖² + C_j ‖(μ_j − origin) − m_j‖²]. The origin is the
    mean of the sample without outliers, so the error is about 1e-15 of the scatter about it, however large it is.
    It never rises between barriers: a visit lowers a point's own term, the M-step lowers the sum.
    Sparse rows (CSR) are trained as they are, about the origin 0.
    Cosine: the same for rows of length 1, which the engine makes (`unit_rows`). The M-step gives each centroid the
    length 1 too, where Σ x·μ_z(x) is greatest; a cluster whose rows cancel out keeps its centroid. Between vectors of
    length 1 half the squared distance is 1 − cos, and half the sum above is the objective Σ (1 − cos). A row of zeros
    has no direction: it is as far from every centroid (½), so it stays in the first cluster that it meets, and it
    changes no centroid.
    Start: the best of `n_init`, each a few passes over some rows of the sample from a start by k-means++, then swaps of
    single centroids (`trial_start`). Other starts are taken as they are.
    Reference: S. Lloyd, Least squares quantization in PCM (1982); R. Neal, G. Hinton, A view of the EM
    algorithm that justifies incremental, sparse, and other variants (1998); I. Dhillon, D. Modha, Concept
    decompositions for large sparse text data using clustering (2001).
    """

    accepts = Accepts(sparse=True, weighted=True, labels="ignored")
    state = HiddenState(memoryless=True)
    learning = Learning(
        tolerance=1e-6, trivial="one cluster", auxiliary=("spare", "shares", "points"), local_updates=True
    )
    placement = ParameterPlacement(sharding=Sharding({"centroids": 0}, {"sums": 0}), starts_from_means=True)
    kernels = Kernels(
        layout="tiles",
        torch_program="flegel.algorithms.kmeans.torch_program:KMeansProgram",
        compiled_apart=tuple({"k": size} for size in (*kernel_sizes(), WIDE_K)),
    )
    figures = ReportedFigures(followed=("mean_squared_distance", "mean_cosine_distance"))
    hyper_names = HyperNames(also_called=ALSO_CALLED_K, starting=("init",))

    k: Annotated[int, Meta(ge=1, description="number of clusters")] = 10
    init: Annotated[
        str | np.ndarray[Any, Any],
        Meta(description="k-means++, random, first, a .npy file of k centroids, or an array of them"),
        START_FILE,
    ] = "k-means++"
    n_init: Annotated[int, Meta(ge=1, description="starts by k-means++ that are tried on the sample")] = 3
    metric: Annotated[
        Literal["euclidean", "cosine"],
        Meta(description="euclidean (squared distances) or cosine (angles; the lengths of rows do not count)"),
    ] = "euclidean"

    def unit_rows(self) -> bool:
        return self.metric == "cosine"

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> Centroids:
        if self.metric == "cosine":
            return self._unit_start(sample, rng)
        return self._start(sample, rng)

    def _unit_start(self, sample: Sample, rng: np.random.Generator) -> Centroids:
        """A start for unit rows, moved to length 1. Rows of zeros are no place for a centroid."""
        rows = sample.features
        lengths = np.sqrt(squared_norms(rows)) if isinstance(rows, Sparse) else lengths_of(np.asarray(rows))
        if not lengths.any():
            raise UsageError(
                "KMeans: every row that was drawn is zero, and a row of zeros has no direction; leave such rows out, "
                f"or use {setting('metric', 'euclidean')}."
            )
        if not lengths.all():
            own = np.ones(len(lengths)) if sample.weights is None else sample.weights
            sample = sample._replace(weights=own * (lengths > 0), total_weight=None)
        start = self._start(sample, rng)
        none = np.flatnonzero(~start.centroids.any(axis=1))
        if len(none) and not (isinstance(self.init, str) and self.init in NAMED):
            raise UsageError(f"KMeans: centroid {none[0]} of init is zero, so it has no direction; give another one.")
        first = np.array([lengths.argmax()])  # a place for a centroid whose rows cancel out
        place = dense_rows(rows, first) if isinstance(rows, Sparse) else np.asarray(rows)[first].astype(np.float64)
        return start._replace(centroids=_directions(start.centroids, place))

    def _start(self, sample: Sample, rng: np.random.Generator) -> Centroids:
        """Centroids as `init` says; those that are drawn are the best of several trials on a part of the sample."""
        if isinstance(self.init, str) and self.init in NAMED:
            others = "are zero or have the weight 0" if self.metric == "cosine" else "have the weight 0"
            check_enough(self.k, sample.weights, "KMeans", others)
        if isinstance(sample.features, Sparse):
            return self._sparse_start(sample.features, sample, rng)
        rows, weights = weighted_rows(np.asarray(sample.features), sample.weights)
        origin = origin_of(rows)
        if starts_on_a_sample(self.k, sample.columns):
            return self._wide_start(rows, weights, origin, sample, rng)
        rules = active().starts
        affordable = min(rules.kmeans_trial_work // (self.k * sample.columns), rules.kmeans_trial_rows)
        size = max(affordable, rules.kmeans_fewest_trial_rows, rules.kmeans_rows_per_cluster * self.k)
        size = min(size, rules.kmeans_most_trial_rows)
        drawn = isinstance(self.init, str) and self.init == KMEANS_PLUS_PLUS
        if drawn:
            some, own = rows_by_scatter(rows - origin, weights, size, rng)
            if self.k > len(some):
                raise UsageError(f"KMeans: k={self.k} is more than the {len(some)} points drawn; lower k.")
            start = best_start(some, self.k, self.n_init, rng, own) + origin
        else:
            some, own = some_weighted(rows, weights, size, rng)
            some = some - origin
            start = start_rows(rows, self.k, self.init, sample.columns, rng, "KMeans", weights)
        spare = more_rows(some, start - origin, min(self.k, rules.kmeans_spare_rows), rng, own)
        shares, mass = _shares(nearest_centre(some, start - origin), own, self.k)
        if not (drawn or shares.all()):
            spare = np.concatenate([spare, self._places_of_useless(rows, weights, start, origin, rng)])
        spare = (spare + origin).astype(rows.dtype).astype(np.float64)
        return Centroids(start, origin, spare, shares, coverage(sample.mass, mass, drawn))

    def _places_of_useless(
        self, rows: Array, weights: Array | None, start: Array, origin: Array, rng: np.random.Generator
    ) -> Array:
        """Rows about the origin for centroids of `start` that are far from all rows."""
        most = max(active().starts.kmeans_places_work // start.size, active().starts.kmeans_fewest_trial_rows)
        some, own = some_weighted(rows, weights, most, rng)
        some, centres = some - origin, start - origin
        labels, norms = nearest_centre(some, centres), squared_lengths(some)

        def distances(few: Array, chosen: Array) -> Array:
            return squared_distances_of(some[few], norms[few], chosen)

        squared = squared_lengths(some - centres[labels])
        return np.asarray(some[places_of_useless(labels, squared, self.k, distances, rng, own)])

    def continueParameter(self, previous: Centroids, sample: Sample, rng: np.random.Generator) -> Centroids:
        return type(self)(**{**self.hyper(), "init": previous.centroids}).initParameter(sample, rng)

    def _wide_start(
        self, rows: Array, weights: Array | None, origin: Array, sample: Sample, rng: np.random.Generator
    ) -> Centroids:
        """The same along a few directions; one start by k-means++, because more change little where k is large."""
        rules = active().starts
        drawn = isinstance(self.init, str) and self.init == KMEANS_PLUS_PLUS
        most = max(rules.kmeans_most_trial_rows, rules.kmeans_fewest_rows_per_cluster * self.k)
        size = min(max(rules.kmeans_rows_per_cluster * self.k, rules.kmeans_fewest_trial_rows), most)
        if drawn:  # rows far from the others are a good part of the objective
            chosen, own = drawn_by_scatter(_squared_about(rows, origin), weights, size, rng)
            some = rows[chosen] if len(chosen) < len(rows) else rows
        else:
            some, own = some_weighted(rows, weights, rules.kmeans_followed_rows, rng)
        some = some - origin.astype(some.dtype)
        spare = min(self.k, rules.kmeans_spare_rows)
        if drawn and self.k > len(some):
            raise UsageError(f"KMeans: k={self.k} is more than the {len(some)} points drawn; lower k.")
        if drawn:
            found = start_of(some, self.k, spare, rng, own)
        else:
            given = start_rows(rows, self.k, self.init, sample.columns, rng, "KMeans", weights)
            found = follow(some, given - origin, spare, rng, own)
        shares, mass = _shares(found.labels, own, self.k)
        far = (found.spare + origin).astype(rows.dtype).astype(np.float64)
        return Centroids(found.centres + origin, origin, far, shares, coverage(sample.mass, mass, drawn))

    def _sparse_start(self, rows: Sparse, sample: Sample, rng: np.random.Generator) -> Centroids:
        """The same about 0, which is the origin of sparse rows. Trials count rows of any positive weight alike."""
        ids, own = weighted_rows(np.arange(rows_of(rows)), sample.weights)
        rules = active().starts
        ids, own = some_weighted(ids, own, rules.kmeans_most_trial_rows, rng)
        some, given = take_rows(rows, ids) if len(ids) < rows_of(rows) else rows, self.init
        norms = squared_norms(some)
        if not (isinstance(given, str) and given in NAMED):
            start = given_rows(given, self.k, rows.columns, "KMeans")
        elif self.k > rows_of(some):
            raise UsageError(f"KMeans: k={self.k} is more than the {rows_of(some)} points drawn; lower k.")
        elif given == KMEANS_PLUS_PLUS:
            tried = max(rules.kmeans_sparse_trial_rows, rules.kmeans_rows_per_cluster * self.k)
            start = best_sparse_lloyd(some, norms, self.k, self.n_init, tried, rng)
        else:
            chosen = np.arange(self.k) if given == "first" else rng.choice(len(ids), self.k, replace=False)
            start = dense_rows(some, chosen)
        nearest, squared = nearest_of(some, start, norms)
        most = min(self.k, rules.kmeans_spare_rows, rules.kmeans_spare_numbers // rows.columns)
        spare = far_rows(some, squared, max(1, most), rng)
        if not (isinstance(given, str) and given in NAMED):
            places = places_of_useless(
                nearest,
                squared,
                self.k,
                lambda few, chosen: distances_within(take_rows(some, few), norms[few], chosen),
                rng,
                own,
                candidates_at_once(rows.columns),
            )
            spare = np.concatenate([spare, dense_rows(some, places)])
        shares, drawn = _shares(nearest, own, self.k)
        trained = isinstance(given, str) and given == KMEANS_PLUS_PLUS
        return Centroids(start, np.zeros(rows.columns), spare, shares, coverage(sample.mass, drawn, trained))

    def initState(self, points: int, columns: int, rng: np.random.Generator) -> Array:
        return np.full((points, 1), -1, np.int32)

    def stateLimits(self, parameter: Centroids) -> tuple[float, float]:
        return -1.0, len(parameter.centroids) - 1.0

    def initAggregator(self, sample: Sample, parameter: Centroids) -> KMeansSums:
        return KMeansSums(np.zeros_like(parameter.centroids), *np.zeros((2, len(parameter.centroids))))

    def updateDataPoint(self, dataPoint: DataPoint, parameter: Centroids, iterationNum: int) -> PointReassignment:
        last = dataPoint.state[0]
        nearest = nearest_centroid(dataPoint.features, parameter.centroids, last)
        dataPoint.state[0] = nearest
        return PointReassignment(dataPoint.features, parameter.origin, last, nearest, dataPoint.weight)

    def aggregate(self, target: KMeansSums, change: PointReassignment | KMeansSums) -> KMeansSums:
        """Add one point's change of cluster, or a worker's report, to the sums."""
        if len(change) == 3:  # KMeansSums, a worker's report; numba removes this branch for a PointReassignment
            pytree.add(target, change)
            return target
        row, origin, last, nearest, weight = change
        if last == nearest:
            return target
        square = reassign(row, origin, last, nearest, weight, target.sums)
        target.counts[nearest] += weight
        target.squares[nearest] += weight * square
        if last >= 0:
            target.counts[last] -= weight
            target.squares[last] -= weight * square
        return target

    def updateParameter(self, aggregator: KMeansSums, oldParameter: Centroids) -> Centroids:
        return self.updateSlice(aggregator, oldParameter, 0, len(oldParameter.centroids), None)

    def updateSlice(
        self, aggregator: KMeansSums, oldParameter: Centroids, start: int, stop: int, summary: Array | None
    ) -> Centroids:
        """New centroids of clusters `start` to `stop`: means of their points; empty clusters take spare rows.
        `summary`: the centroids of all slices, where θ is on several servers."""
        seen, filled = float(aggregator.counts.sum()), aggregator.counts > 0
        if holds(oldParameter.points, seen):
            return oldParameter
        whole = bool(filled.all())
        centroids = self._means(aggregator, oldParameter, start, stop, seen, whole)
        if not whole and seen >= oldParameter.points[0]:
            everybody = centroids if summary is None else summary
            moved, left_over = _relocated(everybody, filled, oldParameter.spare)
            if len(left_over):
                _split_wide(moved, left_over, everybody, aggregator, oldParameter.origin)
            centroids = moved[start:stop]
            if self.metric == "cosine":
                centroids = _directions(centroids, oldParameter.centroids)
        points = covered(oldParameter.points, seen)
        return oldParameter._replace(centroids=pytree.given(centroids), points=points)

    def updateRows(self, aggregator: KMeansSums, oldParameter: Centroids, rows: Array) -> Centroids | None:
        """The centroids of these clusters. All others may change, too, before every point has been visited and where a
        cluster is empty."""
        if self.metric == "cosine" or not oldParameter.points[2] or not (aggregator.counts > 0).all():
            return None
        means = aggregator.sums[rows]
        means /= aggregator.counts[rows, None]
        means += oldParameter.origin
        return oldParameter._replace(centroids=means)

    def sliceSummary(self, aggregator: KMeansSums, parameter: Centroids, start: int, stop: int) -> Array | None:
        """Where all centroids are: an empty cluster goes far from them. Rarely needed."""
        seen = float(aggregator.counts.sum())
        if seen < parameter.points[0] or holds(parameter.points, seen) or (aggregator.counts > 0).all():
            return None
        return self._means(aggregator, parameter, start, stop, seen, False)

    def _means(
        self, aggregator: KMeansSums, parameter: Centroids, start: int, stop: int, seen: float, whole: bool
    ) -> Array:
        means = _means(aggregator, parameter, start, stop, seen, whole)
        return _directions(means, parameter.centroids) if self.metric == "cosine" else means

    def objective(self, aggregator: KMeansSums, parameter: Centroids) -> float:
        return float(self._in_units(self._squared_distances(aggregator, parameter)))

    def _in_units(self, squared: Any) -> Any:
        """Squared distances as the metric has them: 1 − cos is half of them between unit vectors."""
        return 0.5 * squared if self.metric == "cosine" else squared

    def _squared_distances(self, aggregator: KMeansSums, parameter: Centroids) -> float:
        """The sum over all points of the squared distance to their centroids, from the statistics alone."""
        return _sum_of(self.objectiveTerms(aggregator, parameter, None))

    def objectiveTerms(self, aggregator: KMeansSums, parameter: Centroids, rows: Array | None) -> Array:
        """By cluster: the scatter of its points about their mean, their number, and the squared distance from that mean
        to the centroid."""
        counts = aggregator.counts if rows is None else aggregator.counts[rows]
        filled = counts > 0
        whole = rows is None and bool(filled.all())  # nearly always: then nothing is copied
        places = None if whole else np.flatnonzero(filled) if rows is None else rows[filled]
        terms = np.zeros((3, len(counts)))
        found = np.empty((3, len(counts) if places is None else len(places)))
        some = max(active().kmeans.summed_numbers // len(parameter.origin), 1)
        for at in range(0, found.shape[1], some):
            part = slice(at, at + some) if places is None else places[at : at + some]
            own, squares = aggregator.counts[part], aggregator.squares[part]
            means = aggregator.sums[part] / own[:, None]
            lengths = (means**2).sum(axis=1)
            within = np.maximum(squares - own * lengths, 0.0)
            within[(own <= 1) & (within <= SINGLE_POINT_ROUNDING * squares)] = 0.0
            away = (((parameter.centroids[part] - parameter.origin) - means) ** 2).sum(axis=1)
            found[:, at : at + some] = within, own, away
        terms[:, filled] = found
        return terms

    def objectiveOfTerms(self, terms: Array) -> float:
        return float(self._in_units(_sum_of(terms)))

    def part_noise(self, objective: float, points: int, parameter: Centroids) -> float:
        """Each centroid is off by the deviation of a mean: k·d variances of one column, of the m·d in the objective."""
        return objective * self.k / points

    def alternative(self, aggregator: KMeansSums, parameter: Centroids) -> Centroids | None:
        """Another θ worth trying: one centroid moves from where two are close to where one serves too many; None where
        no such move helps."""
        moved = swapped(parameter.centroids - parameter.origin, *aggregator)
        if moved is None:
            return None
        centroids = parameter.origin + moved
        if self.metric == "cosine":
            centroids = _directions(centroids, parameter.centroids)
        return parameter._replace(centroids=centroids)

    def baseline(self, aggregator: KMeansSums, parameter: Centroids) -> float:
        """The scatter about the mean or the mean direction, and what rounding may add to it."""
        whole = KMeansSums(*(a.sum(axis=0, keepdims=True) for a in aggregator))
        mean = parameter.origin + whole.sums / max(float(whole.counts[0]), 1.0)
        one = parameter._replace(centroids=_directions(mean, mean) if self.metric == "cosine" else mean)
        return float(self.objective(whole, one) + self._in_units(ROUNDING * whole.squares[0]))

    def layout_for(self, columns: int) -> str:
        return "rows" if is_wide(self.k, columns) else self.kernels.layout

    def kernel(self, share: Shard) -> Kernel | None:
        if isinstance(share.features, Sparse):
            return SparseKernel()
        if share.layout == "tiles":
            return kernel_for(share, self.k)
        return WideKernel(self.k) if is_wide(self.k, share.columns) else None

    def kernel_choice(self, share: Shard) -> str:
        if isinstance(share.features, Sparse):
            return "sparse: products with the entries of a row alone"
        return kernel_choice(self.k, share.columns)

    def validate(self, sample: Sample) -> None:
        if self.k > sample.points:
            raise UsageError(f"KMeans: k={self.k} is more than the number of points, {sample.points}.")
        rows = sample.features.values if isinstance(sample.features, Sparse) else np.asarray(sample.features)
        largest = float(max(rows.max(initial=0.0), -rows.min(initial=0.0)))
        if largest > np.sqrt(LARGEST_SUM / (4.0 * max(sample.mass, 1.0) * max(sample.columns, 1))):
            raise UsageError(
                f"KMeans: with numbers as large as {largest:.2g} the sum of squared distances is beyond float64, which "
                "ends at 1.8e+308; divide the rows by a power of ten, or scale the columns (scale: standard)."
            )
        if 0.0 < largest < LEAST_SQUARED:
            raise UsageError(
                f"KMeans: with no number above {largest:.2g} squared distances are 0 in float64; multiply the rows by "
                "a power of ten, or scale the columns (scale: standard)."
            )

    def description(self, aggregator: KMeansSums, parameter: Centroids) -> list[str]:
        counts = np.asarray(aggregator.counts)
        if len(counts) <= LISTED_SIZES:
            return [f"rows in clusters 0 to {len(counts) - 1}: {', '.join(f'{count:,.6g}' for count in counts)}"]
        low, middle, high = np.min(counts), np.median(counts), np.max(counts)
        return [f"{len(counts)} clusters of {low:,.6g} to {high:,.6g} rows, {middle:,.6g} in the median"]

    def warnings(self, aggregator: KMeansSums, parameter: Centroids) -> list[str]:
        """Sentences about clusters that stayed empty, and about an objective that rounding makes coarse."""
        found = []
        empty = np.flatnonzero(aggregator.counts <= 0)
        if len(empty):
            found.append(
                f"{len(empty)} of {len(aggregator.counts)} clusters are empty ({_some(empty)}): they lost their "
                "last points to others, or there are fewer different rows. Fewer clusters may fit better."
            )
        value = self.objective(aggregator, parameter)
        many = aggregator.counts != 1.0  # one point has no scatter
        sums = np.abs(aggregator.squares[many]) * np.sqrt(np.maximum(aggregator.counts[many], 1.0))
        coarse = ROUNDING * float(sums.sum())  # roundings of a long sum add up like the steps of a random walk
        if coarse > 1e-6 * value and coarse > 0:
            found.append(
                f"points lie so far from the others that float64 sums give the objective to ±{coarse:.2g} only; "
                "`evaluate` gives it exactly."
            )
        return found

    def distances(self, features: Any, parameter: Centroids) -> Array:
        """Euclidean distances to all centroids, or 1 − cos."""
        if isinstance(features, Sparse):
            squared = distances_of(self._compared(features), parameter.centroids)
        else:
            squared = _squared_distances(np.asarray(features), parameter, self._compared)
        return np.asarray(0.5 * squared if self.metric == "cosine" else np.sqrt(squared))

    def scores(self, features: Any, parameter: Centroids) -> Array:
        """Minus the squared distance to the nearest centroid, or cos − 1; their sum is minus the objective."""
        return -self.assigned(features, parameter)[1]

    def assigned(self, features: Any, parameter: Centroids) -> tuple[Array, Array]:
        """The nearest cluster of each row, int32, and what the row adds to the objective."""
        nearest, squared = _nearest(features, parameter, self._compared)
        return nearest, np.asarray(self._in_units(squared))

    def _compared(self, rows: Any) -> Any:
        """Rows of a user as they are compared with centroids."""
        return unit_rows(rows) if self.metric == "cosine" else rows

    def model(self, parameter: Centroids) -> dict[str, Array]:
        return {"centroids": parameter.centroids}

    def work(self, columns: int) -> float:
        return float(self.k * columns)

    def predict(self, features: Any, parameter: Centroids) -> Array:
        """The nearest cluster of each row, int32."""
        return self.assigned(features, parameter)[0]

    def to_sklearn(self, parameter: Centroids, classes: list[str] | None) -> Any:
        found = fitted_kmeans(parameter.centroids)
        return unit_before(found) if self.metric == "cosine" else found

    def evaluate(self, features: Any, labels: Array | None, parameter: Centroids) -> Evaluation:
        nearest, costs = self.assigned(features, parameter)
        total = float(costs.sum())
        used = float(len(np.unique(nearest)))
        mean = "mean_cosine_distance" if self.metric == "cosine" else "mean_squared_distance"
        return Evaluation(total, {"inertia": total, mean: total / max(len(nearest), 1), "clusters": used})


def _means(aggregator: KMeansSums, parameter: Centroids, start: int, stop: int, seen: float, whole: bool) -> Array:
    """The clusters from `start` to `stop` at the means of their points; empty ones stay. `seen`: points of all
    clusters; `whole`: none is empty."""
    mine = aggregator.counts[start:stop]
    weight = unseen_weight(parameter.points, seen)
    if whole and not weight:  # nearly always; the same numbers as below
        means = aggregator.sums / mine[:, None]
        means += parameter.origin
        return np.asarray(means)
    filled = mine > 0
    old = np.array(parameter.centroids, dtype=np.float64)
    unseen = (weight * parameter.shares)[start:stop][filled, None]
    counts, sums = mine[filled, None], aggregator.sums[filled]
    centroids = old.copy()
    if unseen.any():
        sums, counts = sums + unseen * (old[filled] - parameter.origin), counts + unseen
    centroids[filled] = parameter.origin + sums / counts
    return centroids


def _sum_of(terms: Array) -> float:
    """Of `objectiveTerms`."""
    filled = terms[1] > 0
    within, counts, away = terms if filled.all() else terms[:, filled]
    return float(within.sum() + counts @ away)


def _directions(centroids: Array, otherwise: Array) -> Array:
    """Centroids of length 1; `otherwise` where one is zero."""
    found = np.asarray(unit_rows(centroids))
    none = ~np.asarray(found.any(axis=1))
    return np.where(none[:, None], otherwise, found) if none.any() else found


def _relocated(centroids: Array, filled: Array, spare: Array) -> tuple[Array, Array]:
    """Centroids with each empty one at the spare row that is furthest from all others, and the numbers of those for
    which no spare row was left.

    One that is at a spare row already stays: its points have not been visited since it went there. Besides the result
    it needs no more memory than `kmeans.relocation_numbers` float64 numbers, whatever k is. Where very many are empty,
    the distances to those that have just gone to their rows do not count: spare rows are far from each other.
    """
    empty = np.flatnonzero(~filled)
    waiting = np.zeros(len(centroids), bool)
    for row in spare:
        waiting[empty] |= _equal_rows(centroids, empty, row)
    least = _least_distances(spare, centroids, filled | waiting)
    moved, left = centroids.copy(), np.flatnonzero(~filled & ~waiting)
    for j in left[: active().kmeans.compared_by_differences // max(spare.size, 1)]:
        if not least.max(initial=0.0) > 0:  # every spare row is a centroid, or there is none
            return moved, left
        far = int(least.argmax())
        moved[j], left = spare[far], left[1:]
        least = np.minimum(least, ((spare - spare[far]) ** 2).sum(axis=1))
    order = np.argsort(-least, kind="stable")[: len(left)]
    order = order[least[order] > 0]
    moved[left[: len(order)]] = spare[order]
    return moved, left[len(order) :]


def _split_wide(moved: Array, which: Array, means: Array, aggregator: KMeansSums, origin: Array) -> None:
    """Put empty clusters beside the centroids of the clusters of the greatest scatter, one each: there they take about
    half of the points. The step, in an arbitrary direction, is short, so that half of them are beyond its middle.

    A cluster whose scatter may be rounding is not split: its points may be equal.
    """
    counts, squares = aggregator.counts, aggregator.squares
    lengths, some = np.empty(len(counts)), max(active().kmeans.summed_numbers // len(origin), 1)
    for at in range(0, len(counts), some):
        lengths[at : at + some] = squared_lengths(means[at : at + some] - origin)
    scatter = squares - counts * lengths
    scatter[(counts <= 0) | (scatter <= SINGLE_POINT_ROUNDING * squares)] = 0.0
    wide = np.argsort(-scatter, kind="stable")[: len(which)]
    direction = np.random.default_rng(0).choice([-1.0, 1.0], size=len(origin)) / len(origin)
    for j, widest in zip(which, wide[scatter[wide] > 0], strict=False):
        moved[j] = (
            means[widest] + active().kmeans.splitting_step * np.sqrt(scatter[widest] / counts[widest]) * direction
        )


def _equal_rows(centroids: Array, which: Array, row: Array) -> Array:
    """Which of these centroids are this very row: the first columns tell nearly all that are not."""
    same = (centroids[which, :1] == row[:1]).all(axis=1)
    near = np.flatnonzero(same)
    same[near] = [np.array_equal(centroids[which[i]], row) for i in near]
    return np.asarray(same)


def _least_distances(spare: Array, centroids: Array, taken: Array) -> Array:
    """The squared distance of each spare row to the nearest centroid that is taken; exactly 0 where it is one.

    Few are compared by differences. Many are products by blocks, and only the nearest by these again by differences.
    """
    rules = active().kmeans
    places = np.flatnonzero(taken)
    if len(places) * spare.size <= rules.compared_by_differences:
        least = np.full(len(spare), np.inf)
        for j in places:
            least = np.minimum(least, ((spare - centroids[j]) ** 2).sum(axis=1))
        return least
    middle = spare.mean(axis=0)
    rows = spare - middle
    near, which = np.full(len(spare), np.inf), np.zeros(len(spare), np.intp)
    least = np.full(len(spare), np.inf)
    block = max(rules.relocation_numbers // (2 * (spare.shape[1] + len(spare))), 1)
    for at in range(0, len(places), block):
        some = places[at : at + block]
        away = centroids[some] - middle
        apart = 0.5 * (away**2).sum(axis=1) - rows @ away.T
        first = apart.argmin(axis=1)
        value = apart[np.arange(len(spare)), first]
        which, near = np.where(value < near, some[first], which), np.minimum(value, near)
        equal = np.flatnonzero(value + 0.5 * (rows**2).sum(axis=1) <= TOUCHING * (rows**2).sum(axis=1))
        for i in equal:  # so near that only differences tell whether it is the same
            least[i] = min(least[i], ((spare[i] - centroids[some[first[i]]]) ** 2).sum())
    return np.asarray(np.minimum(least, ((spare - centroids[which]) ** 2).sum(axis=1)))


def _squared_about(rows: Array, origin: Array) -> Array:
    """Squared distances of rows to the origin, in float64."""

    def squared(some: slice) -> Array:
        return squared_lengths(rows[some] - origin)

    return np.concatenate(in_parts(len(rows), max(SQUARED_AT_ONCE // rows.shape[1], 1), squared))


def _shares(labels: Array, weights: Array | None, k: int) -> tuple[Array, float]:
    """The part of the sample in each cluster, and what the sample weighs."""
    counts = np.bincount(labels, weights, minlength=k).astype(np.float64)
    return counts / counts.sum(), float(counts.sum())


def _squared_distances(rows: Array, parameter: Centroids, compared: Callable[[Any], Any], chunk: int = 16384) -> Array:
    """(rows, centroids), in float64, by differences: no digits are lost where a row is near a centroid."""
    found = np.empty((len(rows), len(parameter.centroids)))
    for at in range(0, len(rows), chunk):
        part = compared(rows[at : at + chunk]).astype(np.float64)
        for j, centroid in enumerate(parameter.centroids):
            found[at : at + chunk, j] = ((part - centroid) ** 2).sum(axis=1)
    return found


def _nearest(
    features: Any, parameter: Centroids, compared: Callable[[Any], Any], chunk: int = 16384
) -> tuple[Array, Array]:
    """Cluster and squared distance of each row, in float64. `compared` makes of some rows what is compared."""
    columns = len(parameter.origin)
    if isinstance(features, Sparse):
        if features.columns > columns:
            raise UsageError(f"KMeans: rows of {features.columns} columns do not fit a model of {columns}.")
        return nearest_of(compared(features), parameter.centroids)
    rows = np.asarray(features)
    if rows.ndim != 2 or rows.shape[1] != columns:
        raise UsageError(f"KMeans: rows of shape {rows.shape} do not fit a model of {columns} columns.")
    centres = parameter.centroids - parameter.origin
    half = 0.5 * (centres**2).sum(axis=1)
    nearest = np.empty(len(rows), np.int32)
    distances = np.empty(len(rows))
    for at in range(0, len(rows), chunk):
        shifted = compared(rows[at : at + chunk]) - parameter.origin
        nearest[at : at + chunk] = (half - shifted @ centres.T).argmin(axis=1)
        distances[at : at + chunk] = ((shifted - centres[nearest[at : at + chunk]]) ** 2).sum(axis=1)
    return nearest, distances


def _some(numbers: Array, most: int = 8) -> str:
    text = ", ".join(str(int(n)) for n in numbers[:most])
    return text + (", …" if len(numbers) > most else "")
