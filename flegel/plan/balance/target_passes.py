"""Target passes C: the passes that all workers can reach together, and how far each is from it (paper Section 4.2).

Pure arithmetic; decides nothing. N points, V *seconds per point*, P passes so far; a super worker is a set of workers
with the same N, V and P within a tolerance. docs/balance.md has the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median, median_low

from flegel.configuration.balance import BalanceSettings


@dataclass(frozen=True)
class WorkerLoad:
    """Measurements of one worker."""

    worker: int
    points: int
    seconds_per_point: float
    """V: seconds per point."""
    passes: float
    relative_error: float = 0.0
    """Relative standard error of V."""
    busy: bool = False
    """A migration is under way; until it ends the worker neither gives nor takes."""
    refusal: str = ""
    """Why it cannot take more points; empty if it can."""


@dataclass(frozen=True)
class SuperWorker:
    """Workers with the same statistics; N, V, P are their means (paper: 𝕎_i)."""

    members: tuple[WorkerLoad, ...]

    @cached_property
    def points(self) -> float:
        return _mean(m.points for m in self.members)

    @cached_property
    def seconds_per_point(self) -> float:
        return _mean(m.seconds_per_point for m in self.members)

    @cached_property
    def passes(self) -> float:
        return _mean(m.passes for m in self.members)

    @cached_property
    def relative_error(self) -> float:
        return _mean(m.relative_error for m in self.members)

    @cached_property
    def pass_seconds(self) -> float:
        """Seconds of a pass."""
        return self.points * self.seconds_per_point

    def __str__(self) -> str:
        ids = [m.worker for m in self.members]
        return f"worker {ids[0]}" if len(ids) == 1 else f"workers {', '.join(map(str, ids))}"


def _mean(values: Iterable[float]) -> float:
    found = tuple(values)
    return sum(found) / len(found)


def super_workers(loads: Sequence[WorkerLoad], rules: BalanceSettings) -> list[SuperWorker]:
    """Group workers whose N, V and P agree within the tolerance, in the order of their predicted speed."""
    groups: list[list[WorkerLoad]] = []
    for load in sorted(loads, key=lambda w: (w.points * w.seconds_per_point, w.passes, w.worker)):
        for group in reversed(groups):
            if _alike(group[0], load, rules):
                group.append(load)
                break
        else:
            groups.append([load])
    return [SuperWorker(tuple(group)) for group in groups]


def _alike(a: WorkerLoad, b: WorkerLoad, rules: BalanceSettings) -> bool:
    """Whether two workers belong to one super worker: N and V within the relative tolerance, and both able, or both
    unable, to give and take points. Passes differ by ε/2 at most: then those of two members differ by ε at most."""

    def near(x: float, y: float) -> bool:
        return abs(x - y) <= rules.group_tolerance * max(x, y)

    return (
        near(a.points, b.points)
        and near(a.seconds_per_point, b.seconds_per_point)
        and abs(a.passes - b.passes) <= rules.epsilon / 2
        and a.busy == b.busy
        and bool(a.refusal) == bool(b.refusal)
    )


def typical_pass_seconds(loads: Iterable[WorkerLoad]) -> float:
    """Seconds of a pass; lower median over workers."""
    return median_low(w.points * w.seconds_per_point for w in loads)


def error_multiple(workers: int, rules: BalanceSettings) -> float:
    """Standard errors that a deviation must exceed: the largest of n errors is about √(2 ln n) standard errors."""
    return rules.error_multiple * max((1 + math.sqrt(2 * math.log(workers))) / 2, 1.0)


def has_stragglers(loads: Sequence[WorkerLoad], rules: BalanceSettings) -> bool:
    """Whether some worker's V exceeds `straggler_factor` times the lower quartile by more than the error."""
    if not loads:
        return False
    usual = sorted(w.seconds_per_point for w in loads)[
        len(loads) // 4  # lower quartile
    ]  # lower quartile: valid also if most workers are slow
    common, allowed = median(w.relative_error for w in loads), error_multiple(len(loads), rules)
    return any(
        w.seconds_per_point > rules.straggler_factor * usual * (1 + allowed * max(w.relative_error, common))
        for w in loads
    )


def target_passes(groups: Iterable[SuperWorker], split: float) -> float:
    """C: the passes that all workers have after `split` seconds (τ) if points are moved now.

    All visits so far and of the split, divided by all points: C = Σ (N P + τ / V) / Σ N. A worker above C cannot give
    passes away, only time: its points and past visits are left out, its visits of the split are counted.
    """
    behind = list(groups)
    visits = sum(len(g.members) * split / g.seconds_per_point for g in behind)
    while True:
        points = sum(len(g.members) * g.points for g in behind)
        target = (sum(len(g.members) * g.points * g.passes for g in behind) + visits) / points
        kept = [g for g in behind if g.passes <= target]
        if not kept or len(kept) == len(behind):  # none kept: all have equal passes up to rounding
            return target
        behind = kept


def surplus_visits(group: SuperWorker, target: float, split: float) -> float:
    """Visits per member left for points of others once its own have C passes; negative: visits that it lacks."""
    return split / group.seconds_per_point - group.points * max(target - group.passes, 0.0)


def points_to_give(slow: SuperWorker, target: float, split: float) -> float:
    """Δ: points that each member must give so that its other points have C passes after `split` seconds.

    (N − Δ) P + τ / V = (N − Δ) C. For one slow and one fast super worker this is Eq. 9 of the paper, and its case of a
    split too short to make up lost passes, where the fast one is above C and trains only what arrives.
    """
    lacks = -surplus_visits(slow, target, split)
    return lacks / (target - slow.passes) if lacks > 0 else 0.0
