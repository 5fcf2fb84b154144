"""Clusters by a Bregman divergence. See docs/write-your-own.md."""

from typing import NamedTuple

import numpy as np

from flegel import Algorithm


class Gathered(NamedTuple):
    sums: np.ndarray
    counts: np.ndarray
    values: float


class Divergence(Algorithm):
    """Clusters by the divergence of f(x) = sum of sqrt(1 + x²), which outliers hardly change."""

    k: int = 8

    def initParameter(self, sample, rng):
        return sample.features[rng.choice(len(sample.features), self.k, replace=False)]

    def hidden(self, dataPoint, parameter):
        return np.argmax(((1 + parameter * dataPoint.features) / np.sqrt(1 + parameter**2)).sum(axis=1))

    def statistics_of(self, dataPoint, hidden):
        x = dataPoint.features
        adds = Gathered(np.zeros((self.k, x.shape[0])), np.zeros(self.k), np.sqrt(1 + x**2).sum())
        adds.sums[hidden] = x
        adds.counts[hidden] = 1
        return adds

    def updateParameter(self, aggregator, oldParameter):
        counts = aggregator.counts[:, None]
        return np.where(counts > 0, aggregator.sums / np.maximum(counts, 1e-300), oldParameter)

    def objective(self, aggregator, parameter):
        return (
            aggregator.values
            - ((aggregator.counts[:, None] + parameter * aggregator.sums) / np.sqrt(1 + parameter**2)).sum()
        )
