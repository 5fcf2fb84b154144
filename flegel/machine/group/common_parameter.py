"""θ as the results of all groups have made it: the newest value of each fragment, and what is lacking of it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from flegel.core.pytree import Array
from flegel.machine.group.fragments import Fragments
from flegel.machine.group.records import RoundResult, finite
from flegel.machine.group.wire import restored

REMOVED = "its θ was removed, because it is old"


class CommonParameter:
    """Additive fields of θ after the last result, with the velocity of the outer optimizer where it has one."""

    def __init__(self, base: Sequence[Array], fragments: Fragments) -> None:
        """`base`: of θ(0); empty where statistics are exchanged."""
        self.base, self.velocity, self.fragments = list(base), list[Array](), fragments
        self.exchanged_in = [0] * fragments.count
        """The round of the last exchange of each fragment, as far as its result is in `base`; 0: θ(0)."""
        self._older: dict[int, tuple[RoundResult, list[Array]]] = {}
        """Results before the one that is to be taken, with fragments that are lacking."""

    def restored(self, result: RoundResult, parts: Sequence[Array]) -> list[Array]:
        """θ and velocities of a result as numbers, where some of it is written in few bytes; raises `DecodeError`."""
        if not result.fields or not all(0 <= fragment < self.fragments.count for fragment in result.fragments):
            return list(parts)  # `misfit` says what is wrong
        shapes = [shape for fragment in result.fragments for shape in self.fragments.shapes(fragment)]
        return restored(result.short, parts, shapes)

    def misfit(self, result: RoundResult, arrays: Sequence[Array]) -> str:
        """Why θ of a result does not fit; empty where it does."""
        if not self.base:
            return "it holds a θ, and this job exchanges none" if arrays or result.fields else ""
        if not result.fields:
            return REMOVED
        count, named = self.fragments.count, (*result.fragments, result.next_fragment)
        if len(result.exchanged_in) != count or not all(0 <= fragment < count for fragment in named):
            return "its θ is cut otherwise than that of this job"
        shapes = [shape for fragment in result.fragments for shape in self.fragments.shapes(fragment)]
        if result.fields != len(shapes) or [a.shape for a in arrays] not in (shapes, [*shapes, *shapes]):
            return "it holds a θ of another shape than this job"
        if not finite(arrays) or not all(math.isfinite(mean) and var >= 0.0 for _, _, mean, var, _ in result.sizes):
            return "it holds numbers that are not finite"
        return ""

    def lacking(self, result: RoundResult) -> list[int]:
        """Rounds before this result whose fragments are not here: the group joins, or has left out a round."""
        pairs = enumerate(zip(result.exchanged_in, self.exchanged_in, strict=True)) if self.base else ()
        rounds = {theirs for at, (theirs, own) in pairs if at not in result.fragments and theirs > own}
        return sorted(rounds - set(self._older))

    def hold(self, older: RoundResult, arrays: list[Array]) -> None:
        """A result that was lacking."""
        self._older[older.round] = (older, arrays)

    def forget(self) -> None:
        """Another result is to be taken."""
        self._older = {}

    def take(self, result: RoundResult, arrays: list[Array]) -> tuple[int, ...]:
        """Replace fragments by those of a result and of the older ones that are held; which of them are new."""
        new = set[int]()
        for round_, (held, parts) in sorted({**self._older, result.round: (result, arrays)}.items()):
            rest, speeds = parts[: held.fields], parts[held.fields :]
            if speeds and not self.velocity:
                self.velocity = [np.zeros(field.shape) for field in self.base]
            for fragment in held.fragments:
                count = len(self.fragments.shapes(fragment))
                if result.exchanged_in[fragment] == round_:
                    self.base = self.fragments.put(fragment, self.base, rest[:count])
                    if speeds:
                        self.velocity = self.fragments.put(fragment, self.velocity, speeds[:count])
                    self.exchanged_in[fragment] = round_
                    new.add(fragment)
                rest, speeds = rest[count:], speeds[count:]
        self.forget()
        return tuple(sorted(new))
