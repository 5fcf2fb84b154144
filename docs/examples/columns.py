"""Means and variances of columns by one pass over the rows. See docs/one-pass-models.md."""

from typing import NamedTuple

import numpy as np

from flegel import Algorithm, Statistics


class Sums(NamedTuple):
    mass: float
    sums: np.ndarray
    squares: np.ndarray


class Model(NamedTuple):
    mean: np.ndarray
    variance: np.ndarray


class Columns(Algorithm):
    statistics = Statistics(constant=True)

    def initParameter(self, sample, rng):
        return Model(np.zeros(sample.columns), np.zeros(sample.columns))

    def contributions(self, features, labels, weights, parameter):
        weights = np.ones(len(features)) if weights is None else weights
        return Sums(weights.sum(), weights @ features, weights @ features**2)

    def updateParameter(self, aggregator, oldParameter):
        mean = aggregator.sums / aggregator.mass
        return Model(mean, aggregator.squares / aggregator.mass - mean**2)
