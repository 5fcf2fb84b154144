"""One visit to one point in logistic regression: residuals, loss, curvature, and what of them is kept.

Shared by the per-point hook and the block kernels. Never sees features.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flegel.configuration.compiled import kernel_settings
from flegel.core.code_cache import njit
from flegel.core.pytree import Array

MOST_SCORE, MOST_CLASS_SCORE = 1e5, 1e30
"""Bound of |score| of two classes, and of how far a class's score is below the highest one. Sums are kept by
difference, so a huge loss under a θ that is later rejected would cost digits. Scores of many classes themselves are
bounded far beyond: several that are at a bound would be equal."""
LOSS, SEEN, STAMPS, VISITS, UNKNOWN, BENT, SUMS = range(7)
"""Places in the sums of a visit or kernel: loss, points visited for the first time, changes of the numbers of θ at the
last visits, visits, rows with unknown labels, and points whose curvature is not what it was at their last visit; and
how many places."""
BENT_PART = kernel_settings().lr_bent_part
LEAST_BEND = 1e-24
"""Of a point's weight: with less curvature a row that is 1e9 times as long as another one does not weigh more."""


@njit(nogil=True, cache=True)
def residuals(scores: Array, target: int) -> float:
    """Turns the scores of one point into probability − target, in place, and returns its log-loss."""
    if scores.shape[0] == 1:
        score = min(max(scores[0], -MOST_SCORE), MOST_SCORE)
        small = np.exp(-abs(score))
        high, low = 1.0 / (1.0 + small), small / (1.0 + small)  # 1 − p loses digits where p is near 1
        if target == 1:
            scores[0] = -low if score >= 0.0 else -high
        else:
            scores[0] = high if score >= 0.0 else low
        wrong = -score if target == 1 else score
        loss: float = max(wrong, 0.0) + np.log1p(small)
        return loss
    for k in range(scores.shape[0]):
        scores[k] = min(max(scores[k], -MOST_CLASS_SCORE), MOST_CLASS_SCORE)
    top = scores.max()
    mine = max(scores[target] - top, -MOST_SCORE)
    whole = 0.0
    for k in range(scores.shape[0]):
        scores[k] = np.exp(max(scores[k] - top, -MOST_SCORE))
        whole += scores[k]
    for k in range(scores.shape[0]):
        scores[k] /= whole
    # 1 − p loses digits where p is near 1; the sum of the other probabilities does not.
    rest = 0.0
    for k in range(scores.shape[0]):
        if k != target:
            rest += scores[k]
    scores[target] = -rest
    log_loss: float = np.log(whole) - mine
    return log_loss


@njit(nogil=True, cache=True)
def class_number(label: Any, classes: Array) -> int:
    for c in range(classes.shape[0]):
        if label == classes[c]:
            return c
    return -1


@njit(nogil=True, cache=True, forceinline=True)
def bend_of(size, cap):
    """Curvature by the score, from |residual|: p·(1 − p), with the residual cut off at `cap`; with a cap of 0 that of
    the parabola which bounds the loss everywhere (Jaakkola and Jordan): tanh(z/2) / 2z. Below 0: none.
    """
    if cap < 0.0:
        return 0.0
    if cap == 0.0:
        side = max(min(size, 1.0 - size), 1e-30)
        score = np.log((1.0 - side) / side)
        return (0.5 - side) / score if score > 1e-2 else 0.25
    cut = min(size, cap)
    return cut * (1.0 - cut)


@njit(nogil=True, cache=True, forceinline=True)
def outdated(now, counted, part, floor):
    """A point's curvature is counted again where it has changed by more than `part` and is not negligible."""
    return abs(now - counted) > part * counted + floor


@njit(nogil=True, cache=True, forceinline=True)
def last_bend(size, weight):
    """Curvature at the last visit, without its weight, from the residual that was kept then, with it."""
    share = size / weight if weight > 0.0 else 0.0
    return share * (1.0 - share)


@njit(nogil=True, cache=True)
def visit(scores, target, weight, state, model, gradient_steps, curvature_steps, sums):
    """One visit: scores → new state, what its gradient and curvature change by, sums. True: curvature changed.

    `weight` is that of the point. `state` holds a residual an output, the loss, a curvature an output, and the number
    of θ at the last visit.
    """
    importance, (penalty, memory, theta_number, part, floor, cap) = model
    outputs = scores.shape[0]
    weight = weight * importance[target]
    loss = weight * residuals(scores, target)
    double = 1.0 if outputs == 1 else 2.0
    changed, apart, most = False, 0.0, 0.0
    for k in range(outputs):
        bend = double * weight * bend_of(abs(scores[k]), cap)
        counted, now = np.float64(state[outputs + 1 + k]), np.float64(np.float32(bend))
        curvature_steps[k] = 0.0
        if outdated(now, counted, part, floor):
            state[outputs + 1 + k] = now
            curvature_steps[k] = now - counted
            changed = True
        before = np.float64(state[k])
        bend, last = abs(scores[k]) * (1.0 - abs(scores[k])), last_bend(abs(before), weight)
        apart, most = max(apart, abs(bend - last)), most + max(bend, last)
        state[k] = weight * scores[k]
        gradient_steps[k] = np.float64(state[k]) - memory * before
    old, stamp = np.float64(state[outputs]), np.float64(state[2 * outputs + 1])
    state[outputs] = loss + penalty
    state[2 * outputs + 1] = theta_number
    sums[LOSS] += np.float64(state[outputs]) - old
    sums[SEEN] += 1.0 if stamp == 0.0 else 0.0
    sums[STAMPS] += theta_number - stamp
    sums[VISITS] += 1.0
    if apart > BENT_PART * most and most > LEAST_BEND and weight > 0.0:
        sums[BENT] += 1.0
    return changed
