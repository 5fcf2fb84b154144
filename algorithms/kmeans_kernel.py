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
from numba import njit

from flegel.algorithm import Kernel
from flegel.algorithms.simd import (
    REGISTERS,
    any_lane,
    fma_each,
    least_each,
    load,
    prefetch,
    register_lanes,
    splats,
    spread,
    store,
    to_int32,
)
from flegel.runtime.flag import raised
from flegel.share import TILE, Share
from flegel.tree import Array

LINE = 16  # numbers of a cache line, at most
OPTIONS = {"nogil": True, "cache": True, "error_model": "numpy"}


def kernel_for(share: Share, k: int) -> Kernel:
    """The kernel in the shape that this machine's registers, the precision and k ask for."""
    train = _build(*tile_shape(share.features.dtype, k))

    def kernel(
        share: Share, parameter: Any, aggregator: Any, start: int, end: int, iteration: int, flag: Array
    ) -> int:
        end = min(end, share.points)
        return int(train(share.features, share.state, parameter, aggregator, start, end, flag))

    return kernel


def tile_shape(dtype: Any, k: int) -> tuple[int, int]:
    """Lanes of a vector and centroids of a group; their products fill about two thirds of the registers."""
    room = 20 if REGISTERS == 32 else 12
    groups = -(-k // (room // 2))
    group = -(-k // groups)
    registers = 2 if 4 * group > room else 4
    return registers * register_lanes(dtype), group


@cache
def _build(lanes: int, group: int) -> Any:
    @njit(**OPTIONS)
    def train(features, state, parameter, aggregator, start, end, flag):  # type: ignore[no-untyped-def]
        columns = features.shape[1]
        clusters = parameter.centroids.shape[0]
        groups = -(-clusters // group)
        shifted, scale = _conditioning(parameter, features)
        minus, half = _pack(parameter, features, groups, group, shifted, scale)
        scratch = np.empty(columns * TILE, features.dtype)
        nearest = np.empty(TILE, np.int32)
        source, at = features.reshape(-1), 0
        for tile in range(start // TILE, -(-end // TILE)):
            if raised(flag):
                return max(start, tile * TILE)
            at = tile * columns * TILE
            if shifted:
                _shift(features, tile, parameter.origin, scale, scratch)
                source, at = scratch, 0
            for lane in range(0, TILE, lanes):
                for line in range(0, columns * lanes, LINE):
                    prefetch(features, (tile + 1) * columns * TILE + lane * columns + line)
                zero = spread(0, load(source, at, lanes))
                least, which = spread(np.inf, zero), zero
                for g in range(groups):
                    values = splats(half, g * group, group, lanes)
                    x_at, c_at = at + lane, g * columns * group
                    for _ in range(columns):
                        x = load(source, x_at, lanes)
                        values = fma_each(x, splats(minus, c_at, group, lanes), values)
                        x_at += TILE
                        c_at += group
                    least, which = least_each(values, g * group, least, which)
                new = to_int32(which)
                if any_lane(new != load(state, tile * TILE + lane, lanes)):
                    store(nearest, 0, new)
                    for i in range(lanes):
                        if state[tile, 0, lane + i] != nearest[i] and start <= tile * TILE + lane + i < end:
                            _move(features, state, tile, lane + i, nearest[i], parameter, aggregator)
        return end

    return train


@njit(**OPTIONS)
def _conditioning(parameter, features):  # type: ignore[no-untyped-def]
    """Must points be shifted, and scaled by which power of two, for safe products in their precision?."""
    clusters, columns = parameter.centroids.shape
    spread_, away, largest = 0.0, 0.0, 0.0
    for t in range(columns):
        away += parameter.origin[t] ** 2
        for j in range(clusters):
            difference = abs(parameter.centroids[j, t] - parameter.origin[t])
            largest = max(largest, difference)
            spread_ += difference**2 / clusters
    scale = 1.0
    bound = 2.0**40 if features.itemsize == 4 else 2.0**400
    if largest > 0 and not 1 / bound < largest < bound:
        scale = 2.0 ** -np.floor(np.log2(largest))
    return away > 4 * spread_ or scale != 1.0, scale


@njit(**OPTIONS)
def _pack(parameter, features, groups, group, shifted, scale):  # type: ignore[no-untyped-def]
    """−c in groups, column by column inside a group, and ½‖c‖²; fillers of the last group are far."""
    clusters, columns = parameter.centroids.shape
    minus = np.zeros(groups * columns * group, features.dtype)
    half = np.full(groups * group, np.inf, features.dtype)
    for j in range(clusters):
        norm, aside = 0.0, 0.0
        for t in range(columns):
            c = (parameter.centroids[j, t] - parameter.origin[t]) * scale
            norm += c * c
            aside += c * parameter.origin[t]
            minus[(j // group * columns + t) * group + j % group] = -c
        half[j] = 0.5 * norm + (0.0 if shifted else aside)
    return minus, half


@njit(**OPTIONS)
def _shift(features, tile, origin, scale, scratch):  # type: ignore[no-untyped-def]
    dtype = features.dtype.type
    for t in range(features.shape[1]):
        o = dtype(origin[t])
        for lane in range(TILE):
            scratch[t * TILE + lane] = (features[tile, t, lane] - o) * dtype(scale)


@njit(**OPTIONS)
def _move(features, state, tile, lane, nearest, parameter, aggregator):  # type: ignore[no-untyped-def]
    """Take the point to its new cluster in the statistics, if float64 agrees that it is nearer."""
    columns = features.shape[1]
    last = state[tile, 0, lane]
    if last >= 0:
        nearer = 0.0
        for t in range(columns):
            x = features[tile, t, lane]
            nearer += (x - parameter.centroids[last, t]) ** 2 - (x - parameter.centroids[nearest, t]) ** 2
        if nearer <= 0.0:
            return
        aggregator.counts[last] -= 1.0
        for t in range(columns):
            x = features[tile, t, lane] - parameter.origin[t]
            aggregator.sums[last, t] -= x
            aggregator.sums[nearest, t] += x
    else:
        square = 0.0
        for t in range(columns):
            x = features[tile, t, lane] - parameter.origin[t]
            aggregator.sums[nearest, t] += x
            square += x * x
        aggregator.squares[0] += square
    aggregator.counts[nearest] += 1.0
    state[tile, 0, lane] = nearest
