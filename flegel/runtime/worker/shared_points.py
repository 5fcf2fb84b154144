"""Points that change owner inside one host without being copied: the target reads them where the source put them.

Features, labels, weights and numbers of points never change, so one copy a host is enough; hidden states belong to the
owner, and the target copies them from the source's memory while the window is locked. A borrowed shard has the extent
and the positions of the lender's, so that windows that lie side by side there lie side by side here, and the kernel
runs through them in one go. The memory stays as long as anybody has it open, whatever becomes of the process that made
it.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec
import numpy as np

from flegel.core.pytree import Array
from flegel.core.shard import TILE, Shard, Sparse
from flegel.errors import DecodeError
from flegel.messages import SharedMemoryRef, SharedPointsRef
from flegel.runtime.transport import shared_memory

MOVE_VARIABLE = "FLEGEL_MOVE"  # `socket` in the environment: points always travel, even inside a host


PlaceOf = Callable[[Array], SharedMemoryRef | None]


def wanted() -> bool:
    """Whether workers of one host share points in memory; not if FLEGEL_MOVE=socket."""
    return os.environ.get(MOVE_VARIABLE, "") != "socket"


def make_shareable(shard: Shard) -> None:
    """Move what lies in private memory to where neighbours can read it, as far as there is room for the copy."""
    f = shard.features
    size = sum(a.nbytes for a in f[:3]) if isinstance(f, Sparse) else f.nbytes
    if size < shared_memory.free() / 4:  # a quarter: other workers of this host lend, too
        if isinstance(f, Sparse):
            indptr, indices, values = (shared_memory.lendable(a) for a in f[:3])
            shard.features = Sparse(indptr, indices, values, f.columns)
        else:
            shard.features = shared_memory.lendable(f)
    shard.ids, shard.state = shared_memory.lendable(shard.ids), shared_memory.lendable(shard.state)
    if shard.labels.any():
        shard.labels = shared_memory.lendable(shard.labels)
    if shard.weights is not None:
        shard.weights = shared_memory.lendable(shard.weights)


class PointSharing:
    """The points that one worker shares with others of its host, and those of others that it has mapped."""

    def __init__(self, place_of: PlaceOf = shared_memory.place_of) -> None:
        """`place_of` tells how others find an array: in memory that processes share, or inside this process."""
        self._place_of = place_of
        self._offers: dict[int, tuple[Shard, SharedPointsRef | None]] = {}
        self._borrowed: dict[tuple[str, int], Shard] = {}
        self._states: dict[tuple[str, int], Array] = {}

    def offer(self, shard: Shard, start: int) -> SharedPointsRef | None:
        """How a neighbour finds the points from `start` on; None where they lie in private memory."""
        if id(shard) not in self._offers:
            self._offers[id(shard)] = (shard, _describe(shard, self._place_of))
        lent = self._offers[id(shard)][1]
        return None if lent is None else msgspec.structs.replace(lent, start=start)

    def borrow(self, lent: SharedPointsRef, native: Shard) -> Shard:
        """The lender's shard with states of our own. Raises `OSError` where the memory cannot be seen from here, and
        `DecodeError` where compiled code would notice a difference to native points."""
        if not lent.features:
            raise DecodeError("A window was lent without features.")
        key = (lent.features[0].name, lent.features[0].offset)
        if key not in self._borrowed:
            self._borrowed[key] = _open(lent, native)
        shard = self._borrowed[key]
        if not 0 <= lent.start < shard.points == lent.points:
            raise DecodeError(f"A window was lent from point {lent.start} of {shard.points}.")
        return shard

    def states(self, lent: SharedPointsRef, points: int, native: Shard) -> tuple[Array, ...]:
        """The states of so many points where the lender has them, as an array before the others; none where they came
        along. Raises as `borrow` does."""
        place = lent.state
        if place is None:
            return ()
        key = (place.name, place.offset)
        if key not in self._states:
            if np.dtype(place.dtype) != native.state.dtype or place.shape[1:] != native.state.shape[1:]:
                raise DecodeError("A window was lent with states of another kind.")
            self._states[key] = shared_memory.open_place(place, writable=False)
        width = TILE if native.layout == "tiles" else 1
        part = self._states[key][lent.start // width : -(-(lent.start + points) // width)]
        if len(part) * width < points:
            raise DecodeError(f"A window of {points} points was lent with {len(part) * width} states.")
        return (part,)


def _describe(shard: Shard, place_of: PlaceOf) -> SharedPointsRef | None:
    """Where the arrays of a shard are, for other processes of this host; None where some of them are not in shared
    memory."""
    f = shard.features
    arrays: tuple[Array, ...] = tuple(f[:3]) if isinstance(f, Sparse) else (f,)
    features = tuple(place_of(a) for a in arrays)
    ids = place_of(shard.ids)
    labels = place_of(shard.labels) if shard.labels.any() else None
    if ids is None or None in features or (labels is None and shard.labels.any()):
        return None
    weights = None if shard.weights is None else place_of(shard.weights)
    if weights is None and shard.weights is not None:
        return None
    found = tuple(p for p in features if p is not None)
    return SharedPointsRef(0, shard.points, ids, found, labels, place_of(shard.state), weights)


def _open(lent: SharedPointsRef, native: Shard) -> Shard:
    """A shard over memory of another process; `DecodeError` where it does not fit the native one."""
    f, points = native.features, lent.points
    arrays: tuple[Array, ...] = tuple(f[:3]) if isinstance(f, Sparse) else (f,)
    if len(arrays) != len(lent.features):
        raise DecodeError("A window was lent with points of another kind.")
    mine = [_like(place, a) for place, a in zip(lent.features, arrays, strict=True)]
    lead = -(-points // TILE) if native.layout == "tiles" else points
    if isinstance(f, Sparse):
        fits = len(mine[0]) == points + 1 and int(mine[0][-1]) <= len(mine[1]) == len(mine[2])
        features: Array | Sparse = Sparse(mine[0], mine[1], mine[2], f.columns)
    else:
        fits = mine[0].shape[1:] == f.shape[1:] and len(mine[0]) == lead
        features = mine[0]
    ids = _like(lent.ids, native.ids)
    labels = np.zeros(points, native.labels.dtype)
    labels.flags.writeable = native.labels.flags.writeable
    if lent.labels is not None:
        labels = _like(lent.labels, native.labels)
    if (lent.weights is None) != (native.weights is None):
        raise DecodeError("A window was lent with points of another kind.")
    weights = None
    if lent.weights is not None and native.weights is not None:
        weights = _like(lent.weights, native.weights)
        fits = fits and len(weights) == lead
    if not fits or len(ids) != points or len(labels) != points:
        raise DecodeError(f"A window was lent out of {points} points that do not fit together.")
    return Shard(
        features=features,
        labels=labels,
        state=shared_memory.empty((lead, *native.state.shape[1:]), native.state.dtype),
        halted=np.zeros(points, np.uint8),
        points=points,
        columns=native.columns,
        ids=ids,
        layout=native.layout,
        weights=weights,
    )


def _like(place: SharedMemoryRef, native: Array) -> Array:
    """The lent array with the type and flags of the native one."""
    if np.dtype(place.dtype) != native.dtype or len(place.shape) != native.ndim:
        raise DecodeError("A window was lent with points of another kind.")
    return shared_memory.open_place(place, native.flags.writeable)
