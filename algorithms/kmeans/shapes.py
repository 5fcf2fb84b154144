"""Which shape of its kernel k-means takes on this machine, and the kernel in that shape. Imports no compiler."""

from __future__ import annotations

from functools import cache
from typing import Any

from flegel.algorithm import Kernel
from flegel.algorithms.simd.registers import REGISTERS, register_lanes
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


def group_sizes() -> tuple[int, ...]:
    """Centroids of a group: the shapes that there are."""
    return (3, 5, 6, 8, 10) if REGISTERS == 32 else (3, 4, 6)


def tile_shape(dtype: Any, k: int) -> tuple[int, int]:
    """Lanes of a vector and centroids of a group; their products fill about two thirds of the registers.

    Each shape is compiled separately, so there are few, and the last group is filled up: k=6 to 9 in groups of 3, which
    fit, take 12 to 20 % longer than in one group. Results do not depend on the shape.
    """
    room, sizes = 20 if REGISTERS == 32 else 12, group_sizes()
    least = -(-k // -(-k // sizes[-1]))
    group = next(size for size in sizes if size >= least)
    registers = 2 if 4 * group > room else 4
    return registers * register_lanes(dtype), group


@cache
def _entry(lanes: int, group: int) -> EntryPoint:
    return EntryPoint("flegel.algorithms.kmeans.kernel", "build", lanes, group)
