"""K-means on wide rows with many centroids: what `wide_kernel` needs to know of rows and θ, kept between its calls.

A short row is made when a point is first visited, and kept: (directions + 1) float32 numbers. The kernel takes the
number of directions that costs least by a trial with the first θ, or the rows themselves where no directions help.
Imports no compiler, reads no clock.
"""

from __future__ import annotations

import contextlib
import math
import threading
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from flegel.algorithms.directions import leading_directions
from flegel.algorithms.kmeans.moved_points import ADDED_AT_ONCE, MovedPoints
from flegel.algorithms.simd.registers import FLOAT32_ROUNDING, REGISTERS, register_lanes
from flegel.configuration.active import active
from flegel.configuration.kmeans import KMeansSettings
from flegel.core.entry_point import EntryPoint
from flegel.core.pytree import Array, given, protected
from flegel.core.shard import TILE, Shard

DIRECTIONS = (15, 31, 47, 63, 95)  # that are tried: one less than a multiple of STEP, for the length of the rest
STEP = 16  # the width of short rows is a multiple of it


class WideShape(NamedTuple):
    """Register tiles of `wide_kernel`: points of a panel, centroids of a group, numbers of a vector that holds one."""

    lanes: int
    group: int
    slot: int


def wide_shape() -> WideShape:
    """Two registers of points and as many centroids as leave two or three registers free."""
    group, slot = (12, 16) if REGISTERS == 32 else (6, 8)
    return WideShape(2 * register_lanes(np.float32), group, slot)


@dataclass
class RowBounds:
    """What is kept of one array of rows. `features` is held so that its memory is not used again for another."""

    features: Array
    short: Array
    """Short rows, or the features themselves."""
    bounds: tuple[Array, ...]
    """Four arrays. By row: the error of its short row; the upper bound of `wide_kernel`, of the distance to its
    centroid; the cluster that bounds are of, -1 where none are known. Then lower bounds of the distances to all other
    centroids, by panels of rows and bands: a band is a run of neighbouring clusters (`PackedTheta.several` register
    groups) of which one bound is kept together."""
    ready: Array
    """By tiles of rows: short rows are there."""

    def position(self, rows: Array) -> int | None:
        """Where these rows begin in `features`, if they are a part of them."""
        if rows.dtype != self.features.dtype or rows.shape[1] != self.features.shape[1]:
            return None
        at, rest = divmod(rows.ctypes.data - self.features.ctypes.data, self.features.strides[0] or 1)
        return at if rest == 0 and 0 <= at <= len(self.features) - len(rows) else None


@dataclass
class WideKernel:
    """The kernel of one job on one worker. Call it as `flegel.algorithm.Kernel` says; the threads of a team share it
    (`flegel.declarations.kernels.TwoStepKernel`)."""

    k: int
    rules: KMeansSettings = field(default_factory=lambda: active().kmeans)
    """Read once: short rows and bounds are laid out by them."""
    _parameter: Any = None
    _directions: Array | None = None
    """(columns, m), float32, or None: rows are compared by all their numbers."""
    _direct: bool = False
    """Rows are compared by all their numbers, and these are read from the rows themselves, which are float32 already:
    no short rows are made."""
    _chosen: bool = False
    _compiled: bool = False
    _scale: float = 1.0
    _theta: PackedTheta | None = None
    _held: list[RowBounds] = field(default_factory=list)
    _moved: MovedPoints = field(default_factory=MovedPoints)
    _by_one_thread: threading.Lock = field(default_factory=threading.Lock)
    _place: tuple[Array, RowBounds, int] | None = None
    """The rows of the present call, what is kept of them, and where the first of them is there."""

    def __call__(
        self, shard: Shard, parameter: Any, aggregator: Any, start: int, end: int, iteration: int, flag: Array
    ) -> int:
        """Visit points `start` to `end`, with bounds that are kept from visit to visit so that most distances need not
        be computed. Rows are shortened, in runs, before their first visit."""
        self._place = self._prepared(shard, parameter)
        if not self._compiled:  # all that these types may need: a raised flag would leave some of it out
            self._compiled = True
            self._run(shard, parameter, aggregator, ADDED_AT_ONCE, start, start, flag)
            _entry("finish")(
                np.zeros((0, 2), np.float32), np.zeros((0, STEP), np.float32), np.zeros(0, np.float32), 0, 0.0
            )
        return self._visit(shard, parameter, aggregator, ADDED_AT_ONCE, start, end, flag)

    @property
    def unit(self) -> int:
        """Blocks of the compiled code, and whole tiles, of which rows are shortened."""
        return math.lcm(TILE, self._theta.block if self._theta is not None else self.rules.bounds_block_points)

    def prepare(self, shard: Shard, parameter: Any) -> None:
        """Take in θ, and find what is kept of these rows."""
        self._place = self._prepared(shard, parameter)
        if self._moved.make_room(shard.points):  # the first time: what training compiles
            sums = (np.zeros((0, shard.columns)), np.zeros(0), np.zeros(0))
            self._moved.compile(shard.state)
            self._add(shard, parameter, sums, 0, 0)

    def decide(
        self, shard: Shard, parameter: Any, aggregator: Any, start: int, end: int, iteration: int, flag: Array
    ) -> int:
        """Threads never share a tile, of which rows are shortened and within which bounds are kept together, unless
        these rows are a part of others that begins inside a tile: then they take turns."""
        assert self._place is not None
        turns = self._by_one_thread if self._place[2] % TILE else contextlib.nullcontext()
        with turns:
            return self._visit(shard, parameter, aggregator, self._moved.clusters, start, end, flag)

    def collect(self, shard: Shard, start: int, end: int) -> int:
        return self._moved.collect(shard.state, self.k, shard.columns, start, end)

    def add(self, shard: Shard, parameter: Any, aggregator: Any, part: int) -> None:
        self._add(shard, parameter, aggregator, *self._moved.part(part))

    def _add(self, shard: Shard, parameter: Any, sums: tuple[Array, ...], low: int, high: int) -> None:
        assert self._place is not None
        moves = (self._moved.starts, self._moved.moves, low, high)
        _entry("add_moves")(self._place[0], shard.weights, np.asarray(parameter.origin), *sums, *moves)

    def _prepared(self, shard: Shard, parameter: Any) -> tuple[Array, RowBounds, int]:
        rows = np.ascontiguousarray(shard.features)
        if not self._chosen:
            self._choose(rows, parameter)
        if self._parameter is not parameter:
            self._pack(parameter)
        return rows, *self._kept(rows)

    def _visit(
        self, shard: Shard, parameter: Any, aggregator: Any, clusters: Array, start: int, end: int, flag: Array
    ) -> int:
        assert self._place is not None
        (_, held, first), end, origin = self._place, min(end, shard.points), np.asarray(parameter.origin)
        at, run_rows = start, self.rules.bounds_shortened_rows
        while at < end:
            low, high = (first + at) // TILE, -(-(first + end) // TILE)
            missing = np.flatnonzero(~held.ready[low:high])
            if not len(missing):
                return self._run(shard, parameter, aggregator, clusters, at, end, flag)
            if flag[0]:
                return at
            here = (low + int(missing[0])) * TILE // run_rows
            stop = min((here + 1) * run_rows - first, end)
            self._shorten(held, max(first + at, here * run_rows), first + stop, origin)
            reached = self._run(shard, parameter, aggregator, clusters, at, stop, flag)
            if reached < stop:
                return reached
            at = stop
        return at

    def _run(
        self, shard: Shard, parameter: Any, aggregator: Any, clusters: Array, start: int, end: int, flag: Array
    ) -> int:
        """Call the compiled code, for points whose short rows are there."""
        assert self._place is not None and self._theta is not None
        (rows, held, first), origin = self._place, np.asarray(parameter.origin)
        shift = origin if self._direct else given(np.zeros(held.short.shape[1]))  # of one type: θ refuses writes
        places = (protected(held.short), first, shift, held.bounds, self._theta.packed, NUMBER, origin)
        train = _entry("build", *wide_shape())
        return int(train(rows, shard.state, shard.weights, *places, aggregator, clusters, start, end, flag))

    def forget(self, shard: Shard) -> None:
        """These rows will not come again."""
        self._place = None
        self._held = [held for held in self._held if held.features is not shard.features]

    def _kept(self, rows: Array) -> tuple[RowBounds, int]:
        """The bounds of these rows and the place of their first row there; new ones for rows that were not visited
        before."""
        for held in self._held:
            at = held.position(rows)
            if at is not None:
                return held, at
        points, tiles = len(rows), -(-len(rows) // TILE)
        assert self._theta is not None
        lower = np.zeros(
            (points + self.rules.bounds_block_points) * self._theta.bands, np.float32
        )  # the last block may be a part
        bounds = (np.zeros(points, np.float32), np.zeros(points), np.full(points, -1, np.int32), lower)
        if self._direct:
            made = RowBounds(rows, rows, bounds, np.ones(tiles, bool))
        else:
            width = rows.shape[1] if self._directions is None else self._directions.shape[1] + 1
            made = RowBounds(rows, np.empty((points, width), np.float32), bounds, np.zeros(tiles, bool))
        self._held.append(made)
        return made, 0

    def _shorten(self, held: RowBounds, start: int, end: int, origin: Array) -> None:
        """The short rows of the tiles of these rows."""
        low, high = start // TILE * TILE, min(-(-end // TILE) * TILE, len(held.features))
        away = _away(held.features[low:high], origin, self._scale)
        if self._directions is None:
            held.short[low:high] = away
            held.bounds[0][low:high] = np.where(np.isfinite(away).all(axis=1), 0.0, np.inf)
        else:
            held.short[low:high, :-1] = away @ self._directions
            _entry("finish")(away, held.short, held.bounds[0], low, _doubt(away.shape[1]))
        held.ready[low // TILE : -(-high // TILE)] = True

    def _choose(self, rows: Array, parameter: Any) -> None:
        """Directions and their number, from the first rows and the first θ."""
        self._chosen, self._direct = True, rows.dtype == np.float32
        origin, (k, columns) = np.asarray(parameter.origin), parameter.centroids.shape
        largest = max(float(parameter.centroids.max() - origin.min()), float(origin.max() - parameter.centroids.min()))
        if 0 < largest < np.inf:
            self._scale = 2.0 ** -np.floor(np.log2(largest))
        some = _away(rows[:: max(len(rows) // self.rules.bounds_basis_rows, 1)], origin, self._scale)
        some = some[np.isfinite(some).all(axis=1)]
        most = [m for m in DIRECTIONS if m <= columns // 2]
        if len(some) < TILE or not most:
            return
        basis = leading_directions(some, most[-1])
        rows_tried = min(self.rules.bounds_trial_rows, self.rules.bounds_trial_products // (k * columns))
        trial = some[:: max(len(some) // max(rows_tried, 8), 1)]
        m = best_count(trial, _away(parameter.centroids, origin, self._scale), basis.astype(np.float32), most)
        if m:
            self._directions = np.ascontiguousarray(basis[:, :m], dtype=np.float32)
            self._direct = False

    def _pack(self, parameter: Any) -> None:
        if self._theta is None:
            columns = parameter.centroids.shape[1]
            width = columns if self._directions is None else self._directions.shape[1] + 1
            self._theta = PackedTheta(self.k, columns, -(-width // STEP) * STEP, self.rules)
        self._theta.take(parameter, self._scale, self._directions, self._direct)
        self._parameter = parameter


class PackedTheta:
    """θ as `wide_kernel` wants it: short centroids in groups, and how far bands of them have moved so far. Only what
    changed since the last θ is computed anew."""

    def __init__(self, k: int, columns: int, width: int, rules: KMeansSettings) -> None:
        shape = wide_shape()
        groups = -(-k // shape.group)
        self.several = -(-groups // max(columns // 2, rules.bounds_least_bands))
        """Groups in a band: bounds of the bands of a point take half as much memory as its columns in float32."""
        self.bands = -(-groups // self.several)
        self.packed: tuple[Any, ...] = ()
        self._shape, self._width = shape, width
        self._centres = np.zeros((k, columns))
        self._drift = np.zeros(k)
        self._gone = np.zeros((2, self.bands), np.float32)
        self._band_drift = np.zeros(self.bands)
        self._lengths, self._reach = np.zeros(k), np.zeros(k)
        self._minus = np.zeros((groups, width, shape.slot), np.float32)
        self._half = np.full((groups, shape.slot), np.inf, np.float32)
        self.block = (
            max(min(rules.bounds_block_points, rules.bounds_block_numbers // width) // shape.lanes, 1) * shape.lanes
        )

    def take(self, parameter: Any, scale: float, directions: Array | None, direct: bool) -> None:
        """Take another θ: pack its centroids, and add how far each has moved to the drift that bounds must allow
        for."""
        k, columns = self._centres.shape
        origin, first = np.asarray(parameter.origin), not self.packed
        moved, changed = np.empty(k), np.empty(k, np.int64)
        narrow = np.empty((k, columns), np.float32)
        centroids = np.ascontiguousarray(parameter.centroids)
        count = int(_entry("renew")(centroids, origin, self._centres, moved, narrow, changed, scale, first))
        ids, some = changed[:count], narrow[:count]
        if not first:
            moved = np.sqrt(moved) * (scale * (1.0 + 1e-12))
            self._drift += moved
            starts = np.arange(self.bands) * (self.several * self._shape.group)
            self._band_drift += np.maximum.reduceat(moved, starts)
            self._gone[:] = self._band_drift * np.array([[1 - 2.0**-20], [1 + 2.0**-20]])
        self._shorten(ids, some, directions)
        self.packed = (
            self._minus.reshape(-1), self._half.reshape(-1), self._centres, self._drift, self._gone.reshape(-1),
            float(self._lengths.max()), float(self._reach.max()), scale, scale if direct else 1.0, self._width,
            self.block, self.several,
        )  # fmt: skip

    def _shorten(self, ids: Array, narrow: Array, directions: Array | None) -> None:
        """Short centroids in their places, with the errors that float32 makes in them."""
        columns, group = self._centres.shape[1], self._shape.group
        norms = np.einsum("ij,ij->i", narrow, narrow, dtype=np.float64)
        short = np.zeros((len(ids), self._width), np.float32)
        if directions is None:
            short[:, :columns] = narrow
            squared = norms
        else:
            along = narrow @ directions
            short[:, : along.shape[1]] = along
            parts = np.einsum("ij,ij->i", along, along, dtype=np.float64)
            rest = np.sqrt(np.maximum(norms - parts, 0.0))
            short[:, along.shape[1]] = rest
            error = _doubt(columns) * np.sqrt(norms)
            change = 2 * error * np.sqrt(norms) + error**2
            with np.errstate(divide="ignore", invalid="ignore"):
                self._reach[ids] = error + np.fmin(np.sqrt(change), change / rest)
            squared = parts + rest**2
        self._lengths[ids] = np.sqrt(squared)
        self._minus[ids // group, :, ids % group] = -short
        self._half[ids // group, ids % group] = 0.5 * squared


def best_count(rows: Array, centres: Array, basis: Array, counts: list[int]) -> int:
    """The number of directions at which an assignment of these rows costs least; 0: all columns cost less.

    A row costs (m + 1) · k numbers of a product, and a full distance for each centroid whose bound is below the
    nearest. The cost is counted, not timed, so a job gives the same bits wherever it runs.
    """
    columns, k = centres.shape[1], len(centres)
    lengths, others = (np.einsum("ij,ij->i", a, a)[:, None] for a in (rows, centres))
    nearest = (lengths + others.T - 2 * rows @ centres.T).min(axis=1)[:, None]
    cost = {0: float(columns * k)}
    along, other = rows @ basis, centres @ basis
    for m in counts:
        mine, theirs = (np.einsum("ij,ij->i", a[:, :m], a[:, :m])[:, None] for a in (along, other))
        left, right = np.sqrt(np.maximum(lengths - mine, 0)), np.sqrt(np.maximum(others - theirs, 0))
        bound = (left - right.T) ** 2 + mine + theirs.T - 2 * along[:, :m] @ other[:, :m].T
        passing = float((bound < nearest).sum(axis=1).mean())
        cost[m] = (m + 1) * k + passing * columns * active().kmeans.bounds_full_distance_cost
    return min(cost, key=lambda m: cost[m])


def _away(rows: Array, origin: Array, scale: float) -> Array:
    """Rows about the origin, scaled, in float32."""
    if rows.dtype == np.float32:
        return (rows - origin.astype(np.float32)) * np.float32(scale)
    return ((rows - origin) * scale).astype(np.float32)


def _doubt(columns: int) -> float:
    """The error of products with directions in float32, relative to the length of the row: every rounding counts, those
    of the row, of the directions and of the sums."""
    return (columns + 8) * FLOAT32_ROUNDING


NUMBER = np.zeros(0, np.int64)
"""An array of the type of masks in the kernel."""


@cache
def _entry(name: str, *shape: int) -> EntryPoint:
    return EntryPoint("flegel.algorithms.kmeans.wide_kernel", name, *shape)
