"""Algorithms as users might write them, one for each way of writing a hook."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from flegel import Algorithm, DataPoint, Sample

SHIFT = 0.5


def square(x: float) -> float:
    return x * x


class Sums(NamedTuple):
    sums: Any
    count: Any


class DenseMean(Algorithm):
    """Dense change, plain addition, a field without dimensions."""

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> Sums:
        return Sums(np.zeros(sample.columns), np.float64(0.0))

    def initState(self, points: int, columns: int, rng: np.random.Generator) -> np.ndarray:
        return np.zeros((points, columns + 1))

    def updateDataPoint(self, dataPoint: DataPoint, parameter: Sums, iterationNum: int) -> Sums:
        columns = dataPoint.features.shape[0]
        change = np.zeros(columns)
        for t in range(columns):
            new = dataPoint.features[t] + SHIFT + parameter.count * 0.0
            change[t] = new - dataPoint.state[t]
            dataPoint.state[t] = new
        seen = dataPoint.state[columns]
        dataPoint.state[columns] = 1.0
        return Sums(change, 1.0 - seen)

    def updateParameter(self, aggregator: Sums, oldParameter: Sums) -> Sums:
        return Sums(aggregator.sums / max(aggregator.count, 1.0), oldParameter.count + 1.0)

    def objective(self, aggregator: Sums, parameter: Sums) -> float:
        return float(np.abs(aggregator.sums).sum())


class FunctionalMean(DenseMean):
    """`aggregate` that returns a new value instead of writing into its target."""

    def aggregate(self, target: Sums, aggregator: Sums) -> Sums:
        return Sums(target.sums + aggregator.sums, target.count + aggregator.count)


class InPlaceMean(DenseMean):
    """`aggregate` that writes into its target and returns nothing."""

    def aggregate(self, target: Sums, aggregator: Sums) -> None:  # type: ignore[override]
        for t in range(target.sums.shape[0]):
            target.sums[t] += aggregator.sums[t]
        target.count[()] += aggregator.count


class Bin(NamedTuple):
    old: int
    new: int


class Histogram(Algorithm):
    """A sparse change with its own `aggregate`; θ is a bare array; hyper-parameters of several types."""

    bins: Annotated[int, Meta(ge=1, description="number of bins")] = 8
    low: float = -4.0
    high: float = 4.0
    wrap: bool = False
    title: str = "bins"

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> np.ndarray:
        return np.zeros(self.bins)

    def initState(self, points: int, columns: int, rng: np.random.Generator) -> np.ndarray:
        return np.full((points, 1), -1, np.int64)

    def initAggregator(self, sample: Sample, parameter: np.ndarray) -> np.ndarray:
        return np.zeros(self.bins)

    def updateDataPoint(self, dataPoint: DataPoint, parameter: np.ndarray, iterationNum: int) -> Bin:
        place = int((dataPoint.features[0] - self.low) / (self.high - self.low) * self.bins)
        place = place % self.bins if self.wrap else min(max(place, 0), self.bins - 1)
        old = dataPoint.state[0]
        dataPoint.state[0] = place
        return Bin(old, place)

    def aggregate(self, target: np.ndarray, aggregator: Bin) -> np.ndarray:
        if aggregator.old >= 0:
            target[aggregator.old] -= 1
        target[aggregator.new] += 1
        return target

    def updateParameter(self, aggregator: np.ndarray, oldParameter: np.ndarray) -> np.ndarray:
        return aggregator / max(aggregator.sum(), 1.0)


class HaltsWhenLarge(DenseMean):
    """Points over a threshold vote to halt at their first visit."""

    threshold: float = 0.0

    def updateDataPoint(self, dataPoint: DataPoint, parameter: Sums, iterationNum: int) -> Sums:
        columns = dataPoint.features.shape[0]
        if dataPoint.features[0] > self.threshold:
            self.voteToHalt()
        change = np.zeros(columns)
        for t in range(columns):
            change[t] = 1.0
        return Sums(change, 1.0)


class HaltsAtOnce(DenseMean):
    """No hyper-parameters, so that `self` has fields of one type only in compiled code."""

    def updateDataPoint(self, dataPoint: DataPoint, parameter: Sums, iterationNum: int) -> Sums:
        self.voteToHalt()
        return Sums(np.zeros(dataPoint.features.shape[0]), 1.0)


class ClassMeans(DenseMean):
    """Uses the label of a point, which it gets because the data have labels."""

    def updateDataPoint(self, dataPoint: DataPoint, parameter: Sums, iterationNum: int) -> Sums:
        columns = dataPoint.features.shape[0]
        change = np.zeros(columns)
        seen = dataPoint.state[columns]
        if seen == 0.0:
            for t in range(columns):
                change[t] = dataPoint.features[t] * dataPoint.label
        dataPoint.state[columns] = 1.0
        return Sums(change, 1.0 - seen)


class Uncompilable(DenseMean):
    """What numba does not know: a dictionary of lambdas, a try with a name, a format."""

    def updateDataPoint(self, dataPoint: DataPoint, parameter: Sums, iterationNum: int) -> Sums:
        calls = {"seen": lambda point: point.state[-1]}
        new = [float(f"{x:.17g}") + SHIFT for x in dataPoint.features]
        change = np.array(new) - dataPoint.state[:-1]
        seen = calls["seen"](dataPoint)
        dataPoint.state[:-1] = new
        dataPoint.state[-1] = 1.0
        return Sums(change, 1.0 - seen)


class RaisesAtLargePoint(DenseMean):
    """Compiles, and raises for one kind of point."""

    def updateDataPoint(self, dataPoint: DataPoint, parameter: Sums, iterationNum: int) -> Sums:
        if square(dataPoint.features[0]) > 1e6:
            raise ValueError("a point is too large")
        columns = dataPoint.features.shape[0]
        change = np.zeros(columns)
        change[0] = dataPoint.features[0]
        return Sums(change, 1.0)


class Inverse(DenseMean):
    """Divides by a feature, which may be zero."""

    def updateDataPoint(self, dataPoint: DataPoint, parameter: Sums, iterationNum: int) -> Sums:
        change = np.zeros(dataPoint.features.shape[0])
        change[0] = 1.0 / square(dataPoint.features[0])
        return Sums(change, 1.0)
