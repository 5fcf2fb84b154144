"""Logistic regression of many outputs over wide dense rows: scores and gradients of a block as matrix products.

NumPy's BLAS multiplies; compiled code makes residuals of scores and keeps them in the state, as `kernels._tiles` does.
A block is finished once its residuals are kept, so the stop flag is read between blocks and after their scores.
"""

from __future__ import annotations

import numpy as np

from flegel.algorithms.lr.curvature import add_squares
from flegel.algorithms.lr.point import MOST_SCORE, bend_of, class_number, outdated
from flegel.algorithms.simd.math import exp
from flegel.algorithms.simd.vectors import any_lane, cast_like, fma, load, maximum, minimum, spread, store, total, widen
from flegel.core.code_cache import njit
from flegel.core.pytree import Array, Tree
from flegel.core.shard import Shard, Sparse

BLOCK_ROWS = 512
"""Rows of a block: its gradient is added to float64 sums once, which of 2,048 columns × 1,000 classes takes a twelfth
of the block's time; with 256 rows a fifth."""
SUMMED_NUMBERS = 2**20
"""Numbers of a product that exist at a time before they are added to the gradient: 4 MB in float32."""
LANES = 16  # outputs of a row at a time
PAIRS_BY_PRODUCT = 64
"""The outputs of a row divided by this: so many outdated curvatures a row, in the mean of a block, cost as much one by
one as a product for all outputs."""
UNKNOWN = 4  # place of rows with unknown labels in the sums


@njit(nogil=True, cache=True, error_model="numpy")
def _settle(scores, bias, labels, state, masses, start, model, classes, steps, bends, counts, sums):
    """Scores of points start … become residuals, which are kept in the state; how far they changed is written to
    `steps`, and how far curvatures did to `bends`, of which all are 0 before. How many of these are not 0 then."""
    importance, (penalty, memory, epoch, part, floor, cap) = model
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
            scores[r, k] = min(max(scores[r, k] + bias[k], kind(-MOST_SCORE)), kind(MOST_SCORE))
        scores[r, outputs:] = kind(-MOST_SCORE)
        at = r * width
        highest = load(scores, at, LANES)
        for k in range(LANES, width, LANES):
            highest = maximum(highest, load(scores, at + k, LANES))
        store(steps, r * width, highest)
        top = steps[r, 0]
        for k in range(1, LANES):
            top = max(top, steps[r, k])
        mine = np.float64(scores[r, target]) - np.float64(top)
        for k in range(0, width, LANES):
            z = load(scores, at + k, LANES)
            store(scores, at + k, exp(z - top))
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
        pairs += _keep(scores, r, whole, state, i, (kind(weight), share, memory, part, floor, cap), steps, bends)
        stamp = np.float64(state[i, 2 * outputs + 1])
        if stamp == 0.0:
            counts[target] += mass
            sums[1] += 1.0
        before = np.float64(state[i, outputs])
        state[i, outputs] = weight * (np.log(rest + own) - mine) + penalty
        state[i, 2 * outputs + 1] = epoch
        sums[0] += np.float64(state[i, outputs]) - before
        sums[2] += epoch - stamp
        sums[3] += 1.0
    return pairs


@njit(nogil=True, cache=True, error_model="numpy")
def _keep(scores, r, whole, state, i, numbers, steps, bends):
    """Residuals of row r, in `scores` but for the factor `share`, into the state of point i. The number of outdated
    curvatures, which are counted again."""
    weight, share, memory, part, floor, cap = numbers
    outputs, width = (state.shape[1] - 2) // 2, scores.shape[1]
    kind = scores.dtype.type
    at, own, count = r * width, i * state.shape[1], 0
    curved = own + outputs + 1
    worst = spread(-1.0, load(scores, at, LANES))
    for k in range(0, whole, LANES):
        residual = load(scores, at + k, LANES) * share
        before, counted = load(state, own + k, LANES), load(state, curved + k, LANES)
        size = maximum(residual, spread(0.0, residual) - residual)
        cut = minimum(size, spread(cap, size))
        bend, after = (kind(2.0) * weight) * (cut * (1.0 - cut)), residual * weight
        apart = maximum(bend - cast_like(counted, bend), cast_like(counted, bend) - bend)
        worst = maximum(worst, apart - fma(cast_like(counted, bend), spread(part, bend), spread(floor, bend)))
        store(state, own + k, cast_like(after, before))
        store(steps, at + k, after - kind(memory) * cast_like(before, after))
        store(scores, at + k, residual)
    for k in range(whole, outputs):
        scores[r, k] *= share
        before = state[i, k]
        state[i, k] = weight * scores[r, k]
        steps[r, k] = state[i, k] - memory * before
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
def _add(product, first, target):
    """target[first + k] += product[k], but for the last column."""
    for k in range(product.shape[0]):
        for t in range(product.shape[1]):
            target[first + k, t] += product[k, t]


@njit(nogil=True, cache=True)
def _add_pairs(rows, start, bends, metric, target):
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


class ProductKernel:
    """The kernel of one thread. Call it as `flegel.algorithm.Kernel` says."""

    def __init__(self, memory: bool) -> None:
        self._memory = 1.0 if memory else 0.0
        self._of: Array | None = None
        """The weights that `_weights` were made of: a call may visit a few rows only."""
        self._weights = self._scores = self._steps = self._bends = np.empty((0, 0))

    def __call__(
        self, shard: Shard, parameter: Tree, aggregator: Tree, start: int, end: int, iteration: int, flag: Array
    ) -> int:
        assert not isinstance(shard.features, Sparse)
        end, rows = min(end, shard.points), shard.features
        outputs = len(parameter.weights)
        kind = rows.dtype if rows.dtype in (np.float32, np.float64) else np.dtype(np.float64)
        self._prepare(parameter.weights, kind)
        bias = parameter.bias.astype(kind)
        penalty, epoch, part, floor, cap = (float(number) for number in parameter.internal_visit[:5])
        model = (parameter.internal_importance, (penalty, self._memory, epoch, part, floor, cap))
        points, sums, metric = (shard.labels, shard.state, shard.weights), np.zeros(5), parameter.internal_metric
        at = start
        while True:
            stop = min(at + BLOCK_ROWS, end)
            if at < stop and flag[0]:
                break
            some, count = np.asarray(rows[at:stop], dtype=kind), stop - at
            scores, steps, bends = self._scores[:count], self._steps[:count], self._bends[:count]
            np.matmul(some, self._weights.T, out=scores[:, :outputs])
            if at > start and flag[0]:  # a block that was begun first is finished, so every call comes on
                break
            settings = (model, parameter.classes, steps, bends, aggregator.counts, sums)
            pairs = _settle(scores, bias, *points, at, *settings)
            self._sum(steps[:, :outputs], some, aggregator.gradient)
            if pairs * PAIRS_BY_PRODUCT > count * outputs:
                squares = (some - metric[0, :-1].astype(kind)) * (1.0 / metric[1, :-1]).astype(kind)
                np.multiply(squares, squares, out=squares)
                self._sum(bends[:, :outputs], squares, aggregator.curvature[:, 0])
            else:
                _add_pairs(rows, at, bends[:, :outputs], metric, aggregator.curvature[:, 0])
            if pairs:
                bends[:] = 0.0
            at = stop
            if at >= end:
                break
        for into, extra in zip(aggregator[3:], sums, strict=True):
            into += extra
        return at

    def _prepare(self, weights: Array, kind: np.dtype[np.floating]) -> None:
        outputs = len(weights)
        width = -(-outputs // LANES) * LANES
        if self._scores.shape[1] != width or self._scores.dtype != kind:
            self._scores, self._steps, self._bends = (np.zeros((BLOCK_ROWS, width), kind) for _ in range(3))
        if self._of is not weights:
            self._of, self._weights = weights, weights.astype(kind)

    def _sum(self, factors: Array, rows: Array, target: Array) -> None:
        """target += factorsᵀ·(rows, 1)."""
        several = max(SUMMED_NUMBERS // rows.shape[1], 1)
        for first in range(0, len(target), several):
            _add(factors[:, first : first + several].T @ rows, first, target)
        target[:, -1] += factors.sum(axis=0, dtype=np.float64)
