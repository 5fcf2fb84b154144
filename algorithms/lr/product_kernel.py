"""Compiled parts of `products`: residuals of scores, and sums of matrix products. Called by it, never by users."""

from __future__ import annotations

import numpy as np

from flegel.algorithms.lr.curvature import add_squares
from flegel.algorithms.lr.point import (
    BENT,
    BENT_PART,
    LEAST_BEND,
    LOSS,
    MOST_CLASS_SCORE,
    MOST_SCORE,
    SEEN,
    STAMPS,
    UNKNOWN,
    VISITS,
    bend_of,
    class_number,
    outdated,
)
from flegel.algorithms.lr.shapes import LANES
from flegel.algorithms.simd.math import exp
from flegel.algorithms.simd.vectors import any_lane, cast_like, fma, load, maximum, minimum, spread, store, total, widen
from flegel.core.code_cache import njit


@njit(nogil=True, cache=True, error_model="numpy")
def settle(scores, bias, labels, state, masses, start, model, classes, steps, bends, counts, sums):
    """Scores of points start … become residuals, which are kept in the state; how far they changed is written to
    `steps`, and how far curvatures did to `bends`, of which all are 0 before. How many of these are not 0 then."""
    importance, (penalty, memory, theta_number, part, floor, cap) = model
    outputs, width, pairs = bias.shape[0], scores.shape[1], 0
    whole = outputs // LANES * LANES
    kind = scores.dtype.type
    for r in range(scores.shape[0]):
        i = start + r
        target = class_number(labels[i], classes)
        if target < 0:
            sums[UNKNOWN] += 1.0
            steps[r] = 0.0
            continue
        for k in range(outputs):
            scores[r, k] = min(max(scores[r, k] + bias[k], kind(-MOST_CLASS_SCORE)), kind(MOST_CLASS_SCORE))
        scores[r, outputs:] = kind(-MOST_CLASS_SCORE)
        at = r * width
        highest = load(scores, at, LANES)
        for k in range(LANES, width, LANES):
            highest = maximum(highest, load(scores, at + k, LANES))
        store(steps, r * width, highest)
        top = steps[r, 0]
        for k in range(1, LANES):
            top = max(top, steps[r, k])
        mine = max(np.float64(scores[r, target]) - np.float64(top), -MOST_SCORE)
        for k in range(0, width, LANES):
            z = load(scores, at + k, LANES) - top
            store(scores, at + k, exp(maximum(z, spread(-MOST_SCORE, z))))
        own = np.float64(scores[r, target])
        scores[r, target] = 0.0
        others = widen(spread(0.0, highest))
        for k in range(0, width, LANES):
            others = others + widen(load(scores, at + k, LANES))
        rest = total(others)
        mass = 1.0 if masses is None else np.float64(masses[i])
        weight = mass * importance[target]
        share = kind(1.0 / (rest + own))
        scores[r, target] = -rest  # 1 − p loses digits where p is near 1; the sum of the others does not
        numbers = (kind(weight), share, memory, part, floor, cap)
        pairs += _keep(scores, r, whole, state, i, numbers, steps, bends, sums)
        stamp = np.float64(state[i, 2 * outputs + 1])
        if stamp == 0.0:
            counts[target] += mass
            sums[SEEN] += 1.0
        before = np.float64(state[i, outputs])
        state[i, outputs] = weight * (np.log(rest + own) - mine) + penalty
        state[i, 2 * outputs + 1] = theta_number
        sums[LOSS] += np.float64(state[i, outputs]) - before
        sums[STAMPS] += theta_number - stamp
        sums[VISITS] += 1.0
    return pairs


@njit(nogil=True, cache=True, error_model="numpy")
def _keep(scores, r, whole, state, i, numbers, steps, bends, sums):
    """Residuals of row r, in `scores` but for the factor `share`, into the state of point i. The number of outdated
    curvatures, which are counted again."""
    weight, share, memory, part, floor, cap = numbers
    outputs, width = (state.shape[1] - 2) // 2, scores.shape[1]
    kind = scores.dtype.type
    at, own, count = r * width, i * state.shape[1], 0
    curved = own + outputs + 1
    inverse = kind(1.0) / weight if weight > 0.0 else kind(0.0)
    worst, zero = spread(-1.0, load(scores, at, LANES)), spread(0.0, load(scores, at, LANES))
    apart, most = zero, zero
    for k in range(0, whole, LANES):
        residual = load(scores, at + k, LANES) * share
        before, counted = load(state, own + k, LANES), load(state, curved + k, LANES)
        size = maximum(residual, zero - residual)
        cut = minimum(size, spread(cap, size))
        bend, after = (kind(2.0) * weight) * (cut * (1.0 - cut)), residual * weight
        stale = maximum(bend - cast_like(counted, bend), cast_like(counted, bend) - bend)
        worst = maximum(worst, stale - fma(cast_like(counted, bend), spread(part, bend), spread(floor, bend)))
        then = cast_like(before, residual) * inverse
        then = maximum(then, zero - then)
        now, then = size * (1.0 - size), then * (1.0 - then)
        apart, most = maximum(apart, maximum(now - then, then - now)), most + maximum(now, then)
        store(state, own + k, cast_like(after, before))
        store(steps, at + k, after - kind(memory) * cast_like(before, after))
        store(scores, at + k, residual)
    summed, farthest = total(widen(most)), kind(0.0)
    store(bends, at, apart)  # all of which are 0 before, and again after
    for lane in range(LANES):
        farthest = max(farthest, bends[r, lane])
        bends[r, lane] = 0.0
    for k in range(whole, outputs):
        scores[r, k] *= share
        before = state[i, k]
        size, last = abs(scores[r, k]), abs(kind(before) * inverse)
        now, then = size * (kind(1.0) - size), last * (kind(1.0) - last)
        farthest, summed = max(farthest, abs(now - then)), summed + max(now, then)
        state[i, k] = weight * scores[r, k]
        steps[r, k] = state[i, k] - memory * before
    if farthest > BENT_PART * summed and summed > LEAST_BEND and inverse > 0.0:
        sums[BENT] += 1.0
    if whole < outputs or any_lane(worst > 0.0) or cap == 0.0:
        for k in range(outputs):
            now = np.float64(np.float32(2.0 * weight * bend_of(abs(np.float64(scores[r, k])), cap)))
            counted_now = np.float64(state[i, outputs + 1 + k])
            if outdated(now, counted_now, part, floor):
                state[i, outputs + 1 + k] = now
                bends[r, k] = now - counted_now
                count += 1
    return count


@njit(nogil=True, cache=True)
def add_product(product, first, target):
    """target[first + k] += product[k], but for the last column."""
    for k in range(product.shape[0]):
        for t in range(product.shape[1]):
            target[first + k, t] += product[k, t]


@njit(nogil=True, cache=True)
def add_pairs(rows, start, bends, metric, target):
    """target[k] += bends[r, k]·x̃² for the few that are not 0."""
    columns = metric.shape[1] - 1
    row, inverse = np.ones(columns + 1), 1.0 / metric[1]
    for r in range(bends.shape[0]):
        ready = False
        for k in range(target.shape[0]):
            if bends[r, k] != 0.0:
                if not ready:
                    for t in range(columns):
                        away = (rows[start + r, t] - metric[0, t]) * inverse[t]
                        row[t] = away * away
                    ready = True
                add_squares(row, np.float64(bends[r, k]), target[k])
