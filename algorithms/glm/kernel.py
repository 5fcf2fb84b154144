"""Compiled block kernel of generalized linear models over dense rows. Called by `dense`, never by users.

Some rows at a time, so that they stay in the first cache: scores, what the loss makes of them, what of that is kept in
the states, and what has changed since the last visit into the sums. A row is ((x − shift) / unit, 1). Arrays by column
are filled up to whole registers with zeros.
"""

from __future__ import annotations

import numpy as np

from flegel.algorithms.glm.places import (
    BEND,
    BENT,
    GAMMA,
    GUARDED_HUBER,
    HINGE,
    HUBER,
    LOSS,
    MASS,
    MIXED,
    MOST_SCORE,
    POISSON,
    SEEN,
    SHAPE,
    SHAPE_BEND,
    SLOPE,
    STAMPS,
    UNFIT,
)
from flegel.algorithms.lr.curvature import add_block
from flegel.algorithms.simd.math import exp, log
from flegel.algorithms.simd.registers import VECTOR_BYTES
from flegel.algorithms.simd.vectors import fma, load, maximum, minimum, splats, spread, store, total, where, widen
from flegel.core.atomic_flag import raised
from flegel.core.code_cache import njit

WIDE_LANES = VECTOR_BYTES // 8  # float64 numbers of a register


@njit(nogil=True, cache=True)
def visit(points, loss, theta, numbers, sums, space, totals, start, end, flag):
    """Visit points start … end-1, until the flag is raised; how far it came.

    `points`: rows, labels, states and masses. `loss`: which, its setting, its parameter, the least label that it can
    have, and the most that a row may lose at its mass (`NewtonSearch.most`). `theta`: shift and 1 / unit by column,
    weights for shifted rows, bias. `numbers`: that of θ, and the part of a curvature by which it must have changed to
    be counted again. `sums`: Σ slope · row, Σ mixed bend · row, and, where the diagonal is all that is summed, Σ bend
    · row²; `space`: for some rows, whose biases are there, their changes, their product, Σ bend · row·rowᵀ, and what
    is found of them (`places`).
    """
    rows, labels, state, masses = points
    shift, inverse, weights, bias = theta
    slopes, mixed, diagonal = sums
    some, steps, scaled, outer, found, changes = space
    tail, full = _tail(inverse, rows.shape[1]), outer.shape[1] > 1
    for first in range(start, end, some.shape[0]):
        if raised(flag):
            return first
        count = min(some.shape[0], end - first)
        _shift(rows, first, count, shift, inverse, tail, some)
        _scores(some, count, weights, bias, changes)
        for p in range(count):
            found[LOSS, p] = labels[first + p]
        _derive(loss, changes, found)
        _keep(labels, state, masses, first, count, loss[3:], numbers, found, changes, totals)
        _add_rows(some, count, changes, 0, slopes)
        if mixed.shape[0]:
            _add_rows(some, count, changes, 2 * changes.shape[1], mixed)
        bent = _bent(some, count, changes, steps)
        if bent and full:
            add_block(some, steps, bent, scaled, outer)
        elif bent:
            _add_squares(some, bent, steps, diagonal)
    return end


@njit(nogil=True, cache=True)
def _tail(numbers, columns):
    """The last `WIDE_LANES` numbers by column; 0 for those that whole registers from the first column on have too."""
    found = np.zeros(WIDE_LANES)
    for t in range(columns // WIDE_LANES * WIDE_LANES, columns):
        if t - columns + WIDE_LANES >= 0:
            found[t - columns + WIDE_LANES] = numbers[t]
    return found


@njit(nogil=True, cache=True)
def _shift(rows, first, count, shift, inverse, tail, some):
    """some[p] = (rows[first + p] − shift)·inverse. Columns that fill no register are the end of one that reaches
    back."""
    columns, width = rows.shape[1], some.shape[1]
    whole = columns // WIDE_LANES * WIDE_LANES
    for p in range(count):
        at, into = (first + p) * columns, p * width
        if whole and whole < columns:
            t = columns - WIDE_LANES
            store(
                some,
                into + t,
                (widen(load(rows, at + t, WIDE_LANES)) - load(shift, t, WIDE_LANES)) * load(tail, 0, WIDE_LANES),
            )
        for t in range(0, whole, WIDE_LANES):
            z = (widen(load(rows, at + t, WIDE_LANES)) - load(shift, t, WIDE_LANES)) * load(inverse, t, WIDE_LANES)
            store(some, into + t, z)
        if not whole:
            for t in range(columns):
                some[p, t] = (np.float64(rows[first + p, t]) - shift[t]) * inverse[t]


@njit(nogil=True, cache=True)
def _scores(some, count, weights, bias, scores):
    """scores[0, p] = bias + Σ some[p]·weights; no weight is that of the bias."""
    width = some.shape[1]
    for p in range(count):
        at = p * width
        sums = load(some, at, WIDE_LANES) * load(weights, 0, WIDE_LANES)
        for t in range(WIDE_LANES, width, WIDE_LANES):
            sums = fma(load(some, at + t, WIDE_LANES), load(weights, t, WIDE_LANES), sums)
        scores[0, p] = bias + total(sums)


@njit(nogil=True, cache=True)
def _derive(loss, scores, found):
    """Loss, slope and bend by score, and those of the loss's parameter, of labels that are in the place of the loss.
    Formulas are explained where they are defined: `losses.py`."""
    kind, given, shape, _, _ = loss
    width = found.shape[1]
    for p in range(0, width, WIDE_LANES):
        y, score = load(found, p, WIDE_LANES), load(scores, p, WIDE_LANES)
        one, zero = spread(1.0, y), spread(0.0, y)
        if kind == POISSON:
            score = minimum(maximum(score, spread(-MOST_SCORE, y)), spread(MOST_SCORE, y))
            mean = exp(score)
            store(found, p, mean - y + y * (log(where(y > 0.0, y, one)) - score))
            store(found, SLOPE * width + p, mean - y)
            store(found, BEND * width + p, mean)
        elif kind == GAMMA:
            score = minimum(maximum(score, spread(-MOST_SCORE, y)), spread(MOST_SCORE, y))
            ratio = y * exp(zero - score)
            store(found, p, ratio - 1.0 - log(maximum(y, spread(1e-300, y))) + score)
            store(found, SLOPE * width + p, one - ratio)
            store(found, BEND * width + p, ratio)
        elif kind == HINGE:
            side = where(y > given, one, zero - 1.0)
            short = maximum(one - side * score, zero)
            store(found, p, short * short)
            store(found, SLOPE * width + p, side * short * -2.0)
            store(found, BEND * width + p, where(short > 0.0, spread(2.0, y), zero))
        elif kind in (HUBER, GUARDED_HUBER):
            away = y - score
            size = maximum(away, zero - away)
            inside = size <= given * shape
            ratio, bend = where(inside, away / shape, zero), where(inside, spread(2.0 / shape, y), zero)
            outer = zero if kind == HUBER else spread(2.0 * given, y) / maximum(size, spread(given * shape, y))
            beyond = size * (2.0 * given) - given * given * shape
            store(found, p, where(inside, away * ratio, beyond) + shape)
            store(found, SLOPE * width + p, where(inside, ratio, where(away > 0.0, one, zero - 1.0) * given) * -2.0)
            store(found, BEND * width + p, where(inside, bend, outer))
            store(found, SHAPE * width + p, one - where(inside, ratio * ratio, spread(given * given, y)))
            store(found, MIXED * width + p, ratio * bend)
            store(found, SHAPE_BEND * width + p, ratio * ratio * bend)


@njit(nogil=True, cache=True)
def _keep(labels, state, masses, first, count, limits, numbers, found, changes, totals):
    """The states of points follow what was found. `changes`: of each one's slope, of its bend, and of its mixed bend; 0
    where curvature is not counted again. Of a row beyond the most that it may lose only that loss is kept."""
    number, part = numbers
    lowest, most = limits
    last, shaped = state.shape[1] - 1, found.shape[0] > SHAPE
    losses, stamps, seen, fresh, shape, own, unfit, bent = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for p in range(count):
        i = first + p
        mass = 1.0 if masses is None else np.float64(masses[i])
        stamp, before = np.float64(state[i, last]), np.float64(state[i, LOSS])
        slope, counted = np.float64(state[i, SLOPE]), np.float64(state[i, BEND])
        if stamp == 0.0:
            seen += 1.0
            fresh += mass
            if not (labels[i] >= lowest and labels[i] - labels[i] == 0.0):
                unfit += 1.0
        stamps += number - stamp
        state[i, last] = number
        if mass * found[LOSS, p] > most:
            state[i, LOSS] = most / mass
            losses += mass * (np.float64(state[i, LOSS]) - before)
            changes[0, p], changes[1, p], changes[2, p] = 0.0, 0.0, 0.0
            continue
        state[i, LOSS], state[i, SLOPE] = found[LOSS, p], found[SLOPE, p]
        losses += mass * (np.float64(state[i, LOSS]) - before)
        changes[0, p] = mass * (np.float64(state[i, SLOPE]) - slope)
        least, stale = part * counted, abs(found[BEND, p] - counted) > part * counted
        if shaped:
            away, across = np.float64(state[i, SHAPE]), np.float64(state[i, MIXED])
            curved = np.float64(state[i, SHAPE_BEND])
            state[i, SHAPE] = found[SHAPE, p]
            shape += mass * (np.float64(state[i, SHAPE]) - away)
            stale |= abs(found[MIXED, p] - across) > least or abs(found[SHAPE_BEND, p] - curved) > least
            changes[2, p] = 0.0
            if stale:
                state[i, MIXED], state[i, SHAPE_BEND] = found[MIXED, p], found[SHAPE_BEND, p]
                changes[2, p] = mass * (np.float64(state[i, MIXED]) - across)
                own += mass * (np.float64(state[i, SHAPE_BEND]) - curved)
        changes[1, p] = 0.0
        if stale:
            bent += 1.0 if mass > 0.0 else 0.0
            state[i, BEND] = found[BEND, p]
            changes[1, p] = mass * (np.float64(state[i, BEND]) - counted)
    totals[LOSS] += losses
    totals[MASS] += fresh
    totals[SEEN] += seen
    totals[STAMPS] += stamps
    totals[UNFIT] += unfit
    totals[BENT] += bent
    totals[SHAPE] += shape
    totals[SHAPE_BEND] += own


@njit(nogil=True, cache=True)
def _add_rows(some, count, changes, at, target):
    """target += Σ changes[at + p] · some[p], with `at` a flat position; four sums at a time, which do not wait for each
    other."""
    width, fours = some.shape[1], count // 4 * 4
    for t in range(0, width, WIDE_LANES):
        a = load(target, t, WIDE_LANES)
        b, c, d = spread(0.0, a), spread(0.0, a), spread(0.0, a)
        for p in range(0, fours, 4):
            x = p * width + t
            step = splats(changes, at + p, 4, WIDE_LANES)
            a = fma(step[0], load(some, x, WIDE_LANES), a)
            b = fma(step[1], load(some, x + width, WIDE_LANES), b)
            c = fma(step[2], load(some, x + 2 * width, WIDE_LANES), c)
            d = fma(step[3], load(some, x + 3 * width, WIDE_LANES), d)
        for p in range(fours, count):
            a = fma(splats(changes, at + p, 1, WIDE_LANES)[0], load(some, p * width + t, WIDE_LANES), a)
        store(target, t, (a + b) + (c + d))


@njit(nogil=True, cache=True)
def _bent(some, count, changes, steps):
    """Rows whose bend has changed come to the front, and their changes into `steps`; how many."""
    width, place = some.shape[1], 0
    for p in range(count):
        if changes[1, p] == 0.0:
            continue
        steps[0, place] = changes[1, p]
        if place < p:
            for t in range(0, width, WIDE_LANES):
                store(some, place * width + t, load(some, p * width + t, WIDE_LANES))
        place += 1
    return place


@njit(nogil=True, cache=True)
def _add_squares(some, count, steps, target):
    """target += Σ steps[0, p] · some[p]²."""
    width = some.shape[1]
    for p in range(count):
        for t in range(0, width, WIDE_LANES):
            z = load(some, p * width + t, WIDE_LANES)
            store(target, t, fma(spread(steps[0, p], z) * z, z, load(target, t, WIDE_LANES)))
