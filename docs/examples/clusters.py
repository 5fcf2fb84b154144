"""K-means with point primitives: a user's own algorithm that the engine compiles to a fast loop."""

from typing import NamedTuple

import numpy as np

from flegel import Algorithm, Kernels
from flegel.algorithms.points import add_to, dot, nearest


class Move(NamedTuple):
    x: np.ndarray
    last: int
    best: int


class Sums(NamedTuple):
    sums: np.ndarray
    counts: np.ndarray
    squares: np.ndarray


class Clusters(Algorithm):
    """K-means: the objective is the sum of squared distances to the own cluster's mean."""

    kernels = Kernels(narrow_parameter=True)

    k: int = 10

    def initParameter(self, sample, rng):
        return sample.features[rng.choice(len(sample.features), self.k, replace=False)]

    def initState(self, points, columns, rng):
        return np.full((points, 1), -1)  # the cluster of the last visit

    def initAggregator(self, sample, parameter):
        return Sums(np.zeros((self.k, sample.columns)), np.zeros(self.k), np.zeros(1))

    def updateDataPoint(self, dataPoint, parameter, iterationNum):
        x, last = dataPoint.features, dataPoint.state[0]
        best = nearest(x, parameter)
        dataPoint.state[0] = best
        return Move(x, last, best)

    def aggregate(self, target, change):
        x, last, best = change
        if last != best:
            add_to(target.sums[best], x)
            target.counts[best] += 1
            if last >= 0:
                add_to(target.sums[last], x, -1.0)
                target.counts[last] -= 1
            else:
                target.squares[0] += dot(x, x)

    def updateParameter(self, aggregator, oldParameter):
        counts = aggregator.counts[:, None]
        return np.where(counts > 0, aggregator.sums / np.maximum(counts, 1), oldParameter)

    def objective(self, aggregator, parameter):
        lengths = (parameter**2).sum(axis=1)
        return aggregator.squares[0] - 2 * (aggregator.sums * parameter).sum() + aggregator.counts @ lengths
