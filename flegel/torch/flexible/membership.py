"""Who takes part: a numbered sequence of generations, each written once into a store that all ranks see. Pure.

A generation lists its members in the order of their ranks. Any member may propose the next one; the store keeps the
first proposal of each number, so there is never more than one world. A process that is missing from a later generation
was excluded: it has to join again under another identity. Never reads a clock and never sends anything.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from flegel.torch.flexible.rank_settings import rank_settings


@dataclass(frozen=True)
class Generation:
    """One world. Number 0 is the world before the first ranks have met."""

    number: int = 0
    members: tuple[int, ...] = ()
    """Identities, by rank."""
    broken: int = 0
    """Messages in generations up to this number cannot be completed any more."""
    reason: str = ""

    def to_text(self) -> str:
        return json.dumps([self.number, self.members, self.broken, self.reason])

    @classmethod
    def from_text(cls, text: str | bytes) -> Generation:
        number, members, broken, reason = json.loads(text)
        return cls(number, tuple(members), broken, reason)


@dataclass(frozen=True)
class Seen:
    """What one process knows about another one, from its signs of life."""

    silent: float
    """Seconds since the last one, by the observer's clock."""
    wants: str
    """"join", "train" or "leave"."""
    arrived: int = -1
    """The position in the log of entries at which it waits for others; -1 while it computes."""
    compiling: bool = False
    """It has said that PyTorch compiles a part of its module: signs of life may be missing meanwhile."""
    heard: bool = True
    """A sign of life came while the observer looked. One that the observer found when it began to look, or looked
    again after a pause, may be the last one of a process that ended long ago."""


@dataclass(frozen=True)
class MembershipLimits:
    """`ranks`: processes of the first generation. `silence`: seconds without a sign of life after which a rank is
    excluded. `timeout`: seconds that others wait for a rank which is alive but does not arrive."""

    ranks: int
    silence: float = 2.0
    timeout: float = 60.0


@dataclass(frozen=True)
class Observation:
    """What is known of one process at one moment."""

    latest: Generation
    seen: Mapping[int, Seen]
    """All known processes, this one included."""
    entered: int
    """The generation in which this process trains."""
    failed: float | None = None
    """Seconds since a message failed in a generation that is not known to be broken."""
    waited: float = 0.0
    """Seconds that this process has waited for others."""
    arrived: int = -1
    former: frozenset[int] = frozenset()
    """Members of all generations until now. One that was excluded joins under another identity: what it still writes
    under this one, because it does not know of it yet, is no wish to join."""
    can_begin_again: bool = False
    """Ranks without a peer find the state of the training elsewhere: at other sites."""


def next_generation(own: int, view: Observation, limits: MembershipLimits) -> Generation | None:
    """What this process proposes, if anything. Removals come before growth: they are urgent."""
    latest, seen = view.latest, view.seen
    joining = sorted(m for m, s in seen.items() if s.wants == "join" and s.heard and s.silent <= limits.silence)
    joining = [m for m in joining if m not in latest.members and m not in view.former]
    if not latest.members:
        if latest.number or len(joining) < limits.ranks:
            return None
        return Generation(1, tuple(joining), 0, "the first ranks have met")
    if own not in latest.members:
        begins = view.can_begin_again and len(joining) >= limits.ranks and is_abandoned(own, view, limits)
        why = "all ranks were lost, and others begin with what the sites have in common"
        return Generation(latest.number + 1, tuple(joining), latest.number, why) if begins else None
    gone = _gone(view, limits)
    if gone:
        left = tuple(m for m in latest.members if m not in gone)
        return Generation(latest.number + 1, left, latest.number, "; ".join(gone.values()))
    limit = min(rank_settings().silence_after_failure_seconds, limits.silence)
    if view.failed is not None:
        if view.failed <= 2 * limit:
            return None
        return Generation(latest.number + 1, latest.members, latest.number, "a connection failed, all ranks are alive")
    if joining and view.entered == latest.number:
        names = ", ".join(map(str, joining))
        return Generation(latest.number + 1, (*latest.members, *joining), latest.broken, f"{names} joined")
    return None


def _gone(view: Observation, limits: MembershipLimits) -> dict[int, str]:
    """Members that cannot take part any more, and why."""
    rules = rank_settings()
    silence = limits.silence
    if view.failed is not None:
        silence = min(rules.silence_after_failure_seconds, silence)
    found: dict[int, str] = {}
    for member in view.latest.members:
        one = view.seen.get(member)
        if one is None:
            continue
        timeout = max(rules.compile_seconds, limits.timeout) if one.compiling else limits.timeout
        if one.wants == "leave":
            found[member] = f"{member} has left"
        elif one.silent > (max(rules.compiling_silence_seconds, silence) if one.compiling else silence):
            found[member] = f"{member} gave no sign of life for {one.silent:.1f} s"
        elif view.waited > timeout and one.arrived < view.arrived:
            found[member] = f"{member} did not arrive within {timeout:.0f} s"
    return found


class SignsOfLife:
    """When the last sign of life of each other process came, by the clock of the one that looks."""

    def __init__(self, now: float) -> None:
        self._looked = now
        self._last: dict[int, tuple[Hashable, float]] = {}
        """The sign, and when it was new."""
        self._heard: set[int] = set()

    def look(self, now: float, limits: MembershipLimits) -> None:
        """Signs are read next. A process that did not look for a while (frozen, or short of processor time) cannot say
        who was silent meanwhile: the silence of others begins anew, and who wants to join has to show that it lives.
        """
        if now - self._looked > 0.5 * min(rank_settings().silence_after_failure_seconds, limits.silence):
            self._last = {identity: (sign, now) for identity, (sign, _) in self._last.items()}
            self._heard.clear()
        self._looked = now

    def read(self, identity: int, sign: Hashable, wants: str, arrived: int, compiling: bool = False) -> Seen:
        """What is known of a process with this sign; the same as before tells that it is still silent."""
        known = self._last.get(identity)
        if known is None or known[0] != sign:
            self._last[identity] = (sign, self._looked)
        if known is not None and known[0] != sign:
            self._heard.add(identity)
        return Seen(self._looked - self._last[identity][1], wants, arrived, compiling, identity in self._heard)

    def forget(self, identity: int) -> None:
        del self._last[identity]
        self._heard.discard(identity)


def is_abandoned(own: int, view: Observation, limits: MembershipLimits) -> bool:
    """Whether a process that waits to join has nobody left to join: all have left, or were silent for long."""
    latest = view.latest
    if not latest.number or own in latest.members:
        return False
    ones = [view.seen[member] for member in latest.members if member in view.seen]
    return all(
        one.wants == "leave" or one.silent > rank_settings().abandoned_after_silences * limits.silence for one in ones
    )


def without(latest: Generation, joiners: set[int]) -> Generation:
    """The same world without processes that cannot be given the training's state now; they ask again."""
    left = tuple(m for m in latest.members if m not in joiners)
    return Generation(latest.number + 1, left, latest.number, "no rank can give its state at this moment")
