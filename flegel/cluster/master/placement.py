"""Which job is next, and where its processes go. Pure functions of the table of jobs and of heartbeats."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from flegel.cluster.master.facts import JobEntry
from flegel.configuration.active import active


@dataclass(frozen=True)
class SlaveCapacity:
    """A slave that takes new processes."""

    name: str
    slots: int
    free: int
    load: float
    """Runnable processes per core that do not belong to this cluster."""
    coordinators: int = 0

    def crowding(self, taken: int) -> float:
        """Workers per slot with `taken` more of them, and one; processes that are not ours count like ours."""
        return (self.slots - self.free + taken + 1) / self.slots + self.load


@dataclass(frozen=True)
class Placement:
    """Where a job goes, or why it waits."""

    slave: str = ""
    slots: Mapping[str, int] | None = None
    why: str = ""


def queue_order(
    waiting_jobs: Iterable[JobEntry], running_jobs: Iterable[JobEntry], served: Mapping[str, float]
) -> Iterator[JobEntry]:
    """Priority first; among equals the user who holds the fewest slots, then who was served longest ago.

    A user's own waiting jobs count one after the other, so users take turns also when many jobs wait.
    """
    never = float("-inf")
    held_slots: dict[str, int] = {}
    for job in running_jobs:
        held_slots[job.owner] = held_slots.get(job.owner, 0) + sum(job.slots.values())
    queues: dict[int, dict[str, deque[JobEntry]]] = {}
    for job in sorted(waiting_jobs, key=lambda j: (j.submitted, j.id)):
        queues.setdefault(job.spec.priority, {}).setdefault(job.owner, deque()).append(job)
    for priority in sorted(queues, reverse=True):
        users = queues[priority]
        heap = [
            (held_slots.get(user, 0), served.get(user, never), queue[0].submitted, user)
            for user, queue in users.items()
        ]
        heapq.heapify(heap)
        while heap:
            user = heapq.heappop(heap)[3]
            job = users[user].popleft()
            held_slots[user] = held_slots.get(user, 0) + (job.wanted or 1)
            if users[user]:
                heapq.heappush(heap, (held_slots[user], served.get(user, never), users[user][0].submitted, user))
            yield job


def allocate(
    workers: int, capacities: Iterable[SlaveCapacity], already: Mapping[str, int] | None = None
) -> dict[str, int] | None:
    """Slots for so many workers, one after the other on the least crowded slave; None where too few are free.

    `already` are slots that the job has: they are kept.
    """
    slots = dict(already or {})
    slaves = {capacity.name: capacity for capacity in capacities}
    taken = dict.fromkeys(slaves, 0)
    for _ in range(workers - sum(slots.values())):
        free = [slave for slave in slaves.values() if taken[slave.name] < slave.free]
        if not free:
            return None
        best = min(free, key=lambda slave: (slave.crowding(taken[slave.name]), slave.name))
        taken[best.name] += 1
        slots[best.name] = slots.get(best.name, 0) + 1
    return slots


def place(job: JobEntry, capacities: list[SlaveCapacity], competitors: int) -> Placement:
    """Where the job runs, or a sentence that says what it waits for.

    A job that names no number of workers takes an even part of all slots, and less if less is free.
    """
    total, free = sum(c.slots for c in capacities), sum(max(c.free, 0) for c in capacities)
    if not total:
        return Placement(why="waits for a slave: none has registered")
    wanted = job.wanted
    if wanted is None:
        wanted = min(max(total // max(competitors, 1), 1), max(free, 1))
    if wanted > total:
        return Placement(why=f"needs {wanted} slots, but the cluster has {total}; it waits for more slaves")
    slots = allocate(wanted, capacities)
    if slots is None:
        return Placement(why=f"waits for {wanted} free slots; {free} of {total} are free")
    coordinators = {capacity.name: capacity.coordinators for capacity in capacities}
    best = max(slots, key=lambda name: (name == job.last_slave, slots[name], -coordinators[name], name))
    return Placement(best, slots)


def may_be_overtaken(job: JobEntry, now: float) -> bool:
    """Whether smaller jobs may still go first."""
    return now - job.submitted < active().cluster.overtaking_seconds
