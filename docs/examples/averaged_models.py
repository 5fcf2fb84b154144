"""Local stochastic gradient descent, models averaged at barriers, with momentum (BMUF). See docs/local-models.md."""

from typing import NamedTuple

import numpy as np

from flegel import Algorithm, Learning, Statistics


class Filtered(NamedTuple):
    weights: np.ndarray
    momentum: np.ndarray


class LocalSteps(NamedTuple):
    moved: np.ndarray
    models: np.ndarray
    error: np.ndarray
    points: np.ndarray


class AveragedModels(Algorithm):
    """Least squares for the last column from the others. Every visit is a step of the worker's own model; the objective
    is the mean squared error of the last visits. With a momentum of blocks it is BMUF."""

    statistics = Statistics(spent=("moved", "models"))
    learning = Learning(auxiliary=("momentum",))

    rate: float = 0.01
    block_momentum: float = 0.0
    block_rate: float = 1.0

    def initParameter(self, sample, rng):
        return Filtered(np.zeros(sample.columns), np.zeros(sample.columns))

    def initState(self, points, columns, rng):
        return np.zeros((points, 2))  # the squared error of the last visit, and whether there was one

    def initAggregator(self, sample, parameter):
        return LocalSteps(np.zeros(sample.columns), np.zeros(1), np.zeros(1), np.zeros(1))

    def localParameter(self, parameter, aggregator):
        return Filtered(parameter.weights + aggregator.moved, parameter.momentum)

    def updateDataPoint(self, dataPoint, parameter, iterationNum):
        x, weights = dataPoint.features, parameter.weights
        error = weights[-1] - x[-1]
        for j in range(x.shape[0] - 1):
            error += weights[j] * x[j]
        step = np.empty(x.shape[0])
        scale = self.rate * error / (1.0 + (x * x).sum())
        step[:-1] = -scale * x[:-1]
        step[-1] = -scale
        change = LocalSteps(step, np.ones(1), np.empty(1), np.empty(1))
        change.error[0] = error * error - dataPoint.state[0]
        change.points[0] = 1.0 - dataPoint.state[1]
        dataPoint.state[0], dataPoint.state[1] = error * error, 1.0
        return change

    def aggregate(self, target, change):
        target.moved[:] += change.moved
        target.models[0] = 1.0  # one model in each report, however many steps it took
        target.error[0] += change.error[0]
        target.points[0] += change.points[0]

    def updateParameter(self, aggregator, oldParameter):
        block = aggregator.moved / max(aggregator.models[0], 1.0)  # mean model − θ
        momentum = self.block_momentum * oldParameter.momentum + self.block_rate * block
        return Filtered(oldParameter.weights + momentum, momentum)

    def objective(self, aggregator, parameter):
        return aggregator.error[0] / max(aggregator.points[0], 1.0)
