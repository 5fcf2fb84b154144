"""Which of several rows is nearest to each point of a tile: fast in float32, and certain where it says so.

The nearest row c minimizes ½‖c‖² − x·c, so a tile of points times a group of rows is a small matrix product held in
registers. It is taken in float32 about the mean of the rows. Its rounding errors have a bound; a point whose two least
values lie further apart than that has the nearest row for certain, in whatever precision and order somebody else
computes it, as long as that is no coarser than float32. Others are left to exact code. Knows no algorithm, and never
allocates more than a tile and the rows.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from flegel.algorithms.simd.by_points import two_least_each
from flegel.algorithms.simd.inner import INLINE, INNER
from flegel.algorithms.simd.registers import FLOAT32_ROUNDING
from flegel.algorithms.simd.vectors import fma_each, load, prefetch_lanes, splats, spread
from flegel.core.code_cache import njit
from flegel.core.shard import TILE

OPTIONS: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy"}
TINY = 2.0**-120  # more than all roundings of numbers near zero


@njit(**INNER)
def pack_rows(away, group):
    """Rows about the origin, in float64, as `propose` wants them: −c in groups, column by column inside a group, ½‖c‖²
    (fillers of the last group are far), and the bound: two values further apart than `base + slope · ‖x‖²` are in the
    right order. The largest number that float32 can square bounds nothing, so points or rows beyond it are uncertain.

    Each of the two values has an error of at most (n + 4) roundings of ½‖c‖² + Σ|x·c|, and half the squared distance
    that exact code computes one of (n + 4) roundings of ‖x‖² + ‖c‖², for n columns.
    """
    count, columns = away.shape
    groups = -(-count // group)
    minus = np.zeros(groups * columns * group, np.float32)
    half = np.full(groups * group, np.inf, np.float32)
    largest = 0.0
    for j in range(count):
        norm = 0.0
        for t in range(columns):
            c = away[j, t]
            norm += c * c
            minus[(j // group * columns + t) * group + j % group] = -c
        half[j] = 0.5 * norm
        largest = norm if not norm <= largest else largest
    slope = 4.0 * (columns + 4) * FLOAT32_ROUNDING
    base = 5.0 * (columns + 4) * FLOAT32_ROUNDING * largest + TINY
    if not base < 1e30:
        base = np.inf
    return minus, half, np.float32(base), np.float32(slope)


@cache
def proposer(lanes: int, group: int) -> Any:
    """`propose(near, at, columns, minus, half, far, ahead)`: for the points in the lanes at `near[at]`, a column every
    TILE numbers, the least value, the second and the number of the row with the least, as vectors of float32. Asks for
    `columns * lanes` numbers from `far[ahead]` on, which will be needed next."""

    @njit(**INLINE)
    def propose(near, at, columns, minus, half, far, ahead):
        """Least and second least value of ½‖c‖² − x·c for `lanes` points, and the centroid of the least."""
        zero = spread(0, load(near, at, lanes))
        least, second, which = spread(np.inf, zero), spread(np.inf, zero), zero
        for g in range(half.size // group):
            values = splats(half, g * group, group, lanes)
            x_at, c_at = at, g * columns * group
            for _ in range(columns):
                if g == 0:
                    prefetch_lanes(far, ahead, lanes)
                    ahead += lanes
                values = fma_each(load(near, x_at, lanes), splats(minus, c_at, group, lanes), values)
                x_at += TILE
                c_at += group
            least, second, which = two_least_each(values, g * group, least, second, which)
        return least, second, which

    return propose
