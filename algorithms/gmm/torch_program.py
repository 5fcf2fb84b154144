"""Gaussian mixtures over blocks of rows by torch, for GPUs: the same statistics as the hooks. Imports torch.

Distances of all components are products: with diagonal covariances two of (rows, columns) with (columns, k) matrices,
otherwise one with (columns, k·columns) whitening matrices. Everything is float64 in standard units, because sums are
differences of states; the states keep the features' precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from flegel.algorithms.soft_kernel import CUT
from flegel.configuration.active import active
from flegel.declarations.kernels import COUNTING

MOST_SQUARE = 1e6
"""Of a mean, in deviations of its own component. Squares of distances as differences of products are off by about 1e-16
of that: below it by less than 1e-9, which no share of a component shows."""


class MixtureProgram:
    """θ on the device: means and whitening matrices in standard units."""

    def __init__(self, algorithm: Any, device: torch.device) -> None:
        self._device, self._k = device, algorithm.k
        self._by_products = False

    def block(self, columns: int) -> int:
        if self._device.type != "cuda":
            return 4096
        widest: int = max(self._k, columns) if self._by_products else self._k * columns
        return max(int(active().gpu.gmm_block_numbers) // max(widest, 1), 1024)

    def set_parameter(self, parameter: Any) -> None:
        """Move θ to the device, in the standard units in which distances are computed."""
        put = self._put
        self._origin, self._unit, self._level = put(parameter.origin), put(parameter.unit), put(parameter.level)
        self._means = (put(parameter.means) - self._origin) / self._unit
        k, d = self._means.shape
        whiten = put(parameter.whiten)
        self._diagonal = whiten.shape[1] == d
        if self._diagonal:
            self._precision = whiten * whiten
            self._slopes = self._precision * self._means
            squares = (self._slopes * self._means).sum(1)
            self._constant = self._level - 0.5 * squares
            self._by_products = bool(squares.max() < MOST_SQUARE)
        else:
            matrices = torch.zeros((k, d, d), dtype=torch.float64, device=self._device)
            row, column = np.tril_indices(d)
            matrices[:, row, column] = whiten
            self._matrices = matrices.reshape(k * d, d)
            self._offset = (matrices @ self._means[:, :, None]).reshape(k * d)
            self._lower = (torch.as_tensor(row, device=self._device), torch.as_tensor(column, device=self._device))

    def _put(self, values: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(values, np.float64)).to(self._device)

    def visit(
        self,
        features: torch.Tensor,
        labels: torch.Tensor,
        state: torch.Tensor,
        sums: Sequence[torch.Tensor],
        iteration: int,
    ) -> None:
        """Do what `GMM.updateDataPoint` does for a block of rows at once."""
        counts, totals, squares, entropy = sums
        y = (features.double() - self._origin) / self._unit
        square = y * y if self._diagonal else y
        below = self._log_densities(y, square)
        below -= below.max(1, keepdim=True).values
        small = ~(below > CUT)
        shares = torch.exp(below).masked_fill_(small, 0.0)
        below.masked_fill_(small, 0.0)
        mass = shares.sum(1)
        spread = torch.log(mass) - torch.linalg.vecdot(shares, below) / mass
        shares /= mass[:, None]
        before, fresh = state.clone(), torch.cat([shares, spread[:, None]], 1)
        state.copy_(fresh)  # rounded to the state's precision: the change of what is kept is what counts
        changes = (fresh if iteration == COUNTING else state.to(torch.float64, copy=True)).sub_(before)
        parts = changes[:, :-1]
        counts += parts.sum(0)
        totals += parts.T @ y
        squares += parts.T @ square if self._diagonal else self._products(parts, y)
        entropy += changes[:, -1].sum()

    def _log_densities(self, y: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        """Of all rows and components, without what all components of a row share."""
        if self._by_products:
            return torch.addmm(self._constant, y, self._slopes.T).addmm_(square, self._precision.T, alpha=-0.5)
        return self._level - 0.5 * self._distances(y)

    def _distances(self, y: torch.Tensor) -> torch.Tensor:
        """‖W_j·(y − μ_j)‖² of all rows and components."""
        if self._diagonal:
            away = y[:, None, :] - self._means  # a difference of products would lose digits where variances are small
            return (away * away * self._precision).sum(2)
        k, d = self._means.shape
        z = torch.addmm(-self._offset, y, self._matrices.T).reshape(len(y), k, d)
        return (z * z).sum(2)

    def _products(self, parts: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Σ change·y·yᵀ of each component, lower triangle packed row by row."""
        found = [((y * part[:, None]).T @ y)[self._lower] for part in parts.T]
        return torch.stack(found)
