"""Spherical k-means: clusters of directions. A user's own algorithm, complete."""

import numpy as np

from flegel import Algorithm


class Spherical(Algorithm):
    """Cluster the directions of points; the objective is the sum of 1 - cosine to the own cluster's direction."""

    k: int = 8

    def initParameter(self, sample, rng):
        chosen = sample.features[rng.choice(len(sample.features), self.k, replace=False)]
        return chosen / np.linalg.norm(chosen, axis=1, keepdims=True)

    def initState(self, points, columns, rng):
        return np.full((points, 1), -1)  # the cluster of the last visit

    def updateDataPoint(self, dataPoint, parameter, iterationNum):
        x = dataPoint.features / np.sqrt((dataPoint.features**2).sum())
        change = np.zeros((self.k, x.shape[0] + 1))  # per cluster: sum of directions, number of points
        last, best = dataPoint.state[0], np.argmax((parameter * x).sum(axis=1))
        if last >= 0:
            change[last, :-1], change[last, -1] = -x, -1
        change[best, :-1] += x
        change[best, -1] += 1
        dataPoint.state[0] = best
        return change

    def updateParameter(self, aggregator, oldParameter):
        length = np.linalg.norm(aggregator[:, :-1], axis=1, keepdims=True)
        return np.where(length > 0, aggregator[:, :-1] / np.maximum(length, 1e-300), oldParameter)

    def objective(self, aggregator, parameter):
        return aggregator[:, -1].sum() - (aggregator[:, :-1] * parameter).sum()
