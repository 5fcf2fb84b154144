"""The nearest centroid of each row in one kernel on the GPU, where Triton is installed; it reads each row once.

The product with all centroids stays in registers: writing it to memory and reading it back for the minimum costs
several times the reading of the rows. Products are taken on tensor cores in three parts each (tf32x3), as exact
as float32; where Triton does not know that, in plain float32.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

ROWS = 128  # rows of a program
GROUP = 64  # centroids of a product
PRECISIONS = ["tf32x3", "ieee"]
"""Of products, the best first; those that did not compile here are gone."""


def nearest(rows: torch.Tensor, centres: torch.Tensor, half: torch.Tensor) -> torch.Tensor | None:
    """argmin over j of half[j] − rows·centres[j], int32; None where Triton is not there or the rows are too wide."""
    kernel = _kernel()
    columns = rows.shape[1]
    wide = max(16, 1 << (columns - 1).bit_length())
    if kernel is None or wide > 256 or not rows.is_contiguous():
        return None
    found = torch.empty(len(rows), dtype=torch.int32, device=rows.device)
    grid = (-(-len(rows) // ROWS),)
    values = (rows, centres.contiguous(), half.contiguous(), found, len(rows), len(centres), columns)
    with torch.cuda.device(rows.device):
        while PRECISIONS:
            try:
                kernel[grid](*values, WIDE=wide, ROWS=ROWS, GROUP=GROUP, PRECISION=PRECISIONS[0], num_warps=8)
            except Exception:  # noqa: BLE001 - Triton's own errors: this precision, or this device, is not supported
                PRECISIONS.pop(0)
            else:
                return found
    return None


@cache
def _kernel() -> Any:
    try:
        import triton
        import triton.language as tl
    except ImportError:
        return None

    @triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator]
    def assign(  # type: ignore[no-untyped-def]
        rows, centres, half, found, count, clusters, columns,
        WIDE: tl.constexpr, ROWS: tl.constexpr, GROUP: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        at = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        across = tl.arange(0, WIDE)
        inside = at < count
        filled = inside[:, None] & (across[None, :] < columns)
        x = tl.load(rows + at[:, None] * columns + across[None, :], mask=filled, other=0.0)
        least = tl.full((ROWS,), float("inf"), tl.float32)
        which = tl.zeros((ROWS,), tl.int32)
        for first in range(0, clusters, GROUP):
            j = first + tl.arange(0, GROUP)
            c = tl.load(
                centres + j[None, :] * columns + across[:, None],
                mask=(j[None, :] < clusters) & (across[:, None] < columns), other=0.0,
            )  # fmt: skip
            h = tl.load(half + j, mask=j < clusters, other=float("inf"))
            value = h[None, :] - tl.dot(x, c, input_precision=PRECISION)
            best = tl.min(value, axis=1)
            place = tl.argmin(value, axis=1).to(tl.int32) + first
            which = tl.where(best < least, place, which)
            least = tl.minimum(best, least)
        tl.store(found + at, which, mask=inside)

    return assign
