"""Columns whose squares float64 cannot hold: refused in a sentence, or brought to units of their own. Imports no
compiler.

The largest float64 is 1.8e308 and the least 4.9e-324, so the square of 1e200 is infinite and that of 1e-200 is 0.
"""

from __future__ import annotations

import numpy as np

from flegel.algorithm import Sample
from flegel.algorithms.rows import row_parts
from flegel.core.pytree import Array
from flegel.core.shard import Sparse
from flegel.errors import UsageError

FARTHEST = float(np.finfo(np.float64).max)
LEAST_SQUARED = 1e-153
"""Squares of smaller numbers lose digits."""
USUAL = 1e100
"""Columns between this and its inverse need no unit of their own: their squares, and sums of them, keep all digits."""


def largest_numbers(sample: Sample, shift: Array | None = None) -> Array:
    """The largest absolute number of each column, less `shift` of dense rows."""
    found = np.zeros(sample.columns)
    if isinstance(sample.features, Sparse):
        np.maximum.at(found, sample.features.indices, np.abs(np.asarray(sample.features.values, np.float64)))
        return found
    middle = np.zeros(sample.columns) if shift is None else shift
    for _, _, rows in row_parts(sample.features, sample.columns):
        if len(rows):
            low, high = (np.asarray(edge, np.float64) for edge in (rows.min(axis=0), rows.max(axis=0)))
            found = np.maximum(found, np.maximum(np.abs(low - middle), np.abs(high - middle)))
    return found


def check_squares(sample: Sample, name: str, every: bool = False, small: bool = True, large: bool = True) -> None:
    """Raise where sums of squares are beyond float64, if `large` numbers are a fault, or, if `small` ones are, vanish:
    those of all columns, or with `every` those of any."""
    largest = largest_numbers(sample)
    limit = np.sqrt(FARTHEST / (4.0 * max(sample.mass, 1.0) * max(sample.columns, 1)))
    if large and largest.max(initial=0.0) > limit:
        raise UsageError(
            f"{name}: column {int(largest.argmax())} (counted from 0) has numbers as large as {largest.max():.2g}, "
            "whose squares are beyond the range of float64, which ends at 1.8e+308; divide it by a power of ten."
        )
    tiny = (largest > 0.0) & (largest < LEAST_SQUARED)
    if small and tiny.any() and (every or (tiny | (largest == 0.0)).all()):
        raise UsageError(
            f"{name}: column {int(tiny.argmax())} (counted from 0) has no number above {largest[tiny].max():.2g}, "
            "whose squares are 0 in float64; multiply it by a power of ten."
        )


def units_of(sample: Sample, shift: Array, small: bool = True) -> Array:
    """What each column is divided by, so that its squares can be summed: 1 but for very large, and with `small` for
    very small ones."""
    largest = largest_numbers(sample, shift)
    odd = (largest > USUAL) | ((largest > 0.0) & (largest < 1.0 / USUAL) & small)
    return np.where(odd, largest, 1.0)
