"""One part of the data, held by a worker: features, labels, weights, hidden state, votes. No I/O, no decisions.

Two layouts. `rows` is the plain matrix, one row a point. `tiles` holds `TILE` points a tile, feature-major
inside (`[tile][feature][lane]`), which is what vectorized kernels want; the state has the same layout, and the
last tile is padded with zeros. Sparse rows are CSR in either case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from flegel.configuration.active import active
from flegel.core.entry_point import EntryPoint
from flegel.core.mapped_arrays import read_in_order, release
from flegel.core.pytree import Array, protected
from flegel.core.row_windows import RowWindow, RowWindows, ShareOut, at_once
from flegel.core.unit_rows import unit_dense, unit_entries, unit_tiles
from flegel.errors import AlgorithmError

NUMBERS = frozenset(np.dtype(t).str for t in ("f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"))
"""Types of arrays that travel between processes."""
Empty = Callable[[tuple[int, ...], Any], Array]
"""Where arrays come from: `numpy.empty`, or memory that other processes see."""
_FILL_TILES = EntryPoint("flegel.core.tiling", "fill_tiles")
_GATHER_TILES = EntryPoint("flegel.core.tiling", "gather_tiles")
_FILL_ROWS = EntryPoint("flegel.core.tiling", "fill_rows")
WINDOW_NUMBERS = 1 << 21  # numbers that are laid out in a mapped file at a time
CACHE_LINE_BYTES = 64  # bytes of a cache line
TILE = 64  # points a tile; a multiple of every vector width, and how often a kernel looks at the stop flag


class Sparse(NamedTuple):
    """Rows of a sparse matrix (CSR): row i holds `values[indptr[i]:indptr[i+1]]` at `indices[...]`."""

    indptr: Array
    indices: Array
    values: Array
    columns: int


class SparseRow(NamedTuple):
    """One sparse point as `updateDataPoint` sees it."""

    indices: Array
    values: Array


class DataPoint(NamedTuple):
    """One point as `updateDataPoint` sees it. `state` is writable and stays with the point. `weight`: it counts as so
    many equal points; 1 where the data have no weights."""

    features: Array | SparseRow
    label: float
    state: Array
    weight: float = 1.0


@dataclass
class Shard:
    """What one worker owns. `halted[i]` is 1 for a point that voted to halt."""

    features: Array | Sparse
    labels: Array
    state: Array
    halted: Array
    points: int
    columns: int
    ids: Array
    """Number of each point in the whole data; stays with the point wherever it goes."""
    layout: str = "rows"
    weights: Array | None = None
    """Of each point; (tiles, TILE) in tiles, padded with zeros. None where every point weighs 1."""

    @property
    def tiles(self) -> int:
        return -(-self.points // TILE)

    def part(self, start: int, end: int) -> Shard:
        """Points start … end-1 as a shard of their own, without a copy. In tiles both must be tiles' edges."""
        tiled = self.layout == "tiles"
        cut = slice(start // TILE, -(-end // TILE)) if tiled else slice(start, end)
        features = self.features
        if isinstance(features, Sparse):
            first, last = int(features.indptr[start]), int(features.indptr[end])
            features = Sparse(
                features.indptr[start : end + 1] - first,
                features.indices[first:last],
                features.values[first:last],
                features.columns,
            )
        else:
            features = features[cut]
        return Shard(
            features,
            self.labels[start:end],
            self.state[cut],
            self.halted[start:end],
            end - start,
            self.columns,
            self.ids[start:end],
            self.layout,
            None if self.weights is None else self.weights[cut],
        )

    def state_rows(self) -> Array:
        """The hidden state as (points, size), whatever the layout."""
        if self.layout == "rows":
            return self.state[: self.points]
        return unpack_tiles(self.state, self.points)


def aligned(shape: tuple[int, ...], dtype: Any) -> Array:
    """As `numpy.empty`, at the beginning of a cache line: vectors of 64 bytes then lie in one line each, not in two."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    room = np.empty(size + CACHE_LINE_BYTES, np.uint8)
    begin = -room.ctypes.data % CACHE_LINE_BYTES
    found: Array = room[begin : begin + size].view(dtype).reshape(shape)
    return found


def pack_tiles(rows: Array | RowWindows, empty: Empty = aligned, share_out: ShareOut = at_once) -> Array:
    """(n, d) to (tiles, d, TILE), the last tile padded with zeros. `share_out`: who lays tiles out."""
    rules = active().processors
    points, columns = rows.shape
    tiles = -(-points // TILE)
    packed = empty((tiles, columns, TILE), rows.dtype)
    packed[points // TILE :] = 0
    if isinstance(packed, np.memmap):
        return _pack_mapped(rows, packed)
    if isinstance(rows, RowWindows):
        rows.lay_out(lambda some, first: _gathered(some, packed[first // TILE :], share_out))
    elif columns == 1:
        packed.reshape(-1)[:points] = rows[:, 0]
    elif points <= rules.points_copied_without_compiler:
        for first in range(0, points, TILE):
            part = rows[first : first + TILE]
            packed[first // TILE, :, : len(part)] = part.T
    else:
        whole = protected(rows)  # one type, writable or not

        def fill(first: int, last: int) -> None:
            _FILL_TILES(whole[first * TILE : last * TILE], packed[first:last])

        share_out(tiles, rules.tiles_laid_out_at_once, fill)
    return packed


def _pack_mapped(rows: Array | RowWindows, packed: Array) -> Array:
    """As `pack_tiles`, into tiles in a mapped file, of which a window is in memory at a time, as of rows that are
    mapped themselves."""
    into = np.asarray(packed)
    step = TILE * max(WINDOW_NUMBERS // (TILE * max(rows.shape[1], 1)), 1)

    def gather(some: RowWindow, first: int) -> bool:
        bad = 0
        for at in range(0, len(some.order), step):
            order, tile = some.order[at : at + step], (first + at) // TILE
            bad += _GATHER_TILES(some.rows, order, into[tile:])
            release(packed, tile, tile + len(order) // TILE)
        return not bad

    if isinstance(rows, RowWindows):
        rows.lay_out(gather)
    else:
        for first in range(0, len(rows), step):
            part = protected(np.ascontiguousarray(rows[first : first + step]))
            _FILL_TILES(part, into[first // TILE : -(-(first + len(part)) // TILE)])
            release(packed, first // TILE, (first + step) // TILE)
            release(rows, first, first + len(part))
    read_in_order(packed)
    return into


def _gathered(some: RowWindow, packed: Array, share_out: ShareOut) -> bool:
    """Lay a window of rows out; whether all values are finite."""
    wrong: list[int] = []

    def gather(first: int, last: int) -> None:
        wrong.append(_GATHER_TILES(some.rows, some.order[first * TILE : last * TILE], packed[first:last]))

    share_out(-(-len(some.order) // TILE), active().processors.tiles_laid_out_at_once, gather)
    return not any(wrong)


def unpack_tiles(packed: Array, points: int) -> Array:
    """(tiles, d, TILE) back to (points, d)."""
    rows = np.empty((points, packed.shape[1]), dtype=packed.dtype)
    _FILL_ROWS(protected(packed), rows)
    return rows


def unit_rows(features: Array | Sparse, own: bool = False) -> Array | Sparse:
    """Rows divided by their Euclidean length (see `core/unit_rows.py`). `own`: they may be changed."""
    if isinstance(features, Sparse):
        return features._replace(values=unit_entries(features.indptr, features.values, own))
    return unit_dense(features, own)


def make_shard(
    features: Array | Sparse | RowWindows,
    labels: Array | None,
    state: Array,
    layout: str = "rows",
    ids: Array | None = None,
    empty: Empty = aligned,
    weights: Array | None = None,
    unit: bool = False,
    share_out: ShareOut = at_once,
) -> Shard:
    """Put a worker's rows into the layout that its kernel wants. Rows in memory are used as they are, without a copy.

    A floating state takes the precision of the features, and so do weights in tiles, which are loaded into the same
    vectors. Where features must be laid out anew, `empty` makes the room, and `share_out` says who does it. Features,
    labels and weights are read-only: kernels never change them, and are then compiled for one type, not for two.
    `unit`: rows get the length 1, in the memory in which they are laid out anew.
    """
    sparse = isinstance(features, Sparse)
    points = len(features.indptr) - 1 if isinstance(features, Sparse) else len(features)
    columns = features.columns if isinstance(features, Sparse) else features.shape[1]
    tiled = layout == "tiles"
    check_state(state, points)
    kind = features.values.dtype if isinstance(features, Sparse) else features.dtype
    if np.issubdtype(state.dtype, np.floating) and np.issubdtype(kind, np.floating):
        state = state.astype(kind, copy=False)
    if unit and isinstance(features, Sparse | np.ndarray) and (sparse or not tiled):
        features = unit_rows(features)
    if isinstance(features, Sparse):
        held: Array | Sparse = features._replace(
            indptr=protected(features.indptr), indices=protected(features.indices), values=protected(features.values)
        )
    else:
        if tiled:
            laid_out = pack_tiles(features, empty, share_out)
            if unit:
                unit_tiles(laid_out)
        elif isinstance(features, RowWindows):
            lent = features.in_place(share_out) if empty is aligned and not unit else None
            laid_out = features.whole(empty) if lent is None else lent
            if unit:
                unit_dense(laid_out, own=True)
        else:
            laid_out = features
        held = protected(laid_out)
    return Shard(
        features=held,
        labels=protected(np.zeros(points) if labels is None else np.asarray(labels)),
        state=pack_tiles(state, share_out=share_out) if tiled and not sparse else np.ascontiguousarray(state),
        halted=np.zeros(points, np.uint8),
        points=points,
        columns=columns,
        ids=np.arange(points) if ids is None else ids,
        layout="tiles" if tiled and not sparse else "rows",
        weights=_laid_out(weights, kind if tiled and not sparse else None),
    )


def _laid_out(weights: Array | None, kind: np.dtype[Any] | None) -> Array | None:
    """Weights as rows in float64, or in tiles of this type."""
    if weights is None:
        return None
    if kind is None:
        return protected(np.ascontiguousarray(weights, dtype=np.float64))
    exact = kind if np.issubdtype(kind, np.floating) else np.dtype(np.float64)
    return protected(pack_tiles(np.asarray(weights)[:, None].astype(exact)).reshape(-1, TILE))


def check_state(state: Array, points: int) -> None:
    """What `initState` returned must be a table of numbers with a row for each point."""
    if not (isinstance(state, np.ndarray) and state.ndim == 2 and len(state) == points and state.dtype.str in NUMBERS):
        got = f"{state.dtype} of shape {state.shape}" if isinstance(state, np.ndarray) else type(state).__name__
        raise AlgorithmError(f"initState must return numbers of shape (points, size), here ({points}, …), not {got}.")
