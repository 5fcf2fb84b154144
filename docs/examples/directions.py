"""Spherical k-means by contributions: clusters of directions. See docs/write-your-own.md."""

import numpy as np

from flegel import Algorithm


class Directions(Algorithm):
    """Cluster the directions of points; the objective is the sum of 1 - cosine to the own cluster's direction."""

    k: int = 8

    def initParameter(self, sample, rng):
        chosen = sample.features[rng.choice(len(sample.features), self.k, replace=False)]
        return chosen / np.linalg.norm(chosen, axis=1, keepdims=True)

    def contribution(self, dataPoint, parameter):
        x = dataPoint.features / np.sqrt((dataPoint.features**2).sum())
        adds = np.zeros((self.k, x.shape[0] + 1))  # per cluster: sum of directions, number of points
        best = np.argmax((parameter * x).sum(axis=1))
        adds[best, :-1] = x
        adds[best, -1] = 1
        return adds

    def updateParameter(self, aggregator, oldParameter):
        length = np.linalg.norm(aggregator[:, :-1], axis=1, keepdims=True)
        return np.where(length > 0, aggregator[:, :-1] / np.maximum(length, 1e-300), oldParameter)

    def objective(self, aggregator, parameter):
        return aggregator[:, -1].sum() - (aggregator[:, :-1] * parameter).sum()
