"""How ranks agree on what was done: a log of entries, each committed in two phases. Pure: generators that ask.

An entry is a barrier (gradients and counts of all ranks) or a change of membership (who is where, what each loader has
read). Phase one distributes the entry; a rank then *holds* it. Phase two is a message without content, which completes
on a rank only if all ranks hold the entry; the rank then applies it. So at any moment ranks differ by at most one
entry, and one that is behind holds what it is missing: whoever is lost, the survivors apply the same entries.

Decisions come back as values; what has to be sent is yielded as an `Ask`, and the answer is sent in. A message that
cannot be completed raises `Broken` inside. Never reads a clock.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from flegel.errors import FlegelError
from flegel.torch.flexible.membership import Generation

BARRIER, MEMBERSHIP = 1, 2
"""Kinds of entries."""


class Broken(Exception):
    """A message cannot be completed in this generation."""


@dataclass(frozen=True)
class Status:
    """What a rank says when it enters a generation: a row of the gathered table."""

    position: int = -1
    """Entries that it has applied; -1 if it has no state yet."""
    held: int = 0
    """The generation in which it came to hold the next entry; 0 if it does not."""
    kind: int = 0
    """Of the held entry."""
    window: int = 0
    """Samples of its unfinished interval that its loop has taken."""
    drawn: int = 0
    """Claims of the epoch that its loader has read."""

    def row(self) -> list[float]:
        return [float(getattr(self, name)) for name in self.__dataclass_fields__]

    @classmethod
    def of_row(cls, row: Sequence[float]) -> Status:
        position, held, kind, window, drawn = map(int, row)
        return cls(position, held, kind, window, drawn)


STATUS_FIELDS = len(Status.__dataclass_fields__)


@dataclass(frozen=True)
class Resolution:
    """What follows from the statuses of all ranks; the same on all of them."""

    position: int
    """Of all ranks, before the change of membership."""
    commits: tuple[bool, ...]
    """Ranks that apply the entry which they hold."""
    without_state: tuple[int, ...]
    """Ranks that need the training's state."""
    source: int
    """The rank that gives it; -1 if none can at this moment."""


def resolve(statuses: Sequence[Status]) -> Resolution:
    """Ranks at the highest position went on because all held the entry before it: those behind apply it. Where all are
    at the same position, an entry counts if all hold it, and otherwise for nobody.

    A rank that applies a barrier has not stepped with it yet, so it cannot give its state."""
    old = [rank for rank, one in enumerate(statuses) if one.position >= 0]
    fresh = tuple(rank for rank, one in enumerate(statuses) if one.position < 0)
    if not old:
        return Resolution(0, (False,) * len(statuses), fresh[1:], 0)
    top = max(statuses[rank].position for rank in old)
    behind = [rank for rank in old if statuses[rank].position < top]
    if not behind and all(statuses[rank].held for rank in old):
        behind, top = old, top + 1
    for rank in behind:
        if statuses[rank].position < top - 1 or not statuses[rank].held:
            raise FlegelError(
                f"Rank {rank} misses entries that others have applied, which two phases exclude: report this, "
                f"and go on from a checkpoint. ({[s.row() for s in statuses]})"
            )
    unstepped = {rank for rank in behind if statuses[rank].kind == BARRIER}
    source = next((rank for rank in old if rank not in unstepped), -1)
    return Resolution(top, tuple(rank in behind for rank in range(len(statuses))), fresh, source)


@dataclass(frozen=True)
class AwaitGeneration:
    """The newest usable generation, connected. Answer: `Generation`."""


@dataclass(frozen=True)
class Gather:
    """Answer: the statuses of all ranks."""

    status: Status


@dataclass(frozen=True)
class StateTransfer:
    """The state of one rank goes to those without."""

    source: int
    to: tuple[int, ...]


@dataclass(frozen=True)
class Reduce:
    """The barrier of this interval. Answer: its result."""


@dataclass(frozen=True)
class Confirm:
    """Completes on a rank only if all ranks have come to it."""


@dataclass(frozen=True)
class Without:
    """The next generation has none of these members."""

    generation: Generation
    members: tuple[int, ...]


Ask = AwaitGeneration | Gather | StateTransfer | Reduce | Confirm | Without


@dataclass(frozen=True)
class Change:
    """Content of an entry of membership: who was where before, and what every rank said."""

    generation: Generation
    statuses: tuple[Status, ...]


def _settled(rows: Sequence[Status], commits: Sequence[bool]) -> tuple[Status, ...]:
    """What ranks said, after those that held a barrier have applied it."""
    return tuple(
        replace(one, window=0) if commit and one.kind == BARRIER else one
        for one, commit in zip(rows, commits, strict=True)
    )


class LogReader(Protocol):
    """What entries are applied to."""

    def start(self) -> None:
        """No rank has a state: this one's is given to all. Refuses if one was lost."""

    def status(self) -> Status:
        """Window and drawn claims; the log fills in the rest."""

    def apply_barrier(self, result: Any) -> None: ...

    def apply_change(self, change: Change) -> None: ...

    def has_room(self, change: Change) -> bool:
        """Whether every rank would have something to train."""

    def is_still_last(self) -> bool:
        """After a change: this rank's interval ends here. False if it was given claims that belong into it."""


class Log:
    """One rank's side of the agreement."""

    def __init__(self, trainer: LogReader, own: int = 0) -> None:
        """`own`: identity of this process."""
        self.trainer, self.own = trainer, own
        self.position = -1
        """Entries applied; -1 without state."""
        self.generation = Generation()
        """The last one that was entered."""
        self._held: tuple[int, int, Any] | None = None
        """Generation, kind and content of the next entry."""

    def forget(self) -> None:
        """This process was excluded: it begins without state."""
        self.position, self.generation, self._held = -1, Generation(), None

    def barrier(self) -> Generator[Ask, Any, bool]:
        """The barrier of this interval, whoever is lost meanwhile. False if the interval goes on instead: this rank was
        given claims of a lost one at the end of an epoch."""
        while True:
            try:
                result = yield Reduce()
                self._hold(BARRIER, result, self.generation.number)
                yield Confirm()
            except Broken:
                if (yield from self.enter()):
                    return True
                if not self.trainer.is_still_last():
                    return False
            else:
                self._apply()
                return True

    def enter(self) -> Generator[Ask, Any, bool]:
        """Into the next generation; whether the barrier that this rank held was committed by it."""
        committed = False
        while True:
            generation: Generation = yield AwaitGeneration()
            try:
                rows: Sequence[Status] = yield Gather(self._status())
                found = resolve(rows)
                rank = generation.members.index(self.own)
                if found.commits[rank]:
                    committed = committed or rows[rank].kind == BARRIER
                    self._apply()
                self._held = None
                change = Change(generation, _settled(rows, found.commits))
                if self.position < 0 and found.source == rank:
                    self.trainer.start()
                    self.position = 0
                elif found.without_state and not self._admits(change, found):
                    yield Without(generation, tuple(generation.members[one] for one in found.without_state))
                    continue
                if found.without_state:
                    yield StateTransfer(found.source, found.without_state)
                self._hold(MEMBERSHIP, change, generation.number)
                yield Confirm()
            except Broken:
                continue
            self._apply()
            return committed

    def _admits(self, change: Change, found: Resolution) -> bool:
        """Whether those without state can be given it, and something to train."""
        return found.source >= 0 and (self.position < 0 or self.trainer.has_room(change))

    def _status(self) -> Status:
        held, kind = (self._held[0], self._held[1]) if self._held is not None else (0, 0)
        return replace(self.trainer.status(), position=self.position, held=held, kind=kind)

    def _hold(self, kind: int, content: Any, generation: int) -> None:
        self._held = (generation, kind, content)

    def _apply(self) -> None:
        """Apply the entry that is held, if any: a barrier, or a change of the members."""
        if self._held is None:
            return
        _, kind, content = self._held
        self._held, self.position = None, self.position + 1
        if kind == BARRIER:
            self.trainer.apply_barrier(content)
        else:
            self.generation = content.generation
            self.trainer.apply_change(content)
