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

from flegel.algorithms.kmeans.moves import close_book, lend, move, open_book
from flegel.algorithms.simd.buffers import flat, new_row, new_table
from flegel.algorithms.simd.inner import INLINE, INNER
from flegel.algorithms.simd.vectors import (
    any_lane,
    fma_each,
    least_each,
    load,
    prefetch_lanes,
    splats,
    spread,
    store,
    to_int32,
)
from flegel.core.atomic_flag import raised
from flegel.core.borrowed_arrays import borrowed
from flegel.core.code_cache import njit
from flegel.core.shard import TILE
from flegel.core.team_loop import team_loop


@cache
def build(lanes: int, group: int) -> Any:
    """The kernel in this shape (`registers.tile_shape`)."""
    assign = assigner(lanes, group)

    @njit(nogil=True, cache=True, error_model="numpy")
    def train(features, state, weights, parameter, aggregator, start, end, flag):
        """Visit points `start` to `end` tile by tile: find the nearest centroid of all points of a tile, then move
        those that changed from one cluster's sums to another's. Returns the point after the last visited one."""
        columns = features.shape[1]
        points, last, weights = borrowed(flat(features)), borrowed(flat(state)), borrowed(weights)
        centres = centred(parameter, aggregator)
        shifted, scale = conditioning(centres, parameter.origin, features.itemsize)
        minus, half = pack(features, centres, parameter.origin, group, shifted, scale)
        near = new_row(features, columns * TILE)
        nearest = new_row(state, TILE)
        book = open_book(features, centres, parameter.origin, aggregator)
        lent = lend(book, aggregator)
        source, at, reached = points, 0, end
        for tile in range(start // TILE, -(-end // TILE)):
            if raised(flag):
                reached = tile * TILE if tile * TILE > start else start
                break
            at = tile * columns * TILE
            if shifted:
                shift(points, at, parameter.origin, scale, near)
                source, at = near, 0
            changed = False
            for lane in range(0, TILE, lanes):
                ahead = (tile + 1) * columns * TILE + lane * columns
                now = assign(source, at + lane, columns, minus, half, points, ahead)
                store(nearest, lane, now)
                changed = any_lane(now != load(last, tile * TILE + lane, lanes)) or changed
            if changed:
                move(points, last, weights, borrowed(nearest), columns, tile, start, end, lent)
        close_book(book, aggregator)
        return reached

    return train


@cache
def build_team(lanes: int, group: int) -> Any:
    """The same for the threads of a team (`team_loop`)."""
    return team_loop(build(lanes, group))


@cache
def assigner(lanes: int, group: int) -> Any:
    """`assign(source, at, columns, minus, half, far, ahead)`: the nearest centroids of the points in the lanes at
    `source[at]`, as int32. Asks for `columns * lanes` numbers from `far[ahead]` on, which will be needed next."""

    @njit(**INLINE)
    def assign(source, at, columns, minus, half, far, ahead):
        """The nearest centroids of `lanes` points from place `at`: centroids are compared in groups by ½‖c‖² − x·c,
        while the next tile is brought into the cache."""
        zero = spread(0, load(source, at, lanes))
        least, which = spread(np.inf, zero), zero
        for g in range(half.size // group):
            values = splats(half, g * group, group, lanes)  # will be ½‖c‖² − x·c
            x_at, c_at = at, g * columns * group
            for _ in range(columns):
                if g == 0:  # a little of the next tile at a time: a burst of requests would have to wait
                    prefetch_lanes(far, ahead, lanes)
                    ahead += lanes
                values = fma_each(load(source, x_at, lanes), splats(minus, c_at, group, lanes), values)
                x_at += TILE
                c_at += group
            least, which = least_each(values, g * group, least, which)
        return to_int32(which)

    return assign


@njit(**INNER)
def centred(parameter, aggregator):
    """Centroids about the origin."""
    centres = new_table(aggregator.sums, *parameter.centroids.shape)
    for j in range(centres.shape[0]):
        for t in range(centres.shape[1]):
            centres[j, t] = parameter.centroids[j, t] - parameter.origin[t]
    return centres


@njit(**INNER)
def conditioning(centres, origin, itemsize):
    """Must points be shifted, and scaled by which power of two, for safe products in their precision?"""
    largest, scatter = 0.0, 0.0
    for j in range(centres.shape[0]):  # plain loops: array expressions take a second longer to compile
        for t in range(centres.shape[1]):
            away = abs(centres[j, t])
            largest = away if away > largest else largest
    away = 0.0
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


@njit(**INNER)
def pack(features, centres, origin, group, shifted, scale):
    """−c in groups, column by column inside a group, and ½‖c‖²; fillers of the last group are far."""
    clusters, columns = centres.shape
    groups = -(-clusters // group)
    minus, half = new_row(features, groups * columns * group), new_row(features, groups * group)
    half[:] = np.inf
    for j in range(clusters):
        norm, aside = 0.0, 0.0
        for t in range(columns):
            c = centres[j, t] * scale
            norm += c * c
            aside += c * origin[t]
        half[j] = 0.5 * norm + (0.0 if shifted else aside)  # x·c of an unshifted x contains origin·c
    to = 0
    for g in range(groups):  # in the order of `minus`: half the time of a walk over centroids
        first, last = g * group, min(g * group + group, clusters)
        for t in range(columns):
            for j in range(first, last):
                minus[to + j - first] = -(centres[j, t] * scale)
            for j in range(last, first + group):
                minus[to + j - first] = 0
            to += group
    return minus, half


@njit(**INNER)
def shift(points, at, origin, scale, near):
    """A tile about the origin, in a buffer."""
    to = near.dtype.type
    for t in range(origin.size):
        o = to(origin[t])
        for lane in range(TILE):
            near[t * TILE + lane] = (points[at + t * TILE + lane] - o) * to(scale)
