"""One class for each hook that can raise. Every hook here raises on the line that says BOOM."""

from __future__ import annotations

from typing import Any

import numpy as np

from flegel import Algorithm, DataPoint, Sample


class Sound(Algorithm):
    """Counts points, for ever; the base of the broken ones."""

    def initParameter(self, sample: Sample, rng: Any) -> Any:
        return np.zeros(1)

    def updateDataPoint(self, dataPoint: DataPoint, parameter: Any, iterationNum: int) -> Any:
        return np.ones(1)

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return aggregator * 1.0

    def objective(self, aggregator: Any, parameter: Any) -> float | None:
        return float(aggregator[0])


class InInitParameter(Sound):
    def initParameter(self, sample: Sample, rng: Any) -> Any:
        raise ValueError("BOOM")


class InInitState(Sound):
    def initState(self, points: int, columns: int, rng: Any) -> Any:
        raise ValueError("BOOM")


class InInitStateOfALargeShare(Sound):
    """Fails on workers only: the trial run before training has fewer points."""

    def initState(self, points: int, columns: int, rng: Any) -> Any:
        if points > 300:
            raise ValueError("BOOM")
        return np.zeros((points, 1))


class InUpdateDataPoint(Sound):
    """Fails when it is compiled and a large point comes."""

    def updateDataPoint(self, dataPoint: DataPoint, parameter: Any, iterationNum: int) -> Any:
        if dataPoint.features[0] > 1000.0:
            raise ValueError("BOOM")
        return np.ones(1)


class InInterpretedUpdateDataPoint(Sound):
    def updateDataPoint(self, dataPoint: DataPoint, parameter: Any, iterationNum: int) -> Any:
        text = f"{dataPoint.features[0]:.3f}"
        if float(text) > 1000.0:
            raise ValueError("BOOM")
        return np.ones(1)


class InAggregate(Sound):
    def aggregate(self, target: Any, aggregator: Any) -> Any:
        if target[0] > 100.0:
            raise ValueError("BOOM")
        target += aggregator
        return target


class InUpdateParameter(Sound):
    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        raise ValueError("BOOM")


class InTerminationCheck(Sound):
    def terminationCheck(self, aggregator: Any, iterationNum: int) -> bool:
        raise ValueError("BOOM")


class InObjective(Sound):
    def objective(self, aggregator: Any, parameter: Any) -> float | None:
        if aggregator[0] > 0:
            raise ValueError("BOOM")
        return 0.0


class InInitAggregator(Sound):
    def initAggregator(self, sample: Sample, parameter: Any) -> Any:
        raise ValueError("BOOM")


class StateOfText(Sound):
    def initState(self, points: int, columns: int, rng: Any) -> Any:
        return np.full((points, 1), "a")


class StateOfTooFewRows(Sound):
    def initState(self, points: int, columns: int, rng: Any) -> Any:
        return np.zeros((3, 1))


class StateWithoutColumns(Sound):
    def initState(self, points: int, columns: int, rng: Any) -> Any:
        return np.zeros(points)
