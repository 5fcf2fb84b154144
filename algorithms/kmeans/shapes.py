"""Which kernel of k-means serves which shape of rows and clusters, and the kernel in the shape of this machine's
registers. Imports no compiler."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from flegel.algorithms.simd.registers import FEW_ROWS, group_sizes, tile_shape
from flegel.configuration.active import active
from flegel.core.entry_point import EntryPoint
from flegel.core.pytree import Array
from flegel.core.shard import Shard, Sparse
from flegel.declarations.kernels import Kernel, TeamCode


class ServedShape(NamedTuple):
    """From so many columns, and from so many products of columns and clusters on, this kernel serves dense rows."""

    columns: int
    products: int
    kernel: str
    why: str
    """What was measured."""


BOUNDS_LEAVE_OUT = "bounds by bands of clusters along leading directions leave out most distances"


def served_shapes() -> tuple[ServedShape, ...]:
    """The first line that a shape reaches decides."""
    return (
        ServedShape(
            columns=active().shapes.kmeans_bounds_columns,
            products=active().shapes.kmeans_bounds_products,
            kernel="bounds",
            why=f"{BOUNDS_LEAVE_OUT}; at 384 columns a later pass takes 0.4 (k=256) to 0.02 (k=4,096) of the time of "
            "tiles",
        ),
        ServedShape(
            columns=active().shapes.kmeans_narrow_bounds_columns,
            products=active().shapes.kmeans_narrow_bounds_products,
            kernel="bounds",
            why=f"{BOUNDS_LEAVE_OUT}; at k=4,096 a later pass takes 0.7 (32 columns) to 0.2 (96) of the time of tiles",
        ),
        ServedShape(
            columns=1,
            products=1,
            kernel="tiles",
            why="all distances in registers, 40 products a nanosecond; bounds would take a row 0.3 µs and more to look "
            "at",
        ),
    )


WIDE_COLUMNS, WIDE_K = 64, 2048
"""An example of a shape that bounds serve, for `flegel warm`."""


def served_by(k: int, columns: int) -> ServedShape:
    """The line of the table that decides for this shape."""
    return next(shape for shape in served_shapes() if columns >= shape.columns and columns * k >= shape.products)


def is_wide(k: int, columns: int) -> bool:
    """Does the kernel with bounds (`wide`) serve this shape?"""
    return served_by(k, columns).kernel == "bounds"


def starts_on_a_sample(k: int, columns: int) -> bool:
    """Is the start made along a few directions of a sample (`wide_start`)? Several starts in all columns would take
    longer than training."""
    rules = active().starts
    large = k >= rules.kmeans_sample_from_clusters and columns >= rules.kmeans_sample_from_columns
    return is_wide(k, columns) or large


def kernel_choice(k: int, columns: int) -> str:
    """Which kernel serves dense rows of this shape and why, in a sentence."""
    shape = served_by(k, columns)
    return f"{shape.kernel} for {columns:,} columns × {k:,} clusters = {columns * k:,} products a row: {shape.why}"


def kernel_sizes() -> list[int]:
    """Numbers of clusters that have all shapes between them."""
    return sorted({*group_sizes(), active().shapes.kmeans_float32_first_clusters, 2 * FEW_ROWS})


def kernel_for(shard: Shard, k: int) -> Kernel:
    """The kernel in the shape that this machine's registers, the precision and k ask for."""
    assert not isinstance(shard.features, Sparse)  # tiles are dense
    shape: tuple[int, ...] = tile_shape(shard.features.dtype, k)
    name = "kernel"
    if shard.features.dtype == np.float64 and k >= active().shapes.kmeans_float32_first_clusters:
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
