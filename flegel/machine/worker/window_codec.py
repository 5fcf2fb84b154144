"""Points as they travel: out of a shard into frames, out of frames into a shard. Arrays only; no socket, no decision.

Whole tiles move as they lie in memory, in either layout and for sparse rows, with hidden state, labels, weights,
halting votes and numbers. Where the target still has its inactive copy, only the states that changed since the two last
exchanged these points are sent: one bit a point, and the changed rows. Where it can read the source's memory, only
votes are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flegel.core.pytree import Array
from flegel.core.shard import TILE, Empty, Shard, Sparse
from flegel.errors import DecodeError
from flegel.messages import Window


def bytes_per_point(shard: Shard) -> float:
    """What a point takes in memory, and on the wire where it travels, on average."""
    f = shard.features
    data = f.indptr.nbytes + f.indices.nbytes + f.values.nbytes if isinstance(f, Sparse) else f.nbytes
    weights = 0 if shard.weights is None else shard.weights.nbytes
    return (data + shard.labels.nbytes + shard.ids.nbytes + weights) / max(shard.points, 1) + bytes_per_state(shard)


def bytes_per_state(shard: Shard) -> float:
    """Of that, state and vote, which are copied even where the rest is lent."""
    return (shard.state.nbytes + shard.points) / max(shard.points, 1)


def take_states(shard: Shard, which: Array) -> Array:
    """The states of the points `which` (numbers inside the shard), as rows."""
    if shard.layout == "rows":
        return shard.state[which]
    found: Array = shard.state[which // TILE, :, which % TILE]
    return found


def put_states(shard: Shard, which: Array, rows: Array) -> None:
    """Overwrite the states of the points `which` (numbers inside the shard)."""
    if shard.layout == "rows":
        shard.state[which] = rows
    else:
        shard.state[which // TILE, :, which % TILE] = rows


# -- out ---------------------------------------------------------------------------------------------------


def pack(part: Shard) -> list[Array]:
    """Frames of a window that carries everything. The state is copied, the rest is sent from where it lies."""
    f = part.features
    data = [f.indptr, f.indices, f.values] if isinstance(f, Sparse) else [f]
    weights = [] if part.weights is None else [part.weights]
    return [part.state.copy(), _short(part.halted), _short(part.labels), part.ids, *data, *weights]


def pack_shared(part: Shard, states: bool) -> list[Array]:
    """Frames of a window whose points the target reads where they lie; `states`: but not their states."""
    return [part.state.copy(), _short(part.halted)] if states else [_short(part.halted)]


def pack_states(part: Shard) -> list[Array]:
    """Frames for a target that has these points with states that are not known any more."""
    return [part.state.copy(), _short(part.halted)]


def pack_changes(part: Shard, base: Array) -> tuple[list[Array], bool]:
    """Frames for a target that has these points with the states `base` (as they lie in the shard); True where only
    changes are sent."""
    changed = (part.state != base).any(axis=1).reshape(-1)
    halted = _short(part.halted)
    if 2 * int(np.count_nonzero(changed)) > part.points:
        return [part.state.copy(), halted], False
    return [np.packbits(changed), take_states(part, np.flatnonzero(changed)), halted], True


def _short(values: Array) -> Array:
    """Nothing instead of zeros only: labels of unsupervised data, votes that no point gave."""
    return values.copy() if values.any() else values[:0].copy()


# -- in ----------------------------------------------------------------------------------------------------


@dataclass
class IncomingWindow:
    """A window that lies at the target until a barrier makes it the target's."""

    window: Window
    peer: int
    state: Array
    """Whole, in the layout of the shard; or the changed rows."""
    which: Array | None
    """The points whose state changed; None where the state is whole."""
    halted: Array
    place: tuple[Shard, int] | None = None
    """Shard and first point, where data came along."""


def unpack(window: Window, arrays: tuple[Array, ...], peer: int) -> IncomingWindow:
    """Header and small frames, which are kept as they came; `MoveBuffer.place` takes the rest.

    Raises `DecodeError` where they do not fit.
    """
    points = window.points
    wanted = 3 if window.changed else 2  # which states changed, where only those came; states; votes
    alone = window.copied or window.lent is not None
    # With data: those, then features (one frame, or three of sparse rows), labels, ids, perhaps weights.
    if len(arrays) < wanted or (not alone and len(arrays) not in (5, 6, 7, 8)):
        raise DecodeError(f"Window {window.move}.{window.number} has {len(arrays)} frames.")
    halted = arrays[wanted - 1]
    if halted.ndim != 1 or halted.size not in (0, points):
        raise DecodeError(f"Window {window.move}.{window.number} has {halted.size} votes for {points} points.")
    bits, states = (arrays[0], arrays[1]) if window.changed else (None, arrays[0])
    if points < 0 or states.ndim < 2 or not _are_states_of(points, bits, states):
        raise DecodeError(f"Window {window.move}.{window.number} does not hold the states of {points} points.")
    votes = np.zeros(points, np.uint8) if not halted.size else halted
    if bits is None:
        return IncomingWindow(window, peer, states, None, votes)
    which = np.flatnonzero(np.unpackbits(bits, count=points))
    if len(which) != len(states):
        raise DecodeError(f"Window {window.move}.{window.number} names {len(which)} changes, {len(states)} came.")
    return IncomingWindow(window, peer, states, which, votes)


def _are_states_of(points: int, bits: Array | None, states: Array) -> bool:
    """One row or one place in a tile for each point; or one bit, where only changed ones came."""
    if bits is None:
        return len(states) == points or len(states) * TILE == points
    return bits.dtype == np.uint8 and bits.ndim == 1 and bits.size == -(-points // 8)


def check_states(incoming: IncomingWindow, native: Shard) -> None:
    """Raises `DecodeError` where a point's state is not as wide as those of this worker."""
    wanted = native.state.shape[1:] if incoming.which is None else native.state.shape[1:2]
    if incoming.state.shape[1:] != wanted:
        window = incoming.window
        raise DecodeError(f"Window {window.move}.{window.number} holds states of another kind.")


def buffer_in(window: Window, incoming: IncomingWindow, shard: Shard | None) -> Shard:
    """The place of a lent window in the shard that it was lent from. Raises `DecodeError` where it does not fit."""
    lent = window.lent
    if shard is None or lent is None or lent.start % TILE or lent.start + window.points > shard.points:
        raise DecodeError(f"Window {window.move}.{window.number} is not a part of the share that it was lent from.")
    part = shard.part(lent.start, lent.start + window.points)
    if incoming.state.shape != part.state.shape or incoming.state.dtype != part.state.dtype:
        raise DecodeError(f"Window {window.move}.{window.number} holds states of another kind.")
    return part


class MoveBuffer:
    """Room for the points of one move, side by side, so that the kernel runs through them in one go.

    Arrays have the types and flags of the native ones: compiled code must not notice where points come from.
    """

    def __init__(self, native: Shard, points: int, room: Empty = np.zeros) -> None:
        self._native, self._make_array = native, room
        self._shard_points = -(-points // TILE) * TILE
        self._current_shard: Shard | None = None
        self._used_points = 0
        self._features = self._labels = self._ids = self._weights = np.zeros(0)

    def place(self, window: Window, arrays: tuple[Array, ...]) -> tuple[Shard, int]:
        """Copy a full window in; returns the share and the first point there."""
        state, _, labels, ids, *data = arrays
        native, points = self._native, window.points
        if len(data) != (3 if isinstance(native.features, Sparse) else 1) + (native.weights is not None):
            raise DecodeError(f"Window {window.move}.{window.number} has {len(arrays)} frames.")
        weights = data.pop() if native.weights is not None else None
        if not labels.ndim == ids.ndim == 1 or labels.size not in (0, points) or ids.size != points:
            raise DecodeError(f"Window {window.move}.{window.number} does not hold {points} points.")
        if isinstance(native.features, Sparse):
            return self._sparse(native, points, state, labels, ids, data, weights), 0
        lead, rest = divmod(points, TILE) if native.layout == "tiles" else (points, 0)
        fits = data[0].shape == (lead, *native.features.shape[1:]) and state.shape == (lead, *native.state.shape[1:])
        if rest or not fits or data[0].dtype != native.features.dtype:
            raise DecodeError(f"Window {window.move}.{window.number} holds points of another kind.")
        if self._current_shard is None or self._used_points + points > self._current_shard.points:
            self._current_shard, self._used_points = self._new(max(self._shard_points, points)), 0
        shard, start = self._current_shard, self._used_points
        rows, tiles = slice(start, start + points), slice(start // TILE, (start + points) // TILE)
        cut = tiles if shard.layout == "tiles" else rows
        if weights is not None:
            if weights.shape != shard.state[cut].shape[:1] + self._weights.shape[1:]:
                raise DecodeError(f"Window {window.move}.{window.number} holds weights of another kind.")
            self._weights[cut] = weights
        self._features[cut] = data[0]
        self._ids[rows] = ids
        if labels.size:
            self._labels[rows] = labels
        shard.state[cut] = state
        self._used_points += points
        return shard, start

    def _new(self, points: int) -> Shard:
        """An empty shard of the same layout and types as the native one, for points that will arrive."""
        native = self._native
        assert isinstance(native.features, np.ndarray)
        lead = points // TILE if native.layout == "tiles" else points
        self._features = self._make_array((lead, *native.features.shape[1:]), native.features.dtype)
        self._labels = np.zeros(points, native.labels.dtype)
        self._ids = self._make_array((points,), native.ids.dtype)
        if native.weights is not None:
            self._weights = self._make_array((lead, *native.weights.shape[1:]), native.weights.dtype)
        return Shard(
            features=_as(native.features, self._features),
            labels=_as(native.labels, self._labels),
            state=np.zeros((lead, *native.state.shape[1:]), native.state.dtype),
            halted=np.zeros(points, np.uint8),
            points=points,
            columns=native.columns,
            ids=_as(native.ids, self._ids),
            layout=native.layout,
            weights=None if native.weights is None else _as(native.weights, self._weights),
        )

    def _sparse(
        self,
        native: Shard,
        points: int,
        state: Array,
        labels: Array,
        ids: Array,
        data: list[Array],
        weights: Array | None,
    ) -> Shard:
        """A shard of received sparse rows; `DecodeError` where they contradict themselves or the native shard."""
        assert isinstance(native.features, Sparse)
        indptr, indices, values = data
        flat = all(a.ndim == 1 for a in data) and all(a.dtype.kind in "iu" for a in (indptr, indices))
        fits = flat and len(indptr) == points + 1 and indptr[0] == 0 and len(indices) == len(values) == int(indptr[-1])
        if not fits or np.any(indptr[1:] < indptr[:-1]) or state.shape != (points, *native.state.shape[1:]):
            raise DecodeError(f"Sparse rows that do not fit: {points} points, {indices.size} entries.")
        if indices.size and not 0 <= int(indices.min()) <= int(indices.max()) < native.features.columns:
            raise DecodeError(f"Sparse rows name columns beyond the {native.features.columns} that there are.")
        made = [
            _as(a, np.array(v, dtype=a.dtype))
            for a, v in zip(native.features[:3], (indptr, indices, values), strict=True)
        ]
        if weights is not None and weights.shape != (points,):
            raise DecodeError(f"{points} sparse rows came with weights of shape {weights.shape}.")
        if not labels.size:
            labels = np.zeros(points)
        return Shard(
            features=Sparse(made[0], made[1], made[2], native.features.columns),
            labels=_as(native.labels, np.array(labels, dtype=native.labels.dtype)),
            state=np.array(state),
            halted=np.zeros(points, np.uint8),
            points=points,
            columns=native.columns,
            ids=_as(native.ids, np.array(ids, dtype=native.ids.dtype)),
            layout=native.layout,
            weights=None if native.weights is None else _as(native.weights, np.array(weights, native.weights.dtype)),
        )


def _as(native: Array, made: Array) -> Array:
    """A view that is as writable as the native array: to compiled code these are different types."""
    seen = made.view(np.ndarray)
    seen.flags.writeable = native.flags.writeable
    return seen
