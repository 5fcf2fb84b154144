"""Moves between pairs of super workers as the FSP paper prints them (Section 4.2, Eq. 8 and 9). Pure arithmetic.

The time T that is left is split into d parts. Before each of them, super workers are sorted by the passes that they
will have after it; the least is paired with the most, the second with the last but one, and so on. Eq. 9 says how many
points each slow worker gives so that both have the same passes after the part; where that part is too short to make up
the lost passes of what moves, the second equation shares the lost passes. `planner.py` has what is the default, and why
it differs (docs/adr/one-target-level-for-all-workers.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from flegel.configuration.active import active
from flegel.configuration.balance import BalanceSettings
from flegel.core.shard import TILE
from flegel.plan.balance.planner import BalancePlan, MoveCost, Proposal, assign_tiles
from flegel.plan.balance.remaining_time import TimeLeft
from flegel.plan.balance.target_passes import SuperWorker, WorkerLoad, super_workers

BISECTIONS = 60  # halvings of the interval of a root: down to the rounding of float64


def points_of_pair(slow: SuperWorker, fast: SuperWorker, split: float) -> float:
    """Δ of Eq. 9: points that each member of `slow` gives, of which each member of `fast` gets βΔ."""
    beta = len(slow.members) / len(fast.members)
    lost = max(fast.passes - slow.passes, 0.0)

    def apart(delta: float) -> float:
        """Passes of the slow less those of the fast after the split; grows with Δ."""
        left = slow.points - delta
        mine = slow.passes + split / (left * slow.seconds_per_point)
        time = split - lost * beta * delta * fast.seconds_per_point
        return mine - fast.passes - time / ((fast.points + beta * delta) * fast.seconds_per_point)

    low, high = 0.0, slow.points * (1.0 - 1e-12)
    if apart(low) >= 0.0:
        return 0.0
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if apart(middle) < 0.0 else (low, middle)
    if lost * beta * low * fast.seconds_per_point <= split:
        return low
    share = slow.seconds_per_point + beta * fast.seconds_per_point
    return slow.points * slow.seconds_per_point / share  # both work for the lost passes only


def pairs(groups: Sequence[SuperWorker], split: float) -> list[tuple[SuperWorker, SuperWorker]]:
    """(Slow, fast), by the passes that they will have after the split."""
    order = sorted(groups, key=lambda g: g.passes + split / g.pass_seconds)
    return [(order[i], order[-1 - i]) for i in range(len(order) // 2)]


@dataclass
class PairedBalance:
    """Keeps the cycle of d parts; the arithmetic is above."""

    rules: BalanceSettings = field(default_factory=lambda: active().balance)
    next_at: float = 0.0
    part: int = 0
    """Parts of this cycle so far."""
    split: float = 0.0
    """Seconds of a part: T / d as it was when the cycle began."""

    def due(self, now: float) -> bool:
        return now >= self.next_at

    def plan(
        self, loads: Sequence[WorkerLoad], time_left: TimeLeft, now: float, move_cost: MoveCost | None = None
    ) -> BalancePlan:
        """The moves of the part that begins now."""
        usable = [w for w in loads if w.points > 0 and 0 < w.seconds_per_point < math.inf]
        if len(usable) < 2 or len(usable) < len(loads):
            return BalancePlan((), "the speed of some worker is not known yet")
        groups = super_workers(usable, self.rules)
        mean = sum(g.passes for g in groups) / len(groups)
        apart = max(abs(g.passes - mean) for g in groups)
        if apart <= self.rules.epsilon:  # Eq. 8
            self.part = 0
            return BalancePlan((), f"balanced: passes are at most {apart:.2f} from their mean")
        parts = self.rules.paired_splits
        if self.part == 0:
            self.split = time_left.seconds / parts
        self.part = (self.part + 1) % parts
        self.next_at = now + self.split
        made: list[Proposal] = []
        for slow, fast in pairs(groups, self.split):
            delta = points_of_pair(slow, fast, self.split)
            if delta < TILE / 2 or slow.members[0].busy or fast.members[0].busy or fast.members[0].refusal:
                continue
            why = f"Eq. 9: {slow} at {slow.passes:.2f} passes, {fast} at {fast.passes:.2f}, {self.split:.3g} s"
            made += [
                Proposal(source, target, points, why) for source, target, points in assign_tiles(slow, fast, delta)
            ]
        return BalancePlan(tuple(made), f"passes are {apart:.2f} from their mean, more than ε = {self.rules.epsilon:g}")
