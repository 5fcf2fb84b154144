"""Which job is next, and where its processes go. Pure functions of the table of jobs and of heartbeats."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from flegel.cluster.master.facts import JobEntry
from flegel.cluster.master.worker_size import ONE_SLOT, WorkerSize
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
            held_slots[user] = held_slots.get(user, 0) + (job.wanted or 1) * job.size.least
            if users[user]:
                heapq.heappush(heap, (held_slots[user], served.get(user, never), users[user][0].submitted, user))
            yield job


def allocate(
    workers: int,
    capacities: Iterable[SlaveCapacity],
    already: Mapping[str, int] | None = None,
    size: WorkerSize = ONE_SLOT,
    partly: bool = False,
) -> dict[str, int] | None:
    """Slots for so many workers, one after the other on the least crowded slave; None where too few are free, or with
    `partly` those for as many workers as there are slots for.

    `already` are slots that the job has: they are kept.
    """
    slots = dict(already or {})
    slaves = {capacity.name: capacity for capacity in capacities}
    taken = dict.fromkeys(slaves, 0)
    for _ in range(workers - size.workers_of(slots)):
        found = {name: size.next_worker(slave.free - taken[name], slots.get(name, 0)) for name, slave in slaves.items()}
        fitting = [slave for slave in slaves.values() if found[slave.name]]
        if not fitting:
            return slots if partly else None
        best = min(fitting, key=lambda slave: (slave.crowding(taken[slave.name]), slave.name))
        taken[best.name] += found[best.name]
        slots[best.name] = slots.get(best.name, 0) + found[best.name]
    return slots


def fill(wanted: int, capacities: Iterable[SlaveCapacity]) -> dict[str, int]:
    """So many slots on as few slaves as possible, those with most free slots and the least load first: a team of many
    threads is worth more than several of few."""
    slots: dict[str, int] = {}
    for slave in sorted(capacities, key=lambda slave: (-slave.free / (1.0 + slave.load), slave.name)):
        if count := min(slave.free, wanted):
            slots[slave.name] = count
            wanted -= count
    return slots


def place(job: JobEntry, capacities: list[SlaveCapacity], competitors: int) -> Placement:
    """Where the job runs, or a sentence that says what it waits for.

    A job that names no number of workers takes an even part of all slots, and less if less is free.
    """
    total, free = sum(c.slots for c in capacities), sum(max(c.free, 0) for c in capacities)
    if not total:
        return Placement(why="waits for a slave: none has registered")
    size, wanted, slots = job.size, job.wanted, None
    if wanted is None:
        part = min(max(total // max(competitors, 1), 1), max(free, 1))
        if size.alone:
            slots = fill(part, capacities) or None
        wanted = max(part // size.slots, 1)  # of teams that choose their hosts themselves one, and it waits
    if why := _too_large(wanted, size, capacities):
        return Placement(why=f"{why}; it waits for more slaves")
    slots = slots or allocate(wanted, capacities, size=size)
    if slots is None:
        return Placement(why=f"waits for {size.in_words(wanted)}; {free} of {total} are free")
    coordinators = {capacity.name: capacity.coordinators for capacity in capacities}
    best = max(slots, key=lambda name: (name == job.last_slave, slots[name], -coordinators[name], name))
    return Placement(best, slots)


def _too_large(workers: int, size: WorkerSize, capacities: list[SlaveCapacity]) -> str:
    """Why the job could not run here even if all slots were free; empty where it could."""
    total, most = sum(c.slots for c in capacities), sum(size.workers(c.slots) for c in capacities)
    if workers <= most:
        return ""
    if size.alone:
        return f"needs {workers} slaves, but the cluster has {most}"
    if size.slots == 1:
        return f"needs {workers} slots, but the cluster has {total}"
    return f"needs {size.slots} slots of one slave for each of {workers} workers, but the cluster has them for {most}"


def may_be_overtaken(job: JobEntry, now: float) -> bool:
    """Whether smaller jobs may still go first."""
    return now - job.submitted < active().cluster.overtaking_seconds
