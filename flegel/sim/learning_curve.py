"""Learning without data: how far a job has come, from a curve that was fitted to real training. For very many workers.

The curve is that of training with one update a pass (bsp): the objective after so many passes. A visit under a θ that
was y passes old when its report was folded in counts (1 − κy) / (1 − κ) such visits, but not less than a tenth of a
fresh one. κ, the loss from staleness, comes from a second training with an update every eighth of a pass. The curve
does not know which points were visited: it sees neither points that are visited more rarely than others, nor
divergence, nor that two models may end in different optima.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flegel.algorithm import Algorithm
from flegel.core.precision import SMALLEST_DIVISOR
from flegel.core.pytree import Array, Tree
from flegel.core.shard import Shard
from flegel.declarations.learning import Learning
from flegel.declarations.statistics import Statistics

STALEST_VISIT_WORTH = 0.1  # of a fresh visit: what the stalest one is worth


@dataclass(frozen=True)
class FittedProgress:
    """A fitted curve."""

    passes: tuple[float, ...]
    values: tuple[float, ...]
    """The objective after so many passes with one update each."""
    loss: float
    """κ."""
    maximize: bool = False


def fit(
    fine: Sequence[tuple[float, float]], coarse: Sequence[tuple[float, float]], step: float, maximize: bool
) -> FittedProgress:
    """Fit the curve to pairs (passes, objective) of training with an update every `step` of a pass, and with one update
    a pass.

    Where the fine training is r times quicker to some objective, (1 − κ·step) / (1 − κ) = r; κ is from the median of r
    over the second half of the way that the coarse one has come.
    """
    sign = -1.0 if maximize else 1.0
    slow = np.minimum.accumulate([sign * f for _, f in coarse])
    quick = np.minimum.accumulate([sign * f for _, f in fine])
    first, last = float(slow[0]), max(float(slow[-1]), float(quick[-1]))
    ratios = []
    for share in np.linspace(0.5, 0.995, 34):  # levels in the second half of the way, short of its end
        level = first + share * (last - first)
        a, b = _when(coarse, slow, level), _when(fine, quick, level)
        if a > 1 and b > 0:
            ratios.append(a / b)
    ratio = max(float(np.median(ratios)), 1.0) if ratios else 1.0
    loss = min((ratio - 1) / (ratio - step), 0.95)  # with a loss of 1 no stale visit would help
    return FittedProgress(tuple(p for p, _ in coarse), tuple((sign * slow).tolist()), loss, maximize)


def _when(course: Sequence[tuple[float, float]], best: Array, level: float) -> float:
    """Passes until the objective was so good, between two updates in proportion."""
    i = int(np.argmax(best <= level))
    if best[i] > level or i == 0:
        return course[0][0] if best[0] <= level else 0.0
    (before, _), (after, _) = course[i - 1], course[i]
    return float(before + (after - before) * (best[i - 1] - level) / max(best[i - 1] - best[i], SMALLEST_DIVISOR))


class LearningCurve(Algorithm):
    """θ is (passes in the measure of the curve, visits in all); statistics are visits, and visits times the visits that
    their θ knew."""

    statistics = Statistics(spent=("value",))
    learning = Learning(averaged=True)

    def __init__(self, progress: FittedProgress, points: int) -> None:
        super().__init__()
        self.progress, self.points = progress, points

    def initParameter(self, sample: Any, rng: Any) -> Any:
        return np.zeros(2)

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        """Count passes; a visit under an old θ counts less, by the fraction that the progress loses with its age."""
        visits, known = float(aggregator[0]), float(aggregator[1])
        passes, total = float(oldParameter[0]), float(oldParameter[1]) + visits
        if visits <= 0:
            return oldParameter
        age = (total - known / visits) / self.points
        worth = max(1 - self.progress.loss * age, STALEST_VISIT_WORTH) / (1 - self.progress.loss)
        return np.array([passes + visits / self.points * worth, total])

    def objective(self, aggregator: Any, parameter: Any) -> float:
        return float(np.interp(parameter[0], self.progress.passes, self.progress.values))


class RisingCurve(LearningCurve):
    """Where more is better."""

    learning = Learning(averaged=True, maximize=True)


def curve(progress: FittedProgress, points: int) -> LearningCurve:
    """With the right direction."""
    return (RisingCurve if progress.maximize else LearningCurve)(progress, points)


class CurveLearner:
    """A worker's visits, and what its θ knew."""

    __slots__ = ("_known", "_visits", "columns", "points")

    def __init__(self, points: int, columns: int = 1) -> None:
        self.points, self.columns = points, columns
        self._visits = self._known = 0.0

    def train(self, parameter: Tree, start: int, end: int, iteration: int, share: Shard | None = None) -> None:
        self._visits += end - start
        self._known += (end - start) * float(parameter[1])

    def clear(self) -> None:
        self._visits = self._known = 0.0

    def changes(self) -> tuple[Array, ...]:
        return (np.array((self._visits, self._known)),)
