"""The block kernel of GMM: logits of a tile in registers, softmax with vectors, statistics by `soft_assignment`.

Diagonal logits are a product of (y, y²) with packed coefficients where that loses no digits that matter;
else, and for full matrices, sums of squares of whitened points, never differences of large numbers.
Never decides about the model: what it needs is packed into the parameter.
"""

from __future__ import annotations

import numpy as np

from flegel.algorithms.simd.inner import INNER
from flegel.algorithms.simd.math import exp_within, log
from flegel.algorithms.simd.vectors import (
    fma,
    fma_each,
    lane_count,
    load,
    minimum,
    splats,
    spread,
    store,
    sum_squares,
    total,
    where,
    widen,
)
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
    multiplied,
    norms,
    padded,
    product_group,
    products,
    soft_buffers,
    square_distances,
    standardized,
    standardized_wide,
    units,
)
from flegel.algorithms.soft_kernel import CUT
from flegel.configuration.compiled import kernel_settings
from flegel.core.atomic_flag import raised
from flegel.core.code_cache import njit
from flegel.core.shard import TILE
from flegel.core.team_loop import team_loop

MOST = 1e30  # upper bound of half a squared distance; all components are equally far from a point beyond it
STEEP, STEEP_COLUMN = kernel_settings().gmm_steep, kernel_settings().gmm_steep_per_column


@njit(nogil=True, cache=True, error_model="numpy")
def train(features, state, weights, parameter, aggregator, start, end, flag, tiles, exact):
    """`exact`: every tile in float64, and changes as they are before the state rounds them."""
    d = features.shape[1]
    lanes = lane_count(features, LANES)
    k, width = parameter.whiten.shape
    means = _standard_means(parameter)
    expanded = _expandable(parameter, means, features.itemsize)
    slopes, offsets, levels = _pack(features, parameter, means, expanded)
    changes, columns, lane_sums, table = soft_buffers(features, k, d + width + 1, tiles)
    wide, opened = _wide_buffers(0, d, width, parameter, means), False
    columns[d + width] = 1
    zeros, scales = units(columns, parameter.origin, parameter.unit)
    steepness = _steepness(features, parameter)
    limit = STEEP + STEEP_COLUMN * d
    far = np.empty((levels.size, TILE), features.dtype)
    active = np.empty(TILE, features.dtype)
    entropy, slot, held, reached = 0.0, 0, 0, end
    for tile in range(start // TILE, -(-end // TILE)):
        if raised(flag):
            reached = max(start, tile * TILE)
            break
        at = slot * TILE
        standardized(features, tile, zeros, scales, columns, at)
        if not expanded:  # `products` asks for the next tile
            fetch(features, tile + 1)
            fetch(state, tile + 1)
        if features.itemsize == 4:
            norms(columns, d, at, steepness, d)  # a row that is filled with products below
            if exact or beyond(columns, d, at, limit):
                if not opened:
                    wide, opened = _wide_buffers(k, d, width, parameter, means), True
                entropy += _wide_tile(features, state, weights, tile, start, end, parameter, wide, exact)
                continue
        _products(columns, d, width, at)
        mark_active(active, tile, start, end)
        _distances(columns, d, width, at, expanded, k, slopes, offsets, levels, far, features, state, tile)
        entropy += _softmax(far, k, state, tile, weights, active, changes, at)
        slot, held = slot + 1, held + TILE
        if slot == tiles:
            accumulate(changes, columns, lane_sums)
            slot = 0
            if held >= FLUSH * lanes:
                flush(lane_sums, table)
                held = 0
    if slot:
        forget(changes, slot * TILE)
        accumulate(changes, columns, lane_sums)
    flush(lane_sums, table)
    if opened:
        flush(wide[5], table)
    for j in range(k):
        aggregator.counts[j] += table[j, d + width]
        for t in range(d):
            aggregator.sums[j, t] += table[j, t]
        for t in range(width):
            aggregator.squares[j, t] += table[j, d + t]
    aggregator.entropy[0] += entropy
    return reached


serve = team_loop(train)


@njit(**INNER)
def _wide_buffers(k, d, width, parameter, means):
    """Buffers for a tile in float64, as in the kernel of FCM; empty ones of the same types for k = 0."""
    wide = np.empty(0)
    some = means if k else means[:0]
    slopes, offsets, levels = _pack(wide, parameter, some, False)
    changes, columns, lane_sums, _ = soft_buffers(wide, k, d + width + 1, 1)
    columns[d + width] = 1
    return slopes, offsets, levels, changes, columns, lane_sums, np.empty((levels.size, TILE)), np.zeros((k + 1, TILE))


@njit(**INNER)
def _wide_tile(features, state, weights, tile, start, end, parameter, wide, exact):
    """A tile of float32 rows in float64: y² so far above a variance would leave nothing of it in float32 sums.

    Returns the change of entropy. What counts is the change of the state as it is kept, in float32; `exact`: the state
    is not kept, and what counts is its change in float64.
    """
    slopes, offsets, levels, changes, columns, lane_sums, far, room = wide
    k, width = parameter.whiten.shape
    d = parameter.origin.size
    active = np.empty(TILE)
    standardized_wide(features, tile, *units(columns, parameter.origin, parameter.unit), columns)
    _products(columns, d, width, 0)
    mark_active(active, tile, start, end)
    _distances(columns, d, width, 0, False, k, slopes, offsets, levels, far, features, state, tile)
    for j in range(k + 1):
        for lane in range(TILE):
            room[j, lane] = state[tile, j, lane]
    _softmax(far, k, room, 0, None, active, changes, 0)
    entropy = 0.0
    for j in range(k + 1):
        for lane in range(TILE):
            old = np.float64(state[tile, j, lane])
            state[tile, j, lane] = room[j, lane]
            change = (room[j, lane] if exact else np.float64(state[tile, j, lane])) - old
            if weights is not None:
                change *= weights[tile, lane]
            if j < k:
                changes[j, lane] = change
            else:
                entropy += change
    accumulate(changes, columns, lane_sums)
    return entropy


@njit(**INNER)
def _standard_means(parameter):
    k, d = parameter.means.shape
    means = np.empty((k, d))
    for j in range(k):
        for t in range(d):
            means[j, t] = (parameter.means[j, t] - parameter.origin[t]) / parameter.unit[t]
    return means


@njit(**INNER)
def _steepness(features, parameter):
    """The largest precision of each column over the components that have weight."""
    k, width = parameter.whiten.shape
    d = parameter.origin.size
    steepest = np.zeros(d, features.dtype)
    for j in range(k):
        if parameter.weights[j] <= 0.0:
            continue
        entry = 0
        own = np.zeros(d)
        for row in range(d):
            for t in range(row if width == d else 0, row + 1):
                own[t] += parameter.whiten[j, entry] ** 2
                entry += 1
        for t in range(d):
            steepest[t] = max(steepest[t], own[t])
    return steepest


@njit(**INNER)
def _distances(columns, d, width, at, expanded, k, slopes, offsets, levels, far, features, state, tile):
    """far[j] = half the squared distance from component j, less its level, for a tile."""
    if expanded:
        products(columns, 2 * d, at, slopes, levels, far, product_group(k), features, state, tile)
    elif width == d:
        square_distances(columns, d, at, slopes, offsets, levels, far)
    else:
        _full(columns, d, at, slopes, offsets, levels, far)


@njit(**INNER)
def _full(columns, d, at, slopes, offsets, levels, far):
    """far[j] = ½‖whitened difference‖² − level, for a tile, by triangular matrices, GROUP rows at a time."""
    points = columns.shape[1]
    bands = -(-d // GROUP)
    for lane in range(0, TILE, lane_count(columns, LANES)):
        for j in range(levels.size):
            value = spread(levels[j], load(columns, at, LANES))
            for band in range(bands):
                rows = splats(offsets, (j * bands + band) * GROUP, GROUP, LANES)
                place = (j * bands + band) * d * GROUP
                for t in range(min(d, (band + 1) * GROUP)):
                    x = load(columns, t * points + at + lane, LANES)
                    rows = fma_each(x, splats(slopes, place + t * GROUP, GROUP, LANES), rows)
                value = sum_squares(rows, value)
            store(far, j * TILE + lane, value)


@njit(**INNER)
def _softmax(far, k, state, tile, weights, active, changes, at):
    """Responsibilities into the state, their changes into `changes`; returns the change of entropy."""
    points = changes.shape[1]
    entropy = 0.0
    for lane in range(0, TILE, lane_count(far, LANES)):
        base = tile * (k + 1) * TILE + lane
        visited = load(active, lane, LANES) > 0
        zero = spread(0, load(far, lane, LANES))
        most = spread(MOST, zero)
        least = most
        for j in range(k):
            least = minimum(load(far, j * TILE + lane, LANES), least)
        mass, moment = zero, zero
        for j in range(k):
            below = least - minimum(load(far, j * TILE + lane, LANES), most)
            share = where(below > CUT, exp_within(below), zero)
            mass = mass + share
            moment = fma(share, below, moment)  # `below` is finite
            store(far, j * TILE + lane, share)
        per_mass = 1.0 / mass
        for j in range(k):
            old = load(state, base + j * TILE, LANES)
            new = where(visited, load(far, j * TILE + lane, LANES) * per_mass, old)
            store(state, base + j * TILE, new)
            change = new - old
            if weights is not None:
                change = change * load(weights, tile * TILE + lane, LANES)
            store(changes, j * points + at + lane, change)
        old = load(state, base + k * TILE, LANES)
        new = where(visited, log(mass) - moment * per_mass, old)
        store(state, base + k * TILE, new)
        more = widen(new) - widen(old)
        if weights is not None:
            more = more * widen(load(weights, tile * TILE + lane, LANES))
        entropy += total(more)
    return entropy


@njit(**INNER)
def _expandable(parameter, means, itemsize):
    """Is ½ Σ (y² + m²)/σ², what cancels in an expanded distance, small enough for the precision?"""
    k, d = means.shape
    if parameter.whiten.shape[1] != d:
        return False
    largest = 0.0
    for j in range(k):
        size = 0.0
        for t in range(d):
            size += 0.5 * (1.0 + means[j, t] ** 2) * parameter.whiten[j, t] ** 2
        largest = max(largest, size)
    return largest * (2.0**-23 if itemsize == 4 else 2.0**-52) < 1e-4


@njit(**INNER)
def _products(columns, d, width, at):
    """Rows d … d+width-1: squares of the points' columns, or all products x_t·x_u with u ≤ t."""
    row = d
    for t in range(d):
        for u in range(t if width == d else 0, t + 1):
            multiplied(columns, t, u, row, at)
            row += 1


@njit(**INNER)
def _pack(features, parameter, means, expanded):
    """Whitening matrices as slopes and offsets in the order in which the kernel reads them; −level of each.

    Expanded: coefficients of y and of y² in groups of components, column by column inside a group. Else both
    carry √½, so that a sum of squares is half a distance. Diagonal: groups of components, alike. Full: for
    each component bands of rows, column by column. Fillers are far, or add nothing.
    """
    k, d = means.shape
    width = parameter.whiten.shape[1]
    half = np.sqrt(0.5)
    if expanded:
        group = product_group(k)
        rows = padded(k, group)
        slopes = np.zeros(rows * 2 * d, features.dtype)
        levels = np.full(rows, np.inf, features.dtype)
        for j in range(k):
            level = -parameter.level[j]
            for t in range(d):
                place = (j // group * 2 * d + t) * group + j % group
                precision = parameter.whiten[j, t] ** 2
                slopes[place] = -precision * means[j, t]
                slopes[place + d * group] = 0.5 * precision
                level += 0.5 * precision * means[j, t] ** 2
            levels[j] = level
        return slopes, slopes, levels
    if width == d:
        rows = -(-k // GROUP) * GROUP
        slopes = np.zeros(rows * d, features.dtype)
        offsets = np.zeros(rows * d, features.dtype)
        levels = np.full(rows, np.inf, features.dtype)
        for j in range(k):
            levels[j] = -parameter.level[j]
            for t in range(d):
                place = (j // GROUP * d + t) * GROUP + j % GROUP
                slopes[place] = half * parameter.whiten[j, t]
                offsets[place] = -half * parameter.whiten[j, t] * means[j, t]
        return slopes, offsets, levels
    bands = -(-d // GROUP)
    slopes = np.zeros(k * bands * d * GROUP, features.dtype)
    offsets = np.zeros(k * bands * GROUP, features.dtype)
    levels = np.empty(k, features.dtype)
    for j in range(k):
        levels[j] = -parameter.level[j]
        entry = 0
        for row in range(d):
            band, inside = j * bands + row // GROUP, row % GROUP
            moved = 0.0
            for t in range(row + 1):
                slopes[(band * d + t) * GROUP + inside] = half * parameter.whiten[j, entry]
                moved += half * parameter.whiten[j, entry] * means[j, t]
                entry += 1
            offsets[band * GROUP + inside] = -moved
    return slopes, offsets, levels
