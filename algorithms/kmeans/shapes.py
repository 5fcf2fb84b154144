"""Which shape of its kernel k-means takes on this machine, and the kernel in that shape. Imports no compiler."""

from __future__ import annotations

from functools import cache
from typing import Any

from flegel.algorithm import Kernel
from flegel.algorithms.simd.registers import tile_shape
from flegel.core.entry_point import EntryPoint
from flegel.core.pytree import Array
from flegel.core.shard import Shard, Sparse


def kernel_for(shard: Shard, k: int) -> Kernel:
    """The kernel in the shape that this machine's registers, the precision and k ask for."""
    assert not isinstance(shard.features, Sparse)  # tiles are dense
    train = _entry(*tile_shape(shard.features.dtype, k))

    def kernel(shard: Shard, parameter: Any, aggregator: Any, start: int, end: int, iteration: int, flag: Array) -> int:
        end = min(end, shard.points)
        return int(train(shard.features, shard.state, shard.weights, parameter, aggregator, start, end, flag))

    return kernel


@cache
def _entry(lanes: int, group: int) -> EntryPoint:
    return EntryPoint("flegel.algorithms.kmeans.kernel", "build", lanes, group)
