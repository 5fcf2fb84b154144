"""How many contributions end a round of groups, and how long the round waits for more of them. Pure.

Quorum: a round does not end before K contributions are there. Grace: what waiting until t brings is the weight W(t) of
the contributions that are then there, and it costs t + φ, the seconds since the round was opened and those that a
result takes. The round ends when no later moment has a larger W(t) / (t + φ): the rule of `fsp`, with groups for
workers. Weights are visits. When a late group arrives is learned from earlier rounds: seconds after the opening, and
rounds that ended without it, which only say that it would have taken longer (the product-limit estimate).
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.errors import UsageError
from flegel.options import parse_seconds
from flegel.wording import option


@dataclass(frozen=True)
class Quorum:
    """How many contributions end a round: a number, or a share of the groups. Neither: all groups that are there."""

    count: int = 0
    share: float = 0.0

    @property
    def given(self) -> bool:
        return bool(self.count or self.share)

    def needed(self, known: int, expected: int, left: int) -> int:
        """Contributions that end a round. `known`: groups that ever came, this one among them; `expected`: by --groups;
        `left`: those that left for good or were excluded."""
        groups = max(max(known, expected, self.count) - left, 1)
        wanted = self.count or math.ceil(self.share * groups - 1e-9)
        return max(min(wanted, groups), 1)


def parse_quorum(text: str) -> Quorum:
    """'2': a number of groups; '0.6' or '60%': a share of them; '' or 'all': every group that is there."""
    word = text.strip()
    if word in ("", "all"):
        return Quorum()
    if word.isdecimal() and 0 < int(word) < 1 << 31:
        return Quorum(count=int(word))
    try:
        share = float(word.removesuffix("%")) / (100.0 if word.endswith("%") else 1.0)
    except ValueError:
        share = 0.0
    if not 0.0 < share <= 1.0:
        raise UsageError(f"{option('quorum', text)}: give a number of groups such as 2, a share such as 60%, or all.")
    return Quorum(share=share)


def parse_grace(text: str) -> float | None:
    """Seconds that a round waits after its quorum; None: found by what waiting brings and costs ('auto')."""
    word = text.strip()
    if word == "auto":
        return None
    return 0.0 if word in ("0", "0s") else parse_seconds(word)


ALL_GROUPS = Quorum()


@dataclass(frozen=True)
class RoundEnd:
    """Whether a round ends now, and why."""

    ends: bool
    reason: str = ""
    look_at: float = math.inf
    """Where it does not end: when to decide again though nothing happens."""


class GraceWindow:
    """Told of opened rounds, arrivals and results; asked whether a round that has its quorum waits longer. Times are
    seconds in which this group was awake."""

    def __init__(self, seconds: float | None, first_cost: float) -> None:
        """`seconds`: fixed; None: found. `first_cost`: seconds that a result takes, until that was measured."""
        self._fixed, self._first_cost = seconds, first_cost
        self._opened_at = 0.0
        self._quorum_at: float | None = None
        self._ended_at: float | None = None
        self._costs: deque[float] = deque(maxlen=active().groups.remembered_arrivals)
        self._arrived: set[str] = set()
        self._arrivals: dict[str, deque[tuple[float, bool]]] = {}
        """By group: seconds after the opening, and whether it arrived then (or the round ended without it)."""
        self._weights: dict[str, float] = {}

    def opened(self, now: float) -> None:
        """A round is open for this group."""
        self._opened_at, self._quorum_at, self._ended_at, self._arrived = now, None, None, set()

    def arrived(self, group: str, weight: float, now: float) -> None:
        """A contribution of this group is there."""
        if group not in self._arrived:
            self._arrived.add(group)
            self._weights[group] = max(weight, 0.0)
            self._note(group, now, True)

    def closed(self, waited_for: Collection[str], now: float) -> None:
        """The result of the round is here. `waited_for`: groups that lived."""
        for group in waited_for:
            if group not in self._arrived:
                self._note(group, now, False)
        if self._ended_at is not None:
            self._costs.append(max(now - self._ended_at, 0.0))

    def _note(self, group: str, now: float, came: bool) -> None:
        self._arrivals.setdefault(group, deque(maxlen=active().groups.remembered_arrivals)).append(
            (now - self._opened_at, came)
        )

    @property
    def cost(self) -> float:
        """Seconds from the decision to end a round until its result was applied."""
        return statistics.median(self._costs) if self._costs else self._first_cost

    def decide(self, there: int, needed: int, late: Collection[str], now: float) -> RoundEnd:
        """`there`: contributions of the round; `late`: groups that live and have not contributed."""
        if there < needed:
            self._quorum_at = None
            return RoundEnd(False, f"{there} of {needed} contributions are there")
        if self._quorum_at is None:
            self._quorum_at = now
        if not late:
            found = RoundEnd(True, "every group that is there has contributed")
        elif self._fixed is not None:
            until = self._quorum_at + self._fixed
            found = RoundEnd(now >= until, f"the quorum of {needed} and {self._fixed:g} s of grace", until)
        else:
            found = self._by_goodput(late, now)
        if found.ends and self._ended_at is None:
            self._ended_at = now
        return found

    def _by_goodput(self, late: Collection[str], now: float) -> RoundEnd:
        """W(t) / (t + φ), now and at every moment at which a late group may arrive."""
        waited, cost = now - self._opened_at, max(self.cost, 1e-6)
        weights, names = dict(self._weights), sorted(late)
        usual = statistics.fmean(weights.values()) if weights else 1.0
        here = sum(weights.get(group, usual) for group in self._arrived)
        if here <= 0.0:
            weights, usual, here = {}, 1.0, float(len(self._arrived)) or 1.0
        moments = self._moments(names, waited)
        if not len(moments):
            return RoundEnd(True, f"no late group was ever there later than {waited:.3g} s after the opening")
        total = np.full(len(moments), here)
        for group in names:
            total += weights.get(group, usual) * arrival_probability(self._arrivals.get(group, ()), waited, moments)
        rates = total / (moments + cost)
        best = int(np.argmax(rates))
        if rates[best] <= here / (waited + cost):
            return RoundEnd(True, f"waiting longer than {waited:.3g} s costs more than {', '.join(names)} would bring")
        until = float(moments[best])
        reason = f"waiting until {until:.3g} s for {', '.join(names)} brings more than it costs"
        return RoundEnd(False, reason, self._opened_at + until)

    def _moments(self, names: list[str], waited: float) -> Array:
        """Later moments at which one of these groups arrived in an earlier round."""
        found = {at for name in names for at, came in self._arrivals.get(name, ()) if came and at > waited}
        moments = np.array(sorted(found))
        most = active().groups.max_grace_moments
        if len(moments) > most:
            moments = moments[np.linspace(0, len(moments) - 1, most).astype(int)]
        return moments


def arrival_probability(seen: Collection[tuple[float, bool]], waited: float, moments: Array) -> Array:
    """For each of the later `moments` the probability that a group which has not come until `waited` is there by then:
    the product-limit estimate, in which a round that ended without the group counts as long as it lasted."""
    missing, at_risk = 1.0, sum(at > waited for at, _ in seen)
    steps: list[tuple[float, float]] = []
    for at, came in sorted(((at, came) for at, came in seen if at > waited), key=lambda s: (s[0], not s[1])):
        if came:
            missing *= 1.0 - 1.0 / at_risk
            steps.append((at, 1.0 - missing))
        at_risk -= 1
    if not steps:
        return np.zeros(len(moments))
    times, chances = np.array([at for at, _ in steps]), np.array([0.0, *(chance for _, chance in steps)])
    return np.asarray(chances[np.searchsorted(times, moments, side="right")])


def ages_told(ages: Mapping[str, int]) -> str:
    """A sentence on contributions of earlier rounds that are part of a result."""
    parts = [f"{group} {age} round{'s' if age > 1 else ''}" for group, age in sorted(ages.items())]
    return f"contributions of earlier rounds: {', '.join(parts)} old" if parts else ""
