"""Which worker should give how many points to which, so that all data are traversed equally often (paper Section 4.2).

Pure arithmetic on what the coordinator knows of its workers. Never moves a point, never reads a clock; the
coordinator may refuse any proposal, and every answer says why.

Names: N points, V *seconds per point*, P passes so far, T the predicted seconds of training that are left, τ (split)
the part of T for which a plan is made. P* is P after the split if nothing is moved (Eq. 8); C (target passes) is the
P* that all workers have together if points are moved now.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import NamedTuple

from flegel.configuration.active import active
from flegel.configuration.balance import BalanceSettings
from flegel.core.shard import TILE
from flegel.plan.balance.remaining_time import TimeLeft
from flegel.plan.balance.target_passes import (
    SuperWorker,
    WorkerLoad,
    error_multiple,
    has_stragglers,
    points_to_give,
    super_workers,
    surplus_visits,
    target_passes,
    typical_pass_seconds,
)


@dataclass(frozen=True)
class Proposal:
    """Move so many points from one worker to another."""

    source: int
    target: int
    points: int
    reason: str


@dataclass(frozen=True)
class BalancePlan:
    """What to move now, and why (or why not)."""

    proposals: tuple[Proposal, ...]
    reason: str


@dataclass(frozen=True)
class MoveCost:
    """Measured cost of past moves: seconds until the first point has a new owner, and seconds per point."""

    lag: float = 0.0
    each: float = 0.0


@dataclass(frozen=True)
class Timing:
    """T, whether it is known (by a limit) or guessed (from the objective), and the cost of a move."""

    remaining: float
    sure: bool
    move_cost: MoveCost


def consider(
    loads: Sequence[WorkerLoad],
    remaining: float,
    rules: BalanceSettings,
    moved: Collection[int] = (),
    move_cost: MoveCost | None = None,
    sure: bool = True,
) -> BalancePlan:
    """One round of matching. `moved`: workers that gave or took points before; `sure`: T is known, not guessed."""
    timing = Timing(remaining, sure, move_cost or MoveCost())
    if len(loads) == 1:
        return BalancePlan((), "one worker has all points")
    usable = [w for w in loads if w.points > 0 and 0 < w.seconds_per_point < math.inf]
    if len(usable) < 2 or len(usable) < len(loads):
        return BalancePlan((), "the speed of some worker is not known yet")
    groups = super_workers(usable, rules)
    if len(groups) < 2:
        return BalancePlan((), f"all workers are alike: {groups[0].passes:.2f} passes")
    forecast = SplitForecast.of(groups, _split(usable, rules, timing), timing.move_cost.lag, rules)
    demands = [forecast.demand(group, moved) for group in groups]
    deviation = max(demand.deviation for demand in demands)
    if deviation <= rules.epsilon:
        return BalancePlan(
            (), f"balanced: passes will be at most {deviation:.2f} from their target, and ε = {rules.epsilon:g}"
        )
    head = f"in {forecast.split:.3g} s passes would be up to {deviation:.2f} from their target, more than ε"
    head += f" = {rules.epsilon:g}"
    proposals, refused = _match(demands, forecast, timing)
    if not proposals and not refused:
        refused = [_why_nothing(demands)]
    return BalancePlan(tuple(proposals), "; ".join(dict.fromkeys((head, *refused))))


def _split(loads: Sequence[WorkerLoad], rules: BalanceSettings, timing: Timing) -> float:
    passes = rules.split_passes * typical_pass_seconds(loads)
    split = max(passes, rules.split_move_times * timing.move_cost.lag)
    return min(split, timing.remaining if timing.sure else max(timing.remaining, passes))


@dataclass
class GroupDemand:
    """What a super worker should give or take in this plan."""

    group: SuperWorker
    takes: bool
    visits: float
    """Visits that all members together still lack, or have to spare."""
    early_visits: float
    """Further visits that it needs to reach the target before the split ends; given from a remaining surplus."""
    deviation: float
    """|P* − C| of Eq. 8, plus `early_visits` in passes."""
    significant: float
    """`deviation` less what the standard errors of the speeds explain."""
    acts: bool
    """`significant` is above ε: moves are made for its sake. Others only give or take what these need."""
    relative_error: float
    """Of its speed; 0 for outliers and for workers that have moved points and are still 2 ε from the mean."""
    moved: float = 0.0
    """Points that each member gives or takes by this plan, so far."""

    @property
    def why_not(self) -> str:
        """Why it can neither give nor take; empty if it can."""
        if self.group.members[0].busy:
            return f"{self.group} has a migration under way"
        full = self.group.members[0].refusal
        return f"{self.group} takes no more: {full}" if self.takes and full else ""


@dataclass(frozen=True)
class SplitForecast:
    """All workers at the end of the split, predicted from their present speeds."""

    groups: Sequence[SuperWorker]
    split: float
    target: float
    """C: target passes."""
    earliest: float
    """Seconds after which points given now have arrived."""
    rules: BalanceSettings
    pass_seconds: float
    """Seconds of a pass; median over workers."""
    points: float
    """Points of a worker; median."""
    passes: float
    """Passes; mean over all points."""
    relative_error: float
    """Median relative error of the speeds; the floor of each worker's error, because few rounds may agree by chance."""
    errors: float
    """Standard errors that a deviation must exceed to count."""

    @staticmethod
    def of(groups: Sequence[SuperWorker], split: float, earliest: float, rules: BalanceSettings) -> SplitForecast:
        """Collect what the forecast needs to know of all members: medians, so that one wrong figure changes little."""
        members = [m for g in groups for m in g.members]
        return SplitForecast(
            groups=groups,
            split=split,
            target=target_passes(groups, split),
            earliest=earliest,
            rules=rules,
            pass_seconds=typical_pass_seconds(members),
            points=median(m.points for m in members),
            passes=sum(m.points * m.passes for m in members) / sum(m.points for m in members),
            relative_error=median(m.relative_error for m in members),
            errors=error_multiple(len(members), rules),
        )

    def demand(self, group: SuperWorker, moved: Collection[int]) -> GroupDemand:
        """What this super worker should give or take, and whether its deviation is significant."""
        rules, each = self.rules, surplus_visits(group, self.target, self.split)
        early, error = self._early_visits(group, -each), max(group.relative_error, self.relative_error)
        deviation = abs(group.passes + self.split / group.pass_seconds - self.target) + early / group.points
        significant = deviation - self._error_margin(group, error)
        ratio = max(group.pass_seconds / self.pass_seconds, self.pass_seconds / group.pass_seconds)
        outlier = ratio > rules.outlier_factor * (1 + self.errors * error)
        apart = abs(group.passes - self.passes) > 2 * rules.epsilon and any(m.worker in moved for m in group.members)
        return GroupDemand(
            group=group,
            takes=each > 0,
            visits=len(group.members) * abs(each),
            early_visits=len(group.members) * early,
            deviation=deviation,
            significant=significant,
            acts=significant > rules.epsilon,
            relative_error=0.0 if outlier or apart else error,
        )

    def _early_visits(self, group: SuperWorker, lacks: float) -> float:
        """Further visits that each member needs if the split is shortened in proportion to its points; 0 if it has as
        many as the median: a small shard costs little wherever it is, so its passes are made up at once."""
        if lacks <= 0 or group.points >= self.points:
            return 0.0
        sooner = min(max(self.split * group.points / self.points, self.earliest), self.split)
        give = points_to_give(group, target_passes(self.groups, sooner), sooner)
        return max((self.target - group.passes) * give - lacks, 0.0)

    def _error_margin(self, group: SuperWorker, error: float) -> float:
        """Passes of deviation that the errors of its own speed and of the others' explain."""
        own = error * self.split / group.pass_seconds / math.sqrt(len(group.members))
        others = (
            self.relative_error * self.split / self.pass_seconds / math.sqrt(sum(len(g.members) for g in self.groups))
        )
        return self.errors * math.hypot(own, others)


def _why_nothing(demands: Sequence[GroupDemand]) -> str:
    """Why no points move although the deviation is above ε."""
    far = max(demands, key=lambda s: s.deviation)
    stopped = next((s.why_not for s in demands if s.acts and s.why_not), "")
    if stopped:
        return stopped
    if far.acts:
        return f"no worker has {'points to spare' if far.takes else 'time'} for {far.group}"
    significant = max(far.significant, 0.0)
    return f"{far.group} will be {far.deviation:.2f} passes from it, of which {significant:.2f} are significant"


def _match(demands: Sequence[GroupDemand], forecast: SplitForecast, timing: Timing) -> tuple[list[Proposal], list[str]]:
    """Pairs the group farthest from the target with the opposite one that has the largest surplus or need, until one of
    them is at the target. No group both gives and takes. Early visits are served last, from the remaining surplus."""
    proposals: list[Proposal] = []
    refused: list[str] = []
    free = [s for s in demands if not s.why_not]
    acting = sorted((s for s in free if s.acts), key=lambda s: -s.deviation)
    for early in (False, True):
        for demand in acting:
            if early:
                demand.visits, demand.early_visits = demand.visits + demand.early_visits, 0.0
            others = [s for s in free if s.takes != demand.takes]
            for other in sorted(others, key=lambda s: -s.visits):
                if min(demand.visits, other.visits) <= 0:
                    break
                slow, fast = (other, demand) if demand.takes else (demand, other)
                made, why = _pair(slow, fast, forecast, timing)
                proposals += made
                if why and not early:
                    refused.append(why)
    return _merge_pairs(proposals), refused


def _pair(slow: GroupDemand, fast: GroupDemand, forecast: SplitForecast, timing: Timing) -> tuple[list[Proposal], str]:
    """As many points as bring one of the two to the target, or why none (Eq. 9)."""
    s, f, rules = slow.group, fast.group, forecast.rules
    behind = forecast.target - s.passes
    wanted = min(slow.visits, fast.visits) / behind / len(s.members)
    delta, late = _in_time(wanted, slow, fast, rules, timing)
    each = delta * len(s.members) / len(f.members)
    moves = assign_tiles(s, f, delta) if delta >= TILE / 2 else []
    if not moves:
        few = f"{s} would give {delta:.0f} points to {f}, too few to matter"
        return [], late if late and not delta else few
    for demand in (slow, fast):
        demand.visits -= delta * behind * len(s.members)
    slow.moved, fast.moved = slow.moved + delta, fast.moved + each
    given = {m.worker: sum(n for source, _, n in moves if source == m.worker) for m in s.members}
    slow.group = SuperWorker(tuple(replace(m, points=m.points - given[m.worker]) for m in s.members))
    case = "lost passes shared" if f.passes > forecast.target else "equal passes"
    reason = (
        f"{s} at {s.passes:.2f} passes, {s.seconds_per_point * 1e9:.0f} ns a point, {f} at {f.passes:.2f}, "
        f"{f.seconds_per_point * 1e9:.0f} ns: {late or f'{case} after {forecast.split:.3g} s'}"
    )
    return [Proposal(source, target, n, reason) for source, target, n in moves], ""


def _in_time(
    delta: float, slow: GroupDemand, fast: GroupDemand, rules: BalanceSettings, timing: Timing
) -> tuple[float, str]:
    """At most as many points as arrive within T, together with all others that the two groups move; none if T is too
    short for a move to pay."""
    remaining, move_cost, error = timing.remaining, timing.move_cost, min(slow.relative_error, fast.relative_error)
    certain = remaining if timing.sure or not error else rules.guessed_time_share * remaining
    if certain <= (1 + (rules.min_payoff - 1) * min(error / rules.uncertain_error, 1.0)) * move_cost.lag:
        return 0.0, f"a move takes {move_cost.lag:.3g} s, and only {remaining:.3g} s are left to profit from it"
    left = remaining - move_cost.lag
    share = len(slow.group.members) / len(fast.group.members)
    if max(slow.moved + delta, fast.moved + share * delta) * move_cost.each <= left:
        return delta, ""
    most = left / move_cost.each
    fits = max(min(most - slow.moved, (most - fast.moved) / share), 0.0)
    return min(delta, fits), f"as many points as arrive within {left:.3g} s"


def _merge_pairs(proposals: Sequence[Proposal]) -> list[Proposal]:
    """One proposal for each pair of workers."""
    pairs: dict[tuple[int, int], Proposal] = {}
    for p in proposals:
        before = pairs.get((p.source, p.target))
        pairs[p.source, p.target] = replace(before, points=before.points + p.points) if before else p
    return list(pairs.values())


class TileMove(NamedTuple):
    """Points that one worker is to give to another, in whole tiles."""

    source: int
    target: int
    points: int


def assign_tiles(slow: SuperWorker, fast: SuperWorker, delta: float) -> list[TileMove]:
    """Each slow worker gives Δ, each fast one gets βΔ (Eq. 9), in whole tiles, no worker is left empty."""
    gives = [min(max(_tiles(delta + TILE / 2), TILE), max(_tiles(m.points - TILE), 0)) for m in slow.members]
    whole, over = divmod(sum(gives) // TILE, len(fast.members))
    quota = [(whole + (i < over)) * TILE for i in range(len(fast.members))]
    moves: list[TileMove] = []
    at = 0
    for member, give in zip(slow.members, gives, strict=True):
        while give > 0:
            part = min(give, quota[at])
            if part:
                moves.append(TileMove(member.worker, fast.members[at].worker, part))
                give -= part
                quota[at] -= part
            if not quota[at]:
                at += 1
    return moves


def _tiles(points: float) -> int:
    return int(points) // TILE * TILE


@dataclass
class Balance:
    """Keeps when to plan next, and which workers have moved points; the arithmetic is above.

    A plan aims at equal passes one split ahead. It is made anew every `replan_passes`, because speeds, the predicted
    time and the end of an asynchronous migration are all uncertain.
    """

    rules: BalanceSettings = field(default_factory=lambda: active().balance)
    even: BalanceSettings = field(default_factory=lambda: active().balance_sparing)
    """The rules used while no worker is a straggler."""
    next_at: float = 0.0
    began: float = math.inf
    moved: set[int] = field(default_factory=set)
    """Workers that have given or taken points."""

    def due(self, now: float) -> bool:
        self.began = min(self.began, now)
        return now >= self.next_at

    def plan(
        self, loads: Sequence[WorkerLoad], time_left: TimeLeft, now: float, move_cost: MoveCost | None = None
    ) -> BalancePlan:
        """Proposals for the split that begins now."""
        known = [w for w in loads if w.points and w.seconds_per_point < math.inf]
        pass_seconds = typical_pass_seconds(known) if known else 0.0
        rules = self.rules if has_stragglers(known, self.rules) else self.even
        plan = consider(loads, time_left.seconds, rules, self.moved, move_cost, time_left.sure)
        self.next_at = now + min(rules.replan_passes * pass_seconds, rules.max_plan_age * (now - self.began))
        self.moved.update(worker for p in plan.proposals for worker in (p.source, p.target))
        return plan
