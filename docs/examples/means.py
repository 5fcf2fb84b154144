"""K-means by hidden values: the engine keeps a point's cluster. See docs/write-your-own.md."""

from typing import NamedTuple

import numpy as np

from flegel import Algorithm
from flegel.algorithms.points import dot, nearest


class Totals(NamedTuple):
    sums: np.ndarray
    counts: np.ndarray
    squares: float


class Means(Algorithm):
    """K-means: the objective is the sum of squared distances to the own cluster's mean."""

    k: int = 10

    def initParameter(self, sample, rng):
        return sample.features[rng.choice(len(sample.features), self.k, replace=False)]

    def hidden(self, dataPoint, parameter):
        return nearest(dataPoint.features, parameter)

    def statistics_of(self, dataPoint, hidden):
        x = dataPoint.features
        adds = Totals(np.zeros((self.k, x.shape[0])), np.zeros(self.k), dot(x, x))
        adds.sums[hidden] = x
        adds.counts[hidden] = 1
        return adds

    def updateParameter(self, aggregator, oldParameter):
        counts = aggregator.counts[:, None]
        return np.where(counts > 0, aggregator.sums / np.maximum(counts, 1e-300), oldParameter)

    def objective(self, aggregator, parameter):
        lengths = (parameter**2).sum(axis=1)
        return aggregator.squares - 2 * (aggregator.sums * parameter).sum() + aggregator.counts @ lengths
