"""The block kernel of KMeans: assigns tiles of points with vectors, then moves the few that change.

The nearest centroid minimizes ½‖c‖² − x·c, so a tile of points times a group of centroids is a small matrix
product held in registers. It is taken in the features' precision, and only proposes: a point that was visited
before moves if it is nearer in float64 too, so the objective cannot rise by rounding. Never reads a clock or
a file, never allocates more than a tile and the centroids.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from flegel.algorithms.simd.registers import VECTOR_BYTES
from flegel.algorithms.simd.vectors import (
    any_lane,
    fma,
    fma_each,
    least_each,
    load,
    loads,
    prefetch,
    splats,
    spread,
    store,
    store_each,
    to_int32,
    total,
    transposed,
    widen,
)
from flegel.core.atomic_flag import raised
from flegel.core.code_cache import njit
from flegel.core.shard import TILE

LINE = 64  # bytes of a cache line
WIDE = 4 if VECTOR_BYTES == 16 else 8  # numbers of a row that are moved at once
OPTIONS: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy"}


@cache
def build(lanes: int, group: int) -> Any:
    """The kernel in this shape (`shapes.tile_shape`)."""

    @njit(**OPTIONS)
    def train(features, state, weights, parameter, aggregator, start, end, flag):
        columns = features.shape[1]
        flat, last = features.reshape(-1), state.reshape(-1)
        centres = parameter.centroids - parameter.origin
        shifted, scale = _conditioning(centres, parameter.origin, features.itemsize)
        groups = -(-len(centres) // group)
        minus, half = _pack(features, centres, parameter.origin, groups, group, shifted, scale)
        near = np.empty(columns * TILE, features.dtype)
        nearest = np.empty(TILE, np.int32)
        book = _book(features, centres, parameter.origin, aggregator)
        source, at, reached = flat, 0, end
        for tile in range(start // TILE, -(-end // TILE)):
            if raised(flag):
                reached = max(start, tile * TILE)
                break
            at = tile * columns * TILE
            if shifted:
                _shift(flat, at, parameter.origin, scale, near)
                source, at = near, 0
            changed = False
            for lane in range(0, TILE, lanes):
                for line in range(0, columns * lanes, LINE // features.itemsize):
                    prefetch(flat, (tile + 1) * columns * TILE + lane * columns + line)
                zero = spread(0, load(source, at, lanes))
                least, which = spread(np.inf, zero), zero
                for g in range(groups):
                    values = splats(half, g * group, group, lanes)  # will be ½‖c‖² − x·c
                    x_at, c_at = at + lane, g * columns * group
                    for _ in range(columns):
                        x = load(source, x_at, lanes)
                        values = fma_each(x, splats(minus, c_at, group, lanes), values)
                        x_at += TILE
                        c_at += group
                    least, which = least_each(values, g * group, least, which)
                now = to_int32(which)
                store(nearest, lane, now)
                changed = any_lane(now != load(last, tile * TILE + lane, lanes)) or changed
            if changed:
                _move(flat, last, weights, nearest, tile, start, end, book, aggregator)
        _settle(book, aggregator)
        return reached

    return train


@njit(**OPTIONS)
def _conditioning(centres, origin, itemsize):
    """Must points be shifted, and scaled by which power of two, for safe products in their precision?"""
    largest, scatter, away = 0.0, 0.0, 0.0
    for j in range(centres.shape[0]):  # plain loops: array expressions take a second longer to compile
        for t in range(centres.shape[1]):
            largest = max(largest, abs(centres[j, t]))
    bound = 2.0**40 if itemsize == 4 else 2.0**400
    scale = 1.0
    if largest > 0 and not 1 / bound < largest < bound:
        scale = 2.0 ** -np.floor(np.log2(largest))
    for j in range(centres.shape[0]):
        for t in range(centres.shape[1]):
            scatter += centres[j, t] * scale * (centres[j, t] * scale)
    for t in range(origin.size):
        away += origin[t] * origin[t]
    return scale != 1.0 or away > 4 * scatter / len(centres), scale


@njit(**OPTIONS)
def _pack(features, centres, origin, groups, group, shifted, scale):
    """−c in groups, column by column inside a group, and ½‖c‖²; fillers of the last group are far."""
    clusters, columns = centres.shape
    minus = np.zeros(groups * columns * group, features.dtype)
    half = np.full(groups * group, np.inf, features.dtype)
    for j in range(clusters):
        norm, aside = 0.0, 0.0
        for t in range(columns):
            c = centres[j, t] * scale
            norm += c * c
            aside += c * origin[t]
            minus[(j // group * columns + t) * group + j % group] = -c
        half[j] = 0.5 * norm + (0.0 if shifted else aside)  # x·c of an unshifted x contains origin·c
    return minus, half


@njit(**OPTIONS)
def _shift(flat, at, origin, scale, near):
    """A tile about the origin, in a buffer."""
    to = near.dtype.type
    for t in range(origin.size):
        o = to(origin[t])
        for lane in range(TILE):
            near[t * TILE + lane] = (flat[at + t * TILE + lane] - o) * to(scale)


@njit(**OPTIONS)
def _book(features, centres, origin, aggregator):
    """What moving points needs, each row filled up with zeros to whole vectors: in float64 centroids about the origin,
    the origin, and the sums by cluster as they are so far; WIDE points as rows, in the features' precision."""
    columns = origin.size
    width = -(-columns // WIDE) * WIDE
    wide, sums, zero = np.zeros((len(centres), width)), np.zeros((len(centres), width)), np.zeros(width)
    for t in range(columns):
        zero[t] = origin[t]
        for j in range(len(centres)):
            wide[j, t], sums[j, t] = centres[j, t], aggregator.sums[j, t]
    return wide, zero, sums, np.zeros((WIDE, width), features.dtype)


@njit(**OPTIONS)
def _settle(book, aggregator):
    """The sums back to the statistics. They went on from there: where a pass is cut into calls, which depends on time,
    decides no bit."""
    sums = book[2]
    for j in range(aggregator.sums.shape[0]):
        for t in range(aggregator.sums.shape[1]):
            aggregator.sums[j, t] = sums[j, t]


@njit(**OPTIONS)
def _move(flat, last, weights, nearest, tile, start, end, book, aggregator):
    """Take points of a tile to their new clusters in the statistics, where float64 agrees that these are nearer."""
    centres, origin, sums, rows = book
    columns = aggregator.sums.shape[1]
    first, corner = tile * TILE, tile * columns * TILE
    laid = -1
    for i in range(max(start - first, 0), min(end - first, TILE)):
        old, new = last[first + i], nearest[i]
        if old == new:
            continue
        if i // WIDE != laid:
            laid = i // WIDE
            _lay_out(flat, corner + laid * WIDE, columns, rows)
        if old >= 0 and not _nearer(rows, i % WIDE, origin, centres, old, new):
            continue
        weight = 1.0
        if weights is not None:
            weight = np.float64(weights[tile, i])
        square = weight * _add(rows, i % WIDE, origin, weight, sums, new)
        aggregator.counts[new] += weight
        aggregator.squares[new] += square
        if old >= 0:
            _add(rows, i % WIDE, origin, -weight, sums, old)
            aggregator.counts[old] -= weight
            aggregator.squares[old] -= square
        last[first + i] = new


@njit(**OPTIONS)
def _lay_out(flat, corner, columns, rows):
    """WIDE points as rows: square blocks are transposed in registers, the last may overlap the one before."""
    if columns < WIDE:
        for t in range(columns):
            for i in range(WIDE):
                rows[i, t] = flat[corner + t * TILE + i]
        return
    for block in range(0, columns, WIDE):
        t = min(block, columns - WIDE)
        x = loads(flat, corner + t * TILE, TILE, WIDE, WIDE)
        store_each(rows, t, rows.shape[1], transposed(x))


@njit(**OPTIONS)
def _nearer(rows, i, origin, centres, old, new):
    """Is ‖x − old‖² above ‖x − new‖²?"""
    width = rows.shape[1]
    gain = spread(0, load(origin, 0, WIDE))
    for t in range(0, width, WIDE):
        x = widen(load(rows, i * width + t, WIDE)) - load(origin, t, WIDE)
        was, now = load(centres, old * width + t, WIDE), load(centres, new * width + t, WIDE)
        gain = fma(now - was, x + x - now - was, gain)
    return total(gain) > 0.0


@njit(**OPTIONS)
def _add(rows, i, origin, weight, sums, cluster):
    """sums[cluster] += weight · x; returns ‖x‖². Both about the origin."""
    width = rows.shape[1]
    square = spread(0, load(origin, 0, WIDE))
    for t in range(0, width, WIDE):
        x, place = widen(load(rows, i * width + t, WIDE)) - load(origin, t, WIDE), cluster * width + t
        store(sums, place, fma(x, spread(weight, x), load(sums, place, WIDE)))
        square = fma(x, x, square)
    return total(square)
