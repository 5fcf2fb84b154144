"""What a point does with rows of numbers, fast: for use in `updateDataPoint`, compiled or not.

    from flegel.algorithms.points import nearest

    best = nearest(dataPoint.features, parameter)      # the row at the least distance

Each function takes arrays of any real dtypes. C-contiguous float32 and float64 arrays are read with vectors, all
others number by number. Sums are taken in the wider of the two precisions (integers count as float64), lane by lane
and then across lanes: always in the same order on one machine, not in the order of a plain loop. The error is
that of a pairwise sum: a few units in the last place for vectors of ordinary length. A plain Python call runs the same
machine code as a compiled hook, so both modes decide alike, to the last bit. Nothing here knows an algorithm.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from flegel.algorithms.simd.rows import (
    dots,
    first_lane,
    first_of_least,
    least_of,
    none_yet,
    squared_distances,
    vectors_fit,
)
from flegel.core.code_cache import njit

_OPTIONS: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy", "forceinline": True}


@njit(**_OPTIONS)
def nearest(x, rows):
    """Index of the row of `rows` at the least squared distance from `x`; of equal ones the first.

    Works on up to eight rows at a time, which share what is read of `x`. Faster if both have the same dtype: see
    `Kernels.narrow_parameter`.
    """
    if x.shape[0] != rows.shape[1] or rows.shape[0] == 0:
        raise ValueError("nearest: rows must be a table with as many columns as x has numbers, and not empty")
    return _nearest(x, rows)


@njit(**_OPTIONS)
def squared_distance(x, y):
    """Σ (x − y)²."""
    if x.shape[0] != y.shape[0]:
        raise ValueError("squared_distance: x and y must have the same length")
    return _squared_distance(x, y)


@njit(**_OPTIONS)
def dot(x, y):
    """Σ x·y."""
    if x.shape[0] != y.shape[0]:
        raise ValueError("dot: x and y must have the same length")
    return _dot(x, y)


@njit(**_OPTIONS)
def add_to(target, x, weight=1.0):
    """target += weight · x, number by number and without a temporary array; the product is taken in float64."""
    if target.shape[0] != x.shape[0]:
        raise ValueError("add_to: target and x must have the same length")
    for t in range(x.shape[0]):
        target[t] += weight * x[t]


# -- with vectors, where the arrays allow it ----------------------------------------------------------------


def _nearest(x: Any, rows: Any) -> Any:
    """Compiled code only; see the overload."""


def _squared_distance(x: Any, y: Any) -> Any:
    """Compiled code only; see the overload."""


def _dot(x: Any, y: Any) -> Any:
    """Compiled code only; see the overload."""


@overload(_nearest, jit_options={"error_model": "numpy", "forceinline": True})
def _(x: Any, rows: Any) -> Any:
    zero = _zero(x, rows)
    infinite = type(zero)(np.inf)

    def plain(x: Any, rows: Any) -> Any:
        best, least = 0, infinite
        for j in range(rows.shape[0]):
            distance = zero
            for t in range(x.shape[0]):
                difference = (zero + x[t]) - rows[j, t]
                distance += difference * difference
            if distance < least:
                best, least = j, distance
        return best

    def vectors(x: Any, rows: Any) -> Any:
        if x.shape[0] < shortest:
            return plain_code(x, rows)
        count, j = rows.shape[0], 0
        best, least = none_yet(x, rows)
        if count & 1:
            best, least = least_of(squared_distances(x, rows, j, 1), j, 1, best, least)
            j += 1
        if count & 2:
            best, least = least_of(squared_distances(x, rows, j, 2), j, 2, best, least)
            j += 2
        if count & 4:
            best, least = least_of(squared_distances(x, rows, j, 4), j, 4, best, least)
            j += 4
        while j < count:
            best, least = least_of(squared_distances(x, rows, j, 8), j, 8, best, least)
            j += 8
        return first_of_least(best, least)

    shortest = vectors_fit(x, rows)
    plain_code = njit(error_model="numpy")(plain)
    return vectors if shortest else plain


@overload(_squared_distance, jit_options={"error_model": "numpy", "forceinline": True})
def _(x: Any, y: Any) -> Any:
    zero = _zero(x, y)

    def plain(x: Any, y: Any) -> Any:
        total = zero
        for t in range(x.shape[0]):
            difference = (zero + x[t]) - y[t]
            total += difference * difference
        return total

    def vectors(x: Any, y: Any) -> Any:
        return first_lane(squared_distances(x, y, 0, 1)[0]) if x.shape[0] >= shortest else plain_code(x, y)

    shortest = vectors_fit(x, y)
    plain_code = njit(error_model="numpy")(plain)
    return vectors if shortest else plain


@overload(_dot, jit_options={"error_model": "numpy", "forceinline": True})
def _(x: Any, y: Any) -> Any:
    zero = _zero(x, y)

    def plain(x: Any, y: Any) -> Any:
        total = zero
        for t in range(x.shape[0]):
            total += (zero + x[t]) * y[t]
        return total

    def vectors(x: Any, y: Any) -> Any:
        return first_lane(dots(x, y, 0, 1)[0]) if x.shape[0] >= shortest else plain_code(x, y)

    shortest = vectors_fit(x, y)
    plain_code = njit(error_model="numpy")(plain)
    return vectors if shortest else plain


def _zero(x: Any, y: Any) -> Any:
    """0 in the precision of the sums."""
    single = x.dtype == types.float32 and y.dtype == types.float32
    return np.float32(0.0) if single else np.float64(0.0)
