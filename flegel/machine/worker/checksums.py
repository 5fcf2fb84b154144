"""Checksums of statistics: sums that can be added up like the statistics themselves. Arrays only, no decisions.

A checksum has a row for each field: Σ w·x with fixed weights, and Σ |w·x|, which says how large rounding errors may be.
Sums of reports have the checksum that is the sum of theirs. So what a worker has reported in all can be compared with
what the statistics hold, at the price of one product a report and without sending anything but two numbers a field.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from flegel.core.precision import SMALLEST_DIVISOR
from flegel.core.pytree import Array

CHECKED_NUMBERS_PER_FIELD = 1 << 14
"""Numbers of a field that enter its checksum, evenly chosen: all of a large field would take longer than a report."""
ROUNDINGS_OF_A_SUM = 4096.0
"""A sum may be off by so many times the precision of its type, because roundings add up."""
GOLDEN_RATIO_PART = 0.6180339887498949
"""Fractional parts of its multiples are spread evenly, so no two weights of the checksum are related."""


@cache
def _weights(numbers: int) -> Array:
    return 1.0 + (np.arange(numbers) * GOLDEN_RATIO_PART) % 1.0


def checksum(arrays: Sequence[Array]) -> Array:
    """Two sums for each field of the statistics, as an array (fields, 2): Σ w·x and Σ w·|x|, with fixed weights w."""
    found = np.zeros((len(arrays), 2))
    for at, array in enumerate(arrays):
        flat = array.reshape(-1)
        if flat.size > CHECKED_NUMBERS_PER_FIELD:
            flat = flat[:: -(-flat.size // CHECKED_NUMBERS_PER_FIELD)]
        weights = _weights(flat.size)
        with np.errstate(over="ignore", invalid="ignore"):  # sums that are not finite are refused where they are used
            found[at] = np.dot(flat, weights), np.dot(np.abs(flat), weights)
    return found


def differences(statistics: Array, reports: Array, kinds: Sequence[Any]) -> Array:
    """How far each field of the statistics is from what was reported, in multiples of what rounding explains.
    `statistics`, `reports`: checksums; `kinds`: types of the fields.

    `reports` holds Σ |w·x| of all reports: a sum of them may be off by about that times the precision of its type.
    """
    precisions = [np.finfo(np.float32 if kind == np.float32 else np.float64).eps for kind in kinds]
    rounding = ROUNDINGS_OF_A_SUM * np.array(precisions, np.float64)
    room = rounding * np.maximum(statistics[:, 1], reports[:, 1]) + SMALLEST_DIVISOR
    return np.asarray(np.abs(statistics[:, 0] - reports[:, 0]) / room)
