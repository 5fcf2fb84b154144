"""K-prototypes and k-modes: clusters of rows with categories. Never reads data or a clock."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from flegel.algorithm import Evaluation, Sample
from flegel.algorithms.every_point import EveryPoint, all_counted
from flegel.algorithms.seeding import ALSO_CALLED_K, check_enough, origin_of, some_weighted, weighted_rows
from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.core.shard import DataPoint
from flegel.declarations.accepts import Accepts
from flegel.declarations.figures import ReportedFigures
from flegel.declarations.hidden_state import HiddenState
from flegel.declarations.hyper_names import HyperNames
from flegel.declarations.learning import Learning
from flegel.errors import UsageError, nearest


class Prototype(NamedTuple):
    """θ. A row of `centroids` has means, and the most frequent code in columns of categories. The others never change:
    `origin`; `first`, where the codes of a column begin among all codes (-1: a column of numbers); `codes`, how many a
    column has; `gamma`; and `total`, what all points weigh."""

    centroids: Array
    origin: Array
    first: Array
    codes: Array
    gamma: Array
    total: Array


class PrototypeSums(NamedTuple):
    """s, per cluster: Σ(x − origin) of numbers, the weight of its points, Σ‖x − origin‖², the weight of each code."""

    sums: Array
    counts: Array
    squares: Array
    codes: Array


class ClusterChange(NamedTuple):
    """A point's change from cluster `last` (-1: none) to `nearest`."""

    point: Any
    origin: Array
    first: Array
    codes: Array
    last: int
    nearest: int
    weight: float


class KPrototypes(EveryPoint):
    """Partition rows of numbers and categories into k clusters around prototypes: means, and most frequent categories.

    Columns of categories hold codes 0, 1, 2, …. Those of a table are its text and its booleans, made codes,
    and the columns that `categorical` names; numbers in `categorical` are all columns of categories, of rows that hold
    codes already. A code that is not in the sample equals no prototype. State of a point: its cluster.
    Statistics: those of k-means for numbers, and how often each code occurs in each cluster.
    Update: means and most frequent codes, once every point has been visited; an empty cluster stays where it is.
    Objective: Σ ‖x − μ_z(x)‖² over columns of numbers + gamma · number of categories that differ from the prototype.
    Without `gamma` it is half the mean deviation of the columns of numbers.
    Reference: Z. Huang, Extensions to the k-means algorithm for clustering large data sets with categorical values
    (1998).
    """

    accepts = Accepts(weighted=True, labels="ignored", categories="categorical")
    state = HiddenState(memoryless=True)
    learning = Learning(tolerance=1e-6, auxiliary=("origin", "first", "codes", "gamma", "total"))
    figures = ReportedFigures(followed=("mean_cost",))
    hyper_names = HyperNames(also_called=ALSO_CALLED_K)

    k: Annotated[int, Meta(ge=1, description="number of clusters")] = 8
    categorical: Annotated[
        list[int | str] | None,
        Meta(description="columns of categories, by name or from 0; None: text and booleans of a table, or all"),
    ] = None
    gamma: Annotated[
        Annotated[float, Meta(ge=0, le=1e300)] | None,
        Meta(description="cost of a category that differs; None: from the numbers"),
    ] = None
    n_init: Annotated[int, Meta(ge=1, description="starts that are tried on the sample")] = 5

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> Prototype:
        """The best of several starts by k-means++ and a few passes, on some rows of the sample."""
        check_enough(self.k, sample.weights, type(self).__name__)
        rows, weights = weighted_rows(np.asarray(sample.features, np.float64), sample.weights)
        of_codes = self._columns(sample)
        codes = np.where(of_codes, rows.max(axis=0) + 1, 0)
        first = np.where(of_codes, np.cumsum(codes) - codes, -1)
        numbers = rows[:, ~of_codes]
        gamma = self.gamma
        if gamma is None:
            gamma = (0.5 * float(numbers.std(axis=0).mean()) if numbers.size else 1.0) or 1.0
        theta = Prototype(rows[: self.k], origin_of(rows), first, codes, np.array([gamma]), np.array([sample.mass]))
        some, own = some_weighted(rows, weights, active().starts.kmeans_most_trial_rows // 2, rng)
        mass = np.ones(len(some)) if own is None else own
        return min((self._trial(some, mass, theta, rng) for _ in range(self.n_init)), key=lambda trial: trial[1])[0]

    def _columns(self, sample: Sample) -> Array:
        """Which columns hold categories: those of a table that do, and the named ones; exactly those given by number;
        all where nothing says which."""
        known, given = list(sample.categories or ()), self.categorical
        if given is None:
            places = known or range(sample.columns)
        else:
            by_number = all(isinstance(each, int) for each in given)
            places = [*([] if by_number else known), *(self._place(each, sample) for each in given)]
        found = np.zeros(sample.columns, bool)
        found[list(places)] = True
        return found

    def _place(self, column: int | str, sample: Sample) -> int:
        name, names = type(self).__name__, list(sample.names or ())
        if column in names:
            return names.index(str(column))
        if isinstance(column, int) or column.isdecimal():
            if 0 <= int(column) < sample.columns:
                return int(column)
            raise UsageError(f"{name}: there is no column {column}; the last of categorical is {sample.columns - 1}.")
        raise UsageError(f"{name}: there is no column of features {column!r} for categorical{nearest(column, names)}")

    def _trial(self, rows: Array, mass: Array, theta: Prototype, rng: np.random.Generator) -> tuple[Prototype, float]:
        """Prototypes by k-means++ after a few passes over these rows, and their objective."""
        chosen = [int(rng.choice(len(rows), p=mass / mass.sum()))]
        least = _costs(rows, theta._replace(centroids=rows[chosen]))[:, 0]
        while len(chosen) < self.k:
            ends = (least * mass).cumsum()
            chosen.append(min(int(ends.searchsorted(rng.random() * ends[-1])), len(rows) - 1))
            least = np.minimum(least, _costs(rows, theta._replace(centroids=rows[chosen[-1:]]))[:, 0])
        theta, value = theta._replace(centroids=rows[chosen]), np.inf
        for _ in range(active().starts.lloyd_passes):
            costs = _costs(rows, theta)
            labels, before = costs.argmin(axis=1), value
            value = float(mass @ costs.min(axis=1))
            if not value < before:
                break
            sums = self.initAggregator(Sample(rows, None, *rows.shape), theta)
            marks = (labels[:, None] == np.arange(self.k)) * mass[:, None]
            sums = sums._replace(sums=marks.T @ ((rows - theta.origin) * (theta.first < 0)), counts=marks.sum(axis=0))
            for t in np.flatnonzero(theta.first >= 0):
                np.add.at(sums.codes, (labels, (theta.first[t] + rows[:, t]).astype(int)), mass)
            theta = theta._replace(centroids=_prototypes(sums, theta))
        return theta, value

    def initState(self, points: int, columns: int, rng: np.random.Generator) -> Array:
        return np.full((points, 1), -1, np.int32)

    def stateLimits(self, parameter: Prototype) -> tuple[float, float]:
        return -1.0, len(parameter.centroids) - 1.0

    def initAggregator(self, sample: Sample, parameter: Prototype) -> PrototypeSums:
        k, codes = len(parameter.centroids), int(parameter.codes.sum())
        return PrototypeSums(np.zeros((k, sample.columns)), np.zeros(k), np.zeros(k), np.zeros((k, codes)))

    def updateDataPoint(self, dataPoint: DataPoint, parameter: Prototype, iterationNum: int) -> ClusterChange:
        row: Any = dataPoint.features
        last, nearest, least = dataPoint.state[0], 0, np.inf
        for j in range(parameter.centroids.shape[0]):
            cost = 0.0
            for t in range(row.shape[0]):
                if parameter.first[t] < 0:
                    away = row[t] - parameter.centroids[j, t]
                    cost += away * away
                elif row[t] != parameter.centroids[j, t]:
                    cost += parameter.gamma[0]
            if cost < least:
                nearest, least = j, cost
        dataPoint.state[0] = nearest
        return ClusterChange(row, parameter.origin, parameter.first, parameter.codes, last, nearest, dataPoint.weight)

    def aggregate(self, target: PrototypeSums, change: ClusterChange) -> PrototypeSums:
        """Move a point of this weight from one cluster to another."""
        row, origin, first, codes, last, nearest, weight = change
        if last == nearest:
            return target
        square = 0.0
        for t in range(row.shape[0]):
            if first[t] < 0:
                away = row[t] - origin[t]
                square += away * away
                target.sums[nearest, t] += weight * away
                if last >= 0:
                    target.sums[last, t] -= weight * away
            elif 0 <= row[t] < codes[t]:
                target.codes[nearest, int(first[t] + row[t])] += weight
                if last >= 0:
                    target.codes[last, int(first[t] + row[t])] -= weight
        target.counts[nearest] += weight
        target.squares[nearest] += weight * square
        if last >= 0:
            target.counts[last] -= weight
            target.squares[last] -= weight * square
        return target

    def updateParameter(self, aggregator: PrototypeSums, oldParameter: Prototype) -> Prototype:
        if not all_counted(aggregator.counts.sum(), oldParameter):
            return oldParameter
        return oldParameter._replace(centroids=_prototypes(aggregator, oldParameter))

    def objective(self, aggregator: PrototypeSums, parameter: Prototype) -> float:
        counts, numbers = aggregator.counts, parameter.first < 0
        means = aggregator.sums / np.maximum(counts, 1e-300)[:, None]
        within = np.maximum(aggregator.squares - counts * (means**2).sum(axis=1), 0.0)
        away = ((parameter.centroids - parameter.origin - means)[:, numbers] ** 2).sum(axis=1)
        equal = np.zeros(len(counts))
        for t in np.flatnonzero(~numbers):
            mode = parameter.centroids[:, t]
            known = (mode >= 0) & (mode < parameter.codes[t])
            place = (parameter.first[t] + np.where(known, mode, 0)).astype(int)
            equal += np.where(known, aggregator.codes[np.arange(len(counts)), place], 0.0)
        differ = counts * (~numbers).sum() - equal
        return float((within + counts * away + parameter.gamma[0] * differ).sum())

    def validate(self, sample: Sample) -> None:
        name = type(self).__name__
        if self.k > sample.points:
            raise UsageError(f"{name}: k={self.k} is more than the number of points, {sample.points}.")
        places = np.flatnonzero(self._columns(sample))
        found = np.asarray(sample.features)[:, places]
        wrong = (found < 0) | (found != np.floor(found)) | (found > 2**24)
        if wrong.any():
            row, at = np.argwhere(wrong)[0].tolist()
            column = repr(sample.names[places[at]]) if sample.names else str(places[at])
            raise UsageError(
                f"{name}: columns of categories hold codes 0, 1, 2, …, and column {column} holds {found[row, at]:g}; "
                "name the columns of categories (categorical), or leave this one out."
            )

    def model(self, parameter: Prototype) -> dict[str, Array]:
        return {"centroids": parameter.centroids, "gamma": parameter.gamma}

    def work(self, columns: int) -> float:
        return 2.0 * self.k * columns

    def distances(self, features: Any, parameter: Prototype) -> Array:
        """The cost of each row with every prototype."""
        rows, columns = np.asarray(features), len(parameter.origin)
        if rows.ndim != 2 or rows.shape[1] != columns:
            name = type(self).__name__
            raise UsageError(f"{name}: rows of shape {rows.shape} do not fit a model of {columns} columns.")
        return _costs(rows, parameter)

    def predict(self, features: Any, parameter: Prototype) -> Array:
        """The cluster of each row, int32."""
        return np.asarray(self.distances(features, parameter).argmin(axis=1), dtype=np.int32)

    def evaluate(self, features: Any, labels: Array | None, parameter: Prototype) -> Evaluation:
        costs = self.distances(features, parameter).min(axis=1)
        return Evaluation(float(costs.sum()), {"cost": float(costs.sum()), "mean_cost": float(costs.mean())})


class KModes(KPrototypes):
    """Partition rows of categories into k clusters around modes: k-prototypes where every column holds categories, and
    a category that differs costs 1.

    Reference: Z. Huang, Extensions to the k-means algorithm for clustering large data sets with categorical values
    (1998).
    """

    categorical: Annotated[
        list[int | str] | None, Meta(description="always all columns; those of numbers that are named become codes")
    ] = None
    gamma: Annotated[
        Annotated[float, Meta(ge=0, le=1e300)] | None, Meta(description="cost of a category that differs; None: 1")
    ] = None

    def _columns(self, sample: Sample) -> Array:
        for each in self.categorical or []:
            self._place(each, sample)
        return np.ones(sample.columns, bool)


def _costs(rows: Array, theta: Prototype) -> Array:
    """(rows, prototypes)."""
    numbers = theta.first < 0
    found = np.empty((len(rows), len(theta.centroids)))
    for j, centre in enumerate(theta.centroids):
        away = rows[:, numbers] - centre[numbers]
        differ = (rows[:, ~numbers] != centre[~numbers]).sum(axis=1)
        found[:, j] = np.einsum("ij,ij->i", away, away) + theta.gamma[0] * differ
    return found


def _prototypes(sums: PrototypeSums, theta: Prototype) -> Array:
    """Means and most frequent codes of the clusters; of codes that are as frequent, the present one stays."""
    filled, moved = sums.counts > 1e-9 * theta.total[0], np.array(theta.centroids)
    means = theta.origin + sums.sums / np.maximum(sums.counts, 1e-300)[:, None]
    moved[filled] = means[filled]
    for t in np.flatnonzero(theta.first >= 0):
        begin, count = int(theta.first[t]), int(theta.codes[t])
        own, old = sums.codes[:, begin : begin + count], theta.centroids[:, t]
        best, known = own.argmax(axis=1), (old >= 0) & (old < count)
        present = np.where(known, own[np.arange(len(own)), np.where(known, old, 0).astype(int)], -1.0)
        stays = ~filled | (present >= own.max(axis=1))
        moved[:, t] = np.where(stays, old, best)
    return moved
