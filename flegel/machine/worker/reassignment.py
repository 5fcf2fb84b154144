"""Points that change owner outside a migration: found, given up, taken over, begun again. Arrays only, no I/O.

A migration carries points from worker to worker. When the workers of a job change there may be no worker to carry them:
then the new owner reads the rows where all rows are, and only numbers, hidden states and passes travel, if any.
Called at rest only, by the thread that owns the point store.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Protocol

import numpy as np

from flegel.core.pytree import Array
from flegel.core.shard import Shard, Sparse
from flegel.machine.worker.point_store import PointStore
from flegel.machine.worker.window_codec import put_states, take_states
from flegel.machine.worker.worker import PointsReassigned
from flegel.messages import (
    AssignPoints,
    GiveUpPoints,
    ListPoints,
    PointsAssigned,
    PointsGivenUp,
    PointsListed,
    ReassignmentOrder,
    ResetPoints,
)

States = Callable[[int], Array]
"""Makes hidden states for a number of points that were never visited."""


class RowReader(Protocol):
    """Reads rows by their numbers and makes shards of them."""

    def unvisited(self, ids: Array) -> Shard:
        """These rows with fresh states, in any order."""

    def visited(self, ids: Array, states: Array) -> Shard:
        """These rows with these states, in this order."""

    def fresh_states(self, points: int) -> Array: ...


def carry_out(
    store: PointStore, order: ReassignmentOrder, arrays: tuple[Array, ...], rows: RowReader
) -> PointsReassigned:
    """Carry out one order about points that change owner; returns the answer to the coordinator with its arrays.
    `arrays` are those of the order, `rows` reads rows that come without a worker to send them."""
    match order:
        case ListPoints(rows=total):
            return PointsReassigned(PointsListed(**summary(store)), (census(store, total),))
        case ResetPoints():
            reset(store, rows.fresh_states)
            return PointsReassigned(None)
        case GiveUpPoints(points=points):
            gone = part(store, points)
            return PointsReassigned(PointsGivenUp(**summary(store)), gone)
        case AssignPoints(visited=True):
            ids, states, halted, passes, anew = arrays
            inherit(store, rows.visited(ids, states), halted, passes, anew)
        case AssignPoints(passes=passed):
            adopt(store, rows.unvisited(arrays[0]), passed)
    return PointsReassigned(PointsAssigned(**summary(store)))


def summary(store: PointStore) -> dict[str, int]:
    """The fields of `PointsSummary`: how many points this worker owns, how many of them were never visited (`unseen`)
    or voted to halt (`halted`), and the sum of their passes."""
    schedule = store.schedule
    return {
        "points": schedule.owned,
        "unseen": schedule.unseen,
        "halted": store.halted,
        "pass_sum": schedule.pass_sum,
    }


def census(store: PointStore, rows: int) -> Array:
    """One bit for each of all rows, set where the row is held here."""
    mine = np.zeros(rows, bool)
    for s in store.schedule.held():
        mine[store.shards[s.shard].ids[s.start : s.end]] = True
    return np.packbits(mine)


def reset(store: PointStore, fresh: States) -> None:
    """All points here are as if never visited. Inactive copies stay what they are: others rely on them."""
    for s in store.schedule.held():
        shard = store.shards[s.shard]
        put_states(shard, np.arange(s.start, s.end), fresh(s.points))
        shard.halted[s.start : s.end] = 0
    store.forget_votes()
    store.schedule.forget_visits()


def part(store: PointStore, points: int) -> tuple[Array, ...]:
    """Give up `points` points (0: all). Returns arrays over them: ids, states, halting votes, passes, and whether they
    count as never visited."""
    native = store.shards[0]
    store.version += 1
    gone = store.schedule.part(points or store.schedule.owned)
    if not gone:
        empty = np.zeros(0, np.int64)
        return empty, take_states(native, empty), empty.astype(np.uint8), empty, empty.astype(np.uint8)
    pieces = []
    for s in gone:
        shard = store.shards[s.shard]
        pieces.append(
            (
                shard.ids[s.start : s.end],
                take_states(shard, np.arange(s.start, s.end)),
                shard.halted[s.start : s.end],
                np.full(s.points, s.passes),
                np.full(s.points, s.anew, np.uint8),
            )
        )
    return tuple(np.ascontiguousarray(np.concatenate(column)) for column in zip(*pieces, strict=True))


def adopt(store: PointStore, shard: Shard, passes: int) -> None:
    """Own the points of `shard`, which were never visited, or are not known to have been: they are visited before all
    others, once. `passes`: what they count as where this worker has no points to compare with."""
    least = min((s.passes for s in store.schedule.held()), default=passes + 1)
    number = _append(store, shard)
    store.schedule.admit(None, number, shard.points, max(least - 1, 0)).anew = True


def inherit(store: PointStore, shard: Shard, halted: Array, passes: Array, anew: Array) -> None:
    """Own the points of `shard`, which holds their states already. The arrays have one entry for each point: its
    halting vote, its passes, and whether it counts as never visited."""
    shard.halted[:] = halted
    number = _append(store, shard)
    edges = np.flatnonzero((np.diff(passes) != 0) | (np.diff(anew) != 0)) + 1
    bounds = [0, *edges.tolist(), shard.points]
    for start, end in pairwise(bounds):
        segment = store.schedule.admit(None, number, end - start, int(passes[start]), start)
        segment.anew = bool(anew[start])


def _append(store: PointStore, shard: Shard) -> int:
    """Add a shard beside the first one, with arrays of the types that the kernel was compiled for (also read-only where
    those are); returns its number."""
    native = store.shards[0]
    if isinstance(shard.features, Sparse) and isinstance(native.features, Sparse):
        for mine, other in zip(shard.features[:3], native.features[:3], strict=True):
            mine.flags.writeable = other.flags.writeable
    elif not isinstance(shard.features, Sparse) and not isinstance(native.features, Sparse):
        shard.features.flags.writeable = native.features.flags.writeable
    shard.labels.flags.writeable = native.labels.flags.writeable
    if shard.weights is not None and native.weights is not None:
        shard.weights.flags.writeable = native.weights.flags.writeable
    store.shards.append(shard)
    store.version += 1
    return len(store.shards) - 1
