"""Points of a tile that change their cluster: their numbers leave the sums of one and enter those of another.

In float64 and in the order of the points, so that the sums do not depend on how a pass is cut. Most points stay, so
those that do not are found by bits of a comparison; a lone one is read number by number, several as a block.

The *book* of a call is a tuple of five arrays that it makes once (`open_book`), moves points in, and adds to the
statistics at its end (`close_book`): centroids, origin, room for a point, sums by cluster, and room for WIDE points.
"""

from __future__ import annotations

import numpy as np

from flegel.algorithms.simd.buffers import new_row, new_table
from flegel.algorithms.simd.inner import INLINE, INNER
from flegel.algorithms.simd.registers import VECTOR_BYTES
from flegel.algorithms.simd.vectors import (
    bits,
    fma,
    load,
    loads,
    lowest_bit,
    spread,
    store,
    store_each,
    strided,
    total,
    transposed,
    widen,
)
from flegel.core.borrowed_arrays import borrowed
from flegel.core.code_cache import njit
from flegel.core.shard import TILE

WIDE = 4 if VECTOR_BYTES == 16 else 8  # numbers of a row that are moved at once


@njit(**INNER)
def open_book(features, centres, origin, aggregator):
    """What moving points needs, each row filled up with zeros to whole vectors: in float64 centroids about the origin,
    the origin, room for a point, and the sums by cluster as they are so far; WIDE points as rows, in the features'
    precision."""
    columns = origin.size
    width = -(-columns // WIDE) * WIDE
    wide, sums = new_table(centres, len(centres), width), new_table(centres, len(centres), width)
    zero, away = new_row(centres, width), new_row(centres, width)
    rows = new_table(features, WIDE, width)
    zero[:] = 0
    away[:] = 0
    rows[:] = 0
    for t in range(columns):
        zero[t] = origin[t]
    for j in range(len(centres)):  # row by row, as they lie in memory
        for t in range(columns):
            wide[j, t], sums[j, t] = centres[j, t], aggregator.sums[j, t]
        for t in range(columns, width):
            wide[j, t], sums[j, t] = 0.0, 0.0
    return wide, zero, away, sums, rows


@njit(**INLINE)
def lend(book, aggregator):
    """The arrays of the book, with counts and squares, for `move`, without reference counting, which would take
    longer than moving a point. Whoever lends them uses the book afterwards, in `close_book`, and so keeps them."""
    wide, zero, away, sums, rows = book
    return (
        borrowed(wide),
        borrowed(zero),
        borrowed(away),
        borrowed(sums),
        borrowed(rows),
        borrowed(aggregator.counts),
        borrowed(aggregator.squares),
    )


@njit(**INNER)
def close_book(book, aggregator):
    """The sums back to the statistics. They went on from there: where a pass is cut into calls, which depends on time,
    decides no bit."""
    sums = book[3]
    for j in range(aggregator.sums.shape[0]):
        for t in range(aggregator.sums.shape[1]):
            aggregator.sums[j, t] = sums[j, t]


@njit(**INLINE)
def move(flat, last, weights, nearest, columns, tile, start, end, lent):
    """Take points of a tile to their new clusters in the statistics, where float64 agrees that these are nearer."""
    centres, origin, away, sums, rows, counts, squares = lent
    first, corner = tile * TILE, tile * columns * TILE
    low, high = start - first if start > first else 0, end - first if end - first < TILE else TILE
    for group in range(low // WIDE * WIDE, high, WIDE):
        changed = bits(load(nearest, group, WIDE) != load(last, first + group, WIDE))
        if group < low:
            changed &= -1 << (low - group)
        if group + WIDE > high:
            changed &= (1 << (high - group)) - 1
        if changed == 0:
            continue
        if changed & (changed - 1):
            _lay_out(flat, corner + group, columns, rows)
        else:
            _fetch(flat, corner + group, lowest_bit(changed), columns, rows)
        while changed:
            i = lowest_bit(changed)
            changed &= changed - 1
            old, new = last[first + group + i], nearest[group + i]
            weight = 1.0
            if weights is not None:
                weight = np.float64(weights[tile, group + i])
            if old < 0:
                square = weight * _enter(rows, i, origin, weight, sums, new)
            else:
                square = weight * _away(rows, i, origin, away)
                if not _nearer(away, centres, old, new):
                    continue
                _add(away, weight, sums, new)
                _add(away, -weight, sums, old)
                counts[old] -= weight
                squares[old] -= square
            counts[new] += weight
            squares[new] += square
            last[first + group + i] = new


@njit(**INLINE)
def _lay_out(flat, corner, columns, rows):
    """WIDE points as rows: square blocks are transposed in registers, the last may overlap the one before."""
    if columns < WIDE:
        for t in range(columns):
            for i in range(WIDE):
                rows[i, t] = flat[corner + t * TILE + i]
        return
    for block in range(0, columns, WIDE):
        t = block if block < columns - WIDE else columns - WIDE
        x = loads(flat, corner + t * TILE, TILE, WIDE, WIDE)
        store_each(rows, t, rows.shape[1], transposed(x))


@njit(**INLINE)
def _fetch(flat, corner, i, columns, rows):
    """Point i alone as row i."""
    if columns < WIDE:
        for t in range(columns):
            rows[i, t] = flat[corner + t * TILE + i]
        return
    for block in range(0, columns, WIDE):
        t = block if block < columns - WIDE else columns - WIDE
        store(rows, i * rows.shape[1] + t, strided(flat, corner + t * TILE + i, TILE, WIDE))


@njit(**INLINE)
def _enter(rows, i, origin, weight, sums, cluster):
    """A point that was in no cluster: sums[cluster] += weight · x; returns ‖x‖². Both about the origin."""
    width = rows.shape[1]
    square = spread(0, load(origin, 0, WIDE))
    for t in range(0, width, WIDE):
        x, place = widen(load(rows, i * width + t, WIDE)) - load(origin, t, WIDE), cluster * width + t
        store(sums, place, fma(x, spread(weight, x), load(sums, place, WIDE)))
        square = fma(x, x, square)
    return total(square)


@njit(**INLINE)
def _away(rows, i, origin, away):
    """Row i about the origin, in float64, to `away`; returns its squared length."""
    square = spread(0, load(origin, 0, WIDE))
    for t in range(0, away.size, WIDE):
        x = widen(load(rows, i * away.size + t, WIDE)) - load(origin, t, WIDE)
        store(away, t, x)
        square = fma(x, x, square)
    return total(square)


@njit(**INLINE)
def _nearer(away, centres, old, new):
    """Is ‖x − old‖² above ‖x − new‖²?"""
    width = away.size
    gain = spread(0, load(away, 0, WIDE))
    for t in range(0, width, WIDE):
        x = load(away, t, WIDE)
        was, now = load(centres, old * width + t, WIDE), load(centres, new * width + t, WIDE)
        gain = fma(now - was, x + x - now - was, gain)
    return total(gain) > 0.0


@njit(**INLINE)
def _add(away, weight, sums, cluster):
    """sums[cluster] += weight · x."""
    for t in range(0, away.size, WIDE):
        x, place = load(away, t, WIDE), cluster * away.size + t
        store(sums, place, fma(x, spread(weight, x), load(sums, place, WIDE)))
