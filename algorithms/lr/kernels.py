"""Block kernels of logistic regression: dense tiles and sparse rows. Called by `lr`, never by users.

Each adds to the aggregator in place what `LR.updateDataPoint` would return for the points start … end-1, and
returns how far it came once the flag is raised.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from flegel.algorithm import Kernel
from flegel.algorithms.simd.emit import VECTOR_BYTES
from flegel.algorithms.simd.math import exp, log, log1p_unit
from flegel.algorithms.simd.vectors import (
    any_lane,
    cast_like,
    fma,
    load,
    maximum,
    prefetch,
    spread,
    store,
    total,
    where,
    widen,
)
from flegel.core.pytree import Array, Tree
from flegel.core.shard import TILE, Shard, Sparse
from flegel.core.stop_flag import raised

GROUP = 64 if VECTOR_BYTES == 64 else 32
"""Points whose scores are in registers at a time: enough independent sums to keep the multipliers busy."""
FEW = 16
"""Points at a time where more is computed on each: four such groups are a tile."""
TILES_IN_PARTS = 16
"""A float32 part of the gradient adds up 4 products a tile; after so many it goes into the float64 sum."""


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def residuals(scores: Array, target: int) -> float:
    """Turns the scores of one point into probability − target, in place, and returns its log-loss."""
    if scores.shape[0] == 1:
        score = scores[0]
        small = np.exp(-abs(score))
        likely = 1.0 / (1.0 + small) if score >= 0.0 else small / (1.0 + small)
        scores[0] = likely - (1.0 if target == 1 else 0.0)
        wrong = -score if target == 1 else score
        return max(wrong, 0.0) + np.log1p(small)
    top = scores.max()
    mine = scores[target] - top
    whole = 0.0
    for k in range(scores.shape[0]):
        scores[k] = np.exp(scores[k] - top)
        whole += scores[k]
    for k in range(scores.shape[0]):
        scores[k] /= whole
    # 1 − p loses its digits where p is near 1; the others' sum does not.
    rest = 0.0
    for k in range(scores.shape[0]):
        if k != target:
            rest += scores[k]
    scores[target] = -rest
    return np.log(whole) - mine


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _class_number(label: Any, classes: Array) -> int:
    for c in range(classes.shape[0]):
        if label == classes[c]:
            return c
    return -1


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _sparse(
    indptr, indices, values, labels, state, weights, bias, classes, penalty, memory,
    gradient, sums, start, end, flag,
):  # type: ignore[no-untyped-def]  # fmt: skip
    outputs, columns = weights.shape
    scores = np.empty(outputs)
    for i in range(start, end):
        if raised(flag):
            return i
        target = _class_number(labels[i], classes)
        if target < 0:
            sums[4] += 1.0
            continue
        first, last = indptr[i], indptr[i + 1]
        for k in range(outputs):
            score = bias[k]
            for t in range(first, last):
                score += values[t] * weights[k, indices[t]]
            scores[k] = score
        loss = residuals(scores, target)
        for k in range(outputs):
            before = np.float64(state[i, k])
            state[i, k] = scores[k]
            after = np.float64(state[i, k])
            step = after - memory * before
            sums[1] += after * after - before * before
            for t in range(first, last):
                gradient[k, indices[t]] += step * values[t]
            gradient[k, columns] += step
        old = np.float64(state[i, outputs])
        if old < 0.0:
            sums[2] += 1.0
            old = 0.0
        state[i, outputs] = loss + penalty
        sums[0] += np.float64(state[i, outputs]) - old
        sums[3] += 1.0
    return end


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _some_lanes(tile, lanes, features, labels, state, weights, bias, classes, penalty, memory, gradient, sums):  # type: ignore[no-untyped-def]
    """Part of a tile, or one with a strange label: point by point."""
    outputs, columns = weights.shape
    scores = np.empty(outputs)
    for lane in range(lanes[0], lanes[1]):
        target = _class_number(labels[tile * TILE + lane], classes)
        if target < 0:
            sums[4] += 1.0
            continue
        for k in range(outputs):
            score = bias[k]
            for t in range(columns):
                score += features[tile, t, lane] * weights[k, t]
            scores[k] = score
        loss = residuals(scores, target)
        for k in range(outputs):
            before = np.float64(state[tile, k, lane])
            state[tile, k, lane] = scores[k]
            after = np.float64(state[tile, k, lane])
            step = after - memory * before
            sums[1] += after * after - before * before
            for t in range(columns):
                gradient[k, t] += step * features[tile, t, lane]
            gradient[k, columns] += step
        old = np.float64(state[tile, outputs, lane])
        if old < 0.0:
            sums[2] += 1.0
            old = 0.0
        state[tile, outputs, lane] = loss + penalty
        sums[0] += np.float64(state[tile, outputs, lane]) - old
        sums[3] += 1.0


@njit(nogil=True, cache=True, forceinline=True)  # type: ignore[untyped-decorator]
def _scores(features, at, weights, bias, scores):  # type: ignore[no-untyped-def]
    """scores[k, lane] of one tile whose features begin at the flat position `at`."""
    outputs, columns = weights.shape
    for k in range(outputs):
        for lane in range(0, TILE, GROUP):
            value = spread(bias[k], load(features, at, GROUP))
            for t in range(columns):
                x = load(features, at + t * TILE + lane, GROUP)
                value = fma(x, spread(weights[k, t], x), value)
            store(scores, k * TILE + lane, value)


@njit(nogil=True, cache=True, forceinline=True)  # type: ignore[untyped-decorator]
def _targets(labels, first, classes, targets):  # type: ignore[no-untyped-def]
    """Class numbers of a tile's labels into `targets`; False where one is none of the classes."""
    strange = False
    for lane in range(0, TILE, FEW):
        label = load(labels, first + lane, FEW)
        number = spread(-1.0, load(targets, lane, FEW))
        for c in range(classes.shape[0]):
            number = where(label == classes[c], spread(c, number), number)
        store(targets, lane, number)
        strange |= any_lane(number < 0.0)
    return not strange


@njit(nogil=True, cache=True, forceinline=True)  # type: ignore[untyped-decorator]
def _two_classes(scores, targets, losses, features, ahead, columns):  # type: ignore[no-untyped-def]
    """What `residuals` does to one point, to a tile: scores become probability − target."""
    line = 64 // features.itemsize
    for lane in range(0, TILE, FEW):
        z, y = load(scores, lane, FEW), load(targets, lane, FEW)
        for t in range(lane // FEW, columns, 4):
            for next_line in range(0, TILE // 2, line):
                prefetch(features, ahead + t * TILE + next_line)
        zero = spread(0.0, z)
        small = exp(zero - maximum(z, zero - z))
        above = small + 1.0
        share = 1.0 / above
        store(scores, lane, where(z >= 0.0, share, small * share) - y)
        store(losses, lane, maximum(z - 2.0 * (y * z), zero) + log1p_unit(small))


@njit(nogil=True, cache=True, forceinline=True)  # type: ignore[untyped-decorator]
def _many_classes(scores, targets, losses):  # type: ignore[no-untyped-def]
    """The same for a score a class."""
    for lane in range(0, TILE, FEW):
        top = load(scores, lane, FEW)
        for k in range(1, scores.shape[0]):
            top = maximum(top, load(scores, k * TILE + lane, FEW))
        zero = spread(0.0, top)
        whole, mine, y = zero, zero, load(targets, lane, FEW)
        for k in range(scores.shape[0]):
            z = load(scores, k * TILE + lane, FEW) - top
            mine = where(y == k, z, mine)
            z = exp(z)
            whole = whole + z
            store(scores, k * TILE + lane, z)
        for k in range(scores.shape[0]):
            likely = load(scores, k * TILE + lane, FEW) / whole
            store(scores, k * TILE + lane, likely - where(y == k, zero + 1.0, zero))
        store(losses, lane, log(whole) - mine)


@njit(nogil=True, cache=True, forceinline=True)  # type: ignore[untyped-decorator]
def _keep(state, tile, scores, losses, penalty, memory, sums):  # type: ignore[no-untyped-def]
    """New residuals and losses into the state; scores become steps. The loss is summed in float64, as
    stored.
    """
    outputs = scores.shape[0]
    base = tile * (outputs + 1) * TILE
    squares = spread(0.0, load(scores, 0, FEW))
    for at in range(0, outputs * TILE, FEW):
        after, before = load(scores, at, FEW), cast_like(load(state, base + at, FEW), squares)
        store(state, base + at, cast_like(after, load(state, base, FEW)))
        squares = squares + (after * after - before * before)
        store(scores, at, after - memory * before)
    zero = spread(0.0, load(state, base, FEW))
    change, seen = widen(zero), zero
    for lane in range(0, TILE, FEW):
        at = base + outputs * TILE + lane
        before, after = load(state, at, FEW), cast_like(load(losses, lane, FEW) + penalty, zero)
        store(state, at, after)
        change = change + (widen(after) - widen(maximum(before, zero)))
        seen = seen + where(before < 0.0, zero + 1.0, zero)
    sums[0] += total(change)
    sums[1] += total(squares)
    sums[2] += total(seen)
    sums[3] += TILE


@njit(nogil=True, cache=True, forceinline=True)  # type: ignore[untyped-decorator]
def _add_steps(features, at, steps, parts):  # type: ignore[no-untyped-def]
    """parts[k, t] += step·x over one tile, in `FEW` lanes; the last t is the bias. Fetches the next tile
    meanwhile.
    """
    line = 64 // features.itemsize
    outputs, columns = parts.shape[0], parts.shape[1] - 1
    for k in range(outputs):
        first = k * TILE
        a, b = load(steps, first, FEW), load(steps, first + FEW, FEW)
        c, d = load(steps, first + 2 * FEW, FEW), load(steps, first + 3 * FEW, FEW)
        into = k * (columns + 1) * FEW
        for t in range(columns):
            x = at + t * TILE
            part = fma(a, load(features, x, FEW), load(parts, into, FEW))
            part = fma(b, load(features, x + FEW, FEW), part)
            part = fma(c, load(features, x + 2 * FEW, FEW), part)
            store(parts, into, fma(d, load(features, x + 3 * FEW, FEW), part))
            into += FEW
            if k == 0:
                for ahead in range(TILE // 2, TILE, line):
                    prefetch(features, x + columns * TILE + ahead)
        store(parts, into, load(parts, into, FEW) + ((a + b) + (c + d)))


@njit(nogil=True, cache=True, forceinline=True)  # type: ignore[untyped-decorator]
def _flush(parts, gradient):  # type: ignore[no-untyped-def]
    for k in range(parts.shape[0]):
        for t in range(parts.shape[1]):
            at = (k * parts.shape[1] + t) * FEW
            part = load(parts, at, FEW)
            gradient[k, t] += total(widen(part))
            store(parts, at, spread(0.0, part))


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _tiles(features, labels, state, weights, bias, classes, penalty, memory, gradient, sums, start, end, flag):  # type: ignore[no-untyped-def]
    outputs, columns = weights.shape
    kind = features.dtype.type
    narrow, narrow_bias = weights.astype(features.dtype), bias.astype(features.dtype)
    scores = np.empty((outputs, TILE), features.dtype)
    parts = np.zeros((outputs, columns + 1, FEW), features.dtype)
    targets, losses = np.empty(TILE, features.dtype), np.empty(TILE, features.dtype)
    i = start
    while i < end:
        if raised(flag):
            break
        tile = i // TILE
        stop = min(end, (tile + 1) * TILE)
        if stop - i == TILE and _targets(labels, i, classes, targets):
            at = tile * columns * TILE
            _scores(features, at, narrow, narrow_bias, scores)
            if outputs == 1:
                _two_classes(scores, targets, losses, features, at + columns * TILE, columns)
            else:
                _many_classes(scores, targets, losses)
            _keep(state, tile, scores, losses, kind(penalty), kind(memory), sums)
            _add_steps(features, at, scores, parts)
            if tile % TILES_IN_PARTS == 0:
                _flush(parts, gradient)
        else:
            lanes = (i - tile * TILE, stop - tile * TILE)
            _some_lanes(tile, lanes, features, labels, state, weights, bias, classes, penalty, memory, gradient, sums)
        i = stop
    _flush(parts, gradient)
    return i


_VECTOR_LABELS = tuple(np.dtype(name) for name in ("float32", "float64", "int32", "int64"))


def kernel_for(share: Shard, memory: bool) -> Kernel:
    """The kernel for this share's layout."""
    sparse = isinstance(share.features, Sparse)
    keep = 1.0 if memory else 0.0

    def run(share: Shard, parameter: Tree, aggregator: Tree, start: int, end: int, iteration: int, flag: Array) -> int:
        sums = np.zeros(5)  # loss, squares, seen, visits, unknown
        model = (parameter.weights, parameter.bias, parameter.classes, float(parameter.penalty[0]), keep)
        goal = (aggregator.gradient, sums, start, end, flag)
        if sparse:
            rows = share.features
            reached = _sparse(rows.indptr, rows.indices, rows.values, share.labels, share.state, *model, *goal)
        else:
            labels = share.labels
            if labels.dtype not in _VECTOR_LABELS:
                labels = labels.astype(np.float64)
            reached = _tiles(share.features, labels, share.state, *model, *goal)
        for into, extra in zip(aggregator[1:], sums, strict=True):
            into += extra
        return int(reached)

    return run
