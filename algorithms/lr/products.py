"""Logistic regression of many outputs over wide dense rows: scores and gradients of a block as matrix products.

NumPy's BLAS multiplies; compiled code makes residuals of scores and keeps them in the state, as `kernels._tiles` does.
A block is finished once its residuals are kept, so the stop flag is read between blocks and between parts of their
scores: of 2,048 columns × 1,000 outputs every 15 ms, but for the 25 ms that a gradient takes.
"""

from __future__ import annotations

import numpy as np

from flegel.algorithms.lr.shapes import LANES
from flegel.configuration.active import active
from flegel.core.entry_point import EntryPoint
from flegel.core.pytree import Array, Tree
from flegel.core.shard import TILE, Shard, Sparse

_SETTLE, _ADD_PAIRS, _ADD_PRODUCT = (
    EntryPoint("flegel.algorithms.lr.product_kernel", name) for name in ("settle", "add_pairs", "add_product")
)


class ProductKernel:
    """The kernel of one thread. Call it as `flegel.algorithm.Kernel` says."""

    def __init__(self, memory: bool) -> None:
        self._memory = 1.0 if memory else 0.0
        self._rules = active().lr
        self.rows_at_once = self._rules.product_rows
        """A call that visits fewer takes longer for each: the gradient is added to the sums once a call."""
        self.grid = self._rules.product_rows
        """Blocks of a call end at multiples of it, so calls that end there, too, give the same bits."""
        self.unit = -(-self.grid // TILE) * TILE
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
        penalty, theta_number, part, floor, cap = (float(number) for number in parameter.internal_visit[:5])
        model = (parameter.internal_importance, (penalty, self._memory, theta_number, part, floor, cap))
        points, metric = (shard.labels, shard.state, shard.weights), parameter.internal_metric
        sums = np.array([field[0] for field in aggregator[3:]])
        at = start
        while True:
            stop = min((at // self.grid + 1) * self.grid, end)
            if at < stop and flag[0]:
                break
            some, count = np.asarray(rows[at:stop], dtype=kind), stop - at
            scores, steps, bends = self._scores[:count], self._steps[:count], self._bends[:count]
            # The first block of a call is finished, so that every call comes on.
            if not self._multiply(some, scores[:, :outputs], flag if at > start else None):
                break
            settings = (model, parameter.classes, steps, bends, aggregator.counts, sums)
            pairs = int(_SETTLE(scores, bias, *points, at, *settings))
            self._sum(steps[:, :outputs], some, aggregator.gradient)
            if pairs * self._rules.outputs_per_outdated_curvature > count * outputs:
                squares = (some - metric[0, :-1].astype(kind)) * (1.0 / metric[1, :-1]).astype(kind)
                np.multiply(squares, squares, out=squares)
                self._sum(bends[:, :outputs], squares, aggregator.curvature[:, 0])
            else:
                _ADD_PAIRS(rows, at, bends[:, :outputs], metric, aggregator.curvature[:, 0])
            if pairs:
                bends[:] = 0.0
            at = stop
            if at >= end:
                break
        for into, total in zip(aggregator[3:], sums, strict=True):
            into[0] = total
        return at

    def _multiply(self, rows: Array, scores: Array, flag: Array | None) -> bool:
        """rows · weightsᵀ, some outputs at a time; False where the flag was raised meanwhile."""
        several = max(self._rules.product_multiplications // rows.size, LANES) if rows.size else scores.shape[1]
        for first in range(0, scores.shape[1], several):
            np.matmul(rows, self._weights[first : first + several].T, out=scores[:, first : first + several])
            if flag is not None and flag[0]:
                return False
        return True

    def _prepare(self, weights: Array, kind: np.dtype[np.floating]) -> None:
        outputs = len(weights)
        width = -(-outputs // LANES) * LANES
        if self._scores.shape[1] != width or self._scores.dtype != kind:
            self._scores, self._steps, self._bends = (
                np.zeros((self._rules.product_rows, width), kind) for _ in range(3)
            )
        if self._of is not weights:
            self._of, self._weights = weights, weights.astype(kind)

    def _sum(self, factors: Array, rows: Array, target: Array) -> None:
        """target += factorsᵀ·(rows, 1)."""
        several = max(self._rules.product_numbers // rows.shape[1], 1)
        for first in range(0, len(target), several):
            _ADD_PRODUCT(factors[:, first : first + several].T @ rows, first, target)
        target[:, -1] += factors.sum(axis=0, dtype=np.float64)
