"""Who is there: the status table of a group (paper 3.1.4), from the beats of the others. Pure; clocks need not agree.

A group lives as long as its beat changes. Silence is counted on the reader's own clock, and only while the store
answers: a store that was away for a minute makes no group count as silent.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flegel.machine.group.records import MemberBeat

WAITED_FOR = ("training", "resting")
ENDINGS = {"left": "has left", "excluded": "was excluded", "stalled": "says that it cannot use the bucket"}
GONE = tuple(ENDINGS)
LEFT = ("left", "excluded")  # a group that cannot use the bucket may come back


@dataclass
class Member:
    """One other group. `silence`: seconds that it was looked at without a change. `stored`: its last beat in the
    store; `beat` may be newer where it came directly. `joined`: it takes part, and that was told."""

    beat: MemberBeat
    looked_at: float
    stored: int
    silence: float = 0.0
    joined: bool = False


@dataclass
class MemberLook:
    """One look at all members: a listing, and the beat of everybody who is known. `after`: the number of the last store
    call before it. `began`: in seconds awake. `read`: members whose beat was looked up, whatever was found."""

    after: int = 0
    began: float = 0.0
    is_listed: bool = False
    read: set[str] = field(default_factory=set)

    def counts(self, number: int) -> bool:
        """Whether the answer to the call of this number is part of it."""
        return number > self.after


class MemberTable:
    """The newest beat of every other group."""

    def __init__(self, own_name: str, limit: float, longest_look: float) -> None:
        """`limit`: seconds of silence after which a group leaves the table. `longest_look`: of two looks that lie
        further apart only so much counts as watched."""
        self._own_name, self._silence_limit, self._longest_look = own_name, limit, longest_look
        self._members: dict[str, Member] = {}  # in the order of their names
        self.known: set[str] = set()
        """Names that were listed or heard; listings may be stale, so none is ever taken away."""

    def hear(self, beat: MemberBeat, now: float) -> bool:
        """A beat was read; True where from now on a group takes part that did not before: a new one, a new life of one,
        or one that was silent. One that still loads its rows takes part later."""
        if beat.group == self._own_name:
            return False
        self.known.add(beat.group)
        member = self._members.get(beat.group)
        if member is None or beat.life > member.beat.life:
            member = self._members[beat.group] = Member(beat, now, beat.beat)
            self._members = dict(sorted(self._members.items()))
        else:
            newer = beat.life == member.beat.life and beat.beat > member.stored
            member.joined = member.joined and self._there(member)
            passed = min(max(now - member.looked_at, 0.0), self._longest_look)
            member.silence = 0.0 if newer else member.silence + passed
            member.looked_at = now
            if newer:
                member.stored = beat.beat
                member.beat = max(member.beat, beat, key=lambda b: b.beat)
        takes_part = member.beat.state in WAITED_FOR and self._there(member)
        joins, member.joined = takes_part and not member.joined, takes_part
        return joins

    def missed(self, group: str, now: float) -> None:
        """The store answered, and the beat of this group was not there, or could not be used."""
        member = self._members.get(group)
        if member is not None:
            member.silence += min(max(now - member.looked_at, 0.0), self._longest_look)
            member.looked_at = now

    def hint(self, beat: MemberBeat) -> None:
        """A beat that came directly. It says what a group does, not that it lives: a group that reaches the others but
        not the store cannot contribute, and must fall silent. One that is not in the table yet is looked up."""
        member = self._members.get(beat.group)
        if beat.group != self._own_name:
            self.known.add(beat.group)
        if member is not None and beat.life == member.beat.life and beat.beat > member.beat.beat:
            member.beat = beat

    def addresses(self) -> list[str]:
        """Where other groups can be reached directly."""
        return [m.beat.address for m in self._members.values() if m.beat.address and self._there(m)]

    def _there(self, member: Member) -> bool:
        return member.silence <= self._silence_limit

    def live(self) -> list[MemberBeat]:
        """Groups that are waited for, in the order of their names."""
        return [m.beat for m in self._members.values() if self._there(m) and m.beat.state in WAITED_FOR]

    def loading(self) -> list[MemberBeat]:
        """Groups that will take part soon; rounds do not wait for them."""
        return [m.beat for m in self._members.values() if self._there(m) and m.beat.state == "loading"]

    def finished(self, group: str) -> bool:
        """Its training is over, and its statistics stay."""
        member = self._members.get(group)
        return member is not None and member.beat.state == "finished"

    def present(self) -> list[MemberBeat]:
        """Everybody who is there or has finished."""
        found = [m.beat for m in self._members.values() if m.beat.state == "finished" or self._there(m)]
        return [beat for beat in found if beat.state not in GONE]

    def beats(self) -> list[MemberBeat]:
        """Of everybody but those who left or were excluded, whether they are there or not."""
        return [m.beat for m in self._members.values() if m.beat.state not in LEFT]

    def left(self) -> set[str]:
        """Groups that said that they take part no more, and whose statistics go."""
        return {name for name, m in self._members.items() if m.beat.state in LEFT}

    def gone(self) -> set[str]:
        """Groups that were there and will not be waited for: they left, were excluded, or are silent."""
        return {name for name, m in self._members.items() if m.beat.state in GONE or not self._there(m)}

    def lost(self) -> dict[str, str]:
        """Groups that were there and ended without a result, or are silent: what happened to each."""
        found: dict[str, str] = {}
        for name, member in self._members.items():
            if member.beat.state in GONE:
                found[name] = ENDINGS[member.beat.state]
            elif member.beat.state != "finished" and not self._there(member):
                found[name] = f"has been silent for {member.silence:.0f} s"
        return found

    def silence(self, group: str) -> float:
        """Seconds that this group was looked at without a change of its beat."""
        member = self._members.get(group)
        return 0.0 if member is None else member.silence

    def ahead(self, round_: int) -> bool:
        """Somebody has applied the result of this round already."""
        return any(m.beat.round > round_ for m in self._members.values())

    def newest(self) -> int:
        """The newest round whose result somebody has applied; 0 where there is none."""
        return max((m.beat.round - 1 for m in self._members.values()), default=0)

    def seen(self) -> set[str]:
        """Names of all groups that were ever heard of."""
        return set(self._members)

    def silent(self) -> list[str]:
        """Groups that left the table by their silence."""
        return [name for name, m in self._members.items() if not self._there(m) and m.beat.state in WAITED_FOR]
