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

from flegel.algorithm import Kernel
from flegel.algorithms.simd.emit import REGISTERS, register_lanes
from flegel.algorithms.simd.vectors import (
    any_lane,
    fma_each,
    least_each,
    load,
    prefetch,
    splats,
    spread,
    store,
    to_int32,
)
from flegel.core.code_cache import njit
from flegel.core.pytree import Array
from flegel.core.shard import TILE, Shard, Sparse
from flegel.core.stop_flag import raised

LINE = 64  # bytes of a cache line
OPTIONS: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy"}


def kernel_for(shard: Shard, k: int) -> Kernel:
    """The kernel in the shape that this machine's registers, the precision and k ask for."""
    assert not isinstance(shard.features, Sparse)  # tiles are dense
    train = _build(*tile_shape(shard.features.dtype, k))

    def kernel(shard: Shard, parameter: Any, aggregator: Any, start: int, end: int, iteration: int, flag: Array) -> int:
        end = min(end, shard.points)
        return int(train(shard.features, shard.state, shard.weights, parameter, aggregator, start, end, flag))

    return kernel


def group_sizes() -> tuple[int, ...]:
    """Centroids of a group: the shapes that there are."""
    return (3, 5, 6, 8, 10) if REGISTERS == 32 else (3, 4, 6)


def tile_shape(dtype: Any, k: int) -> tuple[int, int]:
    """Lanes of a vector and centroids of a group; their products fill about two thirds of the registers.

    Each shape is compiled separately, so there are few, and the last group is filled up: k=6 to 9 in groups of 3, which
    fit, take 12 to 20 % longer than in one group. Results do not depend on the shape.
    """
    room, sizes = 20 if REGISTERS == 32 else 12, group_sizes()
    least = -(-k // -(-k // sizes[-1]))
    group = next(size for size in sizes if size >= least)
    registers = 2 if 4 * group > room else 4
    return registers * register_lanes(dtype), group


@cache
def _build(lanes: int, group: int) -> Any:
    @njit(**OPTIONS)
    def train(features, state, weights, parameter, aggregator, start, end, flag):
        columns = features.shape[1]
        flat, last = features.reshape(-1), state.reshape(-1)
        centres = parameter.centroids - parameter.origin
        shifted, scale = _conditioning(centres, parameter.origin, features.itemsize)
        groups = -(-len(centres) // group)
        minus, half = _pack(features, centres, parameter.origin, groups, group, shifted, scale)
        near = np.empty(columns * TILE, features.dtype)
        nearest = np.empty(lanes, np.int32)
        point = np.empty(columns)
        source, at = flat, 0
        for tile in range(start // TILE, -(-end // TILE)):
            if raised(flag):
                return max(start, tile * TILE)
            at = tile * columns * TILE
            if shifted:
                _shift(flat, at, parameter.origin, scale, near)
                source, at = near, 0
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
                first = tile * TILE + lane
                now = to_int32(which)
                if any_lane(now != load(last, first, lanes)):
                    store(nearest, 0, now)
                    _move(flat, last, weights, nearest, first, start, end, centres, parameter.origin, aggregator, point)
        return end

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


@njit(**OPTIONS, fastmath={"reassoc", "contract", "nsz"})
def _move(flat, last, weights, nearest, first, start, end, centres, origin, aggregator, x):
    """Take points to their new clusters in the statistics, where float64 agrees that these are nearer."""
    sums, counts, squares = aggregator
    columns = origin.size
    corner = first // TILE * columns * TILE + first % TILE
    for i in range(nearest.size):
        old, new = last[first + i], nearest[i]
        if old == new or not start <= first + i < end:
            continue
        square, weight = 0.0, 1.0
        if weights is not None:
            weight = np.float64(weights[(first + i) // TILE, (first + i) % TILE])
        for t in range(columns):
            x[t] = flat[corner + i + t * TILE] - origin[t]
            square += x[t] * x[t]
        if old >= 0:
            nearer = 0.0
            for t in range(columns):  # ‖x − old‖² − ‖x − new‖²
                nearer += (centres[new, t] - centres[old, t]) * (2.0 * x[t] - centres[new, t] - centres[old, t])
            if nearer <= 0.0:
                continue
            for t in range(columns):
                sums[old, t] -= weight * x[t]
            counts[old] -= weight
            squares[old] -= weight * square
        for t in range(columns):
            sums[new, t] += weight * x[t]
        counts[new] += weight
        squares[new] += weight * square
        last[first + i] = new
