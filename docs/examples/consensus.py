"""The alternating direction method of multipliers (ADMM) as consensus of all points. See docs/local-models.md."""

from typing import NamedTuple

import numpy as np

from flegel import Algorithm, Statistics


class Proposals(NamedTuple):
    sums: np.ndarray
    points: np.ndarray
    error: np.ndarray


class Consensus(Algorithm):
    """Lasso for the last column from the others. Each point has a model x and a dual u of its own; θ is their consensus
    z. A visit makes x and u anew, a barrier z."""

    statistics = Statistics(lagging=("sums", "error"))

    penalty: float = 0.001
    pull: float = 1.0

    def initParameter(self, sample, rng):
        return np.zeros(sample.columns)

    def initState(self, points, columns, rng):
        return np.zeros((points, 2 * columns + 2))  # u, the last x + u, the last squared error, whether it was visited

    def updateDataPoint(self, dataPoint, parameter, iterationNum):
        row, state, columns = dataPoint.features, dataPoint.state, dataPoint.features.shape[0]
        change = Proposals(np.empty(columns), np.empty(1), np.empty(1))
        error, residual, square = parameter[-1] - row[-1], -row[-1], 1.0
        for j in range(columns):
            a = row[j] if j < columns - 1 else 1.0
            residual += a * (parameter[j] - state[j])
            if j < columns - 1:
                error += a * parameter[j]
                square += a * a
        step = residual / (self.pull + square)  # x = v - a·step minimizes (a·x - b)² / 2 + pull/2 · |x - v|²
        for j in range(columns):
            a = row[j] if j < columns - 1 else 1.0
            x = parameter[j] - state[j] - a * step
            state[j] += x - parameter[j]
            change.sums[j] = x + state[j] - state[columns + j]
            state[columns + j] = x + state[j]
        change.error[0] = error * error - state[2 * columns]
        change.points[0] = 1.0 - state[2 * columns + 1]
        state[2 * columns], state[2 * columns + 1] = error * error, 1.0
        return change

    def updateParameter(self, aggregator, oldParameter):
        mean = aggregator.sums / max(aggregator.points[0], 1.0)
        small = self.penalty / self.pull
        shrunk = np.sign(mean) * np.maximum(np.abs(mean) - small, 0.0)
        return np.append(shrunk[:-1], mean[-1])

    def objective(self, aggregator, parameter):
        return aggregator.error[0] / max(aggregator.points[0], 1.0) / 2 + self.penalty * np.abs(parameter[:-1]).sum()
