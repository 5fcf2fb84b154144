"""K-means over blocks of rows by torch, for GPUs: the same statistics as the hooks. Imports torch.

The nearest centroid minimizes ½‖c‖² − x·c. As on processors, the features' precision proposes and float64 decides, but
only for the rows that change their cluster; only these enter the sums. On a GPU rows of float32 take one kernel
(cuda_kernel.py); wider ones a product and a minimum per block, and a kernel for those that change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from flegel.algorithms.cuda_source import CudaError
from flegel.algorithms.kmeans.cuda_kernel import KMeansKernel, MoveKernel
from flegel.configuration.active import active


class KMeansProgram:
    """θ on the device: centroids about the origin."""

    def __init__(self, algorithm: Any, device: torch.device) -> None:
        self._device, self._clusters = device, algorithm.k
        self._gpu = device.type == "cuda"
        self._kernels: dict[tuple[int, int, bool], KMeansKernel | None] = {}
        self._moves: dict[int, MoveKernel | None] = {}
        """By columns: the kernel for rows that change their cluster, where it could be made."""
        self.note = ""
        """Why there is no kernel in one piece; empty otherwise."""

    def block(self, columns: int) -> int:
        """On a GPU some milliseconds of work; on a processor what its cache holds."""
        return active().gpu.kmeans_block_rows if self._gpu else 8192

    def set_parameter(self, parameter: Any) -> None:
        """Bring θ to the device: centroids about the origin, and half their squared lengths. Rows are shifted only
        where the origin is far away."""
        origin, centroids = (self._put(np.array(a, np.float64)) for a in (parameter.origin, parameter.centroids))
        centres = centroids - origin
        half = 0.5 * (centres**2).sum(1)
        shifted = (origin**2).sum() > 4.0 * (centres**2).sum() / max(len(centres), 1)
        self._shifted = bool(shifted)
        if not self._shifted:
            half = half + centres @ origin  # x·c of an unshifted x contains origin·c
        self._origin, self._centres, self._half = origin, centres, half
        self._kernel = self._made(len(centres), centres.shape[1], self._shifted) if self._gpu else None
        if self._kernel is not None:
            self._kernel.set_parameter(self._origin, self._centres, self._half)

    @property
    def in_one_kernel(self) -> bool:
        """Rows are visited by one kernel, not in steps."""
        return self._kernel is not None

    def leave_one_kernel(self) -> None:
        """Visit in steps until the next θ comes, to compare."""
        self._kernel = None

    def _made(self, clusters: int, columns: int, shifted: bool) -> KMeansKernel | None:
        """The kernel for this shape, compiled once; None, with a note, where it cannot be compiled."""
        key = clusters, columns, shifted
        if key not in self._kernels:
            try:
                self._kernels[key] = KMeansKernel(*key, self._device)
            except CudaError as error:
                self._kernels[key], self.note = None, str(error)
        return self._kernels[key]

    def _move_kernel(self, features: torch.Tensor, last: torch.Tensor) -> MoveKernel | None:
        """The kernel that moves these rows, where there is one: rows of float32 on a GPU, with enough sums that
        additions to one of them do not wait for each other."""
        columns = features.shape[1]
        usable = self._gpu and features.dtype == torch.float32 and features.is_contiguous() and last.is_contiguous()
        if not usable or self._centres.numel() < active().gpu.kmeans_additions_from_sums:
            return None
        if columns not in self._moves:
            try:
                self._moves[columns] = MoveKernel(columns, self._device)
            except CudaError as error:
                self._moves[columns], self.note = None, str(error)
        return self._moves[columns]

    def _put(self, values: Any) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)

    def visit(
        self,
        features: torch.Tensor,
        labels: torch.Tensor,
        state: torch.Tensor,
        sums: Sequence[torch.Tensor],
        iteration: int,
    ) -> None:
        """Assign a block of rows and move those that changed cluster in the sums: by a kernel of our own for float32,
        else by torch."""
        last = state[:, 0]
        if self._kernel is not None and features.dtype == torch.float32 and features.is_contiguous():
            return self._kernel.visit(features, last, sums)
        proposed = self.nearest(features)
        kernel = self._move_kernel(features, last)
        if kernel is not None:
            return kernel.move(features, proposed, self._origin, self._centres, last, sums)
        moved = torch.nonzero(proposed != last).reshape(-1)
        some = max(active().gpu.kmeans_moved_numbers // features.shape[1], 1)
        for at in range(0, len(moved), some):
            self._move(features, last, proposed, moved[at : at + some], sums)
        return None

    def _move(
        self,
        features: torch.Tensor,
        last: torch.Tensor,
        proposed: torch.Tensor,
        moved: torch.Tensor,
        sums: Sequence[torch.Tensor],
    ) -> None:
        """Take rows to their new clusters, where float64 agrees that these are nearer. No step waits for the device."""
        rows = features[moved].double() - self._origin
        old, new = last[moved].long(), proposed[moved].long()
        seen = old >= 0
        before, after = self._centres[old.clamp(min=0)], self._centres[new]
        nearer = ((after - before) * (2.0 * rows - after - before)).sum(1) > 0.0
        keep = nearer | ~seen
        last[moved] = torch.where(keep, new, old).to(last.dtype)
        squares = (rows * rows).sum(1, keepdim=True)
        values = torch.cat([rows, torch.ones_like(squares), squares], 1)
        joins, leaves = keep.double(), (keep & seen).double()
        change = self._by_cluster(old.clamp(min=0), new, joins, leaves, values, len(self._centres))
        sums[0].add_(change[:, :-2])
        sums[1].add_(change[:, -2])
        sums[2].add_(change[:, -1])

    def nearest(self, features: torch.Tensor) -> torch.Tensor:
        """The cluster of each row in the features' precision. Rows far from the origin are shifted first."""
        kind = features.dtype if features.is_floating_point() else torch.float64
        rows, centres, half = features.to(kind), self._centres.to(kind), self._half.to(kind)
        if self._shifted:
            rows = rows - self._origin.to(kind)
        if self._gpu and kind == torch.float32:
            from flegel.algorithms.kmeans.triton_kernel import nearest

            found = nearest(rows, centres, half)
            if found is not None:
                return found
        some = max(active().gpu.kmeans_product_numbers // len(centres), 1)
        parts = [
            torch.addmm(half, rows[at : at + some], centres.T, alpha=-1.0).argmin(1) for at in range(0, len(rows), some)
        ]
        return torch.cat(parts).int()

    def _by_cluster(
        self,
        old: torch.Tensor,
        new: torch.Tensor,
        joins: torch.Tensor,
        leaves: torch.Tensor,
        values: torch.Tensor,
        clusters: int,
    ) -> torch.Tensor:
        """Σ of the values of rows that join a cluster less those that leave it. With few clusters as a product with a
        matrix of ±1: thousands of atomic additions to one address would wait for each other."""
        if self._gpu and clusters <= active().gpu.kmeans_product_clusters:
            signs = torch.zeros((len(new), clusters), dtype=torch.float64, device=values.device)
            signs.scatter_(1, new[:, None], joins[:, None])
            signs.scatter_add_(1, old[:, None], -leaves[:, None])
            return signs.T @ values
        change = torch.zeros((clusters, values.shape[1]), dtype=torch.float64, device=values.device)
        change.index_add_(0, new, values * joins[:, None])
        change.index_add_(0, old, values * -leaves[:, None])
        return change
