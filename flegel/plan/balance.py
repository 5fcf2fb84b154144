"""Who should give how many points to whom, so that all data are traversed equally often (paper Section 4.2).

Pure arithmetic on what the coordinator knows of its workers. Never moves a point, never reads a clock; the
coordinator may refuse any proposal, and every answer says why.

Names: N points, V *seconds per point*, P passes so far, T seconds that training will probably still take, τ a split of
T. A super worker is a set of workers with the same N, V and P within a tolerance; P* is what P will be after a given
time, and the level C is the P* that all can have together if points are moved now (docs/balance.md has the sums).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median, median_low

from flegel.plan.horizon import Remaining
from flegel.share import TILE


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

    @property
    def points(self) -> float:
        return sum(m.points for m in self.members) / len(self.members)

    @property
    def seconds(self) -> float:
        return sum(m.seconds for m in self.members) / len(self.members)

    @property
    def passes(self) -> float:
        return sum(m.passes for m in self.members) / len(self.members)

    @property
    def doubt(self) -> float:
        return sum(m.doubt for m in self.members) / len(self.members)

    def after(self, seconds: float) -> float:
        """P̃: passes after so long, if nothing is moved."""
        return self.passes + seconds / self.lap

    @property
    def lap(self) -> float:
        """Seconds of a pass."""
        return self.points * self.seconds

    def __str__(self) -> str:
        ids = [m.worker for m in self.members]
        return f"worker {ids[0]}" if len(ids) == 1 else f"workers {', '.join(map(str, ids))}"


@dataclass(frozen=True)
class Proposal:
    """Move so many points from one worker to another."""

    source: int
    target: int
    points: int
    reason: str


@dataclass(frozen=True)
class Plan:
    """What to move now, and why (or why not)."""

    proposals: tuple[Proposal, ...]
    reason: str


@dataclass(frozen=True)
class Rules:
    """The knobs. ε is the paper's; the rest keeps measurement noise from moving data."""

    epsilon: float = 0.3
    """Largest |P*_i − C| that counts as balanced (Eq. 8). Half a pass would let passes differ by one; the rest is for
    what happens until the next look, and until points have moved."""
    laps: float = 3.0
    """A split has so many passes, even where the job will perhaps be over before: what is given to make up lost passes
    in less time would have to come back. For whoever has fewer points than most it is as much shorter: few are no
    burden, wherever they are."""
    ahead: float = 2.0
    """And it is at least so many times what a move takes, for the same reason."""
    part: float = 0.0
    """And at least this part of the remaining time."""
    look: float = 0.25
    """Passes until a plan is looked at again."""
    likeness: float = 0.03
    """Relative difference of N and V up to which two workers are the same super worker."""
    least: float = 0.03
    """A worker gives at least this part of its points, or gets that much more; nothing is moved for less."""
    certainty: float = 1.2
    """Standard errors by which a worker is taken to be nearer to the others than it looks, and more among many."""
    caution: float = 0.0
    """The part of what doubt may explain that is not given or taken even by those who act."""
    memory: float = 0.9
    """How much of what is known of a speed is kept from one round to the next."""
    long_memory: float = 0.98
    """The same while the speed does not change."""
    reversal: float = 1.5
    """Who gave last takes only for a difference so many times ε, and who took gives."""
    forget: float = 4.0
    """Passes after which nobody asks any more who gave and who took."""
    pays: float = 1.25
    """Where speeds are in doubt, nothing is moved unless the remaining time is so many times what a move takes before
    it is of any use."""
    guessed: float = 1.0
    """Of a remaining time that is guessed from the objective, the part in which such a move must pay."""
    doubtful: float = 0.03
    """Relative standard error of a speed that is called so; below, less time is enough, in proportion."""
    clearly: float = 3.0
    """Times slower or faster by the pass than most, surely: no crowded processor does that to equal workers for long,
    and no doubt keeps points from moving."""
    trust: float = 1.0
    """A plan is followed for so many times as long as there have been plans, at most: what is known of speeds and of
    the remaining time rests on no more than that."""
    in_time: float = 0.8
    """Points must have arrived within this part of the remaining time: the rest is for what they are moved for."""
    slower: float = 2.0
    """Times slower by the point than most, surely: who makes a crew uneven."""


SPARING = Rules(
    epsilon=0.4,
    laps=2.0,
    ahead=8.0,
    part=0.25,
    look=1.0,
    certainty=2.0,
    caution=1.0,
    reversal=2.0,
    forget=32.0,
    pays=10.0,
    guessed=0.5,
)
"""Where a move costs more than small differences of passes do. Nobody is slow: they come from noise, and are over by
themselves or matter little. Workers share processors: who had one for itself just now may have to share it the next
moment. Or all wait while points move."""


@dataclass(frozen=True)
class Carriage:
    """What a move takes, by those that were made: seconds before the first point has changed hands, and per point."""

    lag: float = 0.0
    each: float = 0.0


def super_workers(loads: Sequence[WorkerLoad], rules: Rules) -> list[SuperWorker]:
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


def _alike(a: WorkerLoad, b: WorkerLoad, rules: Rules) -> bool:
    def near(x: float, y: float) -> bool:
        return abs(x - y) <= rules.likeness * max(x, y)

    return (
        near(a.points, b.points)
        and near(a.seconds, b.seconds)
        and abs(a.passes - b.passes) <= rules.epsilon / 2
        and a.busy == b.busy
        and bool(a.full) == bool(b.full)
    )


def uneven(loads: Sequence[WorkerLoad], rules: Rules) -> bool:
    """Whether somebody is surely slow, so that points have to move anyway and passes can be kept close together."""
    if not loads:
        return False
    usual, common = median_low(w.seconds for w in loads), median(w.doubt for w in loads)
    errors = _errors(len(loads), rules)
    return any(w.seconds > rules.slower * usual * (1 + errors * max(w.doubt, common)) for w in loads)


def _errors(workers: int, rules: Rules) -> float:
    """Standard errors to allow for. The more workers there are, the further apart the two that look most different are
    by chance alone: about √(2 ln n)."""
    return rules.certainty * max((1 + math.sqrt(2 * math.log(workers))) / 2, 1.0)


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
        if len(kept) == len(behind):
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


def consider(
    loads: Sequence[WorkerLoad],
    remaining: float,
    rules: Rules,
    last: dict[int, int] | None = None,
    carriage: Carriage | None = None,
    sure: bool = True,
) -> Plan:
    """One round of matching. `last`: who gave (−1) or took (1) not long ago; `sure`: the remaining time is known."""
    carriage = carriage or Carriage()
    usable = [w for w in loads if w.points > 0 and 0 < w.seconds < math.inf]
    if len(usable) < 2 or len(usable) < len(loads):
        return Plan((), "the speed of some worker is not known yet")
    groups = super_workers(usable, rules)
    if len(groups) < 2:
        return Plan((), f"all workers are alike: {groups[0].passes:.2f} passes")
    ahead = Outlook.of(groups, _split(usable, remaining, rules, carriage, sure), carriage.lag, rules)
    off = max(abs(spare(g, ahead.height, ahead.split)) / g.points for g in groups)
    if off <= rules.epsilon:
        return Plan((), f"balanced: passes will be {off:.2f} from their mean at most, and ε = {rules.epsilon:g}")
    head = f"in {ahead.split:.3g} s passes would be up to {off:.2f} from their mean, more than ε = {rules.epsilon:g}"
    sides = [ahead.side(group, last or {}) for group in groups]
    proposals, refused = _match(sides, ahead, Timing(remaining, sure, carriage))
    if not proposals and not refused:
        refused = [_idle(sides)]
    return Plan(tuple(proposals), "; ".join(dict.fromkeys((head, *refused))))


def _split(loads: Sequence[WorkerLoad], remaining: float, rules: Rules, carriage: Carriage, sure: bool) -> float:
    passes = rules.laps * _typical_lap(loads)
    split = max(passes, rules.ahead * carriage.lag, rules.part * remaining)
    return min(split, remaining if sure else max(remaining, passes))


def _typical_lap(loads: Iterable[WorkerLoad]) -> float:
    return median_low(w.points * w.seconds for w in loads)


@dataclass
class Side:
    """A super worker that gives or takes."""

    group: SuperWorker
    takes: bool
    visits: float
    """What it still lacks or has to spare, of all its members."""
    off: float
    """|P* − C|."""
    surely: float
    """The same, less what the doubt about speeds may explain."""
    acts: bool
    """It is surely so far off that something is done about it; others only give or take what those need."""
    doubt: float
    """Of its speed; 0 where that does not matter."""
    given: float = 0.0
    """Points that each member gives by this plan."""

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
    rules: Rules
    lap: float
    points: float
    passes: float
    """Of most workers, of most workers, and of all points."""
    doubt: float
    """Few rounds of a worker may agree by chance, those of most workers hardly do: nobody is known better than most."""
    errors: float

    @staticmethod
    def of(groups: Sequence[SuperWorker], split: float, soonest: float, rules: Rules) -> Outlook:
        members = [m for g in groups for m in g.members]
        return Outlook(
            groups=groups,
            split=split,
            height=level(groups, split),
            soonest=soonest,
            rules=rules,
            lap=_typical_lap(members),
            points=median(m.points for m in members),
            passes=sum(m.points * m.passes for m in members) / sum(m.points for m in members),
            doubt=median(m.doubt for m in members),
            errors=_errors(len(members), rules),
        )

    def side(self, group: SuperWorker, last: dict[int, int]) -> Side:
        """What this super worker should do, and how surely."""
        rules, each = self.rules, self._spare(group)
        takes, off, doubt = each > 0, abs(each) / group.points, max(group.doubt, self.doubt)
        surely = off - self._by_chance(group, doubt)
        moved = [last[m.worker] for m in group.members if m.worker in last]
        turns = any((side > 0) != takes for side in moved)
        acts = surely > rules.epsilon * (rules.reversal if turns else 1.0)
        clear = max(group.lap / self.lap, self.lap / group.lap) > rules.clearly * (1 + self.errors * doubt)
        apart = bool(moved) and abs(group.passes - self.passes) > 2 * rules.epsilon
        if acts and not clear:
            each = (abs(each) - rules.caution * (off - surely) * group.points) * (1 if takes else -1)
        return Side(
            group, takes, len(group.members) * abs(each), off, surely, acts, doubt=0.0 if clear or apart else doubt
        )

    def _spare(self, group: SuperWorker) -> float:
        """Visits of each member, as `spare` says; more are lacking where few points can be at the level sooner."""
        each = spare(group, self.height, self.split)
        if each >= 0 or group.points >= self.points:
            return each
        sooner = min(max(self.split * group.points / self.points, self.soonest), self.split)
        give = points_to_give(group, level(self.groups, sooner), sooner)
        return min(each, (group.passes - self.height) * give)

    def _by_chance(self, group: SuperWorker, doubt: float) -> float:
        """Passes by which doubt about its speed, and about that of the others, may put it off the level."""
        own = doubt * self.split / group.lap / math.sqrt(len(group.members))
        others = self.doubt * self.split / self.lap / math.sqrt(sum(len(g.members) for g in self.groups))
        return self.errors * math.hypot(own, others)


@dataclass(frozen=True)
class Timing:
    """T, whether it is known rather than guessed, and what a move takes."""

    remaining: float
    sure: bool
    carriage: Carriage


def _idle(sides: Sequence[Side]) -> str:
    """Why nothing is done."""
    far = max(sides, key=lambda s: s.off)
    stopped = next((s.why_not for s in sides if s.acts and s.why_not), "")
    if stopped or far.acts:
        return stopped or f"nobody can help {far.group}"
    return f"{far.group} will be {far.off:.2f} passes from it, perhaps {max(far.surely, 0.0):.2f} only"


def _match(sides: Sequence[Side], ahead: Outlook, timing: Timing) -> tuple[list[Proposal], list[str]]:
    """Whoever is farthest from the level first, with the one on the other side that has or lacks the most visits, until
    one of them is at the level. Nobody gives and takes. Two that have few points each would throw theirs to and fro."""
    proposals: list[Proposal] = []
    refused: list[str] = []
    free = [s for s in sides if not s.why_not]
    for side in sorted((s for s in free if s.acts), key=lambda s: -s.off):
        others = [s for s in free if s.takes != side.takes]
        while side.visits > 0 and others and (other := max(others, key=lambda s: s.visits)).visits > 0:
            slow, fast = (other, side) if side.takes else (side, other)
            visits = min(slow.visits, fast.visits)
            slow.visits -= visits
            fast.visits -= visits
            delta = visits / (ahead.height - slow.group.passes) / len(slow.group.members)
            delta, late = _in_time(delta, slow, fast, ahead.rules, timing)
            if _matters(delta, slow.group, fast.group, ahead.rules):
                proposals += _propose(slow, fast, delta, late, ahead)
            else:
                few = f"{slow.group} would give {delta:.0f} points to {fast.group}, too few to matter"
                refused.append(late or few)
    return proposals, refused


def _propose(slow: Side, fast: Side, delta: float, late: str, ahead: Outlook) -> list[Proposal]:
    s, f = slow.group, fast.group
    case = "lost passes shared" if f.passes > ahead.height else "equal passes"
    reason = (
        f"{s} at {s.passes:.2f} passes, {s.seconds * 1e9:.0f} ns a point, {f} at {f.passes:.2f}, "
        f"{f.seconds * 1e9:.0f} ns: {late or f'{case} after {ahead.split:.3g} s'}"
    )
    moves = hand_out(s, f, delta)
    given = {m.worker: sum(n for source, _, n in moves if source == m.worker) for m in s.members}
    slow.group = SuperWorker(tuple(replace(m, points=m.points - given[m.worker]) for m in s.members))
    slow.given += delta
    return [Proposal(source, target, n, reason) for source, target, n in moves]


def _matters(delta: float, slow: SuperWorker, fast: SuperWorker, rules: Rules) -> bool:
    each = delta * len(slow.members) / len(fast.members)
    return delta >= TILE / 2 and (delta >= rules.least * slow.points or each >= rules.least * fast.points)


def _in_time(delta: float, slow: Side, fast: Side, rules: Rules, timing: Timing) -> tuple[float, str]:
    """As many points as arrive early enough to be worth it; what is too much is not sent."""
    remaining, carriage, doubt = timing.remaining, timing.carriage, min(slow.doubt, fast.doubt)
    least = 1 / rules.in_time
    certain = remaining if timing.sure or not doubt else rules.guessed * remaining
    if certain <= (least + (rules.pays - least) * min(doubt / rules.doubtful, 1.0)) * carriage.lag:
        return 0.0, f"a move takes {carriage.lag:.3g} s, and only {remaining:.3g} s are left to profit from it"
    left = rules.in_time * remaining - carriage.lag
    if (slow.given + delta) * carriage.each <= left:
        return delta, ""
    return max(left / carriage.each - slow.given, 0.0), f"as many points as arrive within {left:.3g} s"


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

    rules: Rules = field(default_factory=Rules)
    next_at: float = 0.0
    began: float = math.inf
    last: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Of those who moved points: whether they gave (−1) or took (1), and when."""

    def due(self, now: float) -> bool:
        self.began = min(self.began, now)
        return now >= self.next_at

    def plan(self, loads: Sequence[WorkerLoad], left: Remaining, now: float, carriage: Carriage | None = None) -> Plan:
        """Proposals for the split that begins now."""
        known = [w for w in loads if w.points and w.seconds < math.inf]
        lap = _typical_lap(known) if known else 0.0
        rules = self.rules if uneven(known, self.rules) else SPARING
        self.last = {w: (side, at) for w, (side, at) in self.last.items() if now - at <= rules.forget * lap}
        sides = {w: side for w, (side, _) in self.last.items()}
        plan = consider(loads, left.seconds, rules, sides, carriage, left.sure)
        self.next_at = now + min(rules.look * lap, rules.trust * (now - self.began))
        for proposal in plan.proposals:
            self.last[proposal.source] = -1, now
            self.last[proposal.target] = 1, now
        return plan
