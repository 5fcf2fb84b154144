"""Block kernels of logistic regression: dense tiles and sparse rows. Called by `lr`, never by users.

Each adds to the aggregator in place what `LR.updateDataPoint` would return for the points start … end-1, and
returns how far it came once the flag is raised.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from flegel.algorithm import Kernel
from flegel.runtime.flag import raised
from flegel.share import TILE, Share, Sparse
from flegel.tree import Array, Tree


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
def _tiles(features, labels, state, weights, bias, classes, penalty, memory, gradient, sums, start, end, flag):  # type: ignore[no-untyped-def]
    outputs, columns = weights.shape
    scores = np.empty(outputs)
    i = start
    while i < end:
        if raised(flag):
            return i
        tile = i // TILE
        stop = min(end, (tile + 1) * TILE)
        for at in range(i, stop):
            lane = at - tile * TILE
            target = _class_number(labels[at], classes)
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
        i = stop
    return end


def kernel_for(share: Share, memory: bool) -> Kernel:
    """The kernel for this share's layout."""
    sparse = isinstance(share.features, Sparse)
    keep = 1.0 if memory else 0.0

    def run(share: Share, parameter: Tree, aggregator: Tree, start: int, end: int, iteration: int, flag: Array) -> int:
        sums = np.zeros(5)  # loss, squares, seen, visits, unknown
        model = (parameter.weights, parameter.bias, parameter.classes, float(parameter.penalty[0]), keep)
        where = (aggregator.gradient, sums, start, end, flag)
        if sparse:
            rows = share.features
            reached = _sparse(rows.indptr, rows.indices, rows.values, share.labels, share.state, *model, *where)
        else:
            reached = _tiles(share.features, share.labels, share.state, *model, *where)
        for into, extra in zip(aggregator[1:], sums, strict=True):
            into += extra
        return int(reached)

    return run
