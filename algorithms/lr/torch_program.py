"""Logistic regression over blocks of rows by torch, for GPUs: the same statistics as the hooks. Imports torch.

Follows `point.visit` for all rows of a block at once. Rows of float32 are multiplied as they are, as by processors, and
sums of `SUMMED_ROWS` of them are added in float64; everything else is float64. A point's curvature enters the sums only
where it has changed by more than a given part, so after the first passes a visit costs little more than its gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from flegel.algorithms.lr.point import BENT_PART, LEAST_BEND, MOST_CLASS_SCORE, MOST_SCORE
from flegel.configuration.active import active

SUMMED_ROWS = 512  # of which a product in float32 is one sum, as on processors
BLOCK_SCALARS = 16  # float64 numbers of a row and output that a visit makes


class LogisticProgram:
    """θ on the device."""

    def __init__(self, algorithm: Any, device: torch.device) -> None:
        self._device, self._memory = device, 1.0 if algorithm.memory else 0.0
        self._outputs = 1

    def block(self, columns: int) -> int:
        numbers = columns + 1 + BLOCK_SCALARS * self._outputs
        return max(active().gpu.lr_block_numbers // numbers, 1024) if self._device.type == "cuda" else 8192

    def set_parameter(self, parameter: Any) -> None:
        put = self._put
        self._weights, self._bias, classes = put(parameter.weights), put(parameter.bias), put(parameter.classes)
        self._outputs = len(self._weights)
        self._classes, self._places = torch.sort(classes)
        self._importance, self._metric = put(parameter.internal_importance), put(parameter.internal_metric)
        self._penalty, self._theta_number, self._part, self._floor, self._cap = parameter.internal_visit[:5].tolist()
        self._diagonal = bool(parameter.internal_visit[5] > 1.0)

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
        """Count unknown labels, and visit the other rows."""
        unknown = sums[-2]
        place = torch.searchsorted(self._classes, labels).clamp(max=len(self._classes) - 1)
        known = self._classes[place] == labels
        unknown += (~known).sum()
        if not bool(known.all()):
            rows = torch.nonzero(known).reshape(-1)
            kept = state[rows]
            self._visit(_floats(features[rows]), self._places[place[rows]], kept, sums)
            state[rows] = kept
            return
        self._visit(_floats(features), self._places[place], state, sums)

    def _visit(self, x: torch.Tensor, target: torch.Tensor, state: torch.Tensor, sums: Sequence[torch.Tensor]) -> None:
        """Do what `LR.updateDataPoint` does for a block of rows at once."""
        gradient, curvature, counts, loss, seen, stamps, visits, _, bent = sums
        outputs = self._outputs
        scores = self._bias + (x @ self._weights.T.to(x.dtype)).double()
        residual, cost = self._residuals(scores, target)
        weight = self._importance[target]
        before = state.to(torch.float64, copy=True)
        first = before[:, -1] == 0.0
        now = (1.0 if outputs == 1 else 2.0) * weight[:, None] * self._bend(residual.abs())
        now = now.float().double()
        counted = before[:, outputs + 1 : 2 * outputs + 1]
        outdated = (now - counted).abs() > self._part * counted + self._floor
        state[:, outputs + 1 : 2 * outputs + 1] = torch.where(outdated, now, counted)
        state[:, :outputs] = weight[:, None] * residual
        state[:, outputs] = weight * cost + self._penalty
        state[:, -1] = self._theta_number
        fresh = state.double()
        steps = fresh[:, :outputs] - self._memory * before[:, :outputs]
        gradient[:, :-1] += _product(steps, x)
        gradient[:, -1] += steps.sum(0)
        counts.index_add_(0, target, first.double())
        loss += (fresh[:, outputs] - before[:, outputs]).sum()
        seen += first.sum()
        stamps += (self._theta_number - before[:, -1]).sum()
        visits += len(x)
        bent += self._bent(residual.abs(), before[:, :outputs].abs(), weight).sum()
        self._add_curvature(x, torch.where(outdated, now - counted, torch.zeros_like(now)), outdated, curvature)

    def _bent(self, now: torch.Tensor, before: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Rows whose curvature is not what it was at the last visit, as `point.visit` finds them."""
        before = torch.where(weight[:, None] > 0, before / weight[:, None], torch.zeros_like(before))
        bends, last = now * (1.0 - now), before * (1.0 - before)
        most = torch.maximum(bends, last).sum(1)
        apart = (bends - last).abs().max(1).values
        return (apart > BENT_PART * most) & (most > LEAST_BEND) & (weight > 0)

    def _residuals(self, scores: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Probability − target by output, and the log-loss."""
        if scores.shape[1] == 1:
            score, positive = scores[:, 0].clamp(-MOST_SCORE, MOST_SCORE), (target == 1).double()
            small = torch.exp(-score.abs())
            wrong = torch.where(positive > 0, -score, score)
            unlikely = torch.where(wrong >= 0, 1.0, small) / (1.0 + small)  # of the true class: 1 − p, with all digits
            return torch.where(positive > 0, -unlikely, unlikely)[:, None], wrong.clamp(min=0.0) + torch.log1p(small)
        scores = scores.clamp(-MOST_CLASS_SCORE, MOST_CLASS_SCORE)
        apart = (scores - scores.max(1, keepdim=True).values).clamp(min=-MOST_SCORE)
        odds = torch.exp(apart)
        whole = odds.sum(1, keepdim=True)
        residual = odds / whole
        mine = apart.gather(1, target[:, None])
        rest = residual.scatter(1, target[:, None], 0.0).sum(1, keepdim=True)  # 1 − p loses digits where p is near 1
        residual = residual.scatter(1, target[:, None], -rest)
        return residual, (torch.log(whole) - mine)[:, 0]

    def _bend(self, size: torch.Tensor) -> torch.Tensor:
        """`point.bend_of` for all rows."""
        if self._cap == 0.0:
            side = torch.minimum(size, 1.0 - size).clamp(min=1e-30)
            score = torch.log((1.0 - side) / side)
            return torch.where(score > 1e-2, (0.5 - side) / score, torch.full_like(score, 0.25))
        if self._cap < 0.0:
            return torch.zeros_like(size)
        cut = size.clamp(max=self._cap)
        return cut * (1.0 - cut)

    def _add_curvature(
        self, x: torch.Tensor, steps: torch.Tensor, outdated: torch.Tensor, curvature: torch.Tensor
    ) -> None:
        """Σ step·x̃·x̃ᵀ, lower triangle, or its diagonal where that is all that is kept."""
        some = torch.nonzero(outdated.any(1)).reshape(-1)
        for part in some.split(max(active().gpu.lr_block_numbers // (4 * curvature.shape[-1]), 1024)):
            ones = torch.ones((len(part), 1), dtype=torch.float64, device=x.device)
            rows = torch.cat([(x[part].double() - self._metric[0, :-1]) / self._metric[1, :-1], ones], 1)
            if curvature.shape[1] == 1 or self._diagonal:
                curvature[:, 0] += steps[part].T @ (rows * rows)
                continue
            for k, step in enumerate(steps[part].T):
                curvature[k] += torch.tril((rows * step[:, None]).T @ rows)


def _floats(rows: torch.Tensor) -> torch.Tensor:
    return rows if rows.dtype == torch.float32 else rows.double()


def _product(factors: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """factorsᵀ·rows in float64; in float32 only over few rows at a time, and over more where the sums are large."""
    if rows.dtype == torch.float64:
        return factors.T @ rows
    several = max(SUMMED_ROWS, len(rows) * factors.shape[1] * rows.shape[1] // active().gpu.lr_block_numbers)
    whole, factors = len(rows) // several * several, factors.to(rows.dtype)
    parts = factors[:whole].view(-1, several, factors.shape[1]).transpose(1, 2)
    summed = torch.bmm(parts, rows[:whole].view(-1, several, rows.shape[1])).sum(0, dtype=torch.float64)
    return summed + (factors[whole:].T @ rows[whole:]).double()
