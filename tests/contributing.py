"""Classes that return contributions in every form, beside one that returns the same as changes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from flegel import Accepts, Algorithm, Statistics


class Sums(NamedTuple):
    sums: Any
    counts: Any
    far: Any
    visits: Any


class Assigned(NamedTuple):
    best: Any
    far: Any


class _Clusters(Algorithm):
    """K-means with a sum of distances as the points saw them, and visits that are used up."""

    statistics = Statistics(spent=("visits",))

    k: int = 3

    def initParameter(self, sample: Any, rng: Any) -> Any:
        return np.array(sample.features[: self.k], dtype=np.float64)

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        counts = aggregator.counts[:, None]
        return np.where(counts > 0, aggregator.sums / np.maximum(counts, 1e-9), oldParameter)

    def objective(self, aggregator: Any, parameter: Any) -> float:
        return float(aggregator.far)


class ByContribution(_Clusters):
    def contribution(self, dataPoint: Any, parameter: Any) -> Sums:
        away = ((parameter - dataPoint.features) ** 2).sum(axis=1)
        best = np.argmin(away)
        sums, counts = np.zeros(parameter.shape), np.zeros(self.k)
        sums[best] = dataPoint.features
        counts[best] = 1.0
        return Sums(sums, counts, away[best], 1.0)


class ByHidden(_Clusters):
    """An integer beside a real."""

    def hidden(self, dataPoint: Any, parameter: Any) -> Assigned:
        away = ((parameter - dataPoint.features) ** 2).sum(axis=1)
        best = np.argmin(away)
        return Assigned(best, away[best])

    def statistics_of(self, dataPoint: Any, hidden: Any) -> Sums:
        sums, counts = np.zeros((self.k, dataPoint.features.shape[0])), np.zeros(self.k)
        sums[hidden.best] = dataPoint.features
        counts[hidden.best] = 1.0
        return Sums(sums, counts, hidden.far, 1.0)


class ByHiddenTuple(ByHidden):
    """A plain tuple with an array in it."""

    def hidden(self, dataPoint: Any, parameter: Any) -> Any:
        away = ((parameter - dataPoint.features) ** 2).sum(axis=1)
        return np.argmin(away), away

    def statistics_of(self, dataPoint: Any, hidden: Any) -> Sums:
        best, away = hidden
        sums, counts = np.zeros((self.k, dataPoint.features.shape[0])), np.zeros(self.k)
        sums[best] = dataPoint.features
        counts[best] = 1.0
        return Sums(sums, counts, away[best], 1.0)


class ByChange(_Clusters):
    """The same, by hand."""

    accepts = Accepts(weighted=True)

    def initState(self, points: int, columns: int, rng: Any) -> Any:
        return np.full((points, 2), -1.0)

    def updateDataPoint(self, dataPoint: Any, parameter: Any, iterationNum: int) -> Sums:
        x, weight = dataPoint.features, dataPoint.weight
        away = ((parameter - x) ** 2).sum(axis=1)
        best, last = np.argmin(away), int(dataPoint.state[0])
        sums, counts = np.zeros(parameter.shape), np.zeros(self.k)
        sums[best] += weight * x
        counts[best] += weight
        before = 0.0
        if last >= 0:
            sums[last] -= weight * x
            counts[last] -= weight
            before = dataPoint.state[1]
        dataPoint.state[0] = best
        dataPoint.state[1] = away[best]
        return Sums(sums, counts, weight * (dataPoint.state[1] - before), weight)


class Uncompiled(ByContribution):
    """numba does not know what this calls."""

    def contribution(self, dataPoint: Any, parameter: Any) -> Sums:
        away = np.array([float(f"{value:.17g}") for value in ((parameter - dataPoint.features) ** 2).sum(axis=1)])
        best = int(np.argmin(away))
        sums, counts = np.zeros(parameter.shape), np.zeros(self.k)
        sums[best] = dataPoint.features
        counts[best] = 1.0
        return Sums(sums, counts, away[best], 1.0)


class SparseSum(Algorithm):
    """Sparse rows: a bare array, of which the first number follows θ."""

    accepts = Accepts(sparse=True)

    def initParameter(self, sample: Any, rng: Any) -> Any:
        return np.ones(1)

    def contribution(self, dataPoint: Any, parameter: Any) -> Any:
        return np.array([parameter[0] * dataPoint.features.values.sum(), 1.0])

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return oldParameter + 1.0

    def objective(self, aggregator: Any, parameter: Any) -> float:
        return float(1.0 + aggregator[1])


class HugeHidden(ByHidden):
    def hidden(self, dataPoint: Any, parameter: Any) -> Assigned:
        return Assigned((1 << 24) + 1, dataPoint.features[0])

    def statistics_of(self, dataPoint: Any, hidden: Any) -> Sums:
        return Sums(np.zeros((self.k, dataPoint.features.shape[0])), np.zeros(self.k), hidden.far, 1.0)


class Nothing(Algorithm):
    """Says nothing of points."""

    def initParameter(self, sample: Any, rng: Any) -> Any:
        return np.zeros(1)


class HugeIndex(ByHidden):
    """Integers alone are exact whatever the rows are."""

    def hidden(self, dataPoint: Any, parameter: Any) -> Any:
        return (1 << 40) + np.argmin(((parameter - dataPoint.features) ** 2).sum(axis=1))

    def statistics_of(self, dataPoint: Any, hidden: Any) -> Sums:
        sums, counts = np.zeros((self.k, dataPoint.features.shape[0])), np.zeros(self.k)
        sums[hidden - (1 << 40)] = dataPoint.features
        counts[hidden - (1 << 40)] = 1.0
        return Sums(sums, counts, 1.0, 1.0)


class RealsAfterAnInteger(ByHidden):
    """The first point returns an integer, later ones a real."""

    def hidden(self, dataPoint: Any, parameter: Any) -> Any:
        return max(0, dataPoint.features[0])

    def statistics_of(self, dataPoint: Any, hidden: Any) -> Sums:
        return Sums(np.zeros((self.k, dataPoint.features.shape[0])), np.zeros(self.k), float(hidden), 1.0)


class NumberAfterATruthValue(RealsAfterAnInteger):
    def hidden(self, dataPoint: Any, parameter: Any) -> Any:
        return False if dataPoint.features[0] < 0 else 7


class OtherShape(RealsAfterAnInteger):
    def hidden(self, dataPoint: Any, parameter: Any) -> Any:
        return np.ones(3 if dataPoint.features[0] < 0 else 1)

    def statistics_of(self, dataPoint: Any, hidden: Any) -> Sums:
        return Sums(np.zeros((self.k, dataPoint.features.shape[0])), np.zeros(self.k), hidden.sum(), 1.0)
