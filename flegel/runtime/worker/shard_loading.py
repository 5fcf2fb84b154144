"""The points of a worker when a job begins: rows, hidden states, the part that is trained on first. Trains nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flegel.algorithm import Algorithm
from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.core.shard import TILE, Shard, make_shard
from flegel.datasets import Rows
from flegel.machine.worker.growing_part import GrowingPart
from flegel.messages import LoadShard
from flegel.runtime.transport import shared_memory
from flegel.runtime.worker import shared_points
from flegel.runtime.worker.current_hook import inside
from flegel.runtime.worker.row_sources import OpenArray, load_rows


def load_shard(
    load: LoadShard,
    algorithm: Algorithm,
    layout: str,
    scaling: tuple[Array, ...],
    resumed: tuple[Array, ...],
    measured: tuple[Any, Rows] | None,
    open_array: OpenArray,
    doing: Callable[[str], None],
) -> Shard:
    """Rows and hidden states, those of a checkpoint where the job is `resumed`. `doing`: is told when a hook begins and
    ends."""
    ids = resumed[2] if resumed else None
    features, labels, ids, weights = load_rows(load, scaling, ids, measured, open_array)
    points = len(features.indptr) - 1 if hasattr(features, "indptr") else len(features)
    columns = features.columns if hasattr(features, "columns") else features.shape[1]
    rng = np.random.default_rng([load.seed, load.index])
    doing("initState")
    with inside("initState"):
        state = np.array(resumed[0]) if resumed else algorithm.initState(points, columns, rng)
    doing("loading")
    shared = load.lend and shared_points.wanted()
    empty = shared_memory.empty if shared else np.empty
    shard = make_shard(features, algorithm.labels_for_points(labels), state, layout, ids, empty, weights)
    if shared:
        shared_points.make_shareable(shard)
    return shard


def growing_part(algorithm: Algorithm, shard: Shard, parameter: Tree) -> GrowingPart | None:
    """The part that a worker which is alone trains on first; None where all points come first."""
    if algorithm.part_noise(1.0, 1, parameter) is None:
        return None
    grid = TILE if shard.layout == "tiles" else 1
    numbers = sum(array.size for array in pytree.flatten(pytree.without(parameter, algorithm.auxiliary)))

    def noise(objective: float, points: int) -> float | None:
        return algorithm.part_noise(objective, points, parameter)

    part = GrowingPart(shard.points, shard.columns, numbers, grid, algorithm.maximize, noise)
    return None if part.over else part
