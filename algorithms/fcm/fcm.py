"""Fuzzy c-means by incremental alternation: the model, its statistics and the plain per-point hooks.

The hooks are the specification, one point at a time; `kernel.py` computes the same for whole tiles.
Never reads data or a clock.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from flegel.algorithm import Algorithm, Evaluation, Sample
from flegel.algorithms.kmeans.shapes import starts_on_a_sample
from flegel.algorithms.kmeans.trial_start import rows_by_scatter
from flegel.algorithms.kmeans.wide_start import start_of
from flegel.algorithms.seeding import (
    ALSO_CALLED_K,
    KMEANS_PLUS_PLUS,
    NAMED,
    START_FILE,
    PreparedRows,
    check_enough,
    coverage,
    covered,
    different_clusters,
    holds,
    nearest_centre,
    polishing_passes,
    prepared,
    several_lloyd,
    squared_distances,
    squared_lengths,
    standard_units,
    start_rows,
    unseen_weight,
    weighted_rows,
)
from flegel.algorithms.soft_kernel import CUT, NEAR, soft_kernel
from flegel.configuration.active import active
from flegel.core import pytree
from flegel.core.entry_point import EntryPoint
from flegel.core.pytree import Array
from flegel.core.shard import DataPoint, Shard
from flegel.core.sharding import Sharding
from flegel.declarations.accepts import Accepts
from flegel.declarations.hidden_state import HiddenState
from flegel.declarations.hyper_names import HyperNames
from flegel.declarations.kernels import Kernel, Kernels
from flegel.declarations.learning import Learning
from flegel.declarations.placement import ParameterPlacement
from flegel.errors import UsageError

_TRAIN = EntryPoint("flegel.algorithms.fcm.kernel", "train")
TOUCHING = 1e-6  # part of squared lengths below which a distance is computed by differences all the same
SAME = 1e-3  # relative to the spread of the points: closer centroids count as coinciding


class Prototypes(NamedTuple):
    """θ. `origin` and `unit` (one for all columns) never change: statistics are taken about and in them. Nor does
    `shares`, the mean w of each cluster over the sample. `points` is the `coverage` of the first pass.
    """

    centroids: Array
    origin: Array
    unit: Array
    shares: Array
    points: Array


class Weights(NamedTuple):
    """s, per cluster, with w = u^m and y = (x − origin) / unit: Σ w, Σ w·y, Σ w·‖y‖². And how many points were seen."""

    counts: Array
    sums: Array
    squares: Array
    seen: Array


class MembershipChange(NamedTuple):
    """A point's change: by how much its w (and, last, whether it was seen) have changed; and y."""

    changes: Array
    y: Array


class FuzzyStart(NamedTuple):
    """Where a start stands."""

    centres: Array
    value: float
    """The objective before the last pass."""
    masses: Array
    """Σ w of each cluster in that pass."""


class FCM(Algorithm):
    """Partition points into k fuzzy clusters.

    Model: centroids c_1 … c_k; x belongs to cluster j to the degree u_j ∝ ‖x − c_j‖^(−2/(m−1)), Σ_j u_j = 1.
    A point on a centroid belongs to it alone (to several that coincide, in equal parts). State of a point:
    w_j = u_j^m, and 1; all 0 before its first visit.
    Statistics: Σ w, Σ w·y, Σ w·‖y‖², with y = x about a fixed origin in a fixed unit; a visit adds the
    difference to the point's last one. M-step: c_j = Σ w·x / Σ w; a cluster of no weight keeps its centroid.
    Before every point has been visited, the sample counts for those that are missing (`seeding.unseen_weight`).
    Objective: Σ_i Σ_j u_ij^m ‖x_i − c_j‖² over visited points, from the statistics alone. It never rises,
    as both steps are exact minima: to about 1e-12 in float64, and 1e-7 in float32, where Σ u is 1
    no better.
    Start: the best of `n_init`, each a few passes over the sample from the clusters of k-means. Other starts are taken
    as they are.
    Reference: J. Bezdek, Pattern Recognition with Fuzzy Objective Function Algorithms (1981).
    """

    accepts = Accepts(weighted=True, labels="ignored")
    state = HiddenState(memoryless=True)
    learning = Learning(tolerance=1e-6, auxiliary=("shares", "points"), local_updates=True)
    placement = ParameterPlacement(
        sharding=Sharding({"centroids": 0, "shares": 0}, {"counts": 0, "sums": 0, "squares": 0}), starts_from_means=True
    )
    kernels = Kernels(layout="tiles")
    hyper_names = HyperNames(also_called=ALSO_CALLED_K, starting=("init",))

    k: Annotated[int, Meta(ge=1, description="number of clusters")] = 10
    m: Annotated[float, Meta(gt=1, description="fuzzifier: near 1 is hard, large is fuzzy; 2 is fastest")] = 2.0
    init: Annotated[
        str | np.ndarray[Any, Any],
        Meta(description="k-means++, random, first, a .npy file of k centroids, or an array of them"),
        START_FILE,
    ] = "k-means++"
    n_init: Annotated[int, Meta(ge=1, description="starts by k-means++ that are tried on the sample")] = 3

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> Prototypes:
        """Begin at the best of several trials on a part of the sample, or at the given centres."""
        if isinstance(self.init, str) and self.init in NAMED:
            check_enough(self.k, sample.weights, "FCM")
        rows, mass = weighted_rows(np.asarray(sample.features), sample.weights)
        origin, units, _ = standard_units(rows)
        unit = np.full(sample.columns, units.max())
        rules = active().starts
        affordable = min(rules.fcm_trial_work // (self.k * sample.columns), rules.fcm_rows_per_cluster * self.k)
        size = int(np.clip(affordable, rules.fcm_fewest_trial_rows, rules.fcm_most_trial_rows))
        some, given = rows_by_scatter(rows - origin, mass, max(size, self.k), rng)
        y = some / unit
        own = np.ones(len(y)) if given is None else given
        if isinstance(self.init, str) and self.init == KMEANS_PLUS_PLUS:
            if self.k > len(y):
                raise UsageError(f"FCM: k={self.k} is more than the {len(y)} points drawn; lower k.")
            of = prepared(y)
            best = min((self._trial(of, given, begun) for begun in self._begun(of, given, rng)), key=_value_of)
            passes = polishing_passes(y.size * self.k)
            best = self.alternated(of, given, best, passes, rules.fcm_start_ends_below_gain)
            centres, masses = best.centres, best.masses
        else:
            centres = (start_rows(rows, self.k, self.init, sample.columns, rng, "FCM", mass) - origin) / unit
            masses = own @ self._memberships(y, centres)[0] ** self.m
        about = coverage(sample.mass, float(own.sum()), isinstance(self.init, str) and self.init == KMEANS_PLUS_PLUS)
        return Prototypes(origin + centres * unit, origin, unit, masses / own.sum(), about)

    def _begun(self, of: PreparedRows, own: Array | None, rng: np.random.Generator) -> list[Array]:
        """Centres of k-means on these rows, from several starts; one of those that lead to the same clusters."""
        if starts_on_a_sample(self.k, of.rows.shape[1]):
            found = [start_of(of.rows, self.k, 0, rng, own).centres for _ in range(self.n_init)]
        else:
            found = [start.centres for start in several_lloyd(of, self.k, [rng] * self.n_init, own)]
        return [found[number] for number in different_clusters(nearest_centre(of.rows, centres) for centres in found)]

    def _trial(self, of: PreparedRows, own: Array | None, centres: Array) -> FuzzyStart:
        """A start, after a few passes over these rows."""
        begun, rules = FuzzyStart(centres, np.inf, np.zeros(self.k)), active().starts
        return self.alternated(of, own, begun, rules.fcm_trial_passes, rules.fcm_trial_ends_below_gain)

    def alternated(
        self, of: PreparedRows, own: Array | None, trial: FuzzyStart, passes: int, rests: float
    ) -> FuzzyStart:
        """This trial after more passes over these rows: until one gains less than `rests`, at most so many.

        A step to the weighted means that goes on in the direction of the last one is lengthened
        (`starts.fcm_start_step`): the objective for given weights is a parabola about these means, so it falls with any
        step of less than twice the way.
        """
        near = np.maximum(2.0 * TOUCHING * of.columns[-2], NEAR)
        nearest, lengthened = float(near.max()), active().starts.fcm_start_step
        (centres, _, masses), value, last = trial, np.inf, np.zeros_like(trial.centres)
        for _ in range(passes):
            weights = squared_distances(of, centres)
            if float(weights.min()) < nearest:
                j, i = np.nonzero(weights < near)
                weights[j, i] = np.maximum(squared_lengths(of.rows[i] - centres[j]), NEAR)
            before, value = value, _into_weights(weights, self.m, own)
            sums = weights @ of.columns.T
            masses = sums[:, -1]
            safe = np.maximum(masses, 1e-300)[:, None]
            away = np.where(safe > 1e-300, sums[:, :-2] / safe - centres, 0.0)
            centres = centres + (lengthened if float(np.vdot(away, last)) > 0.0 else 1.0) * away
            last = away
            if before - value <= rests * value:
                break
        return FuzzyStart(centres, value, masses)

    def _memberships(self, y: Array, centres: Array) -> tuple[Array, Array]:
        """u of each row and cluster, and its squared distances, in units of `unit`."""
        distances = _squared_distances(y, centres)
        return _shares(distances, self.m, axis=1), distances

    def continueParameter(self, previous: Prototypes, sample: Sample, rng: np.random.Generator) -> Prototypes:
        return type(self)(**{**self.hyper(), "init": previous.centroids}).initParameter(sample, rng)

    def initState(self, points: int, columns: int, rng: np.random.Generator) -> Array:
        return np.zeros((points, self.k + 1))

    def initAggregator(self, sample: Sample, parameter: Prototypes) -> Weights:
        k = len(parameter.centroids)
        return Weights(np.zeros(k), np.zeros_like(parameter.centroids), np.zeros(k), np.zeros(1))

    def updateDataPoint(self, dataPoint: DataPoint, parameter: Prototypes, iterationNum: int) -> MembershipChange:
        """Memberships to the power m, as the change since the last visit; the last number counts the point once."""
        centroids = parameter.centroids
        k = centroids.shape[0]
        y = (dataPoint.features - parameter.origin) / parameter.unit
        distances = np.empty(k)
        for j in range(k):
            difference = y - (centroids[j] - parameter.origin) / parameter.unit
            distances[j] = max((difference * difference).sum(), NEAR)
        logarithms = np.log(distances.min() / distances) / (self.m - 1.0)
        shares = np.exp(logarithms)
        for j in range(k):
            if not logarithms[j] > CUT and self.m != 2.0:
                shares[j] = 0.0
        changes = np.ones(k + 1)
        changes[:k] = (shares / shares.sum()) ** self.m
        for j in range(k + 1):  # the change of the stored value, which may be rounded to float32
            old = np.float64(dataPoint.state[j])
            dataPoint.state[j] = changes[j]
            changes[j] = (np.float64(dataPoint.state[j]) - old) * dataPoint.weight
        return MembershipChange(changes, y)

    def aggregate(self, target: Weights, change: MembershipChange | Weights) -> Weights:
        """Add the change of one point's memberships, or a worker's report, to the sums."""
        if len(change) == 4:  # Weights, a worker's report; numba removes this branch for a MembershipChange
            pytree.add(target, change)
            return target
        changes, y = change
        norm = (y * y).sum()
        target.seen[0] += changes[-1]
        for j in range(target.counts.shape[0]):
            target.counts[j] += changes[j]
            target.squares[j] += changes[j] * norm
            for t in range(y.shape[0]):
                target.sums[j, t] += changes[j] * y[t]
        return target

    def updateParameter(self, aggregator: Weights, oldParameter: Prototypes) -> Prototypes:
        """Centroids are weighted means; unseen points count as if they lay at the old centroids, by their shares in the
        sample."""
        old, seen = oldParameter, float(aggregator.seen[0])
        if holds(old.points, seen):
            return old
        unseen = unseen_weight(old.points, seen) * old.shares
        counts, sums = aggregator.counts, aggregator.sums
        if unseen.any():
            sums = sums + unseen[:, None] * ((old.centroids - old.origin) / old.unit)
            counts = counts + unseen
        filled = counts > 0
        centroids = np.array(old.centroids, dtype=np.float64)
        centroids[filled] = old.origin + sums[filled] / counts[filled, None] * old.unit
        return old._replace(centroids=centroids, points=covered(old.points, seen))

    def objective(self, aggregator: Weights, parameter: Prototypes) -> float:
        filled = aggregator.counts > 0
        counts = aggregator.counts[filled]
        means = aggregator.sums[filled] / counts[:, None]
        away = (parameter.centroids[filled] - parameter.origin) / parameter.unit - means
        within = np.maximum(aggregator.squares[filled] - counts * (means**2).sum(axis=1), 0.0)
        return float((within + counts * (away**2).sum(axis=1)).sum() * parameter.unit[0] ** 2)

    def part_noise(self, objective: float, points: int, parameter: Prototypes) -> float:
        """As for k-means: k·d variances of one column, of the m·d in the objective."""
        return objective * self.k / points

    def kernel(self, share: Shard) -> Kernel | None:
        return soft_kernel(_TRAIN, share, self.k, self.m) if share.layout == "tiles" else None

    def validate(self, sample: Sample) -> None:
        if self.k > sample.points:
            raise UsageError(f"FCM: k={self.k} is more than the number of points, {sample.points}")

    def warnings(self, aggregator: Weights, parameter: Prototypes) -> list[str]:
        """Say how many centroids coincide with another one, where some do."""
        centres = (parameter.centroids - parameter.origin) / parameter.unit
        means = aggregator.sums.sum(axis=0) / max(aggregator.counts.sum(), 1e-300)
        spread = aggregator.squares.sum() / max(aggregator.counts.sum(), 1e-300) - (means**2).sum()
        apart = ((centres[:, None, :] - centres) ** 2).sum(axis=2) + np.where(np.eye(self.k) > 0, np.inf, 0.0)
        alike = int((apart.min(axis=1) <= SAME**2 * max(spread, 0.0)).sum())
        if not alike:
            return []
        return [
            f"{alike} of {self.k} centroids coincide with another one (closer than {SAME:g} of the spread): "
            f"so fuzzy a partition, m={self.m:g}, does not tell so many clusters apart; a smaller m or k may do."
        ]

    def transform(self, features: Any, parameter: Prototypes) -> tuple[Array, Array]:
        """Memberships of each row, and its squared distances to the centroids in units of `unit`."""
        rows = np.asarray(features)
        columns = len(parameter.origin)
        if rows.ndim != 2 or rows.shape[1] != columns:
            raise UsageError(f"FCM: rows of shape {rows.shape} do not fit a model of {columns} columns.")
        y = (rows - parameter.origin) / parameter.unit
        centres = (parameter.centroids - parameter.origin) / parameter.unit
        return self._memberships(y, centres)

    def probabilities(self, features: Any, parameter: Prototypes) -> Array:
        """Memberships."""
        return self.transform(features, parameter)[0]

    def distances(self, features: Any, parameter: Prototypes) -> Array:
        """Euclidean distances to all centroids."""
        return np.asarray(np.sqrt(self.transform(features, parameter)[1]) * parameter.unit)

    def scores(self, features: Any, parameter: Prototypes) -> Array:
        """The largest membership."""
        return np.asarray(self.transform(features, parameter)[0].max(axis=1))

    def model(self, parameter: Prototypes) -> dict[str, Array]:
        return {"centroids": parameter.centroids}

    def work(self, columns: int) -> float:
        return 4.0 * self.k * columns  # and powers of distances

    def predict(self, features: Any, parameter: Prototypes) -> Array:
        """The cluster that each row belongs to most, int32."""
        return np.asarray(self.transform(features, parameter)[0].argmax(axis=1), dtype=np.int32)

    def to_sklearn(self, parameter: Prototypes, classes: list[str] | None) -> Any:
        raise UsageError("scikit-learn has no fuzzy c-means; use flegel.sklearn.FuzzyCMeans there.")

    def evaluate(self, features: Any, labels: Array | None, parameter: Prototypes) -> Evaluation:
        memberships, distances = self.transform(features, parameter)
        value = float((memberships**self.m * distances).sum() * parameter.unit[0] ** 2)
        certainty = float((memberships**2).sum(axis=1).mean())
        return Evaluation(value, {"partition_coefficient": certainty})


def _value_of(trial: FuzzyStart) -> float:
    return trial.value


def _into_weights(squared: Array, m: float, own: Array | None) -> float:
    """u^m, times what rows weigh, in place of squared distances (clusters, rows), all above 0; returns the objective.
    For m = 2 it is Σ 1 / Σ_j (1 / d²), in a third of the operations."""
    if m == 2.0:
        np.reciprocal(squared, out=squared)
        share = 1.0 / squared.sum(axis=0)
        value = float(share.sum() if own is None else own @ share)
        squared *= share
        squared *= squared
    else:
        weights = _shares(squared, m, axis=0) ** m
        value = float(np.vdot(weights if own is None else weights * own, squared))
        squared[:] = weights
    if own is not None:
        squared *= own
    return value


def _shares(squared: Array, m: float, axis: int) -> Array:
    """u by squared distances; `axis`: that of the clusters."""
    safe = np.maximum(squared, NEAR)
    shares = (safe.min(axis=axis, keepdims=True) / safe) ** (1.0 / (m - 1.0))
    return np.asarray(shares / shares.sum(axis=axis, keepdims=True))


def _squared_distances(rows: Array, centres: Array) -> Array:
    """(rows, centres). Products where they pay; what they leave few digits of is computed by differences."""
    if centres.size < active().shapes.fcm_products_from:
        return np.stack([((rows - c) ** 2).sum(axis=1) for c in centres], axis=1)
    lengths, others = np.einsum("ij,ij->i", rows, rows)[:, None], np.einsum("ij,ij->i", centres, centres)
    found = lengths + others
    near = TOUCHING * found
    found -= 2.0 * (rows @ centres.T)
    i, j = np.nonzero(found < near)
    found[i, j] = ((rows[i] - centres[j]) ** 2).sum(axis=1)
    return np.asarray(found)
