"""Local models that are averaged, as Algorithm 1 of the PSP paper has it, for logistic regression and factorization.

Every visit is a step of gradient descent on the worker's own model; at a barrier θ becomes the mean of the models that
are reported. Workers that train on while they wait go on with their own model (docs/local-models.md).
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from flegel.algorithm import Algorithm, Sample
from flegel.algorithms.plain_gradient import NEGATIVE_FACTORS, FactorModel, SoftmaxModel
from flegel.core.pytree import Array
from flegel.declarations.placement import ParameterPlacement
from flegel.declarations.statistics import Statistics


class LocalSteps(NamedTuple):
    """s. `moved`: how far the model of a worker has moved since the last barrier; `models`: one in each report. Each
    point counts in `loss` with its last visit."""

    moved: Any
    models: Any
    loss: Any
    points: Any


class _LocalModel(Algorithm):
    """What both have in common. Steps are in `moved`, so that the model of a worker is θ + moved."""

    def initAggregator(self, sample: Sample, parameter: Any) -> LocalSteps:
        return LocalSteps(np.zeros(np.shape(parameter)), np.zeros(1), np.zeros(1), np.zeros(1))

    def aggregate(self, target: Any, change: Any) -> None:
        target.moved[:] += change.moved
        target.models[0] = 1.0  # one model in each report, however many steps it took
        target.loss[0] += change.loss[0]
        target.points[0] += change.points[0]


class LocalLR(_LocalModel, SoftmaxModel):
    """Logistic regression of two or more classes, whose labels are 0, 1, 2, …, by stochastic gradient descent on the
    model of each worker; models are averaged at barriers. Objective: mean log-loss, each point with the model of its
    last visit."""

    placement = ParameterPlacement(additive=("value",))
    statistics = Statistics(spent=("moved", "models"), lagging=("loss",))

    rate: Annotated[float, Meta(gt=0, description="length of a step")] = 0.01

    def initState(self, points: int, columns: int, rng: np.random.Generator) -> Array:
        return np.zeros((points, 2))  # loss of the last visit, and whether there was one

    def localParameter(self, parameter: Any, aggregator: Any) -> Any:
        return parameter + aggregator.moved

    def updateDataPoint(self, dataPoint: Any, parameter: Any, iterationNum: int) -> LocalSteps:
        x, state, outputs = dataPoint.features, dataPoint.state, np.zeros(self.classes)
        for c in range(self.classes):
            outputs[c] = parameter[c, -1]
            for j in range(x.shape[0]):
                outputs[c] += parameter[c, j] * x[j]
        highest = outputs.max()
        total = np.exp(outputs - highest).sum()
        right = int(dataPoint.label)
        change = LocalSteps(np.empty(parameter.shape), np.ones(1), np.empty(1), np.empty(1))
        loss = np.log(total) + highest - outputs[right]
        for c in range(self.classes):
            residual = np.exp(outputs[c] - highest) / total - (1.0 if c == right else 0.0)
            for j in range(x.shape[0]):
                change.moved[c, j] = -self.rate * residual * x[j]
            change.moved[c, -1] = -self.rate * residual
        change.loss[0], change.points[0] = loss - state[0], 1.0 - state[1]
        state[0], state[1] = loss, 1.0
        return change

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return oldParameter + aggregator.moved / max(aggregator.models[0], 1.0)

    def objective(self, aggregator: Any, parameter: Any) -> float:
        return float(aggregator.loss[0] / max(aggregator.points[0], 1.0))


class LocalNMF(_LocalModel, FactorModel):
    """Factorize a full matrix, rows as points, x ≈ H·w with H, w ≥ 0. A visit takes one gradient step on w and one on
    the worker's own H; those are averaged at barriers. Objective: mean squared error of an entry."""

    placement = ParameterPlacement(not_additive=NEGATIVE_FACTORS)
    statistics = Statistics(spent=("moved", "models"), lagging=("loss",))

    rate: Annotated[float, Meta(gt=0, description="length of a step on H")] = 0.002

    def localParameter(self, parameter: Any, aggregator: Any) -> Any:
        return np.maximum(parameter + aggregator.moved, 0.0)

    def updateDataPoint(self, dataPoint: Any, parameter: Any, iterationNum: int) -> LocalSteps:
        x, state, rank = dataPoint.features, dataPoint.state, self.rank
        step, loss, length = np.zeros(rank), 0.0, 1e-12
        change = LocalSteps(np.empty(parameter.shape), np.ones(1), np.empty(1), np.empty(1))
        for j in range(x.shape[0]):
            error = -x[j]
            for k in range(rank):
                error += parameter[j, k] * state[k]
                length += parameter[j, k] * parameter[j, k]
            loss += error * error
            for k in range(rank):
                step[k] += error * parameter[j, k]
                change.moved[j, k] = -self.rate * error * state[k]
        change.loss[0], change.points[0] = loss - state[rank], 1.0 - state[rank + 1]
        for k in range(rank):
            state[k] = max(state[k] - step[k] / length, 0.0)
        state[rank], state[rank + 1] = loss, 1.0
        return change

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return np.maximum(oldParameter + aggregator.moved / max(aggregator.models[0], 1.0), 0.0)

    def objective(self, aggregator: Any, parameter: Any) -> float:
        return float(aggregator.loss[0] / max(aggregator.points[0], 1.0) / parameter.shape[0])
