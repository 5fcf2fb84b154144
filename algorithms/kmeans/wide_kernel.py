"""The block kernel of KMeans for wide rows and many centroids. Exact: only distances that cannot matter are left out.

Let V be orthonormal directions, y = Vᵀx and r the length of what V leaves of x. Then ‖x − c‖² ≥ ‖y_x − y_c‖² +
(r_x − r_c)², which is the squared distance of the short rows (y, r). Where the distance to one centroid is known, all
centroids whose short rows are further away are out of the question. A block of points times all short centroids is a
matrix product held in registers; the few pairs that pass are compared by their distances in float64. Short rows are
float32: `own` and `reach` bound what rounding may have done to them, so that no nearest centroid is missed.
Bounds stay from visit to visit (Hamerly 2010): a point is passed over while its distance to its own centroid, plus how
far that has moved since, is below the least possible distance to any other, minus how far those have moved.
Never reads a clock or a file, never allocates more than a block and a few rows.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from flegel.algorithms.nearest_rows import FLOAT32_ROUNDING, TINY
from flegel.algorithms.simd.buffers import flat, new_row
from flegel.algorithms.simd.by_points import two_least_each
from flegel.algorithms.simd.inner import INLINE, INNER
from flegel.algorithms.simd.registers import VECTOR_BYTES
from flegel.algorithms.simd.vectors import (
    any_lane,
    bits,
    fma,
    fma_each,
    least_each,
    least_of,
    load,
    lowest_bit,
    splats,
    spread,
    store,
    store_each,
    total,
    widen,
)
from flegel.core.atomic_flag import raised
from flegel.core.borrowed_arrays import borrowed
from flegel.core.code_cache import njit
from flegel.core.shard import TILE

PIECE = VECTOR_BYTES // 8  # float64 numbers of a row that are read at once
ABOVE = 1.0 + 1e-12  # a factor that rounding of a length in float64 does not undo
NEAR_CACHE = 24 * 1024  # bytes of short centroids that several points are compared with before the next ones


@cache
def build(lanes: int, group: int) -> Any:
    """The kernel in this shape (`registers.tile_shape`)."""
    search, compare = _searcher(lanes, group), _comparer(lanes, group)

    @njit(nogil=True, cache=True, error_model="numpy")
    def train(features, state, weights, short, first, shift, kept, packed, origin, aggregator, start, end, flag):
        own, upper, lower, known = kept
        minus, half, centres, drift, drifted, largest, reach, scale, unit, block = packed
        last, half, minus, centres = borrowed(flat(state)), borrowed(half), borrowed(minus), borrowed(centres)
        origin, short, shift = borrowed(origin), borrowed(short), borrowed(shift)
        width = short.shape[1]
        near, norms, values = new_row(half, block * width), new_row(centres, block), new_row(half, group * lanes)
        bound, errors = new_row(half, block), new_row(centres, block)
        least, second, which = new_row(half, block), new_row(half, block), new_row(half, block)
        who, best, distance = new_row(state, block), new_row(state, block), new_row(centres, block)
        for base in range(start, end, block):
            if raised(flag):
                return base
            count, row = min(block, end - base), first + base
            fresh = 0
            for i in range(count):
                best[i] = last[base + i]
                if best[i] < 0:
                    who[fresh] = i
                    fresh += 1
            if fresh:  # the nearest short centroid is a good guess
                _pack(short, row, shift, unit, who, fresh, borrowed(near), norms)
                search(borrowed(near), width, minus, half, fresh, borrowed(least), borrowed(which))
                for n in range(fresh):
                    best[who[n]] = np.int32(which[n])
            seeking = 0
            for i in range(count):
                mine = best[i]
                valid = mine == last[base + i] and known[row + i] == mine
                apart = lower[row + i] - drifted if valid else 0.0
                if valid and upper[row + i] + drift[mine] < apart:
                    continue
                distance[i] = _squared(features, base + i, centres, mine, origin)
                exact = np.sqrt(distance[i])
                if valid and exact * ABOVE < apart:
                    upper[row + i] = exact * ABOVE - drift[mine]
                elif own[row + i] < 1e30 and distance[i] * scale * scale < 1e30:
                    who[seeking] = i
                    seeking += 1
                else:  # beyond what float32 can square
                    known[row + i] = -1
                    _try_all(features, base + i, centres, origin, best, distance, i, last[base + i] < 0)
            _pack(short, row, shift, unit, who, seeking, borrowed(near), norms)
            _set_bounds(who, seeking, row, distance, own, norms, (largest, reach, scale, width), bound, errors)
            compare(
                borrowed(near), width, minus, half, seeking, borrowed(bound), borrowed(values), borrowed(least),
                borrowed(second), borrowed(which), who, best, distance, features, base, centres, origin, last,
            )  # fmt: skip
            for n in range(seeking):
                i, mine = who[n], best[who[n]]
                other = np.float64(second[n] if np.int32(which[n]) == mine else least[n]) - errors[n]
                doubt = _doubt(own[row + i], reach, norms[n], largest)
                known[row + i] = mine
                upper[row + i] = np.sqrt(distance[i]) * ABOVE - drift[mine]
                lower[row + i] = (np.sqrt(max(2 * other + norms[n], 0.0)) - doubt) / scale + drifted
            _move_all(features, last, best, weights, base, count, origin, aggregator)
        return end

    return train


@cache
def _multiplier(lanes: int, group: int) -> Any:
    """`product(near, at, width, minus, half, g)`: ½‖c‖² − x·c of the points in the lanes at `near[at]` and of each
    short centroid of group g, as a tuple of vectors."""

    @njit(**INLINE)
    def product(near, at, width, minus, half, g):
        found = splats(half, g * group, group, lanes)
        c_at = g * width * group
        for _ in range(width):
            found = fma_each(load(near, at, lanes), splats(minus, c_at, group, lanes), found)
            at += TILE
            c_at += group
        return found

    return product


@cache
def _searcher(lanes: int, group: int) -> Any:
    """`search(near, width, minus, half, count, least, which)`: the nearest short centroid of each packed point."""
    product = _multiplier(lanes, group)

    @njit(**INNER)
    def search(near, width, minus, half, count, least, which):
        groups = half.size // group
        several = max(NEAR_CACHE // (width * group * 4), 1)
        for chunk in range(0, groups, several):
            for lane in range(0, count, lanes):
                at = lane // TILE * width * TILE + lane % TILE
                low, place = load(least, lane, lanes), load(which, lane, lanes)
                if chunk == 0:
                    low = spread(np.inf, low)
                    place = spread(0, low)
                for g in range(chunk, min(chunk + several, groups)):
                    found = product(near, at, width, minus, half, g)
                    low, place = least_each(found, g * group, low, place)
                store(least, lane, low)
                store(which, lane, place)

    return search


@cache
def _comparer(lanes: int, group: int) -> Any:
    """`compare(…)`: every short centroid that is nearer to a packed point than its bound is compared in full. Finds the
    two least values of each point as well, and the number of the least."""
    product = _multiplier(lanes, group)

    @njit(**INNER)
    def compare(
        near, width, minus, half, count, bound, values, least, second, which,
        who, best, distance, features, base, centres, origin, last,
    ):  # fmt: skip
        groups = half.size // group
        several = max(NEAR_CACHE // (width * group * 4), 1)
        for chunk in range(0, groups, several):
            for lane in range(0, count, lanes):
                at = lane // TILE * width * TILE + lane % TILE
                limit = load(bound, lane, lanes)
                low, next_low, place = load(least, lane, lanes), load(second, lane, lanes), load(which, lane, lanes)
                if chunk == 0:
                    low, next_low, place = spread(np.inf, limit), spread(np.inf, limit), spread(0, limit)
                for g in range(chunk, min(chunk + several, groups)):
                    found = product(near, at, width, minus, half, g)
                    low, next_low, place = two_least_each(found, g * group, low, next_low, place)
                    passing = least_of(found) < limit
                    if any_lane(passing):
                        store_each(values, 0, lanes, found)
                        passed = bits(passing)
                        while passed:
                            n = lowest_bit(passed)
                            passed &= passed - 1
                            i = who[lane + n]
                            for j in range(group):
                                if not values[j * lanes + n] < bound[lane + n]:
                                    continue
                                c = g * group + j
                                if c != best[i]:
                                    _try(features, base + i, centres, origin, best, distance, i, c, last[base + i] < 0)
                store(least, lane, low)
                store(second, lane, next_low)
                store(which, lane, place)

    return compare


@njit(**INLINE)
def _doubt(own, reach, norm, largest):
    """How far a distance between short rows may be off: by their own errors, and by their rounding to float32."""
    return own + reach + 2 * FLOAT32_ROUNDING * (np.sqrt(norm) + largest)


@njit(**INNER)
def _set_bounds(who, count, first, distance, own, norms, centroids, bound, errors):
    """Of each packed point: the value of `product` from which on a centroid cannot be nearer, and the error of such a
    value. Lanes without a point get a bound that nothing passes."""
    largest, reach, scale, width = centroids
    for n in range(-(-count // TILE) * TILE):
        bound[n] = -np.inf
    for n in range(count):
        far = np.sqrt(distance[who[n]]) * scale + _doubt(own[first + who[n]], reach, norms[n], largest)
        errors[n] = (width + 4) * FLOAT32_ROUNDING * (0.5 * largest * largest + np.sqrt(norms[n]) * largest) + TINY
        limit = 0.5 * (far * far - norms[n]) + errors[n]
        bound[n] = limit + 4 * FLOAT32_ROUNDING * abs(limit)


@njit(**INNER)
def _move_all(features, last, best, weights, base, count, origin, aggregator):
    """Points of a block whose nearest centroid is another one now, in their order."""
    for i in range(count):
        old, new = last[base + i], best[i]
        if old != new:
            weight = 1.0
            if weights is not None:
                weight = weights[base + i]
            square = weight * _move(features, base + i, origin, weight, aggregator.sums, old, new)
            aggregator.counts[new] += weight
            aggregator.squares[new] += square
            if old >= 0:
                aggregator.counts[old] -= weight
                aggregator.squares[old] -= square
            last[base + i] = new


@njit(**INNER)
def _try(features, row, centres, origin, best, distance, i, c, fresh):
    """Is centroid c nearer? Of two at the same distance a visited point keeps its own, a new one takes the first."""
    found = _squared(features, row, centres, c, origin)
    if found < distance[i] or (fresh and found == distance[i] and c < best[i]):
        best[i], distance[i] = c, found


@njit(**INNER)
def _try_all(features, row, centres, origin, best, distance, i, fresh):
    for c in range(centres.shape[0]):
        if c != best[i]:
            _try(features, row, centres, origin, best, distance, i, c, fresh)


@njit(**INNER)
def _pack(short, first, shift, unit, who, count, near, norms):
    """Short rows of the points `who`, as tiles (a column every TILE numbers), and their squared lengths."""
    width = short.shape[1]
    for n in range(count):
        row = first + who[n]
        at = n // TILE * width * TILE + n % TILE
        norm = 0.0
        for t in range(width):
            x = np.float32((np.float64(short[row, t]) - shift[t]) * unit)
            near[at + t * TILE] = x
            norm += np.float64(x) * np.float64(x)
        norms[n] = norm


@njit(**INLINE)
def _away(features, i, t, origin):
    """PIECE numbers of row i about the origin, in float64."""
    return widen(load(features, i * origin.size + t, PIECE)) - load(origin, t, PIECE)


@njit(**INNER)
def _squared(features, i, centres, c, origin):
    """‖x − c‖² in float64. Two sums: one would wait for itself."""
    columns = origin.size
    pieces = columns // PIECE
    even = spread(0, load(origin, 0, PIECE))
    odd = even
    for n in range(0, pieces - 1, 2):
        t = n * PIECE
        x = _away(features, i, t, origin) - load(centres, c * columns + t, PIECE)
        even = fma(x, x, even)
        x = _away(features, i, t + PIECE, origin) - load(centres, c * columns + t + PIECE, PIECE)
        odd = fma(x, x, odd)
    if pieces % 2:
        t = (pieces - 1) * PIECE
        x = _away(features, i, t, origin) - load(centres, c * columns + t, PIECE)
        even = fma(x, x, even)
    found = total(even + odd)
    for t in range(pieces * PIECE, columns):
        z = np.float64(features[i, t]) - origin[t] - centres[c, t]
        found += z * z
    return found


@njit(**INNER)
def _move(features, i, origin, weight, sums, old, new):
    """A point leaves the sums of cluster `old`, unless that is −1, and enters those of `new`; ‖x − origin‖²."""
    columns = origin.size
    whole = columns // PIECE * PIECE
    squares = spread(0, load(origin, 0, PIECE))
    for t in range(0, whole, PIECE):
        x = _away(features, i, t, origin)
        squares = fma(x, x, squares)
        x = x * weight
        store(sums, new * columns + t, load(sums, new * columns + t, PIECE) + x)
        if old >= 0:
            store(sums, old * columns + t, load(sums, old * columns + t, PIECE) - x)
    square = total(squares)
    for t in range(whole, columns):
        x = np.float64(features[i, t]) - origin[t]
        square += x * x
        sums[new, t] += weight * x
        if old >= 0:
            sums[old, t] -= weight * x
    return square


@njit(nogil=True, cache=True, error_model="numpy")
def finish(away, short, own, start, doubt):
    """Fill the last column of short rows with what their directions leave of each row, and `own` with the bound of the
    error of a short row: `doubt` is that of its products, relative to the length of the row."""
    columns, directions = away.shape[1], short.shape[1] - 1
    for i in range(away.shape[0]):
        norm, along = 0.0, 0.0
        for t in range(columns):
            norm += np.float64(away[i, t]) * np.float64(away[i, t])
        for t in range(directions):
            along += np.float64(short[start + i, t]) * np.float64(short[start + i, t])
        rest = np.sqrt(max(norm - along, 0.0))
        error = doubt * np.sqrt(norm)
        change = 2 * error * np.sqrt(norm) + error * error  # of the squared lengths
        short[start + i, directions] = rest
        own[start + i] = error + min(np.sqrt(change), change / max(rest, TINY))
        if not norm < 1e30:
            own[start + i] = np.inf
