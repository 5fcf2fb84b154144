"""A user's class with a random generator of its own on the coordinator, which must go on where it stopped."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from flegel import Algorithm, DataPoint, Sample


class Sums(NamedTuple):
    sums: Any
    count: Any


class Drawing(Algorithm):
    """The mean of all points, disturbed a little less in each round."""

    noise: float = 0.1

    def __init__(self, **hyper: Any) -> None:
        super().__init__(**hyper)
        self.generator = np.random.default_rng(3)
        self.rounds = 0

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> np.ndarray:
        return np.zeros(sample.columns)

    def initState(self, points: int, columns: int, rng: np.random.Generator) -> np.ndarray:
        return np.zeros((points, columns + 1))

    def updateDataPoint(self, dataPoint: DataPoint, parameter: np.ndarray, iterationNum: int) -> Sums:
        columns = dataPoint.features.shape[0]
        change = np.zeros(columns)
        for t in range(columns):
            new = dataPoint.features[t] - 0.3 * parameter[t]
            change[t] = new - dataPoint.state[t]
            dataPoint.state[t] = new
        seen = dataPoint.state[columns]
        dataPoint.state[columns] = 1.0
        return Sums(change, 1.0 - seen)

    def updateParameter(self, aggregator: Sums, oldParameter: np.ndarray) -> np.ndarray:
        self.rounds += 1
        jitter = self.noise / self.rounds * self.generator.normal(size=len(oldParameter))
        return aggregator.sums / max(aggregator.count, 1.0) + jitter

    def objective(self, aggregator: Sums, parameter: np.ndarray) -> float:
        return float(np.square(aggregator.sums / max(aggregator.count, 1.0) - parameter).sum())
