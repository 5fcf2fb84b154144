"""The normal distribution function and its inverse, and the grid at which quantiles are tabulated.

Used by the fit and by the generators, which must agree on the grid. Never draws a number.
"""

from __future__ import annotations

from math import erf

import numpy as np

from flegel.core.pytree import Array

SPAN = 3.5
"""Quantiles are tabulated at equal steps of the normal score from -SPAN to SPAN, and extended linearly."""


def normal_cdf(scores: Array) -> Array:
    return np.array([0.5 * (1 + erf(s / 2**0.5)) for s in scores])


def normal_scores(ranks: Array) -> Array:
    """Inverse of the normal distribution function, by interpolation in a fine table."""
    grid = np.linspace(-6, 6, 24001)
    return np.interp(ranks, normal_cdf(grid), grid)
