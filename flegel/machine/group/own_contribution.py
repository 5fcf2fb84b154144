"""This group's own contribution, from its offer until a result counts it. Pure.

It is written, told in beats once it is certainly in the store, and pending until a result counts it: one that is too
late for its round is part of a later one. A change of θ is counted once, so none follows before the last one was
counted. Statistics are absolute: newer ones replace those that are pending, as soon as they are written.
"""

from __future__ import annotations

from flegel.machine.group.records import Entry


class OwnContribution:
    """What is being written, and what beats tell."""

    def __init__(self, replaces: bool) -> None:
        """`replaces`: a newer contribution may take the place of one that is pending (statistics)."""
        self._replaces = replaces
        self.entry: Entry | None = None
        """The newest one."""
        self.content = b""
        self.visits = 0.0
        self.stored = False
        """The newest one is certainly in the store."""
        self.told: Entry | None = None
        """What beats tell: certainly in the store, and not counted as far as this group knows."""
        self._last_round = 0

    def takes(self, round_: int) -> bool:
        """Whether a contribution that was made for this round is written now."""
        if round_ <= self._last_round:
            return False
        return self.entry is None or (self._replaces and self.stored)

    def offer(self, entry: Entry, content: bytes, visits: float) -> None:
        self.entry, self.content, self.visits, self.stored = entry, content, visits, False
        self._last_round = entry.round

    def was_stored(self) -> None:
        self.stored, self.told = True, self.entry

    def counted(self, life: int, round_: int) -> bool:
        """A result says that this group's contributions are counted up to one of this round; whether what was pending
        is among them."""
        found = False
        if self.told is not None and (self.told.life, self.told.round) <= (life, round_):
            self.told, found = None, True
        if self.entry is not None and (self.entry.life, self.entry.round) <= (life, round_):
            self.entry, self.content, self.stored, found = None, b"", False, True
        return found
