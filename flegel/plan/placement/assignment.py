"""Slices to servers: the first map from the hash ring, promotion after a loss, and levelling with few moves. Pure.

A slice goes clockwise to the first server with quota left, its replicas to the next distinct servers (001, Section 3,
with bounded load). Levelling follows Algorithm 2 of 003, the slice to the server with the largest remaining load, but
leaves in place what need not move. Nothing here knows rates: shares come from `water_filling.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from flegel.configuration.active import active
from flegel.errors import UsageError
from flegel.plan.placement.hash_ring import HashRing
from flegel.plan.placement.slice_map import SliceMap


def first_map(
    slices: tuple[int, ...],
    servers: Collection[int],
    replicas: int = 1,
    shares: Mapping[int, float] | None = None,
    version: int = 1,
) -> SliceMap:
    """The map of a job that has measured nothing yet. `shares` by server need not add up to 1; equal by default."""
    _check(servers, replicas)
    ring = HashRing(servers)
    targets = _targets(sum(slices), ring.servers, shares)
    primary = [-1] * len(slices)
    _deal_small(slices, primary, ring.servers)
    quota = {server: (1 + active().placement.load_tolerance) * target for server, target in targets.items()}
    for number in sorted(range(len(slices)), key=lambda n: (-slices[n], n)):
        if primary[number] in quota:
            quota[primary[number]] -= slices[number]
            continue
        fits = (server for server in ring.successors(number) if quota[server] >= slices[number])
        primary[number] = next(fits, max(ring.servers, key=lambda server: (quota[server], -server)))
        quota[primary[number]] -= slices[number]
    return _replicated(ring, slices, primary, [()] * len(slices), replicas, targets, version)


def promoted(
    current: SliceMap, lost_servers: Collection[int], servers: Collection[int]
) -> tuple[SliceMap, tuple[int, ...]]:
    """The map right after a loss, without any copy: the first living replica takes over. Second: slices without one.

    Those go to the next server of the ring; their content has to come from elsewhere. Load and number of replicas are
    restored by `levelled`, at leisure.
    """
    alive = sorted(set(servers) - set(lost_servers))
    _check(alive, 0)
    ring = HashRing(alive)
    primary: list[int] = []
    replicas: list[tuple[int, ...]] = []
    orphans: list[int] = []
    for number in range(len(current.slices)):
        living = [server for server in current.holders(number) if server in alive]
        if not living:
            orphans.append(number)
            living = [next(ring.successors(number))]
        primary.append(living[0])
        replicas.append(tuple(living[1:]))
    return SliceMap(current.version + 1, current.slices, tuple(primary), tuple(replicas)), tuple(orphans)


def levelled(
    current: SliceMap,
    servers: Collection[int],
    replicas: int = 1,
    shares: Mapping[int, float] | None = None,
) -> SliceMap:
    """The map for these servers, all of whose slices are held by somebody alive, with loads near their shares.

    Used after a loss, after a join and for a new plan. The current map is returned where nothing has to change.
    """
    _check(servers, replicas)
    ring = HashRing(servers)
    targets = _targets(current.total, ring.servers, shares)
    primary = list(current.primary)
    _deal_small(current.slices, primary, ring.servers)
    _level(
        Loads(current.slices, primary, targets, active().placement.measuring_slices),
        allowed=lambda number, receiver: True,
        cost=lambda number, receiver: _cost_of_move(current, number, receiver, replicas),
    )
    kept = []
    for number, owner in enumerate(primary):
        before = (server for server in current.holders(number) if server in targets and server != owner)
        kept.append(tuple(before)[:replicas])
    found = _replicated(ring, current.slices, primary, kept, replicas, targets, current.version + 1)
    same = found.primary == current.primary and found.replicas == current.replicas
    return current if same else found


def _deal_small(slices: tuple[int, ...], primary: list[int], servers: tuple[int, ...]) -> None:
    """Two of the small slices, if there are any, to each server that has fewer ("probes first" in Algorithm 2)."""
    kept = active().placement.measuring_slices
    owned: dict[int, list[int]] = {server: [] for server in servers}
    spare: list[int] = []
    for number, size in enumerate(slices):
        if 2 * size <= max(slices):
            mine = owned.get(primary[number], spare)
            (mine if len(mine) < kept else spare).append(number)
    for server in servers:
        while spare and len(owned[server]) < kept:
            owned[server].append(spare.pop(0))
            primary[owned[server][-1]] = server


def _cost_of_move(current: SliceMap, number: int, receiver: int, replicas: int) -> int:
    """Whether a move needs a copy that is not needed anyway: 0 or 1 if it does not, 2 if it does."""
    if len(current.replicas[number]) < replicas:
        return 0  # one more holder is needed in any case, and after a loss this slice has moved already
    return 1 if receiver in current.replicas[number] else 2


@dataclass
class Loads:
    """Items with sizes and owners that are to be moved until each owner's load is near its target."""

    sizes: tuple[int, ...]
    owners: list[int]
    targets: Mapping[int, float]
    kept: int

    def __post_init__(self) -> None:
        self.excess = {server: -target for server, target in self.targets.items()}
        self.items: dict[int, list[int]] = {server: [] for server in self.targets}
        for item, owner in enumerate(self.owners):
            if owner in self.excess:
                self.excess[owner] += self.sizes[item]
                self.items[owner].append(item)

    def move(self, item: int, receiver: int) -> None:
        """Give an item to another owner and update what each has beyond its share."""
        donor = self.owners[item]
        if donor in self.excess:
            self.items[donor].remove(item)
            self.excess[donor] -= self.sizes[item]
        self.items[receiver].append(item)
        self.excess[receiver] += self.sizes[item]
        self.owners[item] = receiver

    def movable(self, donor: int) -> list[int]:
        """Everything but the smallest few."""
        return sorted(self.items[donor], key=lambda item: (self.sizes[item], item))[self.kept :]

    def level(self) -> bool:
        """Whether every load is within the band around its target."""
        near = active().placement.load_tolerance
        return all(abs(more) <= near * self.targets[server] for server, more in self.excess.items())


def _level(loads: Loads, allowed: Callable[[int, int], bool], cost: Callable[[int, int], int]) -> None:
    """Move the best item from the largest excess to the largest remaining load until the band is met or nothing helps.

    Every move lowers the sum of squares of the excess, so that it ends.
    """
    strangers = [item for item, owner in enumerate(loads.owners) if owner not in loads.targets]
    for item in sorted(strangers, key=lambda item: (-loads.sizes[item], item)):
        able = [server for server in loads.targets if allowed(item, server)]
        loads.move(item, min(able, key=lambda server: (loads.excess[server], server)))
    while not loads.level():
        moved = _best_move(loads, allowed, cost)
        if moved is None:
            return
        loads.move(*moved)


def _best_move(
    loads: Loads, allowed: Callable[[int, int], bool], cost: Callable[[int, int], int]
) -> tuple[int, int] | None:
    """The item and the receiver of the move that comes nearest to both targets; None where no move helps."""
    near = active().placement.load_tolerance
    order = sorted(loads.targets, key=lambda server: (loads.excess[server], server))
    for receiver in order:
        room = -loads.excess[receiver]
        for donor in reversed(order):
            surplus = loads.excess[donor]
            outside = surplus > near * loads.targets[donor] or room > near * loads.targets[receiver]
            if not outside or surplus + room <= 0:
                continue
            enough = (1 - 1e-9) * (surplus + room)  # a move without gain but for rounding could be undone for ever
            helpful = [
                (max(abs(surplus - size), abs(room - size)), cost(item, receiver), item)
                for item in loads.movable(donor)
                if (size := loads.sizes[item]) < enough and allowed(item, receiver)
            ]
            if helpful:
                return min(helpful)[2], receiver
    return None


def _replicated(
    ring: HashRing,
    slices: tuple[int, ...],
    primary: list[int],
    kept: list[tuple[int, ...]],
    replicas: int,
    targets: Mapping[int, float],
    version: int,
) -> SliceMap:
    """Fill up to `replicas` copies by walking on from the primary, then level the copies of each rank."""
    copies = [list(some) for some in kept]
    count = min(replicas, len(ring.servers) - 1)
    for number, owner in enumerate(primary):
        after = _from(owner, ring.successors(number))
        fresh = (server for server in after if server != owner and server not in copies[number])
        while len(copies[number]) < count:
            copies[number].append(next(fresh))
    for rank in range(count):
        column = [some[rank] for some in copies]

        def allowed(number: int, receiver: int, rank: int = rank) -> bool:
            others = (server for at, server in enumerate(copies[number]) if at != rank)
            return receiver != primary[number] and receiver not in others

        _level(Loads(slices, column, targets, 0), allowed, lambda number, receiver: 0)
        for some, server in zip(copies, column, strict=True):
            some[rank] = server
    return SliceMap(version, slices, tuple(primary), tuple(tuple(some) for some in copies))


def _from(owner: int, walk: Iterable[int]) -> list[int]:
    order = list(walk)
    at = order.index(owner)
    return order[at:] + order[:at]


def _targets(total: int, servers: tuple[int, ...], shares: Mapping[int, float] | None) -> dict[int, float]:
    wanted = {server: 1.0 if shares is None else shares.get(server, 0.0) for server in servers}
    whole = sum(wanted.values())
    if whole <= 0 or min(wanted.values()) < 0:
        raise ValueError(f"shares must not be negative and one must be positive: {dict(wanted)}")
    return {server: total * share / whole for server, share in wanted.items()}


def _check(servers: Collection[int], replicas: int) -> None:
    if not servers:
        raise UsageError("no parameter server is left to hold θ.")
    if replicas < 0:
        raise UsageError(f"{replicas} replicas: give 0 or more.")
