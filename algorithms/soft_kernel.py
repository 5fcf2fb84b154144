"""Kernels of the soft clusterings as algorithms call them: in parts of fixed length. Imports no compiler."""

from __future__ import annotations

from typing import Any

from flegel.algorithms.simd.registers import register_lanes
from flegel.core.entry_point import EntryPoint
from flegel.core.pytree import Array
from flegel.core.shard import TILE, Shard, Sparse
from flegel.declarations.kernels import COUNTING, Kernel, TeamCode

CUT = -40.0  # relative memberships below e^CUT count as 0: they would lead to denormal numbers
NEAR = 1e-30  # lower bound of a squared distance: a point on a centroid belongs to it, without a division by 0
FILLED = 16  # vectors that a register tile of sums runs over, so that its own loads and stores cost little
MANY = 512  # clusters for which one tile takes long enough
GRID, LEAST_GRID = 1 << 16, 1 << 11  # points between two places at which all sums are added up
GRID_WORK = 1 << 29  # columns² × numbers of the state × points between them, at most: a call has to return


class GridKernel:
    """A kernel in parts that end at multiples of `grid`, where its float32 sums begin anew: whoever cuts a pass into
    calls at such multiples, by whatever clock, gets the same bits."""

    team: TeamCode

    def __init__(self, part: Kernel, shard: Shard) -> None:
        self._part = part
        work = shard.columns**2 * max(shard.state.shape[1], 1)
        self.grid = max(min(GRID, 1 << max(GRID_WORK // work, 1).bit_length() - 1), LEAST_GRID)

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
    return max(1, FILLED * register_lanes(dtype) // TILE) if k <= MANY else 1


def soft_kernel(train: EntryPoint, shard: Shard, k: int, *settings: float) -> Kernel:
    """The kernel `train`, which takes some tiles at once and these settings."""
    assert not isinstance(shard.features, Sparse)  # tiles are dense
    tiles = tiles_at_once(shard.features.dtype, k)

    def kernel(shard: Shard, parameter: Any, aggregator: Any, start: int, end: int, iteration: int, flag: Array) -> int:
        arrays = shard.features, shard.state, shard.weights, parameter, aggregator
        return int(train(*arrays, start, end, flag, tiles, *settings, iteration == COUNTING))

    made = GridKernel(kernel, shard)
    serve = EntryPoint(train.module, "serve")
    made.team = TeamCode(serve, lambda iteration: (tiles, *settings, iteration == COUNTING), made.grid)
    return made
