"""K-means on wide rows with many centroids: what `wide_kernel` needs to know of rows and θ, kept between its calls.

A short row is made when a point is first visited, and kept: (directions + 1) float32 numbers. The kernel takes the
number of directions that costs least by a trial with the first θ, or the rows themselves where no directions help.
Imports no compiler, reads no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from flegel.algorithms.directions import leading_directions
from flegel.algorithms.simd.registers import tile_shape
from flegel.core.entry_point import EntryPoint
from flegel.core.pytree import Array, protected
from flegel.core.shard import TILE, Shard

ROUNDING = 2.0**-24  # of float32, relative
BASIS_ROWS = 2048  # rows of a shard from which directions are found
TRIAL_ROWS, TRIAL_PRODUCTS = 128, 2**31  # rows, at most, and multiplications on which numbers of directions are tried
DIRECTIONS = (16, 32, 48, 64, 96, 128, 192, 256)
FULL_DISTANCE = 6.0
"""What a number of a full distance costs, in numbers of a product: float64, and its centroid comes from a far cache."""
SHORTENED_ROWS = 1024  # rows that are shortened at once: about half a millisecond
MANY_CENTROIDS = 2048  # above it blocks have 64 points, not 256: the stop flag is read between blocks


WIDE_COLUMNS, WIDE_K = 64, 64
"""Columns and clusters from which on the kernel for wide rows is faster."""


def is_wide(k: int, columns: int) -> bool:
    """Does the kernel for wide rows serve this shape?"""
    return columns >= WIDE_COLUMNS and k >= WIDE_K


@dataclass
class RowBounds:
    """What is kept of one array of rows. `features` is held so that its memory is not used again for another."""

    features: Array
    short: Array
    """Short rows, or the features themselves."""
    bounds: tuple[Array, ...]
    """By row: the error of a short row; upper and lower bounds of `wide_kernel`; the cluster that they are of."""
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
    """These are read from the rows themselves, which are float32 already."""
    _chosen: bool = False
    _compiled: bool = False
    _scale: float = 1.0
    _packed: tuple[Any, ...] = ()
    _centres: Array = field(default_factory=lambda: np.empty((0, 0)))
    _drift: Array = field(default_factory=lambda: np.empty(0))
    """How far each centroid has moved so far, step by step, and the same of the one that moved furthest each time."""
    _drifted: float = 0.0
    _held: list[RowBounds] = field(default_factory=list)

    def __call__(
        self, shard: Shard, parameter: Any, aggregator: Any, start: int, end: int, iteration: int, flag: Array
    ) -> int:
        end = min(end, shard.points)
        rows = np.ascontiguousarray(shard.features)
        if not self._chosen:
            self._choose(rows, parameter)
        if self._parameter is not parameter:
            self._pack(parameter)
        origin = np.asarray(parameter.origin)
        held, first = self._kept(rows)
        shift = origin if self._direct else np.zeros(held.short.shape[1])
        train, state, weights = _entry("build", *tile_shape(np.float32, self.k)), shard.state, shard.weights

        def run(low: int, high: int) -> int:
            places = (protected(held.short), first, shift, held.bounds, self._packed)
            return int(train(rows, state, weights, *places, origin, aggregator, low, high, flag))

        if not self._compiled:  # all that these types may need: a raised flag would leave some of it out
            self._compiled = True
            run(start, start)
            _entry("finish")(*np.zeros((2, 0, 2), np.float32), np.zeros(0, np.float32), 0, 0.0)
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
        for held in self._held:
            at = held.position(rows)
            if at is not None:
                return held, at
        points, runs = len(rows), -(-len(rows) // SHORTENED_ROWS)
        bounds = (np.zeros(points, np.float32), np.zeros(points), np.zeros(points), np.full(points, -1, np.int32))
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
        origin, k = np.asarray(parameter.origin), len(parameter.centroids)
        centres = parameter.centroids - origin
        largest = float(np.abs(centres).max())
        if 0 < largest < np.inf:
            self._scale = 2.0 ** -np.floor(np.log2(largest))
        some = _away(rows[:: max(len(rows) // BASIS_ROWS, 1)], origin, self._scale)
        some = some[np.isfinite(some).all(axis=1)]
        columns = some.shape[1]
        most = [m for m in DIRECTIONS if m <= columns // 2]
        if len(some) < TILE or not most:
            return
        basis = leading_directions(some, most[-1])
        trial = some[:: max(len(some) // max(min(TRIAL_ROWS, TRIAL_PRODUCTS // (k * columns)), 8), 1)].astype(
            np.float64
        )
        m = best_count(trial, centres * self._scale, basis, most)
        if m:
            self._directions = np.ascontiguousarray(basis[:, :m], dtype=np.float32)
            self._direct = False

    def _pack(self, parameter: Any) -> None:
        """θ as the kernel wants it: centroids about the origin, and short ones in groups."""
        columns = parameter.centroids.shape[1]
        centres = np.ascontiguousarray(parameter.centroids - parameter.origin, dtype=np.float64)
        scaled, reach = centres * self._scale, 0.0
        if self._directions is None:
            short = scaled
        else:
            along = scaled @ self._directions.astype(np.float64)
            norms, parts = (scaled**2).sum(axis=1), (along**2).sum(axis=1)
            rest = np.sqrt(np.maximum(norms - parts, 0.0))
            short = np.concatenate([along, rest[:, None]], axis=1)
            error = _doubt(columns) * np.sqrt(norms)
            change = 2 * error * np.sqrt(norms) + error**2
            with np.errstate(divide="ignore", invalid="ignore"):
                reach = float((error + np.fmin(np.sqrt(change), change / rest)).max())
        lengths = np.sqrt((short**2).sum(axis=1))
        group = tile_shape(np.float32, self.k)[1]
        groups, width = -(-len(short) // group), short.shape[1]
        filled = np.zeros((groups * group, width), np.float32)
        half = np.full(groups * group, np.inf, np.float32)
        filled[: len(short)], half[: len(short)] = -short, 0.5 * lengths**2
        minus = filled.reshape(groups, group, width).transpose(0, 2, 1).reshape(-1)
        block = TILE if self.k > MANY_CENTROIDS or self._directions is None else 4 * TILE
        if self._centres.shape == centres.shape:
            moved = np.sqrt(((centres - self._centres) ** 2).sum(axis=1)) * (1.0 + 1e-12)
            self._drift, self._drifted = self._drift + moved, self._drifted + float(moved.max())
        else:
            self._drift = np.zeros(len(centres))
        self._parameter, self._centres = parameter, centres
        unit = self._scale if self._direct else 1.0  # short rows are scaled already
        self._packed = (
            minus, half, centres, self._drift, self._drifted, float(lengths.max()), reach, self._scale, unit, block,
        )  # fmt: skip


def best_count(rows: Array, centres: Array, basis: Array, counts: list[int]) -> int:
    """The number of directions at which an assignment of these rows costs least; 0: all columns cost less.

    A row costs (m + 1) · k numbers of a product, and a full distance for each centroid whose bound is below the
    nearest. The cost is counted, not timed, so a job gives the same bits wherever it runs.
    """
    columns, k = centres.shape[1], len(centres)
    products = rows @ centres.T
    squared = (rows**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1) - 2 * products
    nearest = squared.min(axis=1)[:, None]
    cost = {0: float(columns * k)}
    along, other = rows @ basis, centres @ basis
    for m in counts:
        left = np.sqrt(np.maximum((rows**2).sum(axis=1) - (along[:, :m] ** 2).sum(axis=1), 0.0))
        right = np.sqrt(np.maximum((centres**2).sum(axis=1) - (other[:, :m] ** 2).sum(axis=1), 0.0))
        bound = (left[:, None] - right) ** 2 + (along[:, :m] ** 2).sum(axis=1)[:, None]
        bound += (other[:, :m] ** 2).sum(axis=1) - 2 * along[:, :m] @ other[:, :m].T
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


@cache
def _entry(name: str, *shape: int) -> EntryPoint:
    return EntryPoint("flegel.algorithms.kmeans.wide_kernel", name, *shape)
