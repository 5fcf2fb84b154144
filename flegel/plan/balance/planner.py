"""Who should give how many points to whom, so that all data are traversed equally often (paper Section 4.2).

Pure arithmetic on what the coordinator knows of its workers. Never moves a point, never reads a clock; the
coordinator may refuse any proposal, and every answer says why.

Names: N points, V *seconds per point*, P passes so far, T seconds that training will probably still take, τ a split of
T. P* is what P will be after a split, and the level C is the P* that all can have together if points are moved now.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from flegel.core.shard import TILE
from flegel.plan.balance.remaining_time import TimeLeft
from flegel.plan.balance.settings import SPARING, BalanceSettings
from flegel.plan.balance.target_level import (
    SuperWorker,
    WorkerLoad,
    errors,
    level,
    points_to_give,
    spare,
    super_workers,
    typical_lap,
    uneven,
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
    """What a move takes, by those that were made: seconds before the first point has changed hands, and per point."""

    lag: float = 0.0
    each: float = 0.0


@dataclass(frozen=True)
class Timing:
    """T, whether it is known rather than guessed, and what a move takes."""

    remaining: float
    sure: bool
    carriage: MoveCost


def consider(
    loads: Sequence[WorkerLoad],
    remaining: float,
    rules: BalanceSettings,
    last: dict[int, int] | None = None,
    carriage: MoveCost | None = None,
    sure: bool = True,
) -> BalancePlan:
    """One round of matching. `last`: who gave (−1) or took (1) not long ago; `sure`: the remaining time is known."""
    timing = Timing(remaining, sure, carriage or MoveCost())
    usable = [w for w in loads if w.points > 0 and 0 < w.seconds < math.inf]
    if len(usable) < 2 or len(usable) < len(loads):
        return BalancePlan((), "the speed of some worker is not known yet")
    groups = super_workers(usable, rules)
    if len(groups) < 2:
        return BalancePlan((), f"all workers are alike: {groups[0].passes:.2f} passes")
    ahead = Outlook.of(groups, _split(usable, rules, timing), timing.carriage.lag, rules)
    sides = [ahead.side(group, last or {}) for group in groups]
    off = max(side.off for side in sides)
    if off <= rules.epsilon:
        return BalancePlan(
            (), f"balanced: passes will be {off:.2f} from their level at most, and ε = {rules.epsilon:g}"
        )
    head = f"in {ahead.split:.3g} s passes would be up to {off:.2f} from their level, more than ε = {rules.epsilon:g}"
    proposals, refused = _match(sides, ahead, timing)
    if not proposals and not refused:
        refused = [_idle(sides)]
    return BalancePlan(tuple(proposals), "; ".join(dict.fromkeys((head, *refused))))


def _split(loads: Sequence[WorkerLoad], rules: BalanceSettings, timing: Timing) -> float:
    passes = rules.laps * typical_lap(loads)
    split = max(passes, rules.ahead * timing.carriage.lag, rules.part * timing.remaining)
    return min(split, timing.remaining if timing.sure else max(timing.remaining, passes))


@dataclass
class Side:
    """A super worker that gives or takes."""

    group: SuperWorker
    takes: bool
    visits: float
    """What it still lacks or has to spare, of all its members."""
    extra: float
    """What it lacks besides, to be at the level sooner, if somebody has that to spare."""
    off: float
    """|P* − C|, and the passes of what it lacks besides."""
    surely: float
    """The same, less what the doubt about speeds may explain."""
    acts: bool
    """It is surely so far off that something is done about it; others only give or take what those need."""
    doubt: float
    """Of its speed; 0 where that does not matter."""
    moved: float = 0.0
    """Points that each member gives or takes by this plan."""

    @property
    def why_not(self) -> str:
        """Why it can neither give nor take; empty where it can."""
        if self.group.members[0].busy:
            return f"{self.group} has a migration under way"
        full = self.group.members[0].full
        return f"{self.group} takes no more: {full}" if self.takes and full else ""


@dataclass(frozen=True)
class Outlook:
    """The crew at the end of a split, as it looks now."""

    groups: Sequence[SuperWorker]
    split: float
    height: float
    """C."""
    soonest: float
    """Seconds after which points that are given now have arrived."""
    rules: BalanceSettings
    lap: float
    """Seconds of a pass, of most workers."""
    points: float
    """Of most workers."""
    passes: float
    """Mean over all points."""
    doubt: float
    """Few rounds of a worker may agree by chance, those of most workers hardly do: nobody is known better than most."""
    errors: float
    """Standard errors to allow for."""

    @staticmethod
    def of(groups: Sequence[SuperWorker], split: float, soonest: float, rules: BalanceSettings) -> Outlook:
        members = [m for g in groups for m in g.members]
        return Outlook(
            groups=groups,
            split=split,
            height=level(groups, split),
            soonest=soonest,
            rules=rules,
            lap=typical_lap(members),
            points=median(m.points for m in members),
            passes=sum(m.points * m.passes for m in members) / sum(m.points for m in members),
            doubt=median(m.doubt for m in members),
            errors=errors(len(members), rules),
        )

    def side(self, group: SuperWorker, last: dict[int, int]) -> Side:
        """What this super worker should do, and how surely."""
        rules, each = self.rules, spare(group, self.height, self.split)
        extra, doubt = self._extra(group, -each), max(group.doubt, self.doubt)
        off = abs(group.passes + self.split / group.lap - self.height) + extra / group.points
        surely = off - self._by_chance(group, doubt)
        moved = [last[m.worker] for m in group.members if m.worker in last]
        turns = any((side > 0) != (each > 0) for side in moved)
        acts = surely > rules.epsilon * (rules.reversal if turns else 1.0)
        clear = max(group.lap / self.lap, self.lap / group.lap) > rules.clearly * (1 + self.errors * doubt)
        apart = bool(moved) and abs(group.passes - self.passes) > 2 * rules.epsilon
        doubted = rules.caution * (off - surely) * group.points if acts and not clear else 0.0
        return Side(
            group=group,
            takes=each > 0,
            visits=len(group.members) * max(abs(each) - doubted, 0.0),
            extra=len(group.members) * extra,
            off=off,
            surely=surely,
            acts=acts,
            doubt=0.0 if clear or apart else doubt,
        )

    def _extra(self, group: SuperWorker, lacks: float) -> float:
        """Visits that each member lacks besides if it is to be at the level as much sooner as it has fewer points than
        most: few are no burden wherever they are."""
        if lacks <= 0 or group.points >= self.points:
            return 0.0
        sooner = min(max(self.split * group.points / self.points, self.soonest), self.split)
        give = points_to_give(group, level(self.groups, sooner), sooner)
        return max((self.height - group.passes) * give - lacks, 0.0)

    def _by_chance(self, group: SuperWorker, doubt: float) -> float:
        """Passes by which doubt about its speed, and about that of the others, may put it off the level."""
        own = doubt * self.split / group.lap / math.sqrt(len(group.members))
        others = self.doubt * self.split / self.lap / math.sqrt(sum(len(g.members) for g in self.groups))
        return self.errors * math.hypot(own, others)


def _idle(sides: Sequence[Side]) -> str:
    """Why nothing is done."""
    far = max(sides, key=lambda s: s.off)
    stopped = next((s.why_not for s in sides if s.acts and s.why_not), "")
    if stopped:
        return stopped
    if far.acts:
        return f"nobody has points to spare for {far.group}" if far.takes else f"nobody has time for {far.group}"
    return f"{far.group} will be {far.off:.2f} passes from it, perhaps {max(far.surely, 0.0):.2f} only"


def _match(sides: Sequence[Side], ahead: Outlook, timing: Timing) -> tuple[list[Proposal], list[str]]:
    """Whoever is farthest from the level first, with the one on the other side that has or lacks the most visits, until
    one of them is at the level. Nobody gives and takes. What would bring some to the level sooner comes last."""
    proposals: list[Proposal] = []
    refused: list[str] = []
    free = [s for s in sides if not s.why_not]
    acting = sorted((s for s in free if s.acts), key=lambda s: -s.off)
    for early in (False, True):
        for side in acting:
            if early:
                side.visits, side.extra = side.visits + side.extra, 0.0
            others = [s for s in free if s.takes != side.takes]
            for other in sorted(others, key=lambda s: -s.visits):
                if min(side.visits, other.visits) <= 0:
                    break
                slow, fast = (other, side) if side.takes else (side, other)
                made, why = _pair(slow, fast, ahead, timing)
                proposals += made
                if why and not early:
                    refused.append(why)
    return _together(proposals), refused


def _pair(slow: Side, fast: Side, ahead: Outlook, timing: Timing) -> tuple[list[Proposal], str]:
    """As many points as bring one of the two to the level, or why none."""
    s, f, rules = slow.group, fast.group, ahead.rules
    behind = ahead.height - s.passes
    wanted = min(slow.visits, fast.visits) / behind / len(s.members)
    delta, late = _in_time(wanted, slow, fast, rules, timing)
    each = delta * len(s.members) / len(f.members)
    least = rules.least / max(slow.off, fast.off, 1.0)
    matters = delta >= TILE / 2 and (delta >= least * s.points or each >= least * f.points)
    moves = hand_out(s, f, delta) if matters else []
    if not moves:
        few = f"{s} would give {delta:.0f} points to {f}, too few to matter"
        return [], late if late and not delta else few
    for side in (slow, fast):
        side.visits -= delta * behind * len(s.members)
    slow.moved, fast.moved = slow.moved + delta, fast.moved + each
    given = {m.worker: sum(n for source, _, n in moves if source == m.worker) for m in s.members}
    slow.group = SuperWorker(tuple(replace(m, points=m.points - given[m.worker]) for m in s.members))
    case = "lost passes shared" if f.passes > ahead.height else "equal passes"
    reason = (
        f"{s} at {s.passes:.2f} passes, {s.seconds * 1e9:.0f} ns a point, {f} at {f.passes:.2f}, "
        f"{f.seconds * 1e9:.0f} ns: {late or f'{case} after {ahead.split:.3g} s'}"
    )
    return [Proposal(source, target, n, reason) for source, target, n in moves], ""


def _in_time(delta: float, slow: Side, fast: Side, rules: BalanceSettings, timing: Timing) -> tuple[float, str]:
    """As many points as arrive early enough to be worth it, with all others that the two give or take; what is too much
    is not sent."""
    remaining, carriage, doubt = timing.remaining, timing.carriage, min(slow.doubt, fast.doubt)
    least = 1 / rules.in_time
    certain = remaining if timing.sure or not doubt else rules.guessed * remaining
    if certain <= (least + (rules.pays - least) * min(doubt / rules.doubtful, 1.0)) * carriage.lag:
        return 0.0, f"a move takes {carriage.lag:.3g} s, and only {remaining:.3g} s are left to profit from it"
    left = rules.in_time * remaining - carriage.lag
    share = len(slow.group.members) / len(fast.group.members)
    if max(slow.moved + delta, fast.moved + share * delta) * carriage.each <= left:
        return delta, ""
    most = left / carriage.each
    fits = max(min(most - slow.moved, (most - fast.moved) / share), 0.0)
    return min(delta, fits), f"as many points as arrive within {left:.3g} s"


def _together(proposals: Sequence[Proposal]) -> list[Proposal]:
    """One move for each pair of workers."""
    pairs: dict[tuple[int, int], Proposal] = {}
    for p in proposals:
        before = pairs.get((p.source, p.target))
        pairs[p.source, p.target] = replace(before, points=before.points + p.points) if before else p
    return list(pairs.values())


def hand_out(slow: SuperWorker, fast: SuperWorker, delta: float) -> list[tuple[int, int, int]]:
    """Each slow worker gives Δ, each fast one gets βΔ, to a tile: (source, target, points), nobody left empty."""
    gives = [min(max(_tiles(delta + TILE / 2), TILE), max(_tiles(m.points - TILE), 0)) for m in slow.members]
    whole, over = divmod(sum(gives) // TILE, len(fast.members))
    quota = [(whole + (i < over)) * TILE for i in range(len(fast.members))]
    moves: list[tuple[int, int, int]] = []
    at = 0
    for member, give in zip(slow.members, gives, strict=True):
        while give > 0:
            part = min(give, quota[at])
            if part:
                moves.append((member.worker, fast.members[at].worker, part))
                give -= part
                quota[at] -= part
            if not quota[at]:
                at += 1
    return moves


def _tiles(points: float) -> int:
    return int(points) // TILE * TILE


@dataclass
class Balance:
    """Remembers when to look again, and who gave and who took; the arithmetic is above.

    A plan aims at equal passes one split ahead. It is looked at anew as soon as there is something new to see, because
    neither speeds nor the predicted time nor the end of an asynchronous migration can be relied on.
    """

    rules: BalanceSettings = field(default_factory=BalanceSettings)
    even: BalanceSettings = SPARING
    """The rules for a crew in which nobody is slow."""
    next_at: float = 0.0
    began: float = math.inf
    last: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Of those who moved points: whether they gave (−1) or took (1), and when."""

    def due(self, now: float) -> bool:
        self.began = min(self.began, now)
        return now >= self.next_at

    def plan(
        self, loads: Sequence[WorkerLoad], left: TimeLeft, now: float, carriage: MoveCost | None = None
    ) -> BalancePlan:
        """Proposals for the split that begins now."""
        known = [w for w in loads if w.points and w.seconds < math.inf]
        lap = typical_lap(known) if known else 0.0
        rules = self.rules if uneven(known, self.rules) else self.even
        self.last = {w: (side, at) for w, (side, at) in self.last.items() if now - at <= rules.forget * lap}
        sides = {w: side for w, (side, _) in self.last.items()}
        plan = consider(loads, left.seconds, rules, sides, carriage, left.sure)
        self.next_at = now + min(rules.look * lap, rules.trust * (now - self.began))
        for proposal in plan.proposals:
            self.last[proposal.source] = -1, now
            self.last[proposal.target] = 1, now
        return plan
