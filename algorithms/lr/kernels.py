"""Block kernels of logistic regression: dense tiles and sparse rows. Called by `lr`, never by users.

Each adds to the aggregator in place what `LR.updateDataPoint` would return for the points start … end-1, and
returns how far it came once the flag is raised.

The state of a point, by outputs: its residuals, times its weight; its loss; the curvatures that are in the sums; and
the number of θ at its last visit, 0 before the first (`point.visit`). In dense tiles each is TILE numbers, by lane.

`masses` are the weights of points that users give, None where they give none; the weight of a lane is the mass of its
point times the importance of its class. `model` is these importances and six numbers: the penalty of θ; `memory`, 1
where a point's last residual is subtracted and 0 where visits simply add up; the number of θ; the part and the floor
above which a change of curvature is counted; the cap of residuals in curvatures (`point.bend_of`). A `bend` is a
curvature by the score.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flegel.algorithms.lr.curvature import (
    POINTS_IN_REGISTERS,
    add_block,
    add_squares,
    dense_outer,
    gather,
    sparse_outer,
    squares,
    unload,
    width_of,
)
from flegel.algorithms.lr.point import (
    BENT,
    BENT_PART,
    LEAST_BEND,
    LOSS,
    MOST_CLASS_SCORE,
    MOST_SCORE,
    SEEN,
    STAMPS,
    SUMS,
    UNKNOWN,
    VISITS,
    bend_of,
    class_number,
    outdated,
    visit,
)
from flegel.algorithms.lr.sparse_many import ManyClasses
from flegel.algorithms.simd.math import exp, log, log1p_unit
from flegel.algorithms.simd.registers import REGISTERS, TWO_REGISTERS, VECTOR_BYTES
from flegel.algorithms.simd.vectors import (
    any_lane,
    cast_like,
    fma,
    fma_each,
    lane_count,
    load,
    loads,
    maximum,
    minimum,
    prefetch,
    splats,
    spread,
    store,
    store_each,
    total,
    where,
    widen,
)
from flegel.algorithms.soft_kernel import GridKernel
from flegel.configuration.compiled import kernel_settings
from flegel.core.atomic_flag import raised
from flegel.core.code_cache import njit
from flegel.core.entry_point import EntryPoint
from flegel.core.pytree import Array, Tree, protected
from flegel.core.shard import TILE, Shard, Sparse
from flegel.core.team_loop import team_loop
from flegel.declarations.kernels import Kernel, TeamCode

GROUP = 64 if VECTOR_BYTES == 64 else 32
"""Points whose scores are in registers at a time: enough independent sums to keep the multipliers busy."""
LABEL_LANES = 16
"""Points at a time where more is computed on each: four such groups are a tile."""
SCORED = 10 if REGISTERS == 32 else 5
"""Outputs whose scores of two registers of points are in registers at a time."""
SUMMED = 5 if REGISTERS == 32 else 2
"""Outputs to whose gradient a tile's column is added at a time, of `LABEL_LANES` points four times."""
LANES_BY_TILE = kernel_settings().lr_points_by_tile
TILES_IN_PARTS = kernel_settings().lr_tiles_in_float32


@njit(nogil=True, cache=True)
def _sparse_two(rows, labels, state, masses, theta, fixed, goal, start, end, flag):
    """Sparse rows of two classes: one output."""
    indptr, indices, values = rows
    (weights, bias), (classes, metric, model) = theta, fixed
    gradient, curvature, counts, sums = goal
    columns = weights.shape[1]
    scores, steps, bends = np.empty(1), np.empty(1), np.empty(1)
    for i in range(start, end):
        if raised(flag):
            return i
        target = class_number(labels[i], classes)
        if target < 0:
            sums[UNKNOWN] += 1.0
            continue
        first, last = indptr[i], indptr[i + 1]
        score = bias[0]
        for t in range(first, last):
            score += values[t] * weights[0, indices[t]]
        scores[0] = score
        mass = 1.0 if masses is None else masses[i]
        counts[target] += mass if state[i, 3] == 0.0 else 0.0
        changed = visit(scores, target, mass, state[i], model, steps, bends, sums)
        for t in range(first, last):
            gradient[0, indices[t]] += steps[0] * values[t]
        gradient[0, columns] += steps[0]
        if changed:
            sparse_outer(indices[first:last], values[first:last], bends[0], metric, curvature[0])
    return end


@njit(nogil=True, cache=True)
def _some_lanes(tile, lanes, features, labels, state, masses, theta, fixed, goal):
    """Part of a tile, or a tile with an unknown label, point by point."""
    (weights, bias), (classes, metric, model) = theta, fixed
    gradient, curvature, counts, sums = goal
    outputs, columns = weights.shape
    scores, steps, bends = np.empty(outputs), np.empty(outputs), np.empty(outputs)
    for lane in range(lanes[0], lanes[1]):
        target = class_number(labels[tile * TILE + lane], classes)
        if target < 0:
            sums[UNKNOWN] += 1.0
            continue
        for k in range(outputs):
            score = bias[k]
            for t in range(columns):
                score += features[tile, t, lane] * weights[k, t]
            scores[k] = score
        mass = 1.0 if masses is None else np.float64(masses[tile, lane])
        counts[target] += mass if state[tile, 2 * outputs + 1, lane] == 0.0 else 0.0
        changed = visit(scores, target, mass, state[tile, :, lane], model, steps, bends, sums)
        for k in range(outputs):
            for t in range(columns):
                gradient[k, t] += steps[k] * features[tile, t, lane]
            gradient[k, columns] += steps[k]
            if changed and bends[k] != 0.0:
                dense_outer(features[tile, :, lane], bends[k], metric, curvature[k])


@njit(nogil=True, cache=True)
def _grouped(weights):
    """Weights in groups of SCORED outputs, column by column inside a group; what fills no group is left out."""
    outputs, columns = weights.shape
    packed = np.empty(outputs // SCORED * SCORED * columns, weights.dtype)
    for k in range(outputs // SCORED * SCORED):
        for t in range(columns):
            packed[(k // SCORED * columns + t) * SCORED + k % SCORED] = weights[k, t]
    return packed


@njit(nogil=True, cache=True)
def _scores(features, at, weights, grouped, bias, scores):
    """scores[k, lane] of one tile whose features begin at the flat position `at`. A column that is read from a cache
    is multiplied by SCORED outputs at a time, by one where too few are left."""
    outputs, columns = weights.shape
    whole = outputs // SCORED * SCORED
    for lane in range(0, TILE, lane_count(features, TWO_REGISTERS)):
        for first in range(0, whole, SCORED):
            values = splats(bias, first, SCORED, TWO_REGISTERS)
            place, x_at = first * columns, at + lane
            for _ in range(columns):
                x = load(features, x_at, TWO_REGISTERS)
                values = fma_each(x, splats(grouped, place, SCORED, TWO_REGISTERS), values)
                place += SCORED
                x_at += TILE
            store_each(scores, first * TILE + lane, TILE, values)
    for k in range(whole, outputs):
        for lane in range(0, TILE, GROUP):
            value = spread(bias[k], load(features, at, GROUP))
            for t in range(columns):
                x = load(features, at + t * TILE + lane, GROUP)
                value = fma(x, spread(weights[k, t], x), value)
            store(scores, k * TILE + lane, value)


@njit(nogil=True, cache=True, forceinline=True)
def _targets(labels, first, classes, targets):
    """Class numbers of a tile's labels into `targets`; False where one is none of the classes."""
    strange = False
    for lane in range(0, TILE, LABEL_LANES):
        label = load(labels, first + lane, LABEL_LANES)
        number = spread(-1.0, load(targets, lane, LABEL_LANES))
        for c in range(classes.shape[0]):
            number = where(label == classes[c], spread(c, number), number)
        store(targets, lane, number)
        strange |= any_lane(number < 0.0)
    return not strange


@njit(nogil=True, cache=True, forceinline=True)
def _two_classes(scores, targets, losses, features, ahead, columns):
    """What `residuals` does to one point, to a tile: scores become probability − target."""
    line = 64 // features.itemsize
    for lane in range(0, TILE, LABEL_LANES):
        z, y = load(scores, lane, LABEL_LANES), load(targets, lane, LABEL_LANES)
        z = maximum(minimum(z, spread(MOST_SCORE, z)), spread(-MOST_SCORE, z))
        for t in range(lane // LABEL_LANES, columns, 4):
            for next_line in range(0, TILE // 2, line):
                prefetch(features, ahead + t * TILE + next_line)
        zero = spread(0.0, z)
        small = exp(zero - maximum(z, zero - z))
        above = small + 1.0
        share = 1.0 / above  # 1 − p loses digits where p is near 1
        likely = where(where(y > 0.5, z, zero - z) >= 0.0, small * share, share)
        store(scores, lane, where(y > 0.5, zero - likely, likely))
        store(losses, lane, maximum(z - 2.0 * (y * z), zero) + log1p_unit(small))


@njit(nogil=True, cache=True, forceinline=True)
def _many_classes(scores, targets, losses):
    """The same for a score a class."""
    for lane in range(0, TILE, LABEL_LANES):
        top = spread(-MOST_CLASS_SCORE, load(scores, lane, LABEL_LANES))
        for k in range(scores.shape[0]):
            z = load(scores, k * TILE + lane, LABEL_LANES)
            z = maximum(minimum(z, spread(MOST_CLASS_SCORE, z)), spread(-MOST_CLASS_SCORE, z))
            store(scores, k * TILE + lane, z)
            top = maximum(top, z)
        zero = spread(0.0, top)
        whole, rest, mine, y = zero, zero, zero, load(targets, lane, LABEL_LANES)
        for k in range(scores.shape[0]):
            z = load(scores, k * TILE + lane, LABEL_LANES) - top
            z = maximum(z, spread(-MOST_SCORE, z))
            mine = where(y == k, z, mine)
            z = exp(z)
            whole = whole + z
            rest = rest + where(y == k, zero, z)
            store(scores, k * TILE + lane, z)
        for k in range(scores.shape[0]):  # 1 − p loses digits where p is near 1
            odds = where(y == k, zero - rest, load(scores, k * TILE + lane, LABEL_LANES))
            store(scores, k * TILE + lane, odds / whole)
        store(losses, lane, log(whole) - mine)


@njit(nogil=True, cache=True, forceinline=True)
def _importances(targets, importance, masses, tile, weights):
    """The weight of every lane's class, times that of the point."""
    for lane in range(0, TILE, LABEL_LANES):
        y = load(targets, lane, LABEL_LANES)
        value = spread(importance[0], y)
        for c in range(1, importance.shape[0]):
            value = where(y == c, spread(importance[c], y), value)
        if masses is not None:
            value = value * load(masses, tile * TILE + lane, LABEL_LANES)
        store(weights, lane, value)


@njit(nogil=True, cache=True)
def _count(state, tile, masses, targets, counts, sums):
    """Points that were never visited before, all and by class."""
    number = state.shape[1] - 1
    for lane in range(TILE):
        if state[tile, number, lane] == 0.0:
            counts[int(targets[lane])] += 1.0 if masses is None else masses[tile, lane]
            sums[SEEN] += 1.0


@njit(nogil=True, cache=True, forceinline=True)
def _keep(state, tile, masses, scores, steps, losses, weights, weighted, targets, numbers, counts, sums):
    """Residuals in `scores`, and losses, into the state; how far residuals changed into `steps`. The loss is summed in
    float64, as stored. True where the curvature of a lane is outdated, or has to be looked at closely.
    """
    penalty, memory, theta_number, part, floor, cap = numbers
    outputs = scores.shape[0]
    base = tile * (2 * outputs + 2) * TILE
    double = scores.dtype.type(1.0 if outputs == 1 else 2.0)
    worst, bent = spread(-1.0, load(scores, 0, LABEL_LANES)), spread(0.0, load(scores, 0, LABEL_LANES))
    for lane in range(0, TILE, LABEL_LANES):
        zero = spread(0.0, load(scores, 0, LABEL_LANES))
        apart, most, inverse = zero, zero, zero + 1.0
        if weighted:
            weight = load(weights, lane, LABEL_LANES)
            inverse = where(weight > 0.0, 1.0 / weight, zero)
        for k in range(outputs):
            at = k * TILE + lane
            residual = load(scores, at, LABEL_LANES)
            size = maximum(residual, spread(0.0, residual) - residual)
            before = cast_like(load(state, base + at, LABEL_LANES), residual)
            counted = cast_like(load(state, base + (outputs + 1) * TILE + at, LABEL_LANES), residual)
            cut = minimum(size, spread(cap, size))
            bend, after = double * (cut * (1.0 - cut)), residual
            if weighted:
                bend, after = weight * bend, weight * residual
            stale = maximum(bend - counted, counted - bend)
            worst = maximum(worst, stale - fma(counted, spread(part, counted), spread(floor, counted)))
            then = maximum(before, zero - before) * inverse
            now, then = size * (1.0 - size), then * (1.0 - then)
            apart, most = maximum(apart, maximum(now - then, then - now)), most + maximum(now, then)
            store(state, base + at, cast_like(after, load(state, base, LABEL_LANES)))
            store(steps, at, after - memory * before)
        most = where(inverse > 0.0, where(apart > BENT_PART * most, most, zero), zero)
        bent = bent + where(most > LEAST_BEND, zero + 1.0, zero)
    sums[BENT] += total(bent)
    zero = spread(0.0, load(state, base, LABEL_LANES))
    change, stamps = widen(zero), zero
    stamp = cast_like(spread(theta_number, load(scores, 0, LABEL_LANES)), zero)
    number = base + (2 * outputs + 1) * TILE
    least = load(state, number, LABEL_LANES)
    for lane in range(LABEL_LANES, TILE, LABEL_LANES):
        least = minimum(least, load(state, number + lane, LABEL_LANES))
    if any_lane(least == 0.0):
        _count(state, tile, masses, targets, counts, sums)
    for lane in range(0, TILE, LABEL_LANES):
        at = base + outputs * TILE + lane
        loss = load(losses, lane, LABEL_LANES)
        if weighted:
            loss = load(weights, lane, LABEL_LANES) * loss
        before, after = load(state, at, LABEL_LANES), cast_like(loss + penalty, zero)
        store(state, at, after)
        change = change + (widen(after) - widen(before))
        last = load(state, number + lane, LABEL_LANES)
        store(state, number + lane, stamp)
        stamps = stamps + (stamp - last)  # whole numbers: exact
    sums[LOSS] += total(change)
    sums[STAMPS] += total(stamps)
    sums[VISITS] += TILE
    return any_lane(worst > 0.0) or cap == 0.0


@njit(nogil=True, cache=True)
def _recount(features, tile, state, residuals_now, weights, numbers, metric, block):
    """Lanes whose curvature is outdated into the block, which goes into the sums where it is full."""
    rows, steps, _, _, filled, inverse = block
    part, floor, cap = numbers[3], numbers[4], numbers[5]
    outputs = residuals_now.shape[0]
    double = 1.0 if outputs == 1 else 2.0
    for lane in range(TILE):
        any_changed = False
        place = filled[0]
        for k in range(outputs):
            bend = bend_of(abs(np.float64(residuals_now[k, lane])), cap)
            now = np.float64(np.float32(double * weights[lane] * bend))
            counted = np.float64(state[tile, outputs + 1 + k, lane])
            steps[k, place] = 0.0
            if outdated(now, counted, part, floor):
                state[tile, outputs + 1 + k, lane] = now
                steps[k, place] = now - counted
                any_changed = True
        if not any_changed:
            continue
        gather(features, tile, lane, metric, inverse, rows, place)
        filled[0] += 1
        if filled[0] == POINTS_IN_REGISTERS:
            _empty(block)


@njit(nogil=True, cache=True)
def _recount_diagonal(features, tile, state, residuals_now, weights, numbers, metric, diagonal, curvature):
    """The same where only the diagonal is summed: few lanes one by one, many of a tile at once, in the features'
    precision. True in the latter case: `parts` of the diagonal hold something."""
    bends, parts, squared, row, inverse = diagonal
    part, floor, cap = numbers[3], numbers[4], numbers[5]
    outputs = residuals_now.shape[0]
    double = 1.0 if outputs == 1 else 2.0
    changed, lanes = np.zeros(TILE, np.bool_), 0
    for k in range(outputs):
        for lane in range(TILE):
            bend = bend_of(abs(np.float64(residuals_now[k, lane])), cap)
            now = np.float64(np.float32(double * weights[lane] * bend))
            counted = np.float64(state[tile, outputs + 1 + k, lane])
            bends[k, lane] = 0.0
            if outdated(now, counted, part, floor):
                state[tile, outputs + 1 + k, lane] = now
                bends[k, lane] = now - counted
                changed[lane] = True
    for lane in range(TILE):
        lanes += changed[lane]
    if lanes >= LANES_BY_TILE:
        _squared_columns(features, tile, metric, inverse, squared)
        _add_steps(squared, 0, bends, parts)
        return True
    for lane in range(TILE):
        if changed[lane]:
            squares(features, tile, lane, metric, inverse, row)
            for k in range(outputs):
                if bends[k, lane] != 0.0:
                    add_squares(row, np.float64(bends[k, lane]), curvature[k, 0])
    return False


@njit(nogil=True, cache=True)
def _empty(block):
    """Add what the block holds to its sums."""
    rows, steps, scaled, sums, filled, _ = block
    if not filled[1]:
        sums[:] = 0.0
        filled[1] = 1
    add_block(rows, steps, filled[0], scaled, sums)
    filled[0] = 0


@njit(nogil=True, cache=True)
def _new_block(outputs, metric, full):
    """Rows, a step an output, scaled rows, sums; points it holds, and whether the sums are begun; 1 / unit."""
    width = width_of(metric.shape[1] - 1) if full else 0
    count = POINTS_IN_REGISTERS if full else 0
    rows, sums = np.zeros((count, width)), np.empty((outputs if full else 0, width, width))
    return rows, np.empty((outputs, count)), np.empty((count, width)), sums, np.zeros(2, np.int64), 1.0 / metric[1]


@njit(nogil=True, cache=True)
def _new_diagonal(features, outputs, metric, full):
    """Changes of the curvature of a tile, their sums as `_add_steps` makes them, x̃² of a tile and of one row; 1 /
    unit."""
    count, width = (0, 0) if full else (outputs, metric.shape[1])
    bends, parts = np.empty((count, TILE), features.dtype), np.zeros((count, width, LABEL_LANES), features.dtype)
    return bends, parts, np.empty((width, TILE), features.dtype), np.empty(width), 1.0 / metric[1]


@njit(nogil=True, cache=True)
def _add_steps(features, at, steps, parts):
    """parts[k, t] += step·x over one tile, in `LABEL_LANES` lanes; the last t is the bias. Fetches the next tile
    meanwhile. SUMMED outputs at a time, one where too few are left.
    """
    line = 64 // features.itemsize
    outputs, columns = parts.shape[0], parts.shape[1] - 1
    whole, wide = outputs // SUMMED * SUMMED, (columns + 1) * LABEL_LANES
    for k in range(0, whole, SUMMED):
        first, into = k * TILE, k * wide
        a, b = (
            loads(steps, first, TILE, SUMMED, LABEL_LANES),
            loads(steps, first + LABEL_LANES, TILE, SUMMED, LABEL_LANES),
        )
        c, d = (
            loads(steps, first + 2 * LABEL_LANES, TILE, SUMMED, LABEL_LANES),
            loads(steps, first + 3 * LABEL_LANES, TILE, SUMMED, LABEL_LANES),
        )
        for t in range(columns):
            x = at + t * TILE
            some = fma_each(load(features, x, LABEL_LANES), a, loads(parts, into, wide, SUMMED, LABEL_LANES))
            some = fma_each(load(features, x + LABEL_LANES, LABEL_LANES), b, some)
            some = fma_each(load(features, x + 2 * LABEL_LANES, LABEL_LANES), c, some)
            store_each(parts, into, wide, fma_each(load(features, x + 3 * LABEL_LANES, LABEL_LANES), d, some))
            into += LABEL_LANES
            if k == 0:
                for ahead in range(TILE // 2, TILE, line):
                    prefetch(features, x + columns * TILE + ahead)
    for k in range(whole, outputs):
        first = k * TILE
        a, b = load(steps, first, LABEL_LANES), load(steps, first + LABEL_LANES, LABEL_LANES)
        c, d = load(steps, first + 2 * LABEL_LANES, LABEL_LANES), load(steps, first + 3 * LABEL_LANES, LABEL_LANES)
        into = k * wide
        for t in range(columns):
            x = at + t * TILE
            part = fma(a, load(features, x, LABEL_LANES), load(parts, into, LABEL_LANES))
            part = fma(b, load(features, x + LABEL_LANES, LABEL_LANES), part)
            part = fma(c, load(features, x + 2 * LABEL_LANES, LABEL_LANES), part)
            store(parts, into, fma(d, load(features, x + 3 * LABEL_LANES, LABEL_LANES), part))
            into += LABEL_LANES
            if k == 0:
                for ahead in range(TILE // 2, TILE, line):
                    prefetch(features, x + columns * TILE + ahead)
    _add_biases(steps, parts)


@njit(nogil=True, cache=True, forceinline=True)
def _add_biases(steps, parts):
    """The last column of `parts`, which is 1 in every row."""
    for k in range(parts.shape[0]):
        first, into = k * TILE, ((k + 1) * parts.shape[1] - 1) * LABEL_LANES
        a, b = load(steps, first, LABEL_LANES), load(steps, first + LABEL_LANES, LABEL_LANES)
        c, d = load(steps, first + 2 * LABEL_LANES, LABEL_LANES), load(steps, first + 3 * LABEL_LANES, LABEL_LANES)
        store(parts, into, load(parts, into, LABEL_LANES) + ((a + b) + (c + d)))


@njit(nogil=True, cache=True)
def _squared_columns(features, tile, metric, inverse, squared):
    """x̃² of a tile, laid out as its features are."""
    for t in range(metric.shape[1] - 1):
        mean, scale = features.dtype.type(metric[0, t]), features.dtype.type(inverse[t])
        for lane in range(0, TILE, LABEL_LANES):
            x = (load(features, (tile * features.shape[1] + t) * TILE + lane, LABEL_LANES) - mean) * scale
            store(squared, t * TILE + lane, x * x)


@njit(nogil=True, cache=True, forceinline=True)
def _flush(parts, gradient):
    for k in range(parts.shape[0]):
        for t in range(parts.shape[1]):
            at = (k * parts.shape[1] + t) * LABEL_LANES
            part = load(parts, at, LABEL_LANES)
            gradient[k, t] += total(widen(part))
            store(parts, at, spread(0.0, part))


@njit(nogil=True, cache=True)
def _flush_all(parts, gradient, bent, diagonal, curvature):
    """Sums of some tiles into the gradient, and into the diagonal where they are `bent`. False: nothing is left."""
    _flush(parts, gradient)
    if bent:
        _flush(diagonal[1], curvature[:, 0])
    return False


@njit(nogil=True, cache=True)
def _tiles(features, labels, state, masses, theta, fixed, goal, start, end, flag):
    """Visit dense rows in tiles of points. A tile that is cut by the range, or has an unknown label, is visited point
    by point."""
    (weights, bias), (classes, metric, model) = theta, fixed
    gradient, curvature, counts, sums = goal
    outputs, columns = weights.shape
    kind = features.dtype.type
    narrow, narrow_bias = weights.astype(features.dtype), bias.astype(features.dtype)
    grouped = _grouped(narrow)
    importance, exact = model
    numbers = (kind(exact[0]), kind(exact[1]), exact[2], kind(exact[3]), kind(exact[4]), kind(exact[5]))
    scores = np.empty((outputs, TILE), features.dtype)
    steps = np.empty((outputs, TILE), features.dtype)
    parts = np.zeros((outputs, columns + 1, LABEL_LANES), features.dtype)
    targets, losses = np.empty(TILE, features.dtype), np.empty(TILE, features.dtype)
    lane_weights = np.ones(TILE, features.dtype)
    weighted = importance.min() != 1.0 or importance.max() != 1.0
    if masses is not None:
        weighted = True
    full, bent = curvature.shape[1] > 1, False
    block, diagonal = _new_block(outputs, metric, full), _new_diagonal(features, outputs, metric, full)
    i = start
    while i < end:
        if raised(flag):
            break
        tile = i // TILE
        stop = min(end, (tile + 1) * TILE)
        if stop - i == TILE and _targets(labels, i, classes, targets):
            at = tile * columns * TILE
            _scores(features, at, narrow, grouped, narrow_bias, scores)
            if outputs == 1:
                _two_classes(scores, targets, losses, features, at + columns * TILE, columns)
            else:
                _many_classes(scores, targets, losses)
            if weighted:
                _importances(targets, importance, masses, tile, lane_weights)
            if _keep(
                state, tile, masses, scores, steps, losses, lane_weights, weighted, targets, numbers, counts, sums
            ):
                if full:
                    _recount(features, tile, state, scores, lane_weights, numbers, metric, block)
                else:
                    some = (lane_weights, numbers, metric, diagonal, curvature)
                    bent |= _recount_diagonal(features, tile, state, scores, *some)
            _add_steps(features, at, steps, parts)
            if tile % TILES_IN_PARTS == 0:
                bent = _flush_all(parts, gradient, bent, diagonal, curvature)
        else:
            lanes = (i - tile * TILE, stop - tile * TILE)
            _some_lanes(tile, lanes, features, labels, state, masses, theta, fixed, goal)
        i = stop
    _flush_all(parts, gradient, bent, diagonal, curvature)
    if block[4][0]:
        _empty(block)
    if block[4][1]:
        unload(block[3], curvature)
    return i


def _open(parameter, aggregator, keep):
    """θ and the statistics as the loops over rows take them: theta, fixed, goal. Sums go on from what the statistics
    hold: of sparse rows no bit depends on where a pass is cut into calls."""
    asked, whole = parameter.internal_visit, aggregator.curvature
    numbers = (asked[0], keep, asked[1], asked[2], asked[3], asked[4])
    fixed = (parameter.classes, parameter.internal_metric, (parameter.internal_importance, numbers))
    diagonal = asked[5] > 1.0 and whole.shape[1] > 1  # kept in the first row until then
    curvature = whole[:, :1].copy() if diagonal else whole
    sums = np.zeros(SUMS)
    sums[LOSS] = aggregator.loss[0]
    goal = (aggregator.gradient, curvature, aggregator.counts, sums)
    return (parameter.weights, parameter.bias), fixed, goal


def _close(goal, aggregator):
    """What lies beside the statistics goes into them."""
    _, curvature, _, sums = goal
    if curvature.shape[1] != aggregator.curvature.shape[1]:
        aggregator.curvature[:, :1] = curvature
    aggregator.loss[0] = sums[LOSS]
    aggregator.seen[0] += sums[SEEN]
    aggregator.stamps[0] += sums[STAMPS]
    aggregator.visits[0] += sums[VISITS]
    aggregator.unknown[0] += sums[UNKNOWN]
    aggregator.bent[0] += sums[BENT]


_opened, _closed = njit(nogil=True, cache=True)(_open), njit(nogil=True, cache=True)(_close)


@njit(nogil=True, cache=True)
def _team_dense(features, state, masses, parameter, aggregator, start, end, flag, labels, keep):
    """Dense rows in tiles; arguments as `team_loop` gives them."""
    theta, fixed, goal = _opened(parameter, aggregator, keep)
    reached = _tiles(features, labels, state, masses, theta, fixed, goal, start, end, flag)
    _closed(goal, aggregator)
    return reached


@njit(nogil=True, cache=True)
def _team_sparse_two(features, state, masses, parameter, aggregator, start, end, flag, labels, keep):
    """The same for sparse rows of two classes."""
    theta, fixed, goal = _opened(parameter, aggregator, keep)
    rows = (features.indptr, features.indices, features.values)
    reached = _sparse_two(rows, labels, state, masses, theta, fixed, goal, start, end, flag)
    _closed(goal, aggregator)
    return reached


serve_dense, serve_sparse_two = team_loop(_team_dense), team_loop(_team_sparse_two)
_TEAMS = {name: EntryPoint("flegel.algorithms.lr.kernels", name) for name in ("serve_dense", "serve_sparse_two")}

_VECTOR_LABELS = tuple(np.dtype(name) for name in ("float32", "float64", "int32", "int64"))


def _vector_labels(labels: Array) -> Array:
    """One type of labels, so no kernel more."""
    return labels if labels.dtype in _VECTOR_LABELS else protected(labels.astype(np.float64))


def kernel_for(memory: bool, home: Shard, outputs: int) -> Kernel:
    """The kernel for sparse rows and for dense tiles. `home`: the shard that a team visits."""
    memory_factor = 1.0 if memory else 0.0
    sparse = isinstance(home.features, Sparse)
    if sparse and outputs > 1:
        return ManyClasses(memory_factor)

    def run(shard: Shard, parameter: Tree, aggregator: Tree, start: int, end: int, iteration: int, flag: Array) -> int:
        """Visit points by the kernel for this layout, dense tiles or sparse with two classes, and add what they
        change."""
        labels, rows = shard.labels, shard.features
        theta, constants, sums = _open(parameter, aggregator, memory_factor)

        def rest(theta: Any) -> tuple[Any, ...]:
            """What every kernel takes after rows and labels."""
            return shard.state, shard.weights, theta, constants, sums, start, end, flag

        if not isinstance(rows, Sparse):
            reached = _tiles(rows, _vector_labels(labels), *rest(theta))
        else:
            reached = _sparse_two(rows[:3], labels, *rest(theta))  # indptr, indices, values
        _close(sums, aggregator)
        return int(reached)

    labels = home.labels if sparse else _vector_labels(home.labels)
    code = _TEAMS["serve_sparse_two" if sparse else "serve_dense"]
    made = run if sparse else GridKernel(run, home)
    made.team = TeamCode(code, lambda iteration: (labels, memory_factor), home.points)  # type: ignore[attr-defined]
    return made
