"""Contributions of a round as they were read, and the result that is made of them. Pure.

A contribution counts only for the round, the group and the life that its name says, in the shapes that this group has
itself, with numbers that can be, and with the digest that its group told in its beat or that a result names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.errors import DecodeError
from flegel.machine.group.fragments import ALL_FRAGMENTS, Fragments, next_fragment
from flegel.machine.group.outer_step import outer_step
from flegel.machine.group.outliers import judge
from flegel.machine.group.records import Contribution, Entry, RoundResult, decode, digest_of, encode, within
from flegel.machine.group.wire import shortened, unpacked

SHORTENING_WIRES = ("int8", "int4")
"""Where every contribution of a round is in one of these forms, its result may be in 16 bits."""
OTHER_PACKAGE = "was made with another training package"
"""How the reason ends where nobody can help: what was written is what its group wanted to write."""
LARGEST_STATISTIC, LARGEST_CHANGE = 1e150, 1e18
"""Absolute value of a number: the square of a statistic is finite in float64, that of a change of θ in float32."""
LARGEST_COUNT = 2.0**53
"""Of visits: larger floats do not count one by one."""


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

    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]],
        package: str = "",
        fragments: int = 1,
        exchange: str = "statistics",
    ) -> None:
        """`exchange`: statistics or parameters."""
        self._fragments, self._package = Fragments(shapes, fragments), package
        self._largest = LARGEST_CHANGE if exchange == "parameters" else LARGEST_STATISTIC
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
        if not self._fragments.known(header.fragment):
            return f"{wanted.key} is of a part of θ that this job does not have"
        shapes = self._fragments.shapes(header.fragment)
        if header.wire != "full":
            try:
                arrays = unpacked(header.wire, arrays, shapes)
            except DecodeError as error:
                return f"{wanted.key} cannot be read: {error}"
        if header.fields != len(shapes) or len(arrays) < header.fields:
            return f"{wanted.key} holds other statistics than this job"
        if any(a.shape != shape for a, shape in zip(arrays, shapes, strict=False)):
            return f"{wanted.key} holds statistics of another shape than this job"
        if not within(arrays[: header.fields], self._largest):
            return f"{wanted.key} holds numbers that are not finite, or beyond {self._largest:g}"
        if not _counts_can_be(header):
            return f"{wanted.key} tells of {header.visits:g} visits of {header.points} rows, which cannot be"
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
        counted_before: Mapping[str, tuple[int, int]] | None = None,
        why: str = "",
        outliers: str = "keep",
        previous: RoundResult | None = None,
        exchanged_in: Sequence[int] = (),
    ) -> bytes:
        """The round's result: the same entries give the same bytes. `outer` where θ is exchanged. `counted_before`:
        of every group, life and round of its last contribution that an earlier result counted. `exchanged_in`: the
        round of the last exchange of each fragment."""
        ordered = tuple(sorted(entries, key=lambda e: e.group))
        counted = dict(counted_before or {})
        for e in ordered:
            counted[e.group] = max(counted.get(e.group, (0, 0)), (e.life, e.round))
        said = tuple((group, *counted[group]) for group in sorted(counted))
        if not outer:
            return encode(RoundResult(round_, ordered, final, 0, by, self._package, said, why))
        header = RoundResult(round_, ordered, final, 0, by, self._package, said, why)
        return self._stepped(header, outer, base, velocity, outliers, previous, exchanged_in)

    def _stepped(
        self,
        header: RoundResult,
        outer: str,
        base: Sequence[Array],
        velocity: Sequence[Array],
        outliers: str,
        previous: RoundResult | None,
        exchanged_in: Sequence[int],
    ) -> bytes:
        """A result with the fragments of θ that its contributions change."""
        received = [self._received[e.key] for e in header.entries]
        fragments = sorted({f for r in received for f in self._fragments.of(r.header.fragment)})
        known = {(g, f): (mean, variance, n) for g, f, mean, variance, n in (previous.sizes if previous else ())}
        theta, after, found = list[Array](), list[Array](), dict[str, str]()
        theta_before, speed_before = list[Array](), list[Array]()
        for fragment in fragments:
            changes, factors = list[tuple[float, Sequence[Array]]](), list[float]()
            for r in received:
                if fragment not in self._fragments.of(r.header.fragment):
                    continue
                parts = self._fragments.take(fragment, r.changes) if r.header.fragment == ALL_FRAGMENTS else r.changes
                judged = judge(outliers, parts, known.get((r.entry.group, fragment)))
                known[r.entry.group, fragment] = judged.size
                if judged.reason:
                    found[r.entry.group] = judged.reason
                changes.append((r.header.visits, judged.parts))
                factors.append(judged.factor)
            velocities = self._fragments.take(fragment, velocity) if velocity else []
            before = self._fragments.take(fragment, base)
            new, speed = outer_step(outer, before, velocities, changes, factors)
            theta, after = [*theta, *new], [*after, *speed]
            theta_before += before
            speed_before += velocities or [np.zeros(v.shape) for v in speed]
        rounds = list(exchanged_in) or [0] * self._fragments.count
        for fragment in fragments:
            rounds[fragment] = header.round
        header = msgspec.structs.replace(
            header,
            fields=len(theta),
            fragments=tuple(fragments),
            exchanged_in=tuple(rounds),
            next_fragment=next_fragment(self._unsent(received, fragments), rounds, header.round),
            sizes=tuple((g, f, *size) for (g, f), size in sorted(known.items()) if outliers != "keep"),
            outliers=tuple(sorted(found.items())),
        )
        if not all(r.header.wire in SHORTENING_WIRES for r in received):
            return encode(header, [*theta, *after], compress=True)
        most = active().groups.largest_result_rounding
        pairs = zip([*theta, *after], [*theta_before, *speed_before], strict=True)
        written = [shortened(new, before, most) or [new] for new, before in pairs]
        short = tuple(at for at, one in enumerate(written) if len(one) > 1)
        header = msgspec.structs.replace(header, short=short)
        return encode(header, [part for one in written for part in one], compress=True)

    def _unsent(self, received: Sequence[ReceivedContribution], fragments: Sequence[int]) -> list[float]:
        """By how much groups have changed each fragment that is not exchanged now."""
        changed = [0.0] * self._fragments.count
        for r in received:
            if len(r.header.changed) == len(changed):
                changed = [a + b for a, b in zip(changed, r.header.changed, strict=True)]
        return [0.0 if fragment in fragments else value for fragment, value in enumerate(changed)]


def _counts_can_be(header: Contribution) -> bool:
    """Weights and the choice of the next fragment follow from these numbers: one that is not finite, or negative, would
    be in θ of every group."""
    counts = (header.visits, float(header.points), *header.changed)
    return all(math.isfinite(count) and count >= 0.0 for count in counts) and header.visits < LARGEST_COUNT
