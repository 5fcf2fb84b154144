"""Copies of slices whose primary is another server. Pure bookkeeping; who holds which copy is said by the map."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from flegel.core import pytree, sharding
from flegel.core.pytree import Array, Tree
from flegel.server_messages import HoldSlices, ReplicateSlices


@dataclass
class SliceCopy:
    """A slice as it was after `op`."""

    op: int
    version: int
    parameter: Tree
    total: Tree
    rounds: dict[int, int]


def frames_of_copies(
    slices: Sequence[tuple[Tree, Tree]],
) -> tuple[tuple[Array, ...], dict[int, tuple[tuple[int, ...], str]]]:
    """θ and statistics of slices as they travel, and place and form of what is left out: spent statistics are zero
    after a fold, and many a θ begins with zeros. Statistics are copied, because they go on changing; θ is made anew
    each time."""
    frames: list[Array] = []
    zero: dict[int, tuple[tuple[int, ...], str]] = {}
    for parameter, total in slices:
        kept = len(pytree.names(parameter))
        for at, array in enumerate((*pytree.flatten(parameter), *pytree.flatten(total))):
            if array.size and sharding.is_zero([array]):
                zero[len(frames) + len(zero)] = (array.shape, array.dtype.str)
            else:
                frames.append(array if at < kept else array.copy())
    return tuple(frames), zero


def with_omitted_zero_frames(arrays: Sequence[Array], body: ReplicateSlices | HoldSlices) -> list[Array]:
    """All frames, also those that were left out."""
    given = iter(arrays)
    count = len(arrays) + len(body.zero)
    return [np.zeros(*body.zero[at]) if at in body.zero else next(given) for at in range(count)]


class ReplicaStore:
    """The copies of one server: of each slice the newest."""

    def __init__(self, parameter: Tree, statistics: Tree) -> None:
        """Any bundles of the right types, for their fields."""
        self._like = parameter, statistics
        self._copies: dict[int, SliceCopy] = {}

    def store(self, body: ReplicateSlices, arrays: Sequence[Array], wanted: Collection[int]) -> None:
        """Copies have come; a newer one is not replaced by an older one."""
        parameter, statistics = self._like
        arrays = with_omitted_zero_frames(arrays, body)
        first = len(pytree.names(parameter))
        width = first + len(pytree.names(statistics))
        for at, number in enumerate(body.slices):
            known = self._copies.get(number)
            if number not in wanted or (known is not None and known.op > body.op):
                continue
            mine = list(arrays[at * width : (at + 1) * width])
            theta, total = pytree.unflatten(parameter, mine[:first]), pytree.unflatten(statistics, mine[first:])
            self._copies[number] = SliceCopy(body.op, body.versions[at], theta, total, dict(body.rounds))

    def keep(self, number: int, copy: SliceCopy) -> None:
        """A slice of which this server was the primary."""
        self._copies[number] = copy

    def take(self, number: int) -> SliceCopy | None:
        """The copy becomes the slice."""
        return self._copies.pop(number, None)

    def retain(self, numbers: Iterable[int]) -> None:
        """All others are not needed any more."""
        wanted = set(numbers)
        self._copies = {number: copy for number, copy in self._copies.items() if number in wanted}
