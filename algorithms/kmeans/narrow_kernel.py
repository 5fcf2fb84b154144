"""The block kernel of KMeans for float64 points and many centroids, with the results of `kernel`, to the last bit.

Float32 tells the nearest centroid where its two least values are further apart than its rounding errors can be, which
takes half as long; the float64 code of `kernel` tells the rest. Never reads a clock or a file.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from flegel.algorithms.kmeans.kernel import assigner, centred, conditioning, pack, shift
from flegel.algorithms.kmeans.moves import close_book, lend, move, open_book
from flegel.algorithms.nearest_rows import pack_rows, proposer
from flegel.algorithms.simd.buffers import flat, new_row
from flegel.algorithms.simd.inner import INLINE, INNER
from flegel.algorithms.simd.vectors import all_lanes, any_lane, cast_like, fma, load, spread, store, to_int32
from flegel.core.atomic_flag import raised
from flegel.core.borrowed_arrays import borrowed
from flegel.core.code_cache import njit
from flegel.core.shard import TILE
from flegel.core.team_loop import team_loop


@cache
def build(lanes: int, group: int, exact_lanes: int, exact_group: int) -> Any:
    """The kernel in the shapes for float32 and for float64 (`registers.tile_shape`)."""
    propose, assign, narrowed = proposer(lanes, group), assigner(exact_lanes, exact_group), _narrower(lanes)

    @njit(**INNER)
    def decide(source, at, columns, minus, half, points, lane, nearest):
        for place in range(lane, lane + lanes, exact_lanes):
            store(nearest, place, assign(source, at + place, columns, minus, half, points, at + place))

    @njit(nogil=True, cache=True, error_model="numpy")
    def train(features, state, weights, parameter, aggregator, start, end, flag):
        """Visit points as `kernel.py` does, but propose the nearest centroid in float32; points for which that is not
        certain are decided in the type of the rows.

        `minus`, `half`: −c in groups and ½‖c‖² (`kernel.pack`). Values of ½‖c‖² − x·c in float32 that are further
        apart than `base + slope·‖x‖²` are certainly in order (`pack_rows`). `lent`: the arrays of `book`, and counts
        and squares of the statistics, without reference counting (`moves.lend`).
        """
        columns, origin = features.shape[1], parameter.origin
        points, last, weights = borrowed(flat(features)), borrowed(flat(state)), borrowed(weights)
        centres = centred(parameter, aggregator)
        shifted, scale = conditioning(centres, origin, features.itemsize)
        minus, half = pack(features, centres, origin, exact_group, shifted, scale)
        narrow_minus, narrow_half, base, slope = pack_rows(centres, group)
        if scale != 1.0:
            base = np.float32(np.inf)  # beyond what float32 can square, large or small: nothing is certain
        near, narrow = new_row(features, columns * TILE), new_row(narrow_half, columns * TILE)
        nearest = new_row(state, TILE)
        book = open_book(features, centres, origin, aggregator)
        lent = lend(book, aggregator)
        reached = end
        for tile in range(start // TILE, -(-end // TILE)):
            if raised(flag):
                reached = tile * TILE if tile * TILE > start else start
                break
            at = tile * columns * TILE
            changed, tile_is_shifted = False, False
            for lane in range(0, TILE, lanes):
                norms = narrowed(points, at, columns, origin, narrow, lane)
                # Where the part of these lanes of the next tile begins; `propose` has it fetched into the cache.
                ahead = at + columns * TILE + lane * columns
                least, second, which = propose(narrow, lane, columns, narrow_minus, narrow_half, points, ahead)
                store(nearest, lane, to_int32(which))
                if not all_lanes(second - least > norms * slope + base):
                    if shifted and not tile_is_shifted:
                        shift(points, at, origin, scale, near)
                        tile_is_shifted = True
                    if shifted:
                        decide(near, 0, columns, minus, half, points, lane, nearest)
                    else:
                        decide(points, at, columns, minus, half, points, lane, nearest)
                changed = any_lane(load(nearest, lane, lanes) != load(last, tile * TILE + lane, lanes)) or changed
            if changed:
                move(points, last, weights, borrowed(nearest), columns, tile, start, end, lent)
        close_book(book, aggregator)
        return reached

    return train


@cache
def build_team(lanes: int, group: int, exact_lanes: int, exact_group: int) -> Any:
    """The same for the threads of a team (`team_loop`)."""
    return team_loop(build(lanes, group, exact_lanes, exact_group))


@cache
def _narrower(lanes: int) -> Any:
    """`narrowed(points, at, columns, origin, narrow, lane)`: points about the origin, in float32, and ‖x‖² of each."""

    @njit(**INLINE)
    def narrowed(points, at, columns, origin, narrow, lane):
        norms = spread(0, load(narrow, lane, lanes))
        for t in range(columns):
            x = cast_like(load(points, at + t * TILE + lane, lanes) - origin[t], norms)
            store(narrow, t * TILE + lane, x)
            norms = fma(x, x, norms)
        return norms

    return narrowed
