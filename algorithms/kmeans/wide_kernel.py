"""The block kernel of KMeans for wide rows and many centroids. Exact: only distances that cannot matter are left out.

Let V be orthonormal directions, y = Vᵀx and r the length of what V leaves of x. Then ‖x − c‖² ≥ ‖y_x − y_c‖² +
(r_x − r_c)², which is the squared distance of the short rows (y, r). Where the distance to one centroid is known, all
centroids whose short rows are further away are out of the question; the few that are not are compared by their
distances in float64. Short rows are float32: `own` and `reach` bound what rounding may have done to them, so that no
nearest centroid is missed.

Centroids lie in bands of one or a few register groups. Of each point and band a lower bound of the distances is kept
from visit to visit (Ding et al. 2015, after Elkan 2003): a band is passed over as long as its bound, less how far its
centroids have moved since, exceeds the distance to the point's own centroid. So a block of points is

1. scanned: which bands may hold a nearer centroid for which points;
2. multiplied, panel by panel of as many points as a vector has lanes, where that is most of them, or where points are
   new: all short centroids times the panel, in registers, of which the least of each band is kept;
3. examined, band by band: short distances of the points that the first two steps left, a vector of centroids at a
   time, then distances in float64.

All lengths are in units of `scale`. Never reads a clock or a file, never allocates more than a block and a few rows.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from flegel.algorithms.nearest_rows import TINY
from flegel.algorithms.simd.buffers import flat, new_row
from flegel.algorithms.simd.inner import INLINE, INNER
from flegel.algorithms.simd.registers import FLOAT32_ROUNDING, VECTOR_BYTES
from flegel.algorithms.simd.vectors import (
    bit_count,
    bits,
    fma,
    fma_each,
    least_lane,
    least_of,
    load,
    loads,
    lowest_bit,
    maximum,
    minimum,
    root,
    splats,
    spread,
    store,
    store_each,
    total,
    transposed,
    where,
    widen,
)
from flegel.configuration.compiled import kernel_settings
from flegel.core.atomic_flag import raised
from flegel.core.borrowed_arrays import borrowed, hold
from flegel.core.code_cache import njit

PIECE = VECTOR_BYTES // 8  # float64 numbers of a row that are read at once
ABOVE = 1.0 + 1e-12  # a factor that rounding of a length in float64 does not undo
ABOVE_NARROW = 1.0 + 2.0**-20  # the same of a few roundings in float32
NEAR_CACHE = kernel_settings().near_cache_bytes
MULTIPLIED_FROM = kernel_settings().bands_multiplied_from
STEP = 16  # numbers of a short row that are read at once: its width is a multiple of it
NONE, SOME, MOST = 0, 1, 2  # of the bands of a panel that may hold a nearer centroid
TOGETHER = 8  # points that are examined at once: so many chains of sums keep both multipliers busy


class _Points(NamedTuple):
    """The rows that are trained, the clusters of their last visits, where the first of them is among all rows."""

    features: Any
    last: Any
    first: Any
    origin: Any


class _Kept(NamedTuple):
    """What stays from visit to visit, by row (`wide.RowBounds`). `lower` is by row and band: a lower bound of the
    distances plus the `gone` of the band at that time (`_Theta`), so that less the `gone` of a later time it is one
    then."""

    own: Any
    upper: Any
    known: Any
    lower: Any


class _Theta(NamedTuple):
    """θ as `wide.PackedTheta` lays it out. `gone`: how far the centroids of each band have moved in all, rounded down,
    then the same rounded up."""

    minus: Any
    half: Any
    centres: Any
    drift: Any
    gone: Any
    largest: Any
    reach: Any
    scale: Any
    width: Any
    several: Any


class _Found(NamedTuple):
    """By point of the block: the nearest centroid so far, its squared distance, and an upper bound of the distance,
    −inf where nothing is left to do."""

    best: Any
    distance: Any
    far: Any


class _Rounding(NamedTuple):
    """By point of the block: its squared length, the product that nothing of interest exceeds, the error of a product,
    and that of a distance between short rows (`doubts`)."""

    norms: Any
    limits: Any
    errors: Any
    doubts: Any


class _Room(NamedTuple):
    """Buffers for intermediate results of a block: short rows, least products by band, masks of points by band and
    panel, the points that a band is examined for (`who`, numbers in the block), products of a group, and the least
    products of points with a band."""

    rows: Any
    low: Any
    masks: Any
    who: Any
    values: Any
    least: Any


@cache
def build(lanes: int, group: int, slot: int) -> Any:
    """The kernel in this shape (`wide.WideShape`): points of a panel, centroids of a group, and the numbers of a vector
    that holds a group."""
    scan, lay_panel, multiply = _scanner(lanes), _layer(lanes), _multiplier(lanes, group, slot)
    guess, settle, examine = _guesser(lanes, group, slot), _settler(lanes), _examiner(lanes, group, slot)

    @njit(nogil=True, cache=True, error_model="numpy")
    def train(
        features, state, weights, short, first, shift, kept, theta, number, origin, aggregator, clusters,
        start, end, flag,
    ):  # fmt: skip
        """Visit blocks of points: `scan` finds those whose bounds do not prove that their centroid stays, products with
        all centroids are made for these, and `examine` decides where they are not exact enough. `clusters`: by point,
        where points are decided alone and moved later; or empty."""
        own, upper, known, lower = kept
        minus, half, centres, drift, gone, largest, reach, scale, unit, width, block, several = theta
        kept = _Kept(borrowed(own), borrowed(upper), borrowed(known), borrowed(lower))
        theta = _Theta(
            borrowed(minus), borrowed(half), borrowed(centres), borrowed(drift), borrowed(gone),
            largest, reach, scale, width, several,
        )  # fmt: skip
        bands, panels = gone.size // 2, block // lanes
        rows, near, low = new_row(half, block * width), new_row(half, block * width), new_row(half, bands * block)
        masks, left = new_row(number, bands * panels), new_row(number, panels)
        who, best, distance = new_row(state, block), new_row(state, block), new_row(centres, block)
        far, norms, limits = new_row(half, block), new_row(half, block), new_row(half, block)
        errors, doubts, least = new_row(half, block), new_row(half, block), new_row(half, block)
        values = new_row(half, TOGETHER * slot)
        points = _Points(borrowed(features), borrowed(flat(state)), first, borrowed(origin))
        found = _Found(borrowed(best), borrowed(distance), borrowed(far))
        bounds = _Rounding(borrowed(norms), borrowed(limits), borrowed(errors), borrowed(doubts))
        room = _Room(borrowed(rows), borrowed(low), borrowed(masks), borrowed(who), borrowed(values), borrowed(least))
        for t in range(rows.size):
            rows[t] = 0
        several_groups = max(NEAR_CACHE // (width * slot * 4), 1)
        for begin in range((first + start) // block * block, first + end, block):
            here, stop = max(begin, first + start), min(begin + block, first + end)
            if raised(flag):
                return here - first
            some = 0
            for p in range(panels):
                left[p] = scan(p, begin, here, stop, points, kept, theta, found, room)
                some = max(some, left[p])
            if some:
                for p in range(panels):
                    if left[p]:
                        _fill(p * lanes, lanes, begin, far, borrowed(short), borrowed(shift), unit, width, rows, norms)
                    if left[p] == MOST:
                        lay_panel(borrowed(rows), p, width, borrowed(near))
                if some == MOST:
                    for chunk in range(0, half.size // slot, several_groups):
                        if raised(flag):
                            return here - first
                        for p in range(panels):
                            if left[p] == MOST:
                                multiply(borrowed(near), p, chunk, several_groups, theta, borrowed(low))
                for p in range(panels):
                    if left[p] == MOST:
                        guess(p, begin, points, kept, theta, found, room)
                    if left[p]:
                        settle(p, begin, left[p] == MOST, kept, theta, found, bounds, room)
                for band in range(bands):
                    count = 0
                    for p in range(panels):
                        passed = masks[band * panels + p] if left[p] else 0
                        while passed:
                            who[count] = p * lanes + lowest_bit(passed)
                            passed &= passed - 1
                            count += 1
                    if count:
                        if raised(flag):  # bounds of the block are marked as not known
                            return here - first
                        examine(band, count, begin, points, kept, theta, found, bounds, room)
                for n in range(here - begin, stop - begin):
                    if left[n // lanes] and far[n] > -np.inf:
                        known[begin + n] = best[n]
                        upper[begin + n] = np.sqrt(distance[n]) * scale * ABOVE - drift[best[n]]
            if clusters.size:
                for row in range(here, stop):
                    clusters[row - first] = best[row - begin]
            else:
                _move_all(points, best, weights, begin, here, stop, aggregator)
        hold((rows, near, low, masks, who, best, distance, far, norms, limits, errors, doubts, least, values))
        return end

    return train


@cache
def _scanner(lanes: int) -> Any:
    """`scan(…)`: which bands of which points of panel p may hold a nearer centroid: NONE, SOME (then `masks` says
    which) or MOST. Points for which nothing is left have a `far` of −inf."""

    @njit(**INNER)
    def scan(p, begin, here, stop, points, kept, theta, found, room):
        """Which points of a panel of `lanes` points may have another nearest centroid, by their bounds; bits of them
        are noted by band of centroids."""
        features, last, first, origin = points.features, points.last, points.first, points.origin
        own, upper, known, lower = kept.own, kept.upper, kept.known, kept.lower
        centres, drift, gone, scale = theta.centres, theta.drift, theta.gone, theta.scale
        best, distance, far = found.best, found.distance, found.far
        masks = room.masks
        bands, offset = gone.size // 2, p * lanes
        panels, at = masks.size // bands, (begin + offset) // lanes * bands * lanes
        fresh = False
        for n in range(offset, offset + lanes):
            row = begin + n
            far[n] = -np.inf
            if here <= row < stop:
                best[n] = mine = last[row - first]
                if mine < 0:
                    far[n], fresh = np.inf, True
                else:
                    far[n] = (upper[row] + drift[mine]) * ABOVE_NARROW if known[row] == mine else np.inf
        limit = load(far, offset, lanes)
        room_left = spread(np.inf, limit)
        for band in range(bands):
            room_left = minimum(room_left, load(lower, at + band * lanes, lanes) - gone[bands + band])
        passed = bits(room_left < limit)
        if passed == 0:
            return NONE
        for n in range(offset, offset + lanes):
            row, i = begin + n, begin + n - first
            if not (passed >> (n - offset)) & 1:
                far[n] = -np.inf
                continue
            if best[n] < 0:
                if not own[row] < 1e30:
                    best[n], distance[n] = 0, _squared(features, i, centres, 0, origin)
                    far[n] = _compared_with_all(points, kept, theta, found, row, n)
                continue
            distance[n] = _squared(features, i, centres, best[n], origin)
            exact = np.sqrt(distance[n]) * scale
            if not (own[row] < 1e30 and exact < 1e15):  # beyond what float32 can square
                far[n] = _compared_with_all(points, kept, theta, found, row, n)
            elif far[n] < np.inf:
                upper[row] = exact * ABOVE - drift[best[n]]
                far[n] = exact * ABOVE_NARROW
        limit, pairs = load(far, offset, lanes), 0
        for band in range(bands):
            passed = bits(load(lower, at + band * lanes, lanes) < limit + gone[bands + band])
            masks[band * panels + p] = passed
            pairs += bit_count(passed)
        if pairs == 0:
            return NONE
        return MOST if fresh or pairs > MULTIPLIED_FROM * bands * lanes else SOME

    return scan


@njit(**INNER)
def _compared_with_all(points, kept, theta, found, row, n):
    """A point that float32 cannot hold: all its distances in float64. Its `far`: nothing is left."""
    features, last, first, origin = points.features, points.last, points.first, points.origin
    centres, best, distance = theta.centres, found.best, found.distance
    for c in range(centres.shape[0]):
        if c != best[n]:
            _try(features, row - first, centres, origin, best, distance, n, c, last[row - first])
    kept.known[row] = -1
    return -np.inf


@njit(**INNER)
def _fill(offset, count, begin, far, short, shift, unit, width, rows, norms):
    """Short rows of a panel about the origin, each filled up with zeros to `width` numbers, and their squared
    lengths."""
    columns = short.shape[1]
    for n in range(offset, offset + count):
        if far[n] == -np.inf:
            continue
        row, at = begin + n, n * width
        for t in range(columns):
            rows[at + t] = np.float32((np.float64(short[row, t]) - shift[t]) * unit)
        norm = spread(0, widen(load(rows, at, STEP)))
        for t in range(0, width, STEP):
            x = widen(load(rows, at + t, STEP))
            norm = fma(x, x, norm)
        norms[n] = total(norm)


@cache
def _layer(lanes: int) -> Any:
    """`lay_panel(rows, p, width, near)`: the rows of panel p with a lane for each point."""
    square = min(lanes, STEP)

    @njit(**INNER)
    def lay_panel(rows, p, width, near):
        corner = p * lanes * width
        for n in range(0, lanes, square):
            for t in range(0, width, square):
                some = loads(rows, corner + n * width + t, width, square, square)
                store_each(near, corner + t * lanes + n, lanes, transposed(some))

    return lay_panel


@cache
def _multiplier(lanes: int, group: int, slot: int) -> Any:
    """`multiply(near, p, chunk, count, theta, low)`: ½‖c‖² − x·c of the points of panel p and of each short centroid of
    so many groups; the least of each band and point goes to `low`."""

    @njit(**INNER)
    def multiply(near, p, chunk, count, theta, low):
        """The least product value of each band of centroids, for all points of a panel."""
        minus, half, gone, width, several = theta.minus, theta.half, theta.gone, theta.width, theta.several
        first_low = p * (gone.size // 2) * lanes
        for g in range(chunk, min(chunk + count, half.size // slot)):
            found = splats(half, g * slot, group, lanes)
            x_at, c_at = p * lanes * width, g * width * slot
            for _ in range(width):
                found = fma_each(load(near, x_at, lanes), splats(minus, c_at, group, lanes), found)
                x_at += lanes
                c_at += slot
            value, at = least_of(found), first_low + g // several * lanes
            if g % several:
                value = minimum(value, load(low, at, lanes))
            store(low, at, value)

    return multiply


@cache
def _guesser(lanes: int, group: int, slot: int) -> Any:
    """`guess(…)`: a first centroid for new points of a panel that was multiplied: the nearest by short rows."""
    one = _one(slot)

    @njit(**INNER)
    def guess(p, begin, points, kept, theta, found, room):
        """Give points without a centroid the best one of the band with the least value."""
        features, first, origin = points.features, points.first, points.origin
        minus, half, centres, gone, scale, width, several = (
            theta.minus,
            theta.half,
            theta.centres,
            theta.gone,
            theta.scale,
            theta.width,
            theta.several,
        )
        best, distance, far = found.best, found.distance, found.far
        rows, low, values = room.rows, room.low, room.values
        bands = gone.size // 2
        for n in range(p * lanes, p * lanes + lanes):
            if best[n] >= 0 or far[n] == -np.inf:
                continue
            nearest, value = 0, np.inf
            for band in range(bands):
                here = low[(p * bands + band) * lanes + n - p * lanes]
                if here < value:
                    nearest, value = band, here
            value, best[n] = np.inf, 0
            for g in range(nearest * several, min((nearest + 1) * several, half.size // slot)):
                store(values, 0, one(rows, n * width, width, minus, half, g))
                for j in range(group):
                    if values[j] < value:
                        best[n], value = g * group + j, values[j]
            row = begin + n
            distance[n] = _squared(features, row - first, centres, best[n], origin)
            if not np.sqrt(distance[n]) * scale < 1e15:
                far[n] = _compared_with_all(points, kept, theta, found, row, n)

    return guess


@njit(**INLINE)
def _limit(distance, scale, norm, error, doubt):
    """The value of a product from which on a centroid cannot be nearer than this."""
    far = np.sqrt(distance) * scale + doubt
    limit = 0.5 * (far * far - norm) + error
    return limit + 4 * FLOAT32_ROUNDING * abs(limit)


@cache
def _settler(lanes: int) -> Any:
    """`settle(…)`: what rounding may do to products of the points of a panel, and the value that nothing of interest
    exceeds. Where the panel was multiplied, new bounds of all bands, and `masks` of those that are left."""

    @njit(**INNER)
    def settle(p, begin, multiplied, kept, theta, found, bounds, room):
        """Bounds of the error of each point's products, the limit below which a centroid must be examined, and new
        lower bounds of all bands."""
        own, known, lower = kept.own, kept.known, kept.lower
        gone, largest, reach, scale, width = theta.gone, theta.largest, theta.reach, theta.scale, theta.width
        distance, far = found.distance, found.far
        norms, limits, errors, doubts = bounds.norms, bounds.limits, bounds.errors, bounds.doubts
        low, masks = room.low, room.masks
        bands, offset = gone.size // 2, p * lanes
        panels, at = masks.size // bands, (begin + offset) // lanes * bands * lanes
        for n in range(offset, offset + lanes):
            limits[n] = -np.inf
            norms[n] = norms[n] if far[n] > -np.inf else 0
            errors[n], doubts[n] = 0, 0
            if far[n] > -np.inf:
                length = np.sqrt(np.float64(norms[n]))
                known[begin + n] = -1
                # of the product, and of what is made of it below
                size = 0.5 * largest * largest + length * largest
                errors[n] = (
                    (width + 8) * FLOAT32_ROUNDING * size + 4 * FLOAT32_ROUNDING * norms[n] + TINY
                ) * ABOVE_NARROW
                doubts[n] = (own[begin + n] + reach + 6 * FLOAT32_ROUNDING * (length + largest)) * ABOVE_NARROW
                limits[n] = _limit(distance[n], scale, norms[n], errors[n], doubts[n])
        if multiplied:
            limit, error, doubt = load(limits, offset, lanes), load(errors, offset, lanes), load(doubts, offset, lanes)
            norm, active = load(norms, offset, lanes), load(far, offset, lanes) > -np.inf
            for band in range(bands):
                value = load(low, (p * bands + band) * lanes, lanes)
                masks[band * panels + p] = bits(value < limit)
                apart = maximum((value - error) * 2.0 + norm, spread(0, norm))
                bound = root(apart) - doubt + gone[band]
                old = load(lower, at + band * lanes, lanes)
                store(lower, at + band * lanes, where(active, bound, old))

    return settle


@cache
def _one(slot: int) -> Any:
    """`one(rows, at, width, minus, half, g)`: ½‖c‖² − x·c of the row there and of each short centroid of group g."""

    @njit(**INLINE)
    def one(rows, at, width, minus, half, g):
        """Product values of one row with one group of centroids."""
        c_at = g * width * slot
        a = load(half, g * slot, slot)
        b, c, d = spread(0, a), spread(0, a), spread(0, a)
        for t in range(0, width, 4):
            a = fma(splats(rows, at + t, 1, slot)[0], load(minus, c_at, slot), a)
            b = fma(splats(rows, at + t + 1, 1, slot)[0], load(minus, c_at + slot, slot), b)
            c = fma(splats(rows, at + t + 2, 1, slot)[0], load(minus, c_at + 2 * slot, slot), c)
            d = fma(splats(rows, at + t + 3, 1, slot)[0], load(minus, c_at + 3 * slot, slot), d)
            c_at += 4 * slot
        return (a + b) + (c + d)

    return one


@cache
def _eight(slot: int) -> Any:
    """The same of TOGETHER rows, written to `values`."""

    @njit(**INLINE)
    def eight(rows, who, at, width, minus, half, g, values):
        """Product values of eight rows with one group of centroids: each load of centroids serves all of them."""
        c_at = g * width * slot
        r0, r1, r2, r3 = who[at] * width, who[at + 1] * width, who[at + 2] * width, who[at + 3] * width
        r4, r5, r6, r7 = who[at + 4] * width, who[at + 5] * width, who[at + 6] * width, who[at + 7] * width
        a0 = load(half, g * slot, slot)
        a1, a2, a3, a4, a5, a6, a7 = a0, a0, a0, a0, a0, a0, a0
        for t in range(width):
            c = load(minus, c_at, slot)
            c_at += slot
            a0 = fma(splats(rows, r0 + t, 1, slot)[0], c, a0)
            a1 = fma(splats(rows, r1 + t, 1, slot)[0], c, a1)
            a2 = fma(splats(rows, r2 + t, 1, slot)[0], c, a2)
            a3 = fma(splats(rows, r3 + t, 1, slot)[0], c, a3)
            a4 = fma(splats(rows, r4 + t, 1, slot)[0], c, a4)
            a5 = fma(splats(rows, r5 + t, 1, slot)[0], c, a5)
            a6 = fma(splats(rows, r6 + t, 1, slot)[0], c, a6)
            a7 = fma(splats(rows, r7 + t, 1, slot)[0], c, a7)
        store(values, 0, a0)
        store(values, slot, a1)
        store(values, 2 * slot, a2)
        store(values, 3 * slot, a3)
        store(values, 4 * slot, a4)
        store(values, 5 * slot, a5)
        store(values, 6 * slot, a6)
        store(values, 7 * slot, a7)

    return eight


@cache
def _examiner(lanes: int, group: int, slot: int) -> Any:
    """`examine(…)`: the points `who` and the centroids of a band: whichever of them may be nearer is compared in full.
    Leaves new bounds of the band for these points: of all its centroids but the nearest.

    One function with all its arrays at hand: to take them out of tuples for every pair takes longer than the pair.
    """
    one, eight = _one(slot), _eight(slot)

    @njit(**INNER)
    def examine(band, count, begin, points, kept, theta, found, bounds, room):
        """Compare `count` points exactly with those centroids of a band whose product value is below their limit."""
        features, last, first, origin = points.features, points.last, points.first, points.origin
        lower, minus, half, centres, gone = kept.lower, theta.minus, theta.half, theta.centres, theta.gone
        scale, width, several = theta.scale, theta.width, theta.several
        best, distance = found.best, found.distance
        norms, limits, errors, doubts = bounds.norms, bounds.limits, bounds.errors, bounds.doubts
        rows, who, values, least = room.rows, room.who, room.values, room.least
        bands = gone.size // 2
        for n in range(count):
            least[n] = np.inf
            row = begin + who[n]
            lower[(row // lanes * bands + band) * lanes + row % lanes] = np.inf  # given up centroids lower it below
        for g in range(band * several, min((band + 1) * several, half.size // slot)):
            for start in range(0, count, TOGETHER):
                some = min(TOGETHER, count - start)
                if some == TOGETHER:
                    eight(rows, who, start, width, minus, half, g, values)
                else:
                    for i in range(some):
                        store(values, i * slot, one(rows, who[start + i] * width, width, minus, half, g))
                for i in range(some):
                    n = who[start + i]
                    value = load(values, i * slot, slot)
                    passed = bits(value < limits[n])
                    while passed:
                        j = lowest_bit(passed)
                        passed &= passed - 1
                        c, old, before = g * group + j, best[n], distance[n]
                        if c == old or not values[i * slot + j] < limits[n]:
                            continue
                        row = begin + n
                        _try(features, row - first, centres, origin, best, distance, n, c, last[row - first])
                        if best[n] != old:
                            limits[n] = _limit(distance[n], scale, norms[n], errors[n], doubts[n])
                            away = old // group // several
                            at = (row // lanes * bands + away) * lanes + row % lanes
                            lower[at] = min(np.float64(lower[at]), np.sqrt(before) * scale / ABOVE_NARROW + gone[away])
                    mine = best[n] - g * group
                    if 0 <= mine < group:
                        values[i * slot + mine] = np.inf
                        value = load(values, i * slot, slot)
                    least[start + i] = min(least[start + i], least_lane(value))
        for i in range(count):
            n = who[i]
            at = ((begin + n) // lanes * bands + band) * lanes + (begin + n) % lanes
            apart = max((np.float64(least[i]) - errors[n]) * 2.0 + norms[n], 0.0)
            lower[at] = min(np.float64(lower[at]), np.sqrt(apart) / ABOVE_NARROW - doubts[n] + gone[band])

    return examine


# -- points ---------------------------------------------------------------------------------------------------


@njit(**INNER)
def _move_all(points, best, weights, begin, here, stop, aggregator):
    """Points of a block whose nearest centroid is another one now, in their order."""
    features, last, first, origin = points.features, points.last, points.first, points.origin
    for row in range(here, stop):
        i = row - first
        old, new = last[i], best[row - begin]
        if old != new:
            weight = 1.0
            if weights is not None:
                weight = weights[i]
            square = weight * _move(features, i, origin, weight, aggregator.sums, old, new)
            aggregator.counts[new] += weight
            aggregator.squares[new] += square
            if old >= 0:
                aggregator.counts[old] -= weight
                aggregator.squares[old] -= square
            last[i] = new


@njit(nogil=True, cache=True, error_model="numpy")
def add_moves(features, weights, origin, sums, counts, squares, starts, moves, low, high):
    """Points that enter or leave clusters `low` to `high` (`moved_points.MovedPoints`), in their order."""
    rows, origin = borrowed(features), borrowed(origin)
    for j in range(low, high):
        for place in range(starts[j], starts[j + 1]):
            i, leaves = moves[place] >> 1, moves[place] & 1
            weight = 1.0
            if weights is not None:
                weight = weights[i]
            if leaves:
                square = weight * _move(rows, i, origin, weight, sums, j, -1)
                counts[j] -= weight
                squares[j] -= square
            else:
                square = weight * _move(rows, i, origin, weight, sums, -1, j)
                counts[j] += weight
                squares[j] += square


@njit(**INNER)
def _try(features, row, centres, origin, best, distance, i, c, last):
    """Is centroid c nearer? Of several at the same distance a visited point keeps its own, else the first counts."""
    found = _squared(features, row, centres, c, origin)
    if found < distance[i] or (found == distance[i] and best[i] != last and (c == last or c < best[i])):
        best[i], distance[i] = c, found


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
    """A point leaves the sums of cluster `old` and enters those of `new`, each unless it is −1; ‖x − origin‖²."""
    columns = origin.size
    whole = columns // PIECE * PIECE
    squares = spread(0, load(origin, 0, PIECE))
    for t in range(0, whole, PIECE):
        x = _away(features, i, t, origin)
        squares = fma(x, x, squares)
        x = x * weight
        if new >= 0:
            store(sums, new * columns + t, load(sums, new * columns + t, PIECE) + x)
        if old >= 0:
            store(sums, old * columns + t, load(sums, old * columns + t, PIECE) - x)
    square = total(squares)
    for t in range(whole, columns):
        x = np.float64(features[i, t]) - origin[t]
        square += x * x
        if new >= 0:
            sums[new, t] += weight * x
        if old >= 0:
            sums[old, t] -= weight * x
    return square


@njit(nogil=True, cache=True, error_model="numpy")
def finish(away, short, own, start, doubt):
    """Fill the last column of short rows with what their directions leave of each row, and `own` with the bound of the
    error of a short row: `doubt` is that of its products, relative to the length of the row."""
    columns, width = away.shape[1], short.shape[1]
    for i in range(away.shape[0]):
        short[start + i, width - 1] = 0
        norm, along = _length(away, i * columns, columns), _length(short, (start + i) * width, width)
        rest = np.sqrt(max(norm - along, 0.0))
        error = doubt * np.sqrt(norm)
        change = 2 * error * np.sqrt(norm) + error * error  # of the squared lengths
        short[start + i, width - 1] = rest
        own[start + i] = error + min(np.sqrt(change), change / max(rest, TINY))
        if not norm < 1e30:
            own[start + i] = np.inf


@njit(**INNER)
def _length(rows, at, count):
    """The sum of the squares of so many float32 numbers, in float64."""
    whole = count // STEP * STEP
    sums = spread(0, widen(load(rows, at, STEP)))
    for t in range(at, at + whole, STEP):
        x = widen(load(rows, t, STEP))
        sums = fma(x, x, sums)
    found, flat_rows = total(sums), flat(rows)
    for t in range(at + whole, at + count):
        found += np.float64(flat_rows[t]) * np.float64(flat_rows[t])
    return found


@njit(nogil=True, cache=True, error_model="numpy")
def renew(centroids, origin, centres, moved, narrow, changed, scale, whole):
    """Take in a new θ: `centres` are its centroids about the origin, `moved` says how far each has moved. Of those that
    moved, or of all where `whole`: scaled float32 copies in `narrow`, one after the other, and their numbers in
    `changed`. The number of these."""
    count, columns = 0, origin.size
    for j in range(centroids.shape[0]):
        way = 0.0
        for t in range(columns):
            z = centroids[j, t] - origin[t] - centres[j, t]
            way += z * z
        moved[j] = way
        if way == 0 and not whole:
            continue
        for t in range(columns):
            z = centroids[j, t] - origin[t]
            centres[j, t] = z
            narrow[count, t] = np.float32(z * scale)
        changed[count] = j
        count += 1
    return count
