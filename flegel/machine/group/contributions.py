"""Contributions of a round as they were read, and the result that is made of them. Pure.

A contribution counts only for the round, the group and the life that its name says, in the shapes that this group has
itself, with finite numbers, and with the digest that its group told in its beat or that a result names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flegel.core.pytree import Array
from flegel.errors import DecodeError
from flegel.machine.group.outer_step import outer_step
from flegel.machine.group.records import Contribution, Entry, RoundResult, decode, digest_of, encode, finite

OTHER_PACKAGE = "was made with another training package"
"""How the reason ends where nobody can help: what was written is what its group wanted to write."""


@dataclass(frozen=True)
class ReceivedContribution:
    """A contribution that may be used."""

    entry: Entry
    header: Contribution
    arrays: tuple[Array, ...]

    @property
    def changes(self) -> tuple[Array, ...]:
        return self.arrays[: self.header.fields]

    @property
    def parameter(self) -> tuple[Array, ...]:
        return self.arrays[self.header.fields :]


class Contributions:
    """The contributions of the round that is open, and of the last result."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], package: str = "") -> None:
        self._shapes, self._package = list(shapes), package
        self._received: dict[str, ReceivedContribution] = {}

    def get(self, key: str) -> ReceivedContribution | None:
        return self._received.get(key)

    def accept(self, wanted: Entry, content: bytes) -> str:
        """Why it cannot be used; empty where it can."""
        if digest_of(content) != wanted.digest:
            return f"{wanted.key} is not what {wanted.group} wrote (its digest differs)"
        try:
            header, arrays = decode(content, Contribution)
        except DecodeError as error:
            return f"{wanted.key} cannot be read: {error}"
        if (header.group, header.life, header.round) != (wanted.group, wanted.life, wanted.round):
            return f"{wanted.key} is of {header.group}, round {header.round}"
        if header.package != self._package:
            return f"{wanted.key} {OTHER_PACKAGE}"
        if header.fields != len(self._shapes) or len(arrays) < header.fields:
            return f"{wanted.key} holds other statistics than this job"
        if any(a.shape != shape for a, shape in zip(arrays, self._shapes, strict=False)):
            return f"{wanted.key} holds statistics of another shape than this job"
        if not finite(arrays[: header.fields]):
            return f"{wanted.key} holds numbers that are not finite"
        entry = Entry(wanted.group, wanted.life, wanted.key, wanted.digest, wanted.round, header.settled)
        self._received[wanted.key] = ReceivedContribution(entry, header, tuple(arrays))
        return ""

    def keep(self, keys: set[str]) -> None:
        """Forget all others."""
        self._received = {key: value for key, value in self._received.items() if key in keys}

    def result(
        self,
        round_: int,
        entries: Sequence[Entry],
        final: bool,
        by: str,
        outer: str = "",
        base: Sequence[Array] = (),
        velocity: Sequence[Array] = (),
    ) -> bytes:
        """The round's result: the same entries give the same bytes. `outer` where θ is exchanged."""
        ordered = tuple(sorted(entries, key=lambda e: e.group))
        if not outer:
            return encode(RoundResult(round_, ordered, final, 0, by))
        changes = [(self._received[e.key].header.visits, self._received[e.key].changes) for e in ordered]
        theta, after = outer_step(outer, base, velocity, changes)
        return encode(RoundResult(round_, ordered, final, len(theta), by), [*theta, *after])
