"""One op on its way through all slices, as the coordinator sees it: who has answered, and what came of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from flegel.core import pytree, sharding
from flegel.core.pytree import Array, Tree
from flegel.core.sharding import UNCUT, Cuts
from flegel.server_messages import SlicesFolded


class ArrayStorage(Protocol):
    """Where large arrays lie that are seldom read."""

    def empty(self, like: Array) -> Array:
        """Of the same form; its contents are anything."""
        ...

    def let_go(self, arrays: Iterable[Array]) -> None:
        """These arrays are not read soon: they need not be in memory."""
        ...


class InMemory:
    """The plain `ArrayStorage`."""

    def empty(self, like: Array) -> Array:
        return np.empty_like(like)

    def let_go(self, arrays: Iterable[Array]) -> None:
        """They stay."""


class Mirror:
    """θ and the kept statistics as the servers hold them after the last op that is done: whole arrays, made anew for
    each θ, because others keep the former one."""

    def __init__(
        self, cuts: Cuts, parameter: Tree, statistics: Tree, spent: Sequence[str], storage: ArrayStorage
    ) -> None:
        self.parameter, self.statistics = parameter, statistics
        self.cuts, self._storage = cuts, storage
        self._field_is_kept = tuple(name not in spent for name in pytree.names(statistics))

    def begin(self) -> tuple[list[Array], list[Array]]:
        """Arrays to be filled from answers; fields that no answer brings are zero: they are spent."""
        kept = zip(self._field_is_kept, pytree.flatten(self.statistics), strict=True)
        return (
            [self._storage.empty(a) for a in pytree.flatten(self.parameter)],
            [self._storage.empty(a) if keep else np.zeros(a.shape, a.dtype) for keep, a in kept],
        )

    def fill(self, into: tuple[list[Array], list[Array]], body: SlicesFolded, arrays: Sequence[Array]) -> None:
        """Copy the slices of one server's answer into the mirror's arrays."""
        parameter, statistics = into
        cuts, frames = self.cuts, iter(arrays)
        for array, axis in zip(parameter, cuts.parameter, strict=True):
            if axis == UNCUT:
                array[...] = next(frames)
        for array, axis, kept in zip(statistics, cuts.statistics, self._field_is_kept, strict=True):
            if axis == UNCUT and kept:
                array[...] = next(frames)
        for number in body.slices:
            span = cuts.slices[number]
            for array, axis in zip(parameter, cuts.parameter, strict=True):
                if axis != UNCUT:
                    sharding.part(array, axis, *span)[...] = next(frames)
            for array, axis, kept in zip(statistics, cuts.statistics, self._field_is_kept, strict=True):
                if axis != UNCUT and kept:
                    sharding.part(array, axis, *span)[...] = next(frames)
        self._storage.let_go((*parameter, *statistics))

    def take(self, made: tuple[list[Array], list[Array]], update: bool) -> None:
        """All slices are there."""
        if update:
            self.parameter = pytree.unflatten(self.parameter, made[0])
        self.statistics = pytree.unflatten(self.statistics, made[1])


class OpProgress:
    """An op that slices have begun and not all of them have answered."""

    def __init__(self, op: int, slices: int, mirror: Mirror) -> None:
        """`op`: number of the operation, such as a fold, in the order in which every slice does them; `slices`: how
        many must answer; `mirror`: the coordinator's copy of θ and statistics."""
        self.op = op
        self._mirror = mirror
        self._missing = set(range(slices))
        """Slices that have not answered."""
        self._new_arrays: tuple[list[Array], list[Array]] | None = None
        """Arrays of the next θ and statistics, filled answer by answer."""
        self._summaries: dict[int, Array] = {}
        self._slices = slices
        self.diverged = self.lost = ""
        """Sentences of the first server that had them: why θ is not finite; why the statistics cannot be right.
        Empty where all is well."""
        self.gap = 0.0
        """Largest relative difference, of any slice, between the statistics and the sum over owners."""
        self.partial = False
        """Some slices are not in the mirror's arrays."""

    def took(self, body: SlicesFolded, arrays: Sequence[Array]) -> bool:
        """An answer; True where it was the last one. One that comes again changes nothing."""
        fresh = self._missing & set(body.slices)
        if not fresh:
            return False
        if self._new_arrays is None:
            self._new_arrays = self._mirror.begin()
        self._mirror.fill(self._new_arrays, body, arrays)
        self._missing -= fresh
        self.diverged, self.lost = self.diverged or body.diverged, self.lost or body.lost
        self.gap = max(self.gap, body.gap)
        return not self._missing

    def skip(self, number: int) -> bool:
        """The answer of this slice is lost; True where it was the last one missing."""
        if number not in self._missing:
            return False
        self._missing.discard(number)
        self.partial = True
        return not self._missing

    def summarize(self, slices: Sequence[int], arrays: Sequence[Array]) -> Array | None:
        """Summaries of slices; all of them, one behind the other, as soon as none is missing."""
        for number, array in zip(slices, arrays, strict=True):
            self._summaries.setdefault(number, array)
        if len(self._summaries) < self._slices:
            return None
        return np.concatenate([self._summaries[number] for number in range(self._slices)])

    def finish(self, update: bool) -> None:
        if self._new_arrays is not None:
            self._mirror.take(self._new_arrays, update)
