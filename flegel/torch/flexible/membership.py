"""Who takes part: a numbered sequence of generations, each written once into a store that all ranks see. Pure.

A generation lists its members in the order of their ranks. Any member may propose the next one; the store keeps the
first proposal of each number, so there is never more than one world. A process that is missing from a later generation
was excluded: it has to join again under another identity. Never reads a clock and never sends anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

SILENCE_AFTER_FAILURE_SECONDS = 0.4
"""Without a sign of life, once a message has failed in the generation: four signs of life are missing then, and many
more of processes that have seen the failure."""


ABANDONED_SILENCES = 10.0
"""Silence of all members, in limits of silence, after which a process that waits to join gives up."""


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


@dataclass(frozen=True)
class MembershipLimits:
    """`ranks`: processes of the first generation. `silence`: seconds without a sign of life after which a rank is
    excluded. `timeout`: seconds that others wait for a rank which is alive but does not arrive."""

    ranks: int
    silence: float = 2.0
    timeout: float = 60.0


@dataclass(frozen=True)
class Observation:
    """Of one process at one moment."""

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


def next_generation(own: int, view: Observation, limits: MembershipLimits) -> Generation | None:
    """What this process proposes, if anything. Removals come before growth: they are urgent."""
    latest, seen = view.latest, view.seen
    joining = sorted(m for m, s in seen.items() if s.wants == "join" and s.silent <= limits.silence)
    joining = [m for m in joining if m not in latest.members]
    if not latest.members:
        if latest.number or len(joining) < limits.ranks:
            return None
        return Generation(1, tuple(joining), 0, "the first ranks have met")
    if own not in latest.members:
        return None
    gone = _gone(view, limits)
    if gone:
        left = tuple(m for m in latest.members if m not in gone)
        return Generation(latest.number + 1, left, latest.number, "; ".join(gone.values()))
    limit = min(SILENCE_AFTER_FAILURE_SECONDS, limits.silence)
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
    limit = min(SILENCE_AFTER_FAILURE_SECONDS, limits.silence) if view.failed is not None else limits.silence
    found: dict[int, str] = {}
    for member in view.latest.members:
        one = view.seen.get(member)
        if one is None:
            continue
        if one.wants == "leave":
            found[member] = f"{member} has left"
        elif one.silent > limit:
            found[member] = f"{member} gave no sign of life for {one.silent:.1f} s"
        elif view.waited > limits.timeout and one.arrived < view.arrived:
            found[member] = f"{member} did not arrive within {limits.timeout:.0f} s"
    return found


def after_pause(times: dict[int, float], last: float, now: float, limits: MembershipLimits) -> None:
    """A process that did not look for a while (frozen, or short of processor time) cannot say who was silent meanwhile:
    the silence of others begins anew. `times`: when the last sign of life of each came."""
    if now - last > 0.5 * min(SILENCE_AFTER_FAILURE_SECONDS, limits.silence):
        for member in times:
            times[member] = now


def is_abandoned(own: int, view: Observation, limits: MembershipLimits) -> bool:
    """Whether a process that waits to join has nobody left to join: all have left, or were silent for long."""
    latest = view.latest
    if not latest.number or own in latest.members:
        return False
    ones = [view.seen[member] for member in latest.members if member in view.seen]
    return all(one.wants == "leave" or one.silent > ABANDONED_SILENCES * limits.silence for one in ones)


def without(latest: Generation, joiners: set[int]) -> Generation:
    """The same world without processes that cannot be given the training's state now; they ask again."""
    left = tuple(m for m in latest.members if m not in joiners)
    return Generation(latest.number + 1, left, latest.number, "no rank can give its state at this moment")
