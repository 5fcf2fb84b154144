"""θ of a Gaussian mixture and its statistics, and what follows from the statistics alone. Pure arithmetic."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flegel.algorithms.gmm.shapes import diagonals, outer
from flegel.core.pytree import Array

SQUARES_ROUNDING = 2.0**-50
"""Error of a difference of two sums of squares in float64, relative to the column's sum of squares."""


class Mixture(NamedTuple):
    """θ, and what follows from it, so that a visit need not invert matrices.

    `covariances` and `whiten` have a row per component: d variances, or a lower triangle row by row. `whiten`
    is the inverse Cholesky factor in units of `unit`: ‖whiten·(x − mean)/unit‖² is a squared Mahalanobis
    distance. `level` is what in the log density does not depend on x. `origin`, `unit` and `floor`, the least variance
    of a column in units of unit², never change. `points` is the `coverage` of the first pass.
    """

    weights: Array
    means: Array
    covariances: Array
    whiten: Array
    level: Array
    origin: Array
    unit: Array
    floor: Array
    points: Array


class MixtureMoments(NamedTuple):
    """s: Σ r, Σ r·y, Σ r·y·yᵀ (diagonal or lower triangle) per component, y = (x − origin) / unit; and ΣH."""

    counts: Array
    sums: Array
    squares: Array
    entropy: Array


def with_unseen(aggregator: MixtureMoments, parameter: Mixture, unseen: float, mine: slice) -> MixtureMoments:
    """Statistics with so many more points, distributed as θ has it: what the sample says of points not yet seen.
    `counts` and `weights` are those of all components, the other fields those of the components in `mine`."""
    width = aggregator.squares.shape[1]
    means = (parameter.means - parameter.origin) / parameter.unit
    shares = unseen * parameter.weights[:, None]
    second = parameter.covariances / outer(parameter.unit[None, :], width) + outer(means, width)
    return aggregator._replace(
        counts=aggregator.counts + shares[:, 0],
        sums=aggregator.sums + shares[mine] * means,
        squares=aggregator.squares + shares[mine] * second,
    )


def spread_of(aggregator: MixtureMoments) -> Array:
    """Σ r·y² of each component and column."""
    return np.abs(diagonals(aggregator.squares, aggregator.sums.shape[1]))


def unknown_variance(counts: Array, spread: Array | None) -> Array:
    """Rounding error of each variance, a row for each component of `counts`: the sums are differences of larger ones.
    `spread`: of all components."""
    assert spread is not None
    return np.asarray(SQUARES_ROUNDING * spread.sum(axis=0) / np.maximum(counts, 1.0)[:, None])
