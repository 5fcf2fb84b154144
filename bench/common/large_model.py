"""An algorithm with θ of any size and hardly any work: what remains of a round is communication."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from flegel import Algorithm
from flegel.core.sharding import Sharding
from flegel.declarations.placement import ParameterPlacement
from flegel.declarations.statistics import Statistics


class Weights(NamedTuple):
    weights: Any


class Gradient(NamedTuple):
    gradient: Any


class LargeModel(Algorithm):
    """Every point pulls all weights towards its first feature."""

    parameters: int = 1000
    placement = ParameterPlacement(sharding=Sharding({"weights": 0}, {"gradient": 0}))
    statistics = Statistics(spent=("gradient",))

    def initParameter(self, sample: Any, rng: np.random.Generator) -> Any:
        return Weights(np.zeros(self.parameters))

    def initState(self, points: int, columns: int, rng: np.random.Generator) -> Any:
        return np.zeros((points, 1))

    def updateDataPoint(self, dataPoint: Any, parameter: Any, iterationNum: int) -> Any:
        return Gradient(dataPoint.features[0] - parameter.weights)

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return Weights(oldParameter.weights + 0.01 * aggregator.gradient)

    def objective(self, aggregator: Any, parameter: Any) -> float | None:
        return float(parameter.weights[0])
