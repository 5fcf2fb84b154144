"""Common parts of the GMM and FCM kernels: points as columns in a buffer, and Σ (change of membership) × (column).

Every statistic of a soft clustering sums membership times some function of the point: 1, x_t, x_t², x_t·x_u.
Each such function is a *column* over the points of some tiles; the M-step is then one small matrix product,
changes (k × points) times columns (points × C), in registers, each lane summed in the features' precision.
`flush` adds the lanes up into a float64 table. Never knows which model it works for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flegel.algorithms.simd.inner import INLINE, INNER
from flegel.algorithms.simd.registers import ONE_REGISTER, REGISTERS, TWO_REGISTERS, VECTOR_BYTES
from flegel.algorithms.simd.vectors import (
    any_lane,
    fma,
    fma_each,
    lane_count,
    load,
    loads,
    outer_each,
    prefetch,
    splats,
    spread,
    square_each,
    store,
    store_each,
    total,
    widen,
)
from flegel.configuration.compiled import kernel_settings
from flegel.core.code_cache import njit
from flegel.core.shard import TILE

ROWS = 4 if REGISTERS == 32 else 2  # clusters in a register tile of sums
MORE_ROWS = 5 if REGISTERS == 32 else 2  # the same where it leaves fewer rows of a last tile empty, as for k = 10
COLS = 4  # columns in a register tile of sums
AREA, MORE_AREA = ROWS * COLS, MORE_ROWS * COLS
LANES = TWO_REGISTERS  # points in a register tile of distances
WIDE = 10 if REGISTERS == 32 else 5  # clusters in a register tile of distances
MANY_WIDE = 25 if VECTOR_BYTES == 64 else WIDE  # the same for many clusters, with one register of points
GROUP = 5 if REGISTERS == 32 else 3  # the same where each cluster, or row of a matrix, takes two operations
FLUSH = kernel_settings().soft_terms_per_lane


@njit(**INNER)
def padded(count, step):
    return -(-count // step) * step


@njit(**INNER)
def soft_buffers(features, k, width, tiles):
    """(changes, columns, lane sums, table): zeros, padded to whole register tiles."""
    rows, cols = min(padded(k, ROWS), padded(k, MORE_ROWS)), padded(width, COLS)
    changes = np.zeros((rows, tiles * TILE), features.dtype)
    columns = np.zeros((cols, tiles * TILE), features.dtype)
    lane_sums = np.zeros(rows * cols * lane_count(features, ONE_REGISTER), features.dtype)
    return changes, columns, lane_sums, np.zeros((rows, cols))


def _products(lanes: int, group: int) -> Any:
    """`products` for vectors of so many points and groups of so many clusters. Asks for the next tile of features and
    state meanwhile, a part with each group: all at once they would wait for memory."""

    @njit(**INLINE)
    def multiply(columns, count, at, slopes, levels, far, features, state, tile):
        points, part = columns.shape[1], 0
        parts = TILE // lane_count(columns, lanes) * (levels.size // group)
        for lane in range(0, TILE, lane_count(columns, lanes)):
            for first in range(0, levels.size, group):
                _fetch_part(features, tile + 1, part, parts)
                _fetch_part(state, tile + 1, part, parts)
                part += 1
                values = splats(levels, first, group, lanes)
                x_at, place = at + lane, first * count
                for _ in range(count):
                    values = fma_each(load(columns, x_at, lanes), splats(slopes, place, group, lanes), values)
                    x_at += points
                    place += group
                store_each(far, first * TILE + lane, TILE, values)

    return multiply


_few_products, _many_products = _products(LANES, WIDE), _products(ONE_REGISTER, MANY_WIDE)

if MANY_WIDE > WIDE:

    @njit(**INNER)
    def products(columns, count, at, slopes, levels, far, group, features, state, tile):
        """far[j] = levels[j] + Σ_c slopes[j, c] · columns[c], for a tile; slopes are packed in groups of
        `product_group`. Asks for the tile after this one."""
        if group == MANY_WIDE:
            _many_products(columns, count, at, slopes, levels, far, features, state, tile)
        else:
            _few_products(columns, count, at, slopes, levels, far, features, state, tile)

else:

    @njit(**INNER)
    def products(columns, count, at, slopes, levels, far, group, features, state, tile):
        """As above, where there is one size of groups."""
        _few_products(columns, count, at, slopes, levels, far, features, state, tile)


@njit(**INNER)
def product_group(k):
    """Clusters of a group in `products`: many where few of them are fillers."""
    return MANY_WIDE if 4 * padded(k, MANY_WIDE) <= 5 * padded(k, WIDE) else WIDE


@njit(**INNER)
def square_distances(columns, d, at, slopes, offsets, levels, far):
    """far[j] = levels[j] + Σ_t (slope·x_t + offset)², for a tile; packed in groups of GROUP."""
    points = columns.shape[1]
    for lane in range(0, TILE, lane_count(columns, LANES)):
        for first in range(0, levels.size, GROUP):
            values = splats(levels, first, GROUP, LANES)
            for t in range(d):
                place = first * d + t * GROUP
                slope, offset = splats(slopes, place, GROUP, LANES), splats(offsets, place, GROUP, LANES)
                values = square_each(load(columns, t * points + at + lane, LANES), slope, offset, values)
            store_each(far, first * TILE + lane, TILE, values)


@njit(**INNER)
def fetch(features, tile):
    """Prefetches a tile into the cache."""
    size = features.shape[1] * TILE
    for line in range(0, size, 64 // features.itemsize):
        prefetch(features, tile * size + line)


@njit(**INLINE)
def _fetch_part(array, tile, part, parts):
    """One of so many parts of what `fetch` does."""
    line = 64 // array.itemsize
    lines = array.shape[1] * TILE // line
    for i in range(part * lines // parts, (part + 1) * lines // parts):
        prefetch(array, tile * array.shape[1] * TILE + i * line)


@njit(**INNER)
def accumulate(changes, columns, lane_sums):
    """lane_sums += changes × columnsᵀ, each lane summed separately."""
    points = changes.shape[1]
    lanes = lane_count(changes, ONE_REGISTER)
    at = 0
    if changes.shape[0] % MORE_ROWS == 0:
        for row in range(0, changes.shape[0], MORE_ROWS):
            for col in range(0, columns.shape[0], COLS):
                sums = loads(lane_sums, at, lanes, MORE_AREA, ONE_REGISTER)
                for point in range(0, points, lanes):
                    change = loads(changes, row * points + point, points, MORE_ROWS, ONE_REGISTER)
                    column = loads(columns, col * points + point, points, COLS, ONE_REGISTER)
                    sums = outer_each(change, column, sums)
                store_each(lane_sums, at, lanes, sums)
                at += MORE_AREA * lanes
        return
    for row in range(0, changes.shape[0], ROWS):
        for col in range(0, columns.shape[0], COLS):
            sums = loads(lane_sums, at, lanes, AREA, ONE_REGISTER)
            for point in range(0, points, lanes):
                change = loads(changes, row * points + point, points, ROWS, ONE_REGISTER)
                column = loads(columns, col * points + point, points, COLS, ONE_REGISTER)
                sums = outer_each(change, column, sums)
            store_each(lane_sums, at, lanes, sums)
            at += AREA * lanes


@njit(**INNER)
def flush(lane_sums, table):
    """Adds the lanes up into the table, in float64, and clears them."""
    lanes = lane_count(lane_sums, ONE_REGISTER)
    at, rows = 0, MORE_ROWS if table.shape[0] % MORE_ROWS == 0 else ROWS
    for row in range(0, table.shape[0], rows):
        for col in range(0, table.shape[1], COLS):
            for i in range(rows):
                for j in range(COLS):
                    some = load(lane_sums, at, ONE_REGISTER)
                    table[row + i, col + j] += total(widen(some))
                    store(lane_sums, at, spread(0, some))
                    at += lanes


@njit(**INNER)
def units(columns, origin, unit):
    """Origin and 1 / unit in the precision of the columns."""
    zeros, scales = np.empty(origin.size, columns.dtype), np.empty(origin.size, columns.dtype)
    for t in range(origin.size):
        zeros[t], scales[t] = origin[t], 1.0 / unit[t]
    return zeros, scales


@njit(**INNER)
def standardized(features, tile, zeros, scales, columns, at):
    """Rows 0 … d-1 of the columns: the tile's points about the origin, in units. Both of one precision.

    With vectors: left to the compiler, this loop takes four times as long on NEON, because it cannot tell that the
    arrays differ.
    """
    points = columns.shape[1]
    for t in range(zeros.size):
        for lane in range(0, TILE, lane_count(columns, LANES)):
            x = load(features, (tile * zeros.size + t) * TILE + lane, LANES)
            store(columns, t * points + at + lane, (x - zeros[t]) * scales[t])


@njit(**INNER)
def standardized_wide(features, tile, zeros, scales, columns):
    """The same from float32 features into float64 columns, at 0."""
    for t in range(zeros.size):
        for lane in range(TILE):
            columns[t, lane] = (np.float64(features[tile, t, lane]) - zeros[t]) * scales[t]


@njit(**INNER)
def multiplied(columns, t, u, row, at):
    """Row `row` of the columns: the product of rows t and u, for a tile."""
    points = columns.shape[1]
    for lane in range(at, at + TILE, lane_count(columns, LANES)):
        x, y = load(columns, t * points + lane, LANES), load(columns, u * points + lane, LANES)
        store(columns, row * points + lane, x * y)


@njit(**INNER)
def norms(columns, d, at, weights, row):
    """Row `row` of the columns: Σ_t weights[t] · column_t², for a tile."""
    points = columns.shape[1]
    for lane in range(at, at + TILE, lane_count(columns, LANES)):
        size = spread(0, load(columns, lane, LANES))
        for t in range(d):
            x = load(columns, t * points + lane, LANES)
            size = fma(x * x, spread(weights[t], x), size)
        store(columns, row * points + lane, size)


@njit(**INNER)
def beyond(columns, row, at, limit):
    """Is row `row` of the columns above the limit, or not a number, for any point of the tile?"""
    found = False
    for lane in range(at, at + TILE, lane_count(columns, LANES)):
        size = load(columns, row * columns.shape[1] + lane, LANES)
        found = found or not any_lane(size <= limit) or any_lane(size > limit)
    return found


@njit(**INNER)
def mark_active(active, tile, start, end):
    """1 for the lanes of this tile that lie in start … end-1, else 0."""
    for lane in range(TILE):
        active[lane] = 1 if start <= tile * TILE + lane < end else 0


@njit(**INNER)
def forget(changes, first):
    """Sets the changes to 0 from this point of the buffer on: the values there belong to earlier tiles."""
    for j in range(changes.shape[0]):
        for point in range(first, changes.shape[1]):
            changes[j, point] = 0
