"""The nearest centroid of each row in one kernel on the GPU, where Triton is installed.

The product with all centroids stays in registers: writing it to memory and reading it back for the minimum costs
several times the reading of the rows. Products are taken on tensor cores in three parts each (tf32x3), as exact
as float32; where Triton does not know that, in plain float32. Rows of any width are taken part by part; rows and
centroids come again from the cache for each group of centroids.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch

from flegel.configuration.active import active


class Tile(NamedTuple):
    """What one program of the kernel takes at a time."""

    rows: int
    centroids: int
    columns: int
    warps: int
    stages: int


PRECISIONS = ["tf32x3", "ieee"]
"""Of products, the best first; those that did not compile here are gone."""


def tile_for(centroids: int, columns: int) -> Tile:
    """The tile of the settings for so many centroids and columns; all its sides are powers of 2."""
    rules = active().gpu
    rows, few = _power(rules.tile_rows), _power(rules.tile_few_centroids)
    if columns <= rules.narrow_columns:
        return Tile(rows, few, max(16, 1 << (columns - 1).bit_length()), _power(rules.tile_warps), stages=1)
    if centroids <= few:
        return Tile(rows, few, _power(rules.tile_columns), _power(rules.tile_few_warps), rules.tile_few_stages)
    sides = (rows, _power(rules.tile_centroids), _power(rules.tile_columns))
    return Tile(*sides, _power(rules.tile_warps), rules.tile_stages)


def _power(number: int) -> int:
    """The next lower power of 2."""
    return 1 << (number.bit_length() - 1)


def nearest(
    rows: torch.Tensor, centres: torch.Tensor, half: torch.Tensor, tile: Tile | None = None
) -> torch.Tensor | None:
    """argmin over j of half[j] − rows·centres[j], int32; None where Triton is not there."""
    kernel = _kernel()
    columns = rows.shape[1]
    if kernel is None or not rows.is_contiguous():
        return None
    size = tile or tile_for(len(centres), columns)
    found = torch.empty(len(rows), dtype=torch.int32, device=rows.device)
    grid = (-(-len(rows) // size.rows),)
    values = (rows, centres.contiguous(), half.contiguous(), found, len(rows), len(centres), columns)
    with torch.cuda.device(rows.device):
        while PRECISIONS:
            try:
                kernel[grid](
                    *values,
                    ROWS=size.rows,
                    GROUP=size.centroids,
                    PART=size.columns,
                    PRECISION=PRECISIONS[0],
                    num_warps=size.warps,
                    num_stages=size.stages,
                )
            except Exception:  # noqa: BLE001 - Triton's own errors: this precision, or this device, is not supported
                PRECISIONS.pop(0)
            else:
                return found
    return None


@cache
def _kernel() -> Any:
    """The Triton kernel that assigns rows to centroids; None where Triton is not installed."""
    try:
        import triton
        import triton.language as tl
    except ImportError:
        return None

    @triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator]
    def assign(  # type: ignore[no-untyped-def]
        rows,
        centres,
        half,
        found,
        count,
        clusters,
        columns,
        ROWS: tl.constexpr,
        GROUP: tl.constexpr,
        PART: tl.constexpr,
        PRECISION: tl.constexpr,
    ):
        at = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        inside = at < count
        least = tl.full((ROWS,), float("inf"), tl.float32)
        which = tl.zeros((ROWS,), tl.int32)
        for first in range(0, clusters, GROUP):
            j = first + tl.arange(0, GROUP)
            known = j < clusters
            product = tl.zeros((ROWS, GROUP), tl.float32)
            for begin in range(0, columns, PART):
                across = begin + tl.arange(0, PART)
                filled = across < columns
                x = tl.load(
                    rows + at[:, None] * columns + across[None, :], mask=inside[:, None] & filled[None, :], other=0.0
                )
                c = tl.load(
                    centres + j[None, :] * columns + across[:, None], mask=known[None, :] & filled[:, None], other=0.0
                )
                product = tl.dot(x, c, product, input_precision=PRECISION)
            h = tl.load(half + j, mask=known, other=float("inf"))
            value = h[None, :] - product
            best = tl.min(value, axis=1)
            place = tl.argmin(value, axis=1).to(tl.int32) + first
            which = tl.where(best < least, place, which)
            least = tl.minimum(best, least)
        tl.store(found + at, which, mask=inside)

    return assign
