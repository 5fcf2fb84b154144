"""Who should give how many points to whom, so that all data are traversed equally often (paper Section 4.2).

Pure arithmetic on what the coordinator knows of its workers. Never moves a point, never reads a clock; the
coordinator may refuse any proposal, and every answer says why.

Names: N points, V *seconds per point*, P passes so far, T seconds that training will probably still take, d the number
of splits of T. A super worker is a set of workers with the same N, V and P within a tolerance; P* is what P will be
after a given time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from statistics import median

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

    epsilon: float = 0.4
    """Largest |P*_i − mean P*| that counts as balanced (Eq. 8). Half a pass would let passes differ by one; the rest is
    for workers of a group that differ a little, and for windows. Where speeds are known well, a quarter less."""
    splits: float = 4.0
    """d: the remaining time is planned in so many parts; twice as many where speeds are known well."""
    ahead: float = 8.0
    """A split is at least so many times what a move takes: what is given too much for a short one, to make up lost
    passes, would have to come back at once."""
    laps: float = 2.0
    """And at least so many passes of the fastest, even where the job will be over before: nothing finer can be planned,
    and that it will is mostly a guess."""
    likeness: float = 0.1
    """Relative difference of N and V up to which two workers are the same super worker; V may differ as far as
    `certainty` explains, so that those who look different by chance are given the same."""
    least: float = 0.005
    """A worker gives at least this part of its points, or gets that much more; nothing is moved for less."""
    certainty: float = 2.0
    """Standard errors by which speeds are taken to be less different than they look."""
    memory: float = 0.9
    """How much of what is known of a speed is kept from one round to the next."""
    long_memory: float = 0.98
    """The same while the speed does not change."""
    forget: float = 32.0
    """Passes after which nobody asks any more who moved points to whom."""
    reversal: float = 2.0
    """Points go back along the way they came only for a difference so many times ε."""
    pays: float = 10.0
    """Where speeds are in doubt, nothing is moved unless the remaining time is so many times what a move takes before
    it is of any use: who had a processor for itself just now may have to share it the next moment."""
    guessed: float = 0.5
    """Of a remaining time that is guessed from the objective, the part in which a move must pay."""
    doubtful: float = 0.03
    """Relative standard error of a speed that is called so; below, less time is enough, in proportion."""
    clearly: float = 3.0
    """Times slower, at least, than the other one, by the point or by the pass: no crowded processor does that to equal
    workers for long."""
    trust: float = 1.0
    """A plan is followed for so many times as long as there have been plans, at most: what is known of speeds and of
    the remaining time rests on no more than that."""
    in_time: float = 0.8
    """Points must have arrived within this part of the remaining time: the rest is for what they are moved for."""

    def for_doubt(self, doubt: float) -> Rules:
        """Where most speeds are known well it pays to plan finer, for a nearer end; where they are not, as on a crowded
        host, that would only move more points after chance."""
        sure = 1 - min(doubt / self.doubtful, 1.0)
        return replace(self, epsilon=self.epsilon * (1 - sure / 4), splits=self.splits * (1 + sure))


@dataclass(frozen=True)
class Carriage:
    """What a move takes, by those that were made: seconds before the first point has changed hands, and per point."""

    lag: float = 0.0
    each: float = 0.0


BLOCK = 4  # rounds: who sleeps in every other one has rounds that differ much, and blocks of them that do not


class Mean:
    """Seconds per point over rounds that are slowly forgotten, and how far that can be relied on."""

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._weight = self._points = self._seconds = self._square = self._weight2 = 0.0
        self._off = self._square_of_blocks = 0.0
        self._rounds = 0

    def note(self, points: float, seconds: float) -> None:
        keep = self._memory
        self._weight = keep * self._weight + 1
        self._weight2 = keep * keep * self._weight2 + 1
        self._points = keep * self._points + points
        self._seconds = keep * self._seconds + seconds
        off = seconds - points * self.value if points else seconds
        self._square = keep * self._square + off * off
        self._off += off
        self._rounds += 1
        if self._rounds % BLOCK == 0:
            self._square_of_blocks = keep**BLOCK * self._square_of_blocks + self._off * self._off
            self._off = 0.0

    @property
    def value(self) -> float:
        """Infinite while nothing is known."""
        return self._seconds / self._points if self._points else math.inf

    @property
    def doubt(self) -> float:
        """Relative standard error; that of few rounds is itself in doubt, and taken as larger (Student)."""
        if self._weight <= 1 or not self._seconds:
            return 1.0
        rounds = self._weight * self._weight / self._weight2
        square = self._square if self._rounds < 3 * BLOCK else min(self._square, self._square_of_blocks)
        spread = math.sqrt(square / self._weight) * (1 + 10 / rounds**2)
        return spread * math.sqrt(self._weight2) / self._seconds


class Speed:
    """V of one worker from its rounds. A long memory, because moves are planned for a long time; a short one as soon
    as it clearly says something else, because speeds change."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._long, self._short = Mean(rules.long_memory), Mean(rules.memory)

    def note(self, points: float, seconds: float) -> None:
        """A round in which so many points took so long. None at all are a measurement too: of a worker that is away for
        longer than a round, other rounds alone would say that it is faster."""
        if seconds <= 0:
            return
        self._long.note(points, seconds)
        self._short.note(points, seconds)
        apart = abs(self._long.value - self._short.value)
        if apart > self._rules.certainty * self._short.doubt * self._short.value + 1e-3 * self._short.value:
            self._long = copy(self._short)
            self._long._memory = self._rules.long_memory

    @property
    def seconds(self) -> float:
        """Seconds per point; infinite while nothing is known."""
        return self._long.value

    @property
    def doubt(self) -> float:
        return self._long.doubt


class Duty:
    """The part of the time that passes in which one worker can train; the rest goes to barriers and to waiting there.

    Each worker has its own: those that are asleep or at work when a round ends keep the others waiting, not themselves.
    """

    def __init__(self, rules: Rules) -> None:
        self._part = Speed(rules)
        """Seconds of training for each second that passes."""

    def note(self, passed: float, open_: float) -> None:
        """A round took so long, and for so much of it the worker trained, or could have if it had had more points."""
        self._part.note(passed, min(open_, passed))

    @property
    def value(self) -> float:
        return self._part.seconds if self._part.seconds < math.inf else 1.0


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
    def near(x: float, y: float, within: float = rules.likeness) -> bool:
        return abs(x - y) <= within * max(x, y)

    by_chance = min(rules.certainty * math.hypot(a.doubt, b.doubt), 1 - 1 / rules.clearly)
    return (
        near(a.points, b.points)
        and near(a.seconds, b.seconds, max(rules.likeness, by_chance))
        and abs(a.passes - b.passes) <= rules.epsilon / 2
        and a.busy == b.busy
        and bool(a.full) == bool(b.full)
    )


def imbalance(passes: Sequence[float]) -> float:
    """max |P*_i − mean P*|, the left side of Eq. 8, over all super workers."""
    mean = sum(passes) / len(passes)
    return max(abs(p - mean) for p in passes)


def points_to_give(slow: SuperWorker, fast: SuperWorker, split: float) -> tuple[float, str]:
    """Δ: how many points each slow worker gives away so that both have the same passes after `split` seconds.

    With τ = T/d, D = P_j − P_i and β = |𝕎_i| / |𝕎_j|, Eq. 9 is

        P_i + τ / ((N_i − Δ) V_i)  =  P_j + (τ − D β Δ V_j) / ((N_j + β Δ) V_j).

    Multiplied out, the Δ² terms cancel: with K = τ / V_j + D N_j it is linear,

        τ (N_j + β Δ) = K V_i (N_i − Δ)   ⇒   Δ = (K V_i N_i − τ N_j) / (τ β + K V_i).

    Where τ is too short to make up the lost passes of what arrives (D β Δ V_j > τ), both work on that debt alone, and
    Δ makes them finish together: (N_i − Δ) V_i = β Δ V_j.
    """
    beta = len(slow.members) / len(fast.members)
    behind = fast.passes - slow.passes
    gain = split / fast.seconds + behind * fast.points
    if gain <= 0:
        return 0.0, "the other side is so far behind that it needs its time for itself"
    delta = (gain * slow.seconds * slow.points - split * fast.points) / (split * beta + gain * slow.seconds)
    if delta <= 0:
        return 0.0, "nothing to give"
    if behind * beta * delta * fast.seconds > split:
        shared = slow.points * slow.seconds / (slow.seconds + beta * fast.seconds)
        return shared, "the split is too short to make up lost passes, so both share them"
    return min(delta, slow.points), "equal passes at the end of the split"


def consider(
    loads: Sequence[WorkerLoad],
    remaining: float,
    rules: Rules,
    last: dict[tuple[int, int], float] | None = None,
    carriage: Carriage | None = None,
    sure: bool = True,
) -> Plan:
    """One round of matching. `last` holds pairs (source, target) that moved points before; `sure`: the remaining time
    is known."""
    carriage = carriage or Carriage()
    usable = [w for w in loads if w.points > 0 and 0 < w.seconds < math.inf]
    if len(usable) < 2 or len(usable) < len(loads):
        return Plan((), "the speed of some worker is not known yet")
    rules = rules.for_doubt(median(w.doubt for w in usable))
    groups = super_workers(_doubted(usable), rules)
    if len(groups) < 2:
        return Plan((), f"all workers are alike: {groups[0].passes:.2f} passes")
    end = [g.after(remaining) for g in groups]
    off = imbalance(end)
    if off <= rules.epsilon:
        return Plan((), f"balanced: passes will differ from their mean by {off:.2f}, at most ε = {rules.epsilon:g}")
    split = min(max(remaining / rules.splits, rules.ahead * carriage.lag), remaining)
    split = max(split, rules.laps * min(g.lap for g in groups))
    ranked = sorted(groups, key=lambda g: (g.after(split), g.members[0].worker))
    proposals: list[Proposal] = []
    refused: list[str] = []
    while len(ranked) >= 2:
        slow, fast = ranked.pop(0), ranked.pop()
        made, why = _match(slow, fast, split, remaining, rules, last or {}, carriage, sure)
        proposals.extend(made)
        if not made:
            refused.append(why)
    head = f"in {remaining:.3g} s passes would differ from their mean by {off:.2f} > ε = {rules.epsilon:g}"
    return Plan(tuple(proposals), head + (f"; {'; '.join(refused)}" if refused else ""))


def _doubted(loads: Sequence[WorkerLoad]) -> list[WorkerLoad]:
    """Few rounds of a worker may agree by chance, those of most workers hardly do; and the more workers there are, the
    further apart the two that look most different are by chance alone (about √(2 ln n) standard errors)."""
    common = median(w.doubt for w in loads)
    extreme = (1 + math.sqrt(2 * math.log(len(loads)))) / 2
    return [replace(w, doubt=max(w.doubt, common) * max(extreme, 1.0)) for w in loads]


def cautious(
    slow: SuperWorker, fast: SuperWorker, rules: Rules, together: bool = False
) -> tuple[SuperWorker, SuperWorker]:
    """Both as alike as their measurements allow. A worker that only looks slow, because the processor was busy with
    others, would be through with the few points left to it before anybody else, and end every round early.
    `together`: taken as a mean of several workers, whose errors cancel in part."""

    def doubted(group: SuperWorker) -> float:
        return 1 + rules.certainty * group.doubt / (math.sqrt(len(group.members)) if together else 1.0)

    def scaled(group: SuperWorker, factor: float) -> SuperWorker:
        return SuperWorker(tuple(replace(m, seconds=m.seconds * factor) for m in group.members))

    return scaled(slow, 1 / doubted(slow)), scaled(fast, doubted(fast))


def _likely(slow: SuperWorker, fast: SuperWorker, rules: Rules) -> tuple[SuperWorker, SuperWorker, bool]:
    """Both with the speeds to reckon with, and whether the slow one is clearly so."""
    likely_slow, likely_fast = cautious(slow, fast, rules, together=True)
    if max(likely_slow.seconds / likely_fast.seconds, likely_slow.lap / likely_fast.lap) > rules.clearly:
        return likely_slow, likely_fast, True
    return *cautious(slow, fast, rules), False


def _match(
    slow: SuperWorker,
    fast: SuperWorker,
    split: float,
    remaining: float,
    rules: Rules,
    last: dict[tuple[int, int], float],
    carriage: Carriage,
    sure: bool,
) -> tuple[list[Proposal], str]:
    likely_slow, likely_fast, clear = _likely(slow, fast, rules)
    gap = likely_fast.after(remaining) - likely_slow.after(remaining)
    if gap <= rules.epsilon:
        looks = fast.after(remaining) - slow.after(remaining)
        return [], f"{slow} and {fast} will differ by {looks:.2f} passes, perhaps by {max(gap, 0.0):.2f} only"
    if any(m.busy for m in (*slow.members, *fast.members)):
        return [], f"{slow} or {fast} has a migration under way"
    if fast.members[0].full:
        return [], f"{fast} takes no more: {fast.members[0].full}"
    back = any((f.worker, s.worker) in last for f in fast.members for s in slow.members)
    if back and gap <= rules.reversal * rules.epsilon:
        return [], f"{gap:.2f} passes are not worth sending points back from {slow} to {fast}"
    doubt = 0.0 if clear or _surely_apart(slow, fast, rules, last) else max(slow.doubt, fast.doubt)
    delta, case = points_to_give(likely_slow, likely_fast, split)
    delta, late = _in_time(delta, remaining, doubt, rules, carriage, sure)
    each = delta * len(slow.members) / len(fast.members)
    if delta < TILE / 2 or (delta < rules.least * slow.points and each < rules.least * fast.points):
        return [], late or f"{slow} would give {delta:.0f} points to {fast}, too few to matter"
    reason = (
        f"{slow} at {slow.passes:.2f} passes, {slow.seconds * 1e9:.0f} ns a point, "
        f"{fast} at {fast.passes:.2f}, {fast.seconds * 1e9:.0f} ns: {late or case}"
    )
    return [Proposal(s, t, n, reason) for s, t, n in hand_out(slow, fast, delta)], ""


def _surely_apart(slow: SuperWorker, fast: SuperWorker, rules: Rules, last: dict[tuple[int, int], float]) -> bool:
    """Passes differ by now, whatever speeds will be: by more than is tolerated because too much was moved between the
    two and others, or several times over; or by more than twice what speeds that vary explain."""
    gave, took = {source for source, _ in last}, {target for _, target in last}
    moved = any(f.worker in gave for f in fast.members) or any(s.worker in took for s in slow.members)
    surely = moved or fast.passes > rules.clearly * slow.passes
    by_chance = rules.certainty * math.hypot(slow.doubt, fast.doubt) * fast.passes
    return fast.passes - slow.passes > max(2 * rules.epsilon, 0.0 if surely else 2 * by_chance)


def _in_time(
    delta: float, remaining: float, doubt: float, rules: Rules, carriage: Carriage, sure: bool
) -> tuple[float, str]:
    """As many points as arrive early enough to be worth it; what is too much is not sent."""
    least = 1 / rules.in_time
    certain = remaining if sure or not doubt else rules.guessed * remaining
    if certain <= (least + (rules.pays - least) * min(doubt / rules.doubtful, 1.0)) * carriage.lag:
        return 0.0, f"a move takes {carriage.lag:.3g} s, and only {remaining:.3g} s are left to profit from it"
    left = rules.in_time * remaining - carriage.lag
    if delta * carriage.each <= left:
        return delta, ""
    return left / carriage.each, f"as many points as arrive within {left:.3g} s"


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
    """Remembers when to look again and who moved to whom; the arithmetic is above.

    A plan aims at equal passes one split ahead. It is looked at anew as soon as there is
    something new to see, a pass of the slowest worker later, because neither the predicted time nor the end of an
    asynchronous migration can be relied on.
    """

    rules: Rules = field(default_factory=Rules)
    next_at: float = 0.0
    began: float = math.inf
    moved: dict[tuple[int, int], float] = field(default_factory=dict)

    def due(self, now: float) -> bool:
        self.began = min(self.began, now)
        return now >= self.next_at

    def plan(self, loads: Sequence[WorkerLoad], left: Remaining, now: float, carriage: Carriage | None = None) -> Plan:
        """Proposals for the split that begins now."""
        laps = [w.points * w.seconds for w in loads if w.points and w.seconds < math.inf]
        recent = self.rules.forget * max(laps, default=math.inf)
        self.moved = {pair: at for pair, at in self.moved.items() if now - at <= recent}
        plan = consider(loads, left.seconds, self.rules, self.moved, carriage, left.sure)
        if laps:
            known = self.rules.trust * (now - self.began)
            split = min(left.seconds / self.rules.splits, max(laps), known)
            self.next_at = now + max(split, self.rules.epsilon * min(laps))
        for proposal in plan.proposals:
            self.moved[(proposal.source, proposal.target)] = now
            self.moved.pop((proposal.target, proposal.source), None)
        return plan
