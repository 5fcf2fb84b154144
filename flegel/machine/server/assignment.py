"""Which server holds which slice, and who holds its copies: at the start, after a loss, after a join, by a plan. Pure.

The decisions are those of `flegel.plan.placement`; here they meet the slices of a job.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from flegel.plan.placement.assignment import first_map, levelled, promoted, replenished
from flegel.plan.placement.slice_map import SliceMap


@dataclass(frozen=True)
class Assignment:
    """The server of each slice, and the servers with its copies."""

    primary: tuple[int, ...]
    backups: tuple[tuple[int, ...], ...]

    def held_by(self, server: int) -> tuple[int, ...]:
        return tuple(number for number, holder in enumerate(self.primary) if holder == server)

    def holders(self, number: int) -> tuple[int, ...]:
        return (self.primary[number], *self.backups[number])

    def as_map(self, sizes: Sequence[int]) -> SliceMap:
        return SliceMap(0, tuple(sizes), self.primary, self.backups)


def _of(found: SliceMap) -> Assignment:
    return Assignment(found.primary, found.replicas)


def assign(sizes: Sequence[int], servers: Sequence[int], replicas: int) -> Assignment:
    """By the hash ring with bounded load."""
    return _of(first_map(tuple(sizes), servers, replicas))


def after_loss(
    before: Assignment, sizes: Sequence[int], live: Collection[int], replicas: int
) -> tuple[Assignment, tuple[int, ...]]:
    """Each slice of a lost server goes to its first backup that lives; returns also the slices that have none."""
    known = before.as_map(sizes)
    found, orphans = promoted(known, set(known.servers) - set(live), live)
    return _of(replenished(found, live, replicas)), orphans


def towards(
    before: Assignment,
    sizes: Sequence[int],
    live: Collection[int],
    replicas: int,
    shares: Mapping[int, float] | None,
) -> Assignment:
    """Loads near their shares, near the mean where None, with as few moves as that takes."""
    return _of(levelled(before.as_map(sizes), live, replicas, shares))


def planned(found: SliceMap) -> Assignment:
    """The map that a plan asks for."""
    return _of(found)


def with_copies(before: Assignment, wanted: Assignment) -> tuple[Assignment, frozenset[int]]:
    """On the way to `wanted`: new primaries hold copies first, beside those that exist. Second: slices whose copy has
    yet to be made."""
    backups, missing = [], set()
    for number, (holder, some) in enumerate(zip(before.primary, before.backups, strict=True)):
        fresh = wanted.primary[number]
        if fresh != holder and fresh not in some:
            missing.add(number)
            backups.append((*some, fresh))
        else:
            backups.append(some)
    return Assignment(before.primary, tuple(backups)), frozenset(missing)
