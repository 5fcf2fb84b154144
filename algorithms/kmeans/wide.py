"""K-means on wide rows with many centroids: what `wide_kernel` needs to know of rows and θ, kept between its calls.

A short row is made when a point is first visited, and kept: (directions + 1) float32 numbers. The kernel takes the
number of directions that costs least by a trial with the first θ, or the rows themselves where no directions help.
Imports no compiler, reads no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from flegel.algorithms.directions import leading_directions
from flegel.algorithms.simd.registers import REGISTERS, register_lanes
from flegel.core.entry_point import EntryPoint
from flegel.core.pytree import Array, protected
from flegel.core.shard import TILE, Shard

ROUNDING = 2.0**-24  # of float32, relative
BASIS_ROWS = 1024  # rows of a shard from which directions are found
TRIAL_ROWS, TRIAL_PRODUCTS = 64, 2**27  # rows, at most, and multiplications on which numbers of directions are tried
DIRECTIONS = (15, 31, 47, 63, 95)  # that are tried: one less than a multiple of STEP, for the length of the rest
FULL_DISTANCE = 12.0
"""What a number of a full distance costs, in numbers of a product: float64, and its centroid comes from a far cache."""
SHORTENED_ROWS = 1024  # rows that are shortened at once: about half a millisecond
BLOCK_NUMBERS = 96 * 1024  # numbers of the short rows of a block, at most: they stay in the second cache
MOST_POINTS = 256  # of a block
STEP = 16  # the width of short rows is a multiple of it
LEAST_BANDS = 32  # of which bounds may be kept in any case


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
    """By runs of SHORTENED_ROWS rows: short rows are there."""

    def position(self, rows: Array) -> int | None:
        """Where these rows begin in `features`, if they are a part of them."""
        if rows.dtype != self.features.dtype or rows.shape[1] != self.features.shape[1]:
            return None
        at, rest = divmod(rows.ctypes.data - self.features.ctypes.data, self.features.strides[0] or 1)
        return at if rest == 0 and 0 <= at <= len(self.features) - len(rows) else None


@dataclass
class WideKernel:
    """The kernel of one job on one worker. Call it as `flegel.algorithm.Kernel` says."""

    k: int
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

    def __call__(
        self, shard: Shard, parameter: Any, aggregator: Any, start: int, end: int, iteration: int, flag: Array
    ) -> int:
        """Visit points `start` to `end`, with bounds that are kept from visit to visit so that most distances need not
        be computed. Rows are shortened, in runs, before their first visit."""
        end = min(end, shard.points)
        rows = np.ascontiguousarray(shard.features)
        if not self._chosen:
            self._choose(rows, parameter)
        if self._parameter is not parameter:
            self._pack(parameter)
        assert self._theta is not None
        theta, origin = self._theta.packed, np.asarray(parameter.origin)
        held, first = self._kept(rows)
        shift = origin if self._direct else np.zeros(held.short.shape[1])
        train, state, weights = _entry("build", *wide_shape()), shard.state, shard.weights

        def run(low: int, high: int) -> int:
            places = (protected(held.short), first, shift, held.bounds, theta, NUMBER)
            return int(train(rows, state, weights, *places, origin, aggregator, low, high, flag))

        if not self._compiled:  # all that these types may need: a raised flag would leave some of it out
            self._compiled = True
            run(start, start)
            _entry("finish")(
                np.zeros((0, 2), np.float32), np.zeros((0, STEP), np.float32), np.zeros(0, np.float32), 0, 0.0
            )
        at = start
        while at < end:
            here = (first + at) // SHORTENED_ROWS
            if held.ready[here : -(-(first + end) // SHORTENED_ROWS)].all():
                return run(at, end)
            if flag[0]:
                return at
            self._shorten(held, here, origin)
            stop = min((here + 1) * SHORTENED_ROWS - first, end)
            reached = run(at, stop)
            if reached < stop:
                return reached
            at = stop
        return at

    def forget(self, shard: Shard) -> None:
        """These rows will not come again."""
        self._held = [held for held in self._held if held.features is not shard.features]

    def _kept(self, rows: Array) -> tuple[RowBounds, int]:
        """The bounds of these rows and the place of their first row there; new ones for rows that were not visited
        before."""
        for held in self._held:
            at = held.position(rows)
            if at is not None:
                return held, at
        points, runs = len(rows), -(-len(rows) // SHORTENED_ROWS)
        assert self._theta is not None
        lower = np.zeros((points + MOST_POINTS) * self._theta.bands, np.float32)  # the last block may be a part
        bounds = (np.zeros(points, np.float32), np.zeros(points), np.full(points, -1, np.int32), lower)
        if self._direct:
            made = RowBounds(rows, rows, bounds, np.ones(runs, bool))
        else:
            width = rows.shape[1] if self._directions is None else self._directions.shape[1] + 1
            made = RowBounds(rows, np.empty((points, width), np.float32), bounds, np.zeros(runs, bool))
        self._held.append(made)
        return made, 0

    def _shorten(self, held: RowBounds, run: int, origin: Array) -> None:
        """The short rows of one run of SHORTENED_ROWS rows."""
        low, high = run * SHORTENED_ROWS, min((run + 1) * SHORTENED_ROWS, len(held.features))
        away = _away(held.features[low:high], origin, self._scale)
        if self._directions is None:
            held.short[low:high] = away
            held.bounds[0][low:high] = np.where(np.isfinite(away).all(axis=1), 0.0, np.inf)
        else:
            held.short[low:high, :-1] = away @ self._directions
            _entry("finish")(away, held.short, held.bounds[0], low, _doubt(away.shape[1]))
        held.ready[run] = True

    def _choose(self, rows: Array, parameter: Any) -> None:
        """Directions and their number, from the first rows and the first θ."""
        self._chosen, self._direct = True, rows.dtype == np.float32
        origin, (k, columns) = np.asarray(parameter.origin), parameter.centroids.shape
        largest = max(float(parameter.centroids.max() - origin.min()), float(origin.max() - parameter.centroids.min()))
        if 0 < largest < np.inf:
            self._scale = 2.0 ** -np.floor(np.log2(largest))
        some = _away(rows[:: max(len(rows) // BASIS_ROWS, 1)], origin, self._scale)
        some = some[np.isfinite(some).all(axis=1)]
        most = [m for m in DIRECTIONS if m <= columns // 2]
        if len(some) < TILE or not most:
            return
        basis = leading_directions(some, most[-1])
        trial = some[:: max(len(some) // max(min(TRIAL_ROWS, TRIAL_PRODUCTS // (k * columns)), 8), 1)]
        m = best_count(trial, _away(parameter.centroids, origin, self._scale), basis.astype(np.float32), most)
        if m:
            self._directions = np.ascontiguousarray(basis[:, :m], dtype=np.float32)
            self._direct = False

    def _pack(self, parameter: Any) -> None:
        if self._theta is None:
            columns = parameter.centroids.shape[1]
            width = columns if self._directions is None else self._directions.shape[1] + 1
            self._theta = PackedTheta(self.k, columns, -(-width // STEP) * STEP)
        self._theta.take(parameter, self._scale, self._directions, self._direct)
        self._parameter = parameter


class PackedTheta:
    """θ as `wide_kernel` wants it: short centroids in groups, and how far bands of them have moved so far. Only what
    changed since the last θ is computed anew."""

    def __init__(self, k: int, columns: int, width: int) -> None:
        shape = wide_shape()
        groups = -(-k // shape.group)
        self.several = -(-groups // max(columns // 2, LEAST_BANDS))
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
        self._block = max(min(MOST_POINTS, BLOCK_NUMBERS // width) // shape.lanes, 1) * shape.lanes

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
            self._block, self.several,
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
        cost[m] = (m + 1) * k + passing * columns * FULL_DISTANCE
    return min(cost, key=lambda m: cost[m])


def _away(rows: Array, origin: Array, scale: float) -> Array:
    """Rows about the origin, scaled, in float32."""
    if rows.dtype == np.float32:
        return (rows - origin.astype(np.float32)) * np.float32(scale)
    return ((rows - origin) * scale).astype(np.float32)


def _doubt(columns: int) -> float:
    """The error of products with directions in float32, relative to the length of the row: every rounding counts, those
    of the row, of the directions and of the sums."""
    return (columns + 8) * ROUNDING


NUMBER = np.zeros(0, np.int64)
"""An array of the type of masks in the kernel."""


@cache
def _entry(name: str, *shape: int) -> EntryPoint:
    return EntryPoint("flegel.algorithms.kmeans.wide_kernel", name, *shape)
