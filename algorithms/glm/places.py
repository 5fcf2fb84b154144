"""Numbers that the kernels and hooks of generalized linear models share. Imports no compiler."""

from __future__ import annotations

LOSS, SLOPE, BEND, SHAPE, MIXED, SHAPE_BEND = range(6)
"""Places in the state of a point: loss, slope and bend of its last visit, then, where the loss has a parameter, its
slope, its mixed bend and its own. Bends are those that are in the sums. The last number is that of θ."""
COUNTED = (BEND, MIXED, SHAPE_BEND)
"""Second derivatives among them."""
MASS, SEEN, STAMPS, UNFIT, BENT, SUMS = 1, 2, 4, 6, 7, 8
"""Places in the sums of a call, beside those of the loss, the parameter's slope and its bend: mass and number of points
that were visited for the first time, changes of the numbers of θ, labels that do not fit, points whose curvature was
counted again; and how many places."""
POISSON, GAMMA, HUBER, HINGE, GUARDED_HUBER = range(5)
"""Losses that are compiled; a guarded one has the second derivatives of `GeneralizedLinear.guarded`."""
MOST_SCORE = 300.0
"""Larger ones are cut off, and so is their exponential: sums of squares stay finite, and no step leads there."""
GUARDED, LARGEST_LOSS = 8, 9
"""Places in `NewtonSearch` that the kernels read: whether second derivatives are guarded, and where losses are cut."""
COLUMNS_AT_ONCE = 8
"""Columns and the bias are filled up to a multiple of this: the sides of a register tile (`lr.curvature.TILE_ROWS`)
and the float64 numbers of a register divide it."""
