"""The loop over a block of points as Python runs it: the hooks, one point after the other. Compiles nothing."""

from __future__ import annotations

import numpy as np

from flegel.algorithm import Algorithm
from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.core.shard import DataPoint, Shard, Sparse, SparseRow
from flegel.declarations.kernels import Kernel, KernelHooks
from flegel.declarations.optional import defines, hook


def data_point(shard: Shard, i: int) -> DataPoint:
    """Point i of a shard in the rows layout."""
    weight = 1.0 if shard.weights is None else float(shard.weights[i])
    if isinstance(shard.features, Sparse):
        lo, hi = shard.features.indptr[i], shard.features.indptr[i + 1]
        row = SparseRow(shard.features.indices[lo:hi], shard.features.values[lo:hi])
        return DataPoint(row, shard.labels[i], shard.state[i], weight)
    return DataPoint(shard.features[i], shard.labels[i], shard.state[i], weight)


def as_hooks_see(algorithm: Algorithm, parameter: Tree, shard: Shard) -> Tree:
    """θ in the precision that the algorithm wants for its points. A copy for one call of a kernel, not for a point."""
    kind = shard.features.values.dtype if isinstance(shard.features, Sparse) else shard.features.dtype
    if not algorithm.kernels.narrow_parameter or not np.issubdtype(kind, np.floating):
        return parameter
    return pytree.unflatten(parameter, [a.astype(kind, copy=False) for a in pytree.flatten(parameter)])


def fold_change(algorithm: Algorithm, target: Tree, change: Tree) -> None:
    """`aggregate` in place, whether the user's version works in place or returns a new value."""
    result = algorithm.aggregate(target, change)
    if result is not None and result is not target:
        for into, value in zip(pytree.flatten(target), pytree.flatten(result), strict=True):
            into[...] = value


def interpreted(algorithm: Algorithm) -> Kernel:
    """The specification itself: the hooks, one point after the other."""

    def kernel(
        shard: Shard, parameter: Tree, aggregator: Tree, start: int, end: int, iteration: int, flag: Array
    ) -> int:
        """Visit points start … end-1 with the interpreter; returns the first point that was not visited."""
        if shard.layout != "rows":
            raise ValueError("the interpreted loop reads rows")
        theta = pytree.presented(as_hooks_see(algorithm, parameter, shard))
        presented, moves = theta, defines(algorithm, KernelHooks.localParameter)
        for i in range(start, end):
            if flag[0]:
                return i
            if shard.halted[i]:
                continue
            if moves:
                presented = hook(algorithm, KernelHooks.localParameter)(theta, pytree.present(aggregator))
            algorithm._halting = False
            change = algorithm.updateDataPoint(data_point(shard, i), presented, iteration)
            fold_change(algorithm, aggregator, change)
            if algorithm._halting:
                shard.halted[i] = 1
        return end

    return kernel
