"""Kernels whose sums begin anew at fixed places, as algorithms call them: of the soft clusterings, and of logistic
regression over dense tiles. Imports no compiler."""

from __future__ import annotations

from functools import cache
from typing import Any

from flegel.algorithms.simd.registers import register_lanes
from flegel.configuration.compiled import kernel_settings
from flegel.core.entry_point import EntryPoint
from flegel.core.pytree import Array
from flegel.core.shard import TILE, Shard, Sparse
from flegel.declarations.kernels import COUNTING, Kernel, TeamCode

CUT = -40.0  # relative memberships below e^CUT count as 0: they would lead to denormal numbers
NEAR = 1e-30  # lower bound of a squared distance: a point on a centroid belongs to it, without a division by 0


class GridKernel:
    """A kernel in parts that end at multiples of `grid`, where its sums begin anew: whoever cuts a pass into
    calls at such multiples, by whatever clock, gets the same bits."""

    team: TeamCode

    def __init__(self, part: Kernel, shard: Shard) -> None:
        self._part = part
        work = shard.columns**2 * max(shard.state.shape[1], 1)
        rules = kernel_settings()
        grid = max(min(rules.soft_grid_points, rules.soft_grid_work // work), rules.soft_least_grid_points)
        self.grid = 1 << (grid.bit_length() - 1)

    def __call__(
        self, shard: Shard, parameter: Any, aggregator: Any, start: int, end: int, iteration: int, flag: Array
    ) -> int:
        end = min(end, shard.points)
        while start < end:
            stop = min(end, (start // self.grid + 1) * self.grid)
            reached = self._part(shard, parameter, aggregator, start, stop, iteration, flag)
            if reached < stop:
                return reached
            start = stop
        return end


def tiles_at_once(dtype: Any, k: int) -> int:
    """Tiles between two M-steps: enough to fill long vectors, few enough to answer the stop flag at once."""
    rules = kernel_settings()
    tiles = rules.soft_filled_vectors * register_lanes(dtype) // TILE
    return max(1, tiles) if k <= rules.soft_one_tile_clusters else 1


def soft_kernel(train: EntryPoint, shard: Shard, k: int, *settings: float) -> Kernel:
    """The kernel `train`, which takes some tiles at once and these settings."""
    assert not isinstance(shard.features, Sparse)  # tiles are dense
    tiles = tiles_at_once(shard.features.dtype, k)

    def kernel(shard: Shard, parameter: Any, aggregator: Any, start: int, end: int, iteration: int, flag: Array) -> int:
        arrays = shard.features, shard.state, shard.weights, parameter, aggregator
        return int(train(*arrays, start, end, flag, tiles, *settings, iteration == COUNTING))

    made = GridKernel(kernel, shard)
    made.team = TeamCode(_loop(train.module), lambda iteration: (tiles, *settings, iteration == COUNTING), made.grid)
    return made


@cache
def _loop(module: str) -> EntryPoint:
    """The team's loop around `train`. One for all jobs: each linked code anew, which stays until the process ends."""
    return EntryPoint(module, "serve")
