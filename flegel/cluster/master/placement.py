"""Whose turn it is, and where a job's processes go. Pure functions of the books and of what slaves have said."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from flegel.cluster.master.facts import JobEntry

PATIENCE = 60.0
"""Seconds after which a job that does not fit is no longer overtaken by smaller ones."""


@dataclass(frozen=True)
class SlaveCapacity:
    """A slave that takes new processes."""

    name: str
    slots: int
    free: int
    load: float
    """Runnable foreign processes a core."""
    chiefs: int = 0
    """Coordinators that it has."""

    def crowding(self, taken: int) -> float:
        """How full it would be with so many more, counting what others do on that host as if it were ours."""
        return (self.slots - self.free + taken + 1) / self.slots + self.load


@dataclass(frozen=True)
class Placement:
    """Where a job goes, or why it waits."""

    slave: str = ""
    seats: Mapping[str, int] | None = None
    why: str = ""


def turns(waiting: Iterable[JobEntry], running: Iterable[JobEntry], served: Mapping[str, float]) -> Iterator[JobEntry]:
    """Priority first; among equals the user who holds the fewest slots, then who was served longest ago.

    A user's own waiting jobs count one after the other, so users take turns also when many jobs wait.
    """
    never = float("-inf")
    held: dict[str, int] = {}
    for job in running:
        held[job.owner] = held.get(job.owner, 0) + sum(job.seats.values())
    queues: dict[int, dict[str, deque[JobEntry]]] = {}
    for job in sorted(waiting, key=lambda j: (j.submitted, j.id)):
        queues.setdefault(job.spec.priority, {}).setdefault(job.owner, deque()).append(job)
    for priority in sorted(queues, reverse=True):
        users = queues[priority]
        heap = [(held.get(user, 0), served.get(user, never), queue[0].submitted, user) for user, queue in users.items()]
        heapq.heapify(heap)
        while heap:
            user = heapq.heappop(heap)[3]
            job = users[user].popleft()
            held[user] = held.get(user, 0) + (job.wanted or 1)
            if users[user]:
                heapq.heappush(heap, (held[user], served.get(user, never), users[user][0].submitted, user))
            yield job


def seat(
    workers: int, rooms: Iterable[SlaveCapacity], already: Mapping[str, int] | None = None
) -> dict[str, int] | None:
    """So many workers, one after the other onto the slave that is least crowded; None where there is no room.

    `already` counts seats that the job has: they are kept and counted as taken by it.
    """
    seats = dict(already or {})
    found = {room.name: room for room in rooms}
    taken = dict.fromkeys(found, 0)
    for _ in range(workers - sum(seats.values())):
        open_rooms = [r for r in found.values() if taken[r.name] < r.free]
        if not open_rooms:
            return None
        best = min(open_rooms, key=lambda r: (r.crowding(taken[r.name]), r.name))
        taken[best.name] += 1
        seats[best.name] = seats.get(best.name, 0) + 1
    return seats


def place(job: JobEntry, rooms: list[SlaveCapacity], competitors: int) -> Placement:
    """A place for the job now, or a sentence that says what it waits for.

    A job that names no number of workers takes an even part of all slots, and less if less is free.
    """
    total, free = sum(r.slots for r in rooms), sum(max(r.free, 0) for r in rooms)
    if not total:
        return Placement(why="waits for a slave: none has registered")
    wanted = job.wanted
    if wanted is None:
        wanted = min(max(total // max(competitors, 1), 1), max(free, 1))
    if wanted > total:
        return Placement(why=f"needs {wanted} slots, but the cluster has {total}; it waits for more slaves")
    seats = seat(wanted, rooms)
    if seats is None:
        return Placement(why=f"waits for {wanted} free slots; {free} of {total} are free")
    chiefs = {room.name: room.chiefs for room in rooms}
    return Placement(max(seats, key=lambda name: (name == job.home, seats[name], -chiefs[name], name)), seats)


def overtaken(job: JobEntry, now: float) -> bool:
    """May smaller jobs still go first?"""
    return now - job.submitted < PATIENCE
