"""User code that takes its process down, or never returns, at one point far beyond the trial run before training."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np

from flegel import Algorithm


class Mean(Algorithm):
    """Σ x over all points, interpreted, because `bad` cannot be compiled."""

    def initParameter(self, sample: Any, rng: Any) -> Any:
        return np.zeros(1)

    def initState(self, points: int, columns: int, rng: Any) -> Any:
        return np.zeros((points, 1))

    def initAggregator(self, sample: Any, parameter: Any) -> Any:
        return np.zeros(1)

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return oldParameter + 1.0

    def objective(self, aggregator: Any, parameter: Any) -> float:
        return float(aggregator[0])


class Exits(Mean):
    def updateDataPoint(self, dataPoint: Any, parameter: Any, iterationNum: int) -> Any:
        if dataPoint.features[0] > 1000.0:
            os._exit(7)
        return np.zeros(1)


class Crashes(Mean):
    def updateDataPoint(self, dataPoint: Any, parameter: Any, iterationNum: int) -> Any:
        if dataPoint.features[0] > 1000.0:
            ctypes.string_at(0)
        return np.zeros(1)


class Prepares(Mean):
    """Does not return from the hook that a worker calls while it loads its shard."""

    def initState(self, points: int, columns: int, rng: Any) -> Any:
        while points > 256:  # more than are tried before training
            points += 1
        return np.zeros((points, 1))

    def updateDataPoint(self, dataPoint: Any, parameter: Any, iterationNum: int) -> Any:
        return np.zeros(1)


class Loops(Mean):
    def updateDataPoint(self, dataPoint: Any, parameter: Any, iterationNum: int) -> Any:
        spins = 0
        while dataPoint.features[0] > 1000.0:
            spins += 1
        return np.zeros(1)
