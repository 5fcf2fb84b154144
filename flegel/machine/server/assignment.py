"""Which server holds which slice, and who holds its copies: at the start, after a loss, after a join. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Assignment:
    """The server of each slice, and the servers with its copies."""

    primary: tuple[int, ...]
    backups: tuple[tuple[int, ...], ...]

    def held_by(self, server: int) -> tuple[int, ...]:
        return tuple(number for number, holder in enumerate(self.primary) if holder == server)


def assign(slices: int, servers: Sequence[int], replicas: int) -> Assignment:
    """Slice i to server i mod S; its copies to the next servers."""
    order = sorted(servers)
    primary = tuple(order[number % len(order)] for number in range(slices))
    return Assignment(primary, tuple(_next(order, server, replicas) for server in primary))


def after_loss(before: Assignment, live: Collection[int], replicas: int) -> tuple[Assignment, tuple[int, ...]]:
    """Each slice of a lost server goes to its first backup that lives; returns also the slices that have none."""
    order = sorted(live)
    primary, backups, orphans = [], [], []
    for number, holder in enumerate(before.primary):
        heirs = [server for server in before.backups[number] if server in live]
        if holder not in live:
            if heirs:
                holder = heirs.pop(0)
            else:
                orphans.append(number)
                holder = order[number % len(order)]
        others = [*heirs, *(s for s in _next(order, holder, len(order)) if s not in heirs)]
        primary.append(holder)
        backups.append(tuple(s for s in others if s != holder)[:replicas])
    return Assignment(tuple(primary), tuple(backups)), tuple(orphans)


def _next(order: Sequence[int], server: int, count: int) -> tuple[int, ...]:
    """The next servers behind this one, in a circle."""
    at = order.index(server)
    return tuple(order[(at + step) % len(order)] for step in range(1, min(count, len(order) - 1) + 1))
