"""The geometric median, by Weiszfeld's iteration. See docs/tutorials/own-class.md."""

import numpy as np

from flegel import Algorithm


class Middle(Algorithm):
    """The geometric median: the objective is the sum of distances to it."""

    def initParameter(self, sample, rng):
        return sample.features.mean(axis=0)

    def contribution(self, dataPoint, parameter):
        away = np.sqrt(((dataPoint.features - parameter) ** 2).sum())
        weight = 1 / max(away, 1e-9)
        adds = np.zeros(dataPoint.features.shape[0] + 2)  # weighted row, weight, distance
        adds[:-2] = weight * dataPoint.features
        adds[-2] = weight
        adds[-1] = away
        return adds

    def updateParameter(self, aggregator, oldParameter):
        return aggregator[:-2] / aggregator[-2]

    def objective(self, aggregator, parameter):
        return aggregator[-1]
