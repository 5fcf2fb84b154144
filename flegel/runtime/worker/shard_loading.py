"""From the order to load a shard to the shard: rows read and laid out, hidden states made, the part that is trained on
first. Trains nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from flegel.algorithm import Algorithm
from flegel.core import pytree
from flegel.core.parallel_sums import in_pieces
from flegel.core.pytree import Array, Tree
from flegel.core.row_windows import RowWindows, at_once
from flegel.core.shard import TILE, Shard, Sparse, aligned, make_shard, unit_rows
from flegel.datasets import Rows
from flegel.datasets.rows import memory
from flegel.declarations.accepts import RowHooks
from flegel.declarations.learning import LearningHooks
from flegel.declarations.optional import hook
from flegel.machine.worker.growing_part import GrowingPart, OwnStatistics, PartAmongOthers, PartLimits
from flegel.machine.worker.local_updates import Call
from flegel.messages import LoadShard
from flegel.runtime.transport import shared_memory
from flegel.runtime.worker import shared_points
from flegel.runtime.worker.current_hook import EnteredHook
from flegel.runtime.worker.row_sources import load_rows
from flegel.runtime.worker.rows_in_place import IN_PLACE, OpenArray


class ResumedArrays(NamedTuple):
    """Frames of a `CheckpointPart`, with which a worker begins."""

    states: Array
    halted: Array
    """Halting votes of the points."""
    ids: Array
    """Their numbers in the whole data."""
    statistics: tuple[Array, ...]
    """Changes that had not been reported."""


def load_shard(
    load: LoadShard,
    algorithm: Algorithm,
    layout: Callable[[int], str],
    scaling: tuple[Array, ...],
    resumed: ResumedArrays | None,
    measured: tuple[Any, Rows] | None,
    open_array: OpenArray,
    doing: Callable[[str], None],
    threads: bool,
) -> Shard:
    """Rows and hidden states, those of a checkpoint where the job is `resumed`. `layout`: for so many
    columns. `doing` is told what may fail now.
    `threads`: all workers are in this process, so that points can be lent wherever they are."""
    with memory.shared_by(load.count):
        rows = load_rows(load, scaling, resumed.ids if resumed else None, measured, open_array)
        features = rows.features
        points = len(features.indptr) - 1 if isinstance(features, Sparse) else len(features)
        columns = features.columns if isinstance(features, Sparse) else features.shape[1]
        large = not isinstance(features, Sparse) and memory.exceeds_memory(points * columns * features.dtype.itemsize)
    doing("initState")
    rng = np.random.default_rng([load.seed, load.index])
    with EnteredHook("initState"):
        state = np.array(resumed.states) if resumed else algorithm.initState(points, columns, rng)
    doing("loading")
    shared = load.lend and shared_points.wanted() and not threads and not large
    empty = in_scratch_file if large else shared_memory.empty if shared else aligned
    labels = algorithm.accepts.kept_labels(rows.labels)
    unit = hook(algorithm, RowHooks.unit_rows)()
    if unit and load.source.get("kind") in ("dataset", IN_PLACE) and not isinstance(features, RowWindows):
        features = unit_rows(features, own=True)  # what was read is this worker's alone
    share_out = in_pieces if load.threads > 1 else at_once
    shard = make_shard(features, labels, state, layout(columns), rows.ids, empty, rows.weights, unit, share_out)
    if shared:
        shared_points.make_shareable(shard)
    return shard


def in_scratch_file(shape: tuple[int, ...], dtype: Any) -> Array:
    """Room for rows above the memory limit."""
    return memory.scratch(shape, np.dtype(dtype))


def part_of_worker(
    load: LoadShard, algorithm: Algorithm, shard: Shard, parameter: Tree, empty: Tree, call: Call
) -> GrowingPart | PartAmongOthers | None:
    """What a worker trains on first; None where all points come first: among others unless its points are in a scratch
    file, where visits of points that are in memory already cost little beside those of others."""
    if not load.growing:
        return None
    if load.alone:
        return growing_part(algorithm, shard, parameter)
    if not memory.in_scratch_file(shard.features) or (limits := _limits(algorithm, shard, parameter)) is None:
        return None
    part = PartAmongOthers(limits, load.count, OwnStatistics(parameter, empty, call))
    return None if part.over else part


def growing_part(algorithm: Algorithm, shard: Shard, parameter: Tree) -> GrowingPart | None:
    """The part that a worker which is alone trains on first; None where all points come first."""
    limits = _limits(algorithm, shard, parameter)
    part = None if limits is None else GrowingPart(*limits)
    return None if part is None or part.over else part


def _limits(algorithm: Algorithm, shard: Shard, parameter: Tree) -> PartLimits | None:
    """None: the algorithm does not know the noise of a part."""
    part_noise = hook(algorithm, LearningHooks.part_noise)
    if part_noise(1.0, 1, parameter) is None:
        return None
    grid = TILE if shard.layout == "tiles" else 1
    numbers = sum(array.size for array in pytree.flatten(pytree.without(parameter, algorithm.learning.auxiliary)))

    def noise(objective: float, points: int) -> float | None:
        return part_noise(objective, points, parameter)

    return PartLimits(shard.points, shard.columns, numbers, grid, algorithm.learning.maximize, noise)
