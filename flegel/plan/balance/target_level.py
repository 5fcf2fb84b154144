"""The level: the passes that a crew can have together after some time, and what each worker lacks or has to spare.

Pure arithmetic. N points, V *seconds per point*, P passes so far; a super worker is a set of workers with the same N, V
and P within a tolerance. docs/balance.md has the sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median, median_low

from flegel.plan.balance.settings import BalanceSettings


@dataclass(frozen=True)
class WorkerLoad:
    """A worker as the balance sees it."""

    worker: int
    points: int
    seconds: float
    """V: seconds per point."""
    passes: float
    doubt: float = 0.0
    """Relative standard error of V."""
    busy: bool = False
    """A migration is under way here; it neither gives nor takes before that is over."""
    full: str = ""
    """Why it cannot take more points; empty where it can."""


@dataclass(frozen=True)
class SuperWorker:
    """Workers with the same statistics; N, V, P are their means (paper: 𝕎_i)."""

    members: tuple[WorkerLoad, ...]

    @cached_property
    def points(self) -> float:
        return _mean(m.points for m in self.members)

    @cached_property
    def seconds(self) -> float:
        return _mean(m.seconds for m in self.members)

    @cached_property
    def passes(self) -> float:
        return _mean(m.passes for m in self.members)

    @cached_property
    def doubt(self) -> float:
        return _mean(m.doubt for m in self.members)

    @cached_property
    def lap(self) -> float:
        """Seconds of a pass."""
        return self.points * self.seconds

    def __str__(self) -> str:
        ids = [m.worker for m in self.members]
        return f"worker {ids[0]}" if len(ids) == 1 else f"workers {', '.join(map(str, ids))}"


def _mean(values: Iterable[float]) -> float:
    found = tuple(values)
    return sum(found) / len(found)


def super_workers(loads: Sequence[WorkerLoad], rules: BalanceSettings) -> list[SuperWorker]:
    """Group workers whose N, V and P agree within the tolerance, in the order of their predicted speed."""
    groups: list[list[WorkerLoad]] = []
    for load in sorted(loads, key=lambda w: (w.points * w.seconds, w.passes, w.worker)):
        for group in reversed(groups):
            if _alike(group[0], load, rules):
                group.append(load)
                break
        else:
            groups.append([load])
    return [SuperWorker(tuple(group)) for group in groups]


def _alike(a: WorkerLoad, b: WorkerLoad, rules: BalanceSettings) -> bool:
    def near(x: float, y: float) -> bool:
        return abs(x - y) <= rules.likeness * max(x, y)

    return (
        near(a.points, b.points)
        and near(a.seconds, b.seconds)
        and abs(a.passes - b.passes) <= rules.epsilon / 2
        and a.busy == b.busy
        and bool(a.full) == bool(b.full)
    )


def typical_lap(loads: Iterable[WorkerLoad]) -> float:
    """Seconds of a pass, of most workers."""
    return median_low(w.points * w.seconds for w in loads)


def errors(workers: int, rules: BalanceSettings) -> float:
    """Standard errors to allow for. The more workers there are, the further apart the two that look most different are
    by chance alone: about √(2 ln n)."""
    return rules.certainty * max((1 + math.sqrt(2 * math.log(workers))) / 2, 1.0)


def uneven(loads: Sequence[WorkerLoad], rules: BalanceSettings) -> bool:
    """Whether somebody is surely slow, so that points have to move anyway and passes can be kept close together."""
    if not loads:
        return False
    usual = sorted(w.seconds for w in loads)[len(loads) // 4]  # also where most are slow
    common, allowed = median(w.doubt for w in loads), errors(len(loads), rules)
    return any(w.seconds > rules.slower * usual * (1 + allowed * max(w.doubt, common)) for w in loads)


def level(groups: Iterable[SuperWorker], split: float) -> float:
    """C: the passes that everybody can have after `split` seconds if points are moved now.

    All visits of the split, and all of before, shared by all points: C = Σ (N P + τ / V) / Σ N. Whoever has more
    passes already cannot give them away, only its time: its points are not counted, its visits are.
    """
    behind = list(groups)
    visits = sum(len(g.members) * split / g.seconds for g in behind)
    while True:
        points = sum(len(g.members) * g.points for g in behind)
        height = (sum(len(g.members) * g.points * g.passes for g in behind) + visits) / points
        kept = [g for g in behind if g.passes <= height]
        if not kept or len(kept) == len(behind):  # none: all have the same passes, but for the last digit
            return height
        behind = kept


def spare(group: SuperWorker, height: float, split: float) -> float:
    """Visits that each member can make for points of others, once its own are at the level; below 0: that it lacks."""
    return split / group.seconds - group.points * max(height - group.passes, 0.0)


def points_to_give(slow: SuperWorker, height: float, split: float) -> float:
    """Δ: how many points each member must give away so that the rest are at the level after `split` seconds.

    (N − Δ) P + τ / V = (N − Δ) C. For one slow and one fast super worker this is Eq. 9 of the paper, and its case of a
    split too short to make up lost passes, where the fast one is above the level and works for the arrivals alone.
    """
    lacks = -spare(slow, height, split)
    return lacks / (height - slow.passes) if lacks > 0 else 0.0
