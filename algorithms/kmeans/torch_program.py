"""K-means over blocks of rows by torch, for GPUs: the same statistics as the hooks. Imports torch.

The nearest centroid minimizes ½‖c‖² − x·c: one matrix product and a minimum per block. As on processors, the features'
precision proposes and float64 decides, but only for the rows that change their cluster; only these enter the sums, as
a product of a sparse assignment matrix with the rows. After a few passes they are few, and a pass reads the data once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

ROOM = 2**28  # numbers of a block's product: 1 GiB in float32
MANY = 8  # one row in so many changes: then adding them up by sorted segments pays


class KMeansProgram:
    """θ on the device: centroids about the origin."""

    def __init__(self, algorithm: Any, device: torch.device) -> None:
        self._device, self._clusters = device, algorithm.k
        self._gpu = device.type == "cuda"

    def block(self, columns: int) -> int:
        return max(ROOM // max(self._clusters, 1), 4096) if self._gpu else 8192

    def set_parameter(self, parameter: Any) -> None:
        self._origin = self._put(parameter.origin)
        self._centres = self._put(parameter.centroids) - self._origin

    def _put(self, values: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(values, np.float64)).to(self._device)

    def visit(
        self, features: torch.Tensor, labels: torch.Tensor, state: torch.Tensor, sums: Sequence[torch.Tensor],
        iteration: int,
    ) -> None:  # fmt: skip
        last = state[:, 0]
        proposed = self._nearest(features)
        moved = torch.nonzero(proposed != last).reshape(-1)
        if not len(moved):
            return
        rows = features[moved].double() - self._origin
        old, new = last[moved].long(), proposed[moved].long()
        seen = old >= 0
        before, after = self._centres[old.clamp(min=0)], self._centres[new]
        nearer = ((after - before) * (2.0 * rows - after - before)).sum(1) > 0.0
        keep = nearer | ~seen
        if not bool(keep.all()):
            rows, old, new, seen, moved = rows[keep], old[keep], new[keep], seen[keep], moved[keep]
        last[moved] = new.to(last.dtype)
        squares = (rows * rows).sum(1)
        self._add(sums, new, rows, squares, 1.0)
        if bool(seen.any()):
            self._add(sums, old[seen], rows[seen], squares[seen], -1.0)

    def _nearest(self, features: torch.Tensor) -> torch.Tensor:
        """The cluster of each row in the features' precision. Rows far from the origin are shifted first."""
        kind = features.dtype if features.is_floating_point() else torch.float64
        centres, origin = self._centres.to(kind), self._origin.to(kind)
        scatter = float((self._centres**2).sum()) / max(len(centres), 1)
        half = 0.5 * (self._centres**2).sum(1)
        rows = features.to(kind)
        if float((self._origin**2).sum()) > 4.0 * scatter:
            rows = rows - origin
        else:
            half = half + self._centres @ self._origin
        if self._gpu and kind == torch.float32:
            from flegel.algorithms.kmeans.triton_kernel import nearest

            found = nearest(rows, centres, half.float())
            if found is not None:
                return found
        return torch.addmm(half.to(kind), rows, centres.T, alpha=-1.0).argmin(1).int()

    def _add(
        self, sums: Sequence[torch.Tensor], which: torch.Tensor, rows: torch.Tensor, squares: torch.Tensor, sign: float
    ) -> None:
        """Rows into the sums of their clusters. Many rows go through sorted segments: thousands of additions to one
        address would wait for each other."""
        totals, counts, scatter = sums
        if self._gpu and len(which) * MANY > 2**16:
            order = torch.argsort(which)
            sizes = torch.bincount(which, minlength=len(counts))
            segments = torch.segment_reduce(rows[order], "sum", lengths=sizes, axis=0, initial=0)
            totals.add_(segments, alpha=sign)
            scatter.add_(torch.segment_reduce(squares[order], "sum", lengths=sizes, axis=0, initial=0), alpha=sign)
            counts.add_(sizes, alpha=sign)
            return
        totals.index_add_(0, which, rows, alpha=sign)
        scatter.index_add_(0, which, squares, alpha=sign)
        counts.index_add_(0, which, torch.ones_like(squares), alpha=sign)
