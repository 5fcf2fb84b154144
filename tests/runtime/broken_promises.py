"""Classes that break one promise each; `check_algorithm` must say which."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from flegel import Algorithm, DataPoint, Sample, Statistics
from flegel.core.shard import Shard


class Sums(NamedTuple):
    sums: Any
    count: Any


class Good(Algorithm):
    """The mean of all points; keeps every promise."""

    weight: float = 1.0

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> Any:
        return np.zeros(sample.columns)

    def initState(self, points: int, columns: int, rng: np.random.Generator) -> Any:
        return np.zeros((points, columns + 1))

    def updateDataPoint(self, dataPoint: DataPoint, parameter: Any, iterationNum: int) -> Any:
        columns = dataPoint.features.shape[0]
        change = np.zeros(columns)
        for t in range(columns):
            new = dataPoint.features[t] * self.weight + 0.5 * parameter[t]
            change[t] = new - dataPoint.state[t]
            dataPoint.state[t] = new
        seen = dataPoint.state[columns]
        dataPoint.state[columns] = 1.0
        return Sums(change, 1.0 - seen)

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return aggregator.sums / max(aggregator.count, 1.0)

    def objective(self, aggregator: Any, parameter: Any) -> float | None:
        return float(np.abs(parameter).sum())


class DividesByTheSpread(Good):
    """Sound on ordinary rows; without spread it divides by 0."""

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> Any:
        with np.errstate(all="ignore"):
            return np.asarray(sample.features).mean(axis=0) / np.asarray(sample.features).std()


class ForgetsToSubtract(Good):
    def updateDataPoint(self, dataPoint: DataPoint, parameter: Any, iterationNum: int) -> Any:
        return Sums(dataPoint.features * self.weight + 0.5 * parameter, 1.0)


class AggregateIsNoAddition(Good):
    def aggregate(self, target: Any, aggregator: Any) -> Any:
        return Sums(target.sums * 0.5 + aggregator.sums, target.count + aggregator.count)


class WrongKernel(Good):
    """A block kernel that forgets the last point of what it is given."""

    def kernel(self, share: Shard) -> Any:
        def wrong(s: Shard, parameter: Any, total: Any, start: int, end: int, iteration: int, flag: Any) -> int:
            from flegel.runtime.backends.numba.interpreted_loop import interpreted

            if flag[0]:
                return start
            interpreted(self)(s, parameter, total, start, max(end - 1, start), iteration, flag)
            return end

        return wrong


class DeafKernel(Good):
    """A block kernel that never looks at the stop flag."""

    def kernel(self, share: Shard) -> Any:
        def deaf(s: Shard, parameter: Any, total: Any, start: int, end: int, iteration: int, flag: Any) -> int:
            from flegel.core.stop_flag import new_flag
            from flegel.runtime.backends.numba.interpreted_loop import interpreted

            return interpreted(self)(s, parameter, total, start, end, iteration, new_flag())

        return deaf


class KernelLosesItsPlace(Good):
    """A block kernel that returns one point too few."""

    def kernel(self, share: Shard) -> Any:
        def lost(s: Shard, parameter: Any, total: Any, start: int, end: int, iteration: int, flag: Any) -> int:
            from flegel.runtime.backends.numba.interpreted_loop import interpreted

            reached = interpreted(self)(s, parameter, total, start, end, iteration, flag)
            return reached - 1 if reached > start else reached

        return lost


class ChangesShape(Good):
    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return np.zeros(len(oldParameter) + 1)


class NotFinite(Good):
    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return oldParameter * np.nan


class NoFiniteObjective(Good):
    def objective(self, aggregator: Any, parameter: Any) -> float | None:
        return float("nan")


class StartsNotFinite(Good):
    def initParameter(self, sample: Sample, rng: np.random.Generator) -> Any:
        return np.full(sample.columns, np.inf)


class ParameterOfText(Good):
    def initParameter(self, sample: Sample, rng: np.random.Generator) -> Any:
        return np.array(["a", "b"])


class TerminationIsNoAnswer(Good):
    def terminationCheck(self, aggregator: Any, iterationNum: int) -> Any:
        return "perhaps"


class PredictsTooFew(Good):
    def predict(self, features: Any, parameter: Any) -> Any:
        return np.zeros(3)


class AcceptsAnything(Good):
    def __init__(self, **hyper: Any) -> None:
        super().__init__()


class UpdateWritesItsInput(Good):
    """`updateParameter` spoils the statistics that it was only shown."""

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        aggregator.sums[:] = 0.0
        return oldParameter + 1.0


class StateOfText(Good):
    def initState(self, points: int, columns: int, rng: np.random.Generator) -> Any:
        return np.full((points, 1), "a")


class DrawsFromThinAir(Good):
    """`initParameter` that ignores the generator it is given."""

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> Any:
        return np.random.default_rng().normal(size=sample.columns)


class Gradient(Good):
    """Everything is used up at a barrier, so there is nothing to conserve."""

    statistics = Statistics(spent=("sums", "count"))

    def updateDataPoint(self, dataPoint: DataPoint, parameter: Any, iterationNum: int) -> Any:
        columns = dataPoint.features.shape[0]
        change = np.zeros(columns)
        for t in range(columns):
            change[t] = dataPoint.features[t] - parameter[t]
        return Sums(change, 1.0)

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return oldParameter + 0.1 * aggregator.sums / max(aggregator.count, 1.0)
