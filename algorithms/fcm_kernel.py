"""The block kernel of FCM: distances in registers, memberships with vectors, statistics by `soft_kernel`.

Distances are sums of squared differences: points close to a centroid keep their digits. Never reads a clock.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from flegel.algorithm import Kernel
from flegel.algorithms.simd import (
    exp,
    lane_count,
    load,
    log,
    maximum,
    minimum,
    prefetch,
    spread,
    store,
    where,
)
from flegel.algorithms.soft_kernel import (
    FLUSH,
    GROUP,
    LANES,
    OPTIONS,
    accumulate,
    flush,
    forget,
    mark_active,
    soft_buffers,
    square_distances,
    standardized,
    tiles_at_once,
)
from flegel.runtime.flag import raised
from flegel.share import TILE, Share
from flegel.tree import Array

NEAR = 1e-30  # a squared distance is no less than this: a point on a centroid belongs to it
MOST = 1e30  # and no more than this
CUT = -40.0  # a relative membership below e^CUT is none


def kernel_for(share: Share, k: int, m: float) -> Kernel:
    tiles = tiles_at_once(share.features.dtype, k)

    def kernel(share: Share, parameter: Any, aggregator: Any, start: int, end: int, iteration: int, flag: Array) -> int:
        end = min(end, share.points)
        return int(train(share.features, share.state, parameter, aggregator, start, end, flag, tiles, m))

    return kernel


@njit(**OPTIONS)
def train(features, state, parameter, aggregator, start, end, flag, tiles, m):  # type: ignore[no-untyped-def]
    k, d = parameter.centroids.shape
    lanes = lane_count(features, LANES)
    slopes, offsets, levels = _pack(features, parameter)
    changes, columns, lane_sums, table = soft_buffers(features, k, d + 2, tiles)
    for point in range(columns.shape[1]):
        columns[d + 1, point] = 1
    far = np.empty((levels.size, TILE), features.dtype)
    active = np.empty(TILE, features.dtype)
    slot, held, reached = 0, 0, end
    for tile in range(start // TILE, -(-end // TILE)):
        if raised(flag):
            reached = max(start, tile * TILE)
            break
        at = slot * TILE
        standardized(features, tile, parameter.origin, parameter.unit, columns, at)
        _norms(columns, d, at)
        mark_active(active, tile, start, end)
        for lane in range(0, TILE, lanes):
            for line in range(0, d * lanes, 16):
                prefetch(features, (tile + 1) * d * TILE + lane * d + line)
            square_distances(columns, d, at + lane, slopes, offsets, levels, far, lane)
            _memberships(far, lane, k, m, state, tile, active, changes, at + lane)
        slot, held = slot + 1, held + TILE
        if slot == tiles:
            accumulate(changes, columns, lane_sums)
            slot = 0
            if held >= FLUSH:
                flush(lane_sums, table)
                held = 0
    if slot:
        forget(changes, slot * TILE)
        accumulate(changes, columns, lane_sums)
    flush(lane_sums, table)
    for j in range(k):
        aggregator.counts[j] += table[j, d + 1]
        aggregator.squares[j] += table[j, d]
        for t in range(d):
            aggregator.sums[j, t] += table[j, t]
    return reached


@njit(**OPTIONS)
def _memberships(far, lane, k, m, state, tile, active, changes, at):  # type: ignore[no-untyped-def]
    """u^m of each cluster into the state, their changes into `changes`; u ∝ (1 / distance²)^(1/(m−1))."""
    points = changes.shape[1]
    base = tile * k * TILE + lane
    visited = load(active, lane, LANES) > 0
    zero = spread(0, load(far, lane, LANES))
    near, most = spread(NEAR, zero), spread(MOST, zero)
    least = most
    for j in range(k):
        least = minimum(load(far, j * TILE + lane, LANES), least)
    least = maximum(least, near)
    power = 1.0 / (m - 1.0)
    mass = zero
    for j in range(k):
        ratio = least / maximum(minimum(load(far, j * TILE + lane, LANES), most), near)  # at most 1
        if m != 2.0:
            logarithm = log(ratio) * power
            ratio = where(logarithm > CUT, exp(logarithm), zero)
        mass = mass + ratio
        store(far, j * TILE + lane, ratio)
    per_mass = 1.0 / mass
    for j in range(k):
        u = load(far, j * TILE + lane, LANES) * per_mass
        weight = u * u
        if m != 2.0:
            weight = where(u > 1e-18, exp(log(maximum(u, near)) * m), zero)
        old = load(state, base + j * TILE, LANES)
        new = where(visited, weight, old)
        store(state, base + j * TILE, new)
        store(changes, j * points + at, new - old)


@njit(**OPTIONS)
def _norms(columns, d, at):  # type: ignore[no-untyped-def]
    """Row d: Σ y_t² of each point."""
    for lane in range(at, at + TILE):
        columns[d, lane] = 0
    for t in range(d):
        for lane in range(at, at + TILE):
            columns[d, lane] += columns[t, lane] * columns[t, lane]


@njit(**OPTIONS)
def _pack(features, parameter):  # type: ignore[no-untyped-def]
    """Slopes 1 and offsets −c in groups, column by column inside a group; fillers are as far as can be."""
    k, d = parameter.centroids.shape
    rows = -(-k // GROUP) * GROUP
    slopes = np.ones(rows * d, features.dtype)
    offsets = np.zeros(rows * d, features.dtype)
    levels = np.zeros(rows, features.dtype)
    for j in range(k):
        for t in range(d):
            centre = (parameter.centroids[j, t] - parameter.origin[t]) / parameter.unit[t]
            offsets[(j // GROUP * d + t) * GROUP + j % GROUP] = -centre
    return slopes, offsets, levels
