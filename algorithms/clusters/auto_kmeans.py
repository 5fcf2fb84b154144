"""K-means that finds the number of clusters: splits and merges by the Bayesian information criterion. Never reads data
or a clock."""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from flegel.algorithm import Evaluation, Sample
from flegel.algorithms.clusters.turns import PlaceChange, TurnClusters, TurnSums, all_visited
from flegel.algorithms.estimators import fitted_kmeans
from flegel.algorithms.kmeans.kmeans import Centroids, KMeans, KMeansSums
from flegel.algorithms.points import squared_distance
from flegel.algorithms.seeding import (
    as_often_as_they_weigh,
    lloyd_from,
    nearest_centre,
    origin_of,
    plus_plus,
    squared_lengths,
    weighted_rows,
)
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
from flegel.wording import setting

UNKNOWN_YET = np.finfo(np.float64).max  # an objective that is not known: θ must be finite
LEAST_SCATTER = 1e-12  # of the scatter about one mean: less than this is none
SEARCHING, POLISHING, FINISHED = 0.0, 1.0, 2.0  # phases of a search, as numbers of θ


class GrowingCentroids(NamedTuple):
    """θ: the first `number` of `centroids` count. `origin`, `total` (the weight of all points) and `rows`, some rows on
    which splits are tried, never change. `turn`: see `TurnClusters`. `last`: the sum of squared distances of the last
    pass. `best`, `best_number`, `least`: the best centroids so far that were at rest, and their criterion. `splits`: so
    many are tried at once. `phase`: searching, polishing what was found, finished."""

    centroids: Array
    number: Array
    origin: Array
    total: Array
    turn: Array
    rows: Array
    last: Array
    best: Array
    best_number: Array
    least: Array
    splits: Array
    phase: Array


MOST_BEGUN = 256
"""Clusters that a search begins with: merging pairs of them takes the cube of their number."""
ROWS_OF_A_CLUSTER = 10
"""At least, on average, at the beginning of a search: with a cluster for each row the likelihood has no bound."""
KEPT_BY_COORDINATOR = ("rows", "last", "best", "best_number", "least", "splits", "phase")
"""Fields of θ that workers do not need."""


class AutoKMeans(TurnClusters):
    """Partition points into clusters around their means; how many there are is found, up to `k_max`.

    A point belongs to the nearest centroid. Statistics: those of k-means, and how much of all points is of each turn.
    Update, each time that every point has been visited with this θ: means. Where these are at rest, the criterion
    BIC = −2 log L + k (d + 1) log n of equal spheres is judged, from the statistics alone. If it is the least so far,
    pairs of clusters are merged while that lowers it, which the statistics tell exactly; otherwise the best centroids
    return. Then clusters are split in two, those for which some rows of the sample promise a lower criterion; half as
    many after each time that this was in vain, and none when a single one was. Then θ is polished.
    Start: the same on the sample alone, from three numbers of clusters, so that the passes over all points are few.
    Objective: the criterion.
    Reference: D. Pelleg, A. Moore, X-means: extending k-means with efficient estimation of the number of clusters
    (2000).
    """

    accepts = Accepts(weighted=True, labels="ignored")
    state = HiddenState(memoryless=True)
    learning = Learning(
        tolerance=1e-6,
        auxiliary=("number", "origin", "total", "turn", *KEPT_BY_COORDINATOR),
    )
    placement = ParameterPlacement(unsent=KEPT_BY_COORDINATOR)
    figures = ReportedFigures(shown=("clusters",), followed=("mean_squared_distance",))
    hyper_names = HyperNames(also_called={"max_clusters": "k_max"})

    k_max: Annotated[int, Meta(ge=1, le=10_000, description="most clusters")] = 50

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> GrowingCentroids:
        """The best of three searches on some rows of the sample: from one cluster, from a few, and from many. Where the
        first split alone does not lower the criterion, as among many clusters far apart, the others find them."""
        rows, weights = weighted_rows(np.asarray(sample.features), sample.weights)
        rules, origin = active().sizes, origin_of(rows)
        most = max(rules.sample_rows, rules.rows_per_cluster * self.k_max)
        some = as_often_as_they_weigh(rows, weights, most, rng).astype(np.float64)
        known, zero = np.array([UNKNOWN_YET]), np.zeros(1)
        centroids = np.zeros((self.k_max, sample.columns))
        centroids[0] = some.mean(axis=0)
        one, total = np.ones(1), np.array([sample.mass])
        start = GrowingCentroids(centroids, one, origin, total, zero, some, known, centroids, one, known, one, zero)
        most_begun = max(min(self.k_max, len(some) // ROWS_OF_A_CLUSTER, MOST_BEGUN), 1)
        found = [self._grown(start, some, sample.mass / len(some))]
        for number in sorted({math.isqrt(most_begun), most_begun} - {1}):
            begun = centroids.copy()
            begun[:number] = plus_plus(some, number, rng)
            several = start._replace(centroids=begun, number=np.array([float(number)]))
            found.append(self._grown(several, some, sample.mass / len(some)))
        best = min(found, key=lambda grown: float(grown.least[0]))
        return start._replace(centroids=best.centroids, number=best.number)

    def continueParameter(
        self, previous: GrowingCentroids, sample: Sample, rng: np.random.Generator
    ) -> GrowingCentroids:
        """The clusters of before, from which the search begins again."""
        fresh = self.initParameter(sample, rng)
        if previous.centroids.shape != fresh.centroids.shape:
            raise UsageError("AutoKMeans: start= has another k_max, or other columns, than this job.")
        return fresh._replace(centroids=previous.centroids, number=previous.number)

    def _grown(self, start: GrowingCentroids, rows: Array, weight: float) -> GrowingCentroids:
        """The end of a search over these rows."""
        grown = start
        while grown.phase[0] != FINISHED:
            grown = self._advanced(self._sums(rows, weight, grown), grown)
        return grown

    def _sums(self, rows: Array, weight: float, theta: GrowingCentroids) -> TurnSums:
        """The statistics of rows that weigh as much each, all visited with this θ."""
        away = rows - theta.origin
        labels = nearest_centre(away, theta.centroids[: int(theta.number[0])] - theta.origin)
        marks = (labels[:, None] == np.arange(len(theta.centroids))) * weight
        return TurnSums(marks.T @ away, marks.sum(axis=0), marks.T @ squared_lengths(away), np.zeros(2))

    def stateLimits(self, parameter: GrowingCentroids) -> tuple[float, float]:
        return -1.0, 2.0 * len(parameter.centroids) - 1.0

    def initAggregator(self, sample: Sample, parameter: GrowingCentroids) -> TurnSums:
        zeros = np.zeros(len(parameter.centroids))
        return TurnSums(np.zeros_like(parameter.centroids), zeros, zeros.copy(), np.zeros(2))

    def updateDataPoint(self, dataPoint: DataPoint, parameter: GrowingCentroids, iterationNum: int) -> PlaceChange:
        last, best, least = dataPoint.state[0], 0, np.inf
        for j in range(int(parameter.number[0])):
            cost = squared_distance(dataPoint.features, parameter.centroids[j])
            if cost < least:
                best, least = j, cost
        state = 2 * best + int(parameter.turn[0])
        dataPoint.state[0] = state
        return PlaceChange(dataPoint.features, parameter.origin, last, state, dataPoint.weight)

    def updateParameter(self, aggregator: TurnSums, oldParameter: GrowingCentroids) -> GrowingCentroids:
        old = oldParameter
        if old.phase[0] == FINISHED or not all_visited(aggregator, float(old.total[0]), int(old.turn[0])):
            return old
        return self._advanced(aggregator, old)

    def _advanced(self, aggregator: TurnSums, old: GrowingCentroids) -> GrowingCentroids:
        """The next θ, where these are the statistics of all points under this one."""
        filled = np.flatnonzero(aggregator.counts[: int(old.number[0])] > 0)
        counts = aggregator.counts[filled]
        means = aggregator.sums[filled] / counts[:, None]
        inertia = float(np.maximum(aggregator.squares[filled] - counts * squared_lengths(means), 0.0).sum())
        rules, searching = active().sizes, old.phase[0] == SEARCHING
        rest = rules.resting_gain if searching else self.learning.tolerance
        if old.last[0] - inertia > rest * inertia:
            return _next(old, old.origin + means, inertia)
        if not searching:
            return old._replace(phase=np.array([FINISHED]))
        return self._searched(old, means, counts, inertia, aggregator)

    def _searched(
        self, old: GrowingCentroids, means: Array, counts: Array, inertia: float, sums: TurnSums
    ) -> GrowingCentroids:
        """The next θ of the search, where means about the origin are at rest."""
        total, rest = float(counts.sum()), sums.sums.sum(axis=0) / counts.sum()
        least = LEAST_SCATTER * (float(sums.squares.sum()) - total * float(rest @ rest))
        criterion = _criterion(inertia, counts, means.shape[1], least)
        if criterion < old.least[0]:
            best = np.zeros_like(old.centroids)
            best[: len(means)] = old.origin + means
            number = np.array([float(len(means))])
            old = old._replace(best=best, best_number=number, least=np.array([criterion]), splits=number)
            merged = _merged(means, counts, inertia, least)
            if len(merged) < len(means):
                return _next(old, old.origin + merged, UNKNOWN_YET)
        else:
            old = old._replace(splits=np.floor(old.splits / 2))
        centres = self._split(old, least)
        if len(centres) == int(old.best_number[0]):
            return _next(old, centres, UNKNOWN_YET)._replace(phase=np.array([POLISHING]))
        return _next(old, centres, UNKNOWN_YET)

    def _split(self, theta: GrowingCentroids, least: float) -> Array:
        """The best centroids, those in two for which the rows in θ promise the most."""
        most = min(int(theta.splits[0]), self.k_max - int(theta.best_number[0]))
        return self._in_two(theta, least, most)

    def _in_two(self, theta: GrowingCentroids, least: float, most: int) -> Array:
        """The same with at most so many splits."""
        number = int(theta.best_number[0])
        centres = theta.best[:number]
        if most < 1:
            return centres
        rows, weight = theta.rows, float(theta.total[0]) / len(theta.rows)
        labels = nearest_centre(rows - theta.origin, centres - theta.origin)
        parts = [rows[labels == j] for j in range(number)]
        counts = weight * np.array([len(part) for part in parts], float)
        scatter = np.array([_scatter(part) for part in parts])
        whole, promised = weight * float(scatter.sum()), []
        before = _criterion(whole, counts, rows.shape[1], least)
        for j, part in enumerate(parts):
            if scatter[j] > 0:
                two = _two_means(part)
                sides = nearest_centre(part - centres[j], two - centres[j])
                within = sum(_scatter(part[sides == side]) for side in (0, 1))
                sizes = np.append(counts, weight * float((sides == 1).sum()))
                sizes[j] -= sizes[-1]
                gained = before - _criterion(whole - weight * (scatter[j] - within), sizes, rows.shape[1], least)
                promised.append((gained, j, two))
        chosen = sorted((each for each in promised if each[0] > 0), key=lambda each: -each[0])[:most]
        if not chosen:
            return centres
        kept = np.delete(centres, [j for _, j, _ in chosen], axis=0)
        return np.concatenate([kept, *(two for _, _, two in chosen)])

    def holds(self, parameter: GrowingCentroids) -> bool:
        return True

    def optimality(self, aggregator: TurnSums, parameter: GrowingCentroids) -> float:
        return 0.0 if parameter.phase[0] == FINISHED else np.inf

    def finalParameter(self, aggregator: TurnSums, parameter: GrowingCentroids) -> GrowingCentroids:
        """The best θ that was at rest, where a search did not come to its end."""
        if parameter.phase[0] != SEARCHING or parameter.least[0] == UNKNOWN_YET:
            return parameter
        return parameter._replace(centroids=parameter.best, number=parameter.best_number)

    def objective(self, aggregator: TurnSums, parameter: GrowingCentroids) -> float:
        counts = aggregator.counts[aggregator.counts > 0]
        mean = aggregator.sums.sum(axis=0) / max(float(counts.sum()), 1e-300)
        least = LEAST_SCATTER * (float(aggregator.squares.sum()) - float(counts.sum()) * float(mean @ mean))
        return _criterion(self._inertia(aggregator, parameter), counts, len(parameter.origin), least)

    def _inertia(self, aggregator: TurnSums, parameter: GrowingCentroids) -> float:
        plain = Centroids(parameter.centroids, parameter.origin)
        return KMeans(k=len(parameter.centroids)).objective(KMeansSums(*aggregator[:3]), plain)

    def metrics(self, aggregator: TurnSums, parameter: GrowingCentroids) -> dict[str, float]:
        return {"clusters": float(parameter.number[0]), "inertia": self._inertia(aggregator, parameter)}

    def limited(self, parameter: GrowingCentroids) -> bool:
        """There are `k_max` clusters, and the rows in θ promise a lower criterion with one more."""
        if int(parameter.number[0]) < self.k_max:
            return False
        theta = parameter._replace(best=parameter.centroids, best_number=parameter.number)
        least = LEAST_SCATTER * _scatter(theta.rows) * float(theta.total[0]) / len(theta.rows)
        return len(self._in_two(theta, least, 1)) > self.k_max

    def warnings(self, aggregator: TurnSums, parameter: GrowingCentroids) -> list[str]:
        if not self.limited(parameter):
            return []
        more = setting("k_max", 2 * self.k_max)
        return [f"The limit of {self.k_max} clusters binds: more would lower the criterion; set {more} or more."]

    def model(self, parameter: GrowingCentroids) -> dict[str, Array]:
        return {"centroids": self.centres(parameter)}

    def work(self, columns: int) -> float:
        return float(self.k_max * columns)

    def centres(self, parameter: GrowingCentroids) -> Array:
        """The centroids that count."""
        return np.asarray(parameter.centroids[: int(parameter.number[0])])

    def _plain(self, parameter: GrowingCentroids) -> tuple[KMeans, Centroids]:
        """The same as k-means, for rows of a user."""
        centres = self.centres(parameter)
        return KMeans(k=len(centres)), Centroids(centres, parameter.origin)

    def predict(self, features: Any, parameter: GrowingCentroids) -> Array:
        """The nearest cluster of each row, int32."""
        model, plain = self._plain(parameter)
        return model.predict(features, plain)

    def evaluate(self, features: Any, labels: Array | None, parameter: GrowingCentroids) -> Evaluation:
        model, plain = self._plain(parameter)
        nearest, squared = model.assigned(features, plain)
        rows, inertia = np.asarray(features, np.float64), float(squared.sum())
        counts = np.bincount(nearest, minlength=len(plain.centroids)).astype(np.float64)
        least = LEAST_SCATTER * _scatter(rows)
        return Evaluation(
            _criterion(inertia, counts[counts > 0], rows.shape[1], least),
            {
                "inertia": inertia,
                "mean_squared_distance": inertia / max(len(rows), 1),
                "clusters": float(len(plain.centroids)),
            },
        )

    def to_sklearn(self, parameter: GrowingCentroids, classes: list[str] | None) -> Any:
        return fitted_kmeans(self.centres(parameter))


def _next(old: GrowingCentroids, centres: Array, last: float) -> GrowingCentroids:
    """θ of the next turn with these centroids."""
    centroids = np.zeros_like(old.centroids)
    centroids[: len(centres)] = centres
    number, turn = np.array([float(len(centres))]), 1.0 - old.turn
    return old._replace(centroids=centroids, number=number, turn=turn, last=np.array([last]))


def _criterion(inertia: float, counts: Array, columns: int, least: float) -> float:
    """BIC of equal spheres around the means: −2 log L + k (d + 1) log n; `least`: scatter below which there is none."""
    total, used = float(counts.sum()), counts[counts > 0]
    if total <= 0:
        return 0.0
    variance = max(inertia, least, 1e-300) / (total * columns)
    likelihood = float(used @ np.log(used / total)) - 0.5 * total * columns * (np.log(2.0 * np.pi * variance) + 1.0)
    return float(-2.0 * likelihood + len(used) * (columns + 1) * np.log(max(total, 1.0)))


def _merged(means: Array, counts: Array, inertia: float, least: float) -> Array:
    """Means of which pairs are one where that lowers the criterion, the best pair first."""
    means, counts = means.copy(), counts.copy()
    best = _criterion(inertia, counts, means.shape[1], least)
    while len(means) > 1:
        apart = squared_lengths(means)[:, None] + squared_lengths(means) - 2.0 * means @ means.T
        added = np.maximum(apart, 0.0) * counts[:, None] * counts / (counts[:, None] + counts)
        np.fill_diagonal(added, np.inf)
        found = []
        for a, nearest in enumerate(added.argmin(axis=1)):
            b = int(nearest)
            sizes = np.delete(counts, b)
            sizes[a - (b < a)] += counts[b]
            found.append((_criterion(inertia + float(added[a, b]), sizes, means.shape[1], least), a, b))
        value, a, b = min(found)
        if not value < best:
            break
        best, inertia = value, inertia + float(added[a, b])
        means[a] = (counts[a] * means[a] + counts[b] * means[b]) / (counts[a] + counts[b])
        counts[a] += counts[b]
        means, counts = np.delete(means, b, axis=0), np.delete(counts, b)
    return means


def _scatter(rows: Array) -> float:
    """Σ ‖x − mean‖²."""
    return float(squared_lengths(rows - rows.mean(axis=0)).sum()) if len(rows) else 0.0


def _two_means(rows: Array) -> Array:
    """Two centres of these rows, from a start along their longest direction."""
    mean = rows.mean(axis=0)
    away = rows - mean
    values, directions = np.linalg.eigh(away.T @ away)
    step = np.sqrt(max(float(values[-1]), 0.0) / len(rows)) * directions[:, -1]
    return np.asarray(mean + lloyd_from(away, np.stack([-step, step]), active().starts.lloyd_passes).centres)
