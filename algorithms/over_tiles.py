"""The functions of `points.py` for a whole tile of points at once, a lane a point: what a compiled loop computes ahead.

    fill = nearest_filler(*tile_shape(np.float32, len(rows)))
    fill(features, first, end, prepare_nearest(features, rows, group), found)

`nearest`, `squared_distance` and `dot` of a point's features and of θ depend on nothing else, so a loop may compute
them for the next points before it visits them. The results are those of `points.py`, to the last bit: sums are added
in the same order, and of `nearest` only what is certain is used. Nothing here knows an algorithm.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from flegel.algorithms.nearest_rows import OPTIONS, pack_rows, proposer
from flegel.algorithms.simd.by_points import TRANSPOSED_BYTES, dots_by_points, lay_out, squared_distances_by_points
from flegel.algorithms.simd.vectors import load, spread, store, to_int32, where
from flegel.core.code_cache import njit
from flegel.core.shard import TILE

UNKNOWN = -1  # in place of a row: float32 does not tell which is nearest
MARGIN = TILE  # columns of a table of sums on either side of those of a tile: vectors may begin before and end behind


@njit(**OPTIONS)
def prepare_nearest(features, rows, group):
    """What `nearest_filler` needs to know of the rows: made once for many points."""
    count, columns = rows.shape
    origin, away = np.zeros(columns, features.dtype), np.empty((count, columns))
    for t in range(columns):
        mean = 0.0
        for j in range(count):
            mean += rows[j, t]
        origin[t] = mean / count
        for j in range(count):
            away[j, t] = np.float64(rows[j, t]) - np.float64(origin[t])
    return origin, pack_rows(away, group), np.empty(columns * TILE, np.float32)


@cache
def nearest_filler(lanes: int, group: int) -> Any:
    """`fill(features, first, end, prepared, found)`: the nearest row of points first … end-1, at most TILE, to
    `found`, an array of int32; UNKNOWN where float32 does not tell, or where too few points are left for a vector."""
    propose = proposer(lanes, group)

    @njit(**OPTIONS)
    def fill(features, first, end, prepared, found):
        origin, (minus, half, base, slope), near = prepared
        points, columns = features.shape
        block = TRANSPOSED_BYTES // features.itemsize
        for lane in range(0, end - first, lanes):
            at = first + lane
            if at + lanes > points or columns != origin.size or columns < block:
                found[lane : min(lane + lanes, TILE)] = UNKNOWN
                continue
            norms = spread(0, load(near, 0, lanes))
            for t in range(0, columns, block):
                t = min(t, columns - block)
                norms = lay_out(features, at * columns, columns, t, origin, near, lane, TILE, norms)
            least, second, which = propose(near, lane, columns, minus, half, features, (at + TILE) * columns)
            certain = second - least > norms * slope + base
            store(found, lane, to_int32(where(certain, which, spread(UNKNOWN, which))))

    return fill


@njit(**OPTIONS)
def prepare_sums(features, rows, found):
    """What `sums_filler` needs to know of the rows, and room for a tile in the precision of the sums."""
    columns = features.shape[1]
    return rows, np.zeros(columns, features.dtype), np.empty(columns * TILE, found.dtype)


@cache
def sums_filler(name: str, columns: int, lanes: int) -> Any:
    """`fill(features, first, end, prepared, found)`: found[j, MARGIN + i] is `name` of row j and of point first + i,
    for points first … end-1, at most TILE. There are at least as many points as lanes."""
    sums = {"squared_distance": squared_distances_by_points, "dot": dots_by_points}[name]

    @njit(**OPTIONS)
    def fill(features, first, end, prepared, found):
        rows, zero, near = prepared
        block = TRANSPOSED_BYTES // features.itemsize
        for lane in range(0, end - first, lanes):
            at = min(first + lane, features.shape[0] - lanes)  # the last ones are computed twice
            norms = spread(0, load(near, 0, lanes))
            for t in range(0, columns, block):
                t = min(t, columns - block)
                norms = lay_out(features, at * columns, columns, t, zero, near, 0, TILE, norms)
            to = MARGIN + at - first
            for j in range(found.shape[0]):
                store(found, j * found.shape[1] + to, sums(near, 0, TILE, features, rows, j, columns, lanes))

    return fill
