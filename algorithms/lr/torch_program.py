"""Logistic regression over blocks of rows by torch, for GPUs: the same statistics as the hooks. Imports torch.

Follows `point.visit` for all rows of a block at once, in float64. A point's curvature enters the sums only where it has
changed by more than a given part, so after the first passes a visit costs little more than its gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from flegel.algorithms.lr.point import BENT_PART, LEAST_BEND, MOST_CLASS_SCORE, MOST_SCORE
from flegel.configuration.active import active


class LogisticProgram:
    """θ on the device."""

    def __init__(self, algorithm: Any, device: torch.device) -> None:
        self._device, self._memory = device, 1.0 if algorithm.memory else 0.0

    def block(self, columns: int) -> int:
        return max(active().gpu.lr_block_numbers // max(columns + 1, 1), 1024) if self._device.type == "cuda" else 8192

    def set_parameter(self, parameter: Any) -> None:
        put = self._put
        self._weights, self._bias, classes = put(parameter.weights), put(parameter.bias), put(parameter.classes)
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
            self._visit(features[rows].double(), self._places[place[rows]], kept, sums)
            state[rows] = kept
            return
        self._visit(features.double(), self._places[place], state, sums)

    def _visit(self, x: torch.Tensor, target: torch.Tensor, state: torch.Tensor, sums: Sequence[torch.Tensor]) -> None:
        """Do what `LR.updateDataPoint` does for a block of rows at once."""
        gradient, curvature, counts, loss, seen, stamps, visits, _, bent = sums
        outputs = len(self._weights)
        residual, cost = self._residuals(torch.addmm(self._bias, x, self._weights.T), target)
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
        gradient[:, :-1] += steps.T @ x
        gradient[:, -1] += steps.sum(0)
        counts.index_add_(0, target[first], torch.ones(int(first.sum()), dtype=torch.float64, device=x.device))
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
        if not len(some):
            return
        ones = torch.ones((len(some), 1), dtype=torch.float64, device=x.device)
        rows = torch.cat([(x[some] - self._metric[0, :-1]) / self._metric[1, :-1], ones], 1)
        for k, step in enumerate(steps[some].T):
            if curvature.shape[1] == 1 or self._diagonal:
                curvature[k, 0] += step @ (rows * rows)
            else:
                curvature[k] += torch.tril((rows * step[:, None]).T @ rows)
