"""The block kernel of FCM: distances in registers, memberships with vectors, statistics by `soft_assignment`.

Up to m = 2, squared distances are ‖y‖² − 2 y·c + ‖c‖², and one below ε‖y‖² counts as ε‖y‖², which moves no
membership by more than rounding does. Above m = 2 that error would change memberships, and differences are squared
instead. Never reads a clock.
"""

from __future__ import annotations

import numpy as np

from flegel.algorithms.simd.inner import INNER
from flegel.algorithms.simd.math import exp, exp_within, log
from flegel.algorithms.simd.vectors import lane_count, load, maximum, minimum, spread, store, total, where, widen
from flegel.algorithms.soft_assignment import (
    FLUSH,
    GROUP,
    LANES,
    accumulate,
    beyond,
    fetch,
    flush,
    forget,
    mark_active,
    norms,
    product_group,
    products,
    soft_buffers,
    square_distances,
    standardized,
    standardized_wide,
    units,
)
from flegel.algorithms.soft_kernel import CUT, NEAR
from flegel.configuration.compiled import kernel_settings
from flegel.core.atomic_flag import raised
from flegel.core.code_cache import njit
from flegel.core.shard import TILE
from flegel.core.team_loop import team_loop

LARGEST_SQUARED_DISTANCE = 1e30  # upper bound of a squared distance in float32
STEEP = kernel_settings().fcm_steep
EPSILON32, EPSILON64 = 2.0**-23, 2.0**-52  # roundings of float32 and float64
WIDE_LANE_SUMS = 5  # place of the lane sums among the buffers that `_wide_buffers` makes


@njit(nogil=True, cache=True, error_model="numpy")
def train(features, state, weights, parameter, aggregator, start, end, flag, tiles, m, exact):
    """`tiles`: held in buffers before they are added up. `exact`: every tile in float64, and changes as they are before
    the state rounds them."""
    k, d = parameter.centroids.shape
    lanes = lane_count(features, LANES)
    expanded = m <= 2.0
    slopes, offsets, levels = _pack(features, parameter, k, expanded)
    changes, columns, lane_sums, table = soft_buffers(features, k, d + 2, tiles)
    wide, wide_made = _wide_buffers(0, d, parameter, expanded), False
    columns[d + 1] = 1
    zeros, scales = units(columns, parameter.origin, parameter.unit)
    ones = np.ones(d, features.dtype)
    limit = STEEP * d
    far = np.empty((levels.size, TILE), features.dtype)
    active = np.empty(TILE, features.dtype)
    buffered, unflushed, reached, seen = 0, 0, end, 0.0  # tiles in buffers, points that the table lacks, …
    for tile in range(start // TILE, -(-end // TILE)):
        if raised(flag):
            reached = max(start, tile * TILE)
            break
        at = buffered * TILE
        standardized(features, tile, zeros, scales, columns, at)
        norms(columns, d, at, ones, d)
        if not expanded:  # `products` asks for the next tile
            fetch(features, tile + 1)
            fetch(state, tile + 1)
        if features.itemsize == 4 and (exact or beyond(columns, d, at, limit)):
            if not wide_made:
                wide, wide_made = _wide_buffers(k, d, parameter, expanded), True
            seen += _wide_tile(features, state, weights, tile, start, end, parameter, m, wide, exact)
            continue
        mark_active(active, tile, start, end)
        if expanded:
            products(columns, d, at, slopes, levels, far, product_group(k), features, state, tile)
        else:
            square_distances(columns, d, at, slopes, offsets, levels, far)
        seen += _memberships(far, columns, d, at, k, m, expanded, state, tile, weights, active, changes)
        buffered, unflushed = buffered + 1, unflushed + TILE
        if buffered == tiles:
            accumulate(changes, columns, lane_sums)
            buffered = 0
            if unflushed >= FLUSH * lanes:
                flush(lane_sums, table)
                unflushed = 0
    if buffered:
        forget(changes, buffered * TILE)
        accumulate(changes, columns, lane_sums)
    flush(lane_sums, table)
    if wide_made:
        flush(wide[WIDE_LANE_SUMS], table)
    for j in range(k):
        aggregator.counts[j] += table[j, d + 1]
        aggregator.squares[j] += table[j, d]
        for t in range(d):
            aggregator.sums[j, t] += table[j, t]
    aggregator.seen[0] += seen
    return reached


serve = team_loop(train)


@njit(**INNER)
def _wide_buffers(k, d, parameter, expanded):
    """Buffers for a float32 tile in float64, as a tuple of eight: slopes, offsets and levels, which are θ as `_pack`
    lays it out; changes, columns and lane sums of `soft_buffers`, the latter at `WIDE_LANE_SUMS`; squared distances;
    and memberships before they are rounded to the state.

    `expanded`: distances by ‖y‖² − 2 y·c + ‖c‖². With k = 0 all are empty, but of the types that compiled code expects:
    real ones are made with the first tile that lies too far from the origin for float32.
    """
    wide = np.empty(0)
    slopes, offsets, levels = _pack(wide, parameter, k, expanded)
    changes, columns, lane_sums, _ = soft_buffers(wide, k, d + 2, 1)
    columns[d + 1] = 1  # this column counts memberships
    return slopes, offsets, levels, changes, columns, lane_sums, np.empty((levels.size, TILE)), np.zeros((k + 1, TILE))


@njit(**INNER)
def _wide_tile(features, state, weights, tile, start, end, parameter, m, wide, exact):
    """A tile of float32 rows in float64; returns what the new ones weigh. What counts is the change of the state as it
    is kept, in float32; `exact`: the state is not kept, and what counts is its change in float64."""
    slopes, offsets, levels, changes, columns, lane_sums, far, room = wide
    k, d = parameter.centroids.shape
    active = np.empty(TILE)
    standardized_wide(features, tile, *units(columns, parameter.origin, parameter.unit), columns)
    norms(columns, d, 0, np.ones(d), d)
    mark_active(active, tile, start, end)
    if m <= 2.0:
        products(columns, d, 0, slopes, levels, far, product_group(k), features, state, tile)
    else:
        square_distances(columns, d, 0, slopes, offsets, levels, far)
    for j in range(k + 1):
        for lane in range(TILE):
            room[j, lane] = state[tile, j, lane]
    _memberships(far, columns, d, 0, k, m, m <= 2.0, room, 0, None, active, changes)
    for j in range(k):
        for lane in range(TILE):
            old = np.float64(state[tile, j, lane])
            state[tile, j, lane] = room[j, lane]
            changes[j, lane] = (room[j, lane] if exact else np.float64(state[tile, j, lane])) - old
            if weights is not None:
                changes[j, lane] *= weights[tile, lane]
    seen = 0.0
    for lane in range(TILE):
        new = room[k, lane] - state[tile, k, lane]
        state[tile, k, lane] = room[k, lane]
        seen += new if weights is None else new * weights[tile, lane]
    accumulate(changes, columns, lane_sums)
    return seen


@njit(**INNER)
def _memberships(far, columns, d, at, k, m, expanded, state, tile, weights, active, changes):
    """u^m of each cluster into the state, their changes into `changes`; u ∝ (1 / distance²)^(1/(m−1)).

    Returns what those of the points weigh that had not been visited before (last number of the state).
    `far` holds squared distances, which lack ‖y‖², row d of the columns, if they are `expanded`.
    """
    points = changes.shape[1]
    power = 1.0 / (m - 1.0)
    seen = 0.0
    for lane in range(0, TILE, lane_count(far, LANES)):
        base = tile * (k + 1) * TILE + lane
        visited = load(active, lane, LANES) > 0
        norm = load(columns, d * points + at + lane, LANES) * (1.0 if expanded else 0.0)
        zero = spread(0, norm)
        most = spread(LARGEST_SQUARED_DISTANCE if far.itemsize == 4 else LARGEST_SQUARED_DISTANCE**5, zero)
        near = minimum(norm * (EPSILON32 if far.itemsize == 4 else EPSILON64) + NEAR, most)
        least = most
        for j in range(k):
            least = minimum(load(far, j * TILE + lane, LANES) + norm, least)
        least = maximum(least, near)
        mass = zero
        for j in range(k):
            squared = maximum(minimum(load(far, j * TILE + lane, LANES) + norm, most), near)
            share = least / squared  # at most 1
            kept = share
            if m != 2.0:
                kept = log(share) * power
                share = where(kept > CUT, exp_within(kept), zero)
            mass = mass + share
            store(far, j * TILE + lane, kept)
        per_mass, log_mass = 1.0 / mass, log(mass)
        for j in range(k):
            kept = load(far, j * TILE + lane, LANES)
            if m == 2.0:
                u = kept * per_mass
                weight = u * u
            else:
                weight = where(kept > CUT, exp((kept - log_mass) * m), zero)
            old = load(state, base + j * TILE, LANES)
            new = where(visited, weight, old)
            store(state, base + j * TILE, new)
            change = new - old
            if weights is not None:
                change = change * load(weights, tile * TILE + lane, LANES)
            store(changes, j * points + at + lane, change)
        old = load(state, base + k * TILE, LANES)
        new = where(visited, spread(1, zero), old)
        store(state, base + k * TILE, new)
        change = new - old
        if weights is not None:
            change = change * load(weights, tile * TILE + lane, LANES)
        seen += total(widen(change))
    return seen


@njit(**INNER)
def _pack(features, parameter, k, expanded):
    """Expanded: −2c and ‖c‖²; else slopes 1 and offsets −c. In groups, column by column inside a group."""
    d = parameter.origin.size
    group = product_group(k) if expanded else GROUP
    rows = -(-k // group) * group
    slopes = np.ones(rows * d, features.dtype)
    offsets = np.zeros(rows * d, features.dtype)
    levels = np.zeros(rows, features.dtype)
    for j in range(k):
        for t in range(d):
            place = (j // group * d + t) * group + j % group
            centre = (parameter.centroids[j, t] - parameter.origin[t]) / parameter.unit[t]
            if expanded:
                slopes[place] = -2.0 * centre
                levels[j] += centre * centre
            else:
                offsets[place] = -centre
    return slopes, offsets, levels
