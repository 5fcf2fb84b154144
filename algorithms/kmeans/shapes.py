"""Which shape of its kernel k-means takes on this machine, and the kernel in that shape. Imports no compiler."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from flegel.algorithms.simd.registers import FEW_ROWS, group_sizes, tile_shape
from flegel.core.entry_point import EntryPoint
from flegel.core.pytree import Array
from flegel.core.shard import Shard, Sparse
from flegel.declarations.kernels import Kernel, TeamCode

MANY = 16
"""Centroids from which on it pays to compare in float32 first where points are float64."""


def kernel_sizes() -> list[int]:
    """Numbers of clusters that have all shapes between them."""
    return sorted({*group_sizes(), MANY, 2 * FEW_ROWS})


def kernel_for(shard: Shard, k: int) -> Kernel:
    """The kernel in the shape that this machine's registers, the precision and k ask for."""
    assert not isinstance(shard.features, Sparse)  # tiles are dense
    shape: tuple[int, ...] = tile_shape(shard.features.dtype, k)
    name = "kernel"
    if shard.features.dtype == np.float64 and k >= MANY:
        shape, name = (*tile_shape(np.float32, k), *shape), "narrow_kernel"
    train = _entry(name, "build", *shape)

    def kernel(shard: Shard, parameter: Any, aggregator: Any, start: int, end: int, iteration: int, flag: Array) -> int:
        end = min(end, shard.points)
        return int(train(shard.features, shard.state, shard.weights, parameter, aggregator, start, end, flag))

    kernel.team = TeamCode(_entry(name, "build_team", *shape), lambda iteration: (), shard.points)  # type: ignore[attr-defined]
    return kernel


@cache
def _entry(name: str, function: str, *shape: int) -> EntryPoint:
    return EntryPoint(f"flegel.algorithms.kmeans.{name}", function, *shape)
