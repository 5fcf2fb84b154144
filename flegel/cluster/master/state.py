"""What the master knows, shared by its parts: jobs, slaves, coordinators, and the actions of the current event. Pure.

Jobs come from the journal; slaves and coordinators come from heartbeats alone and are unknown after a restart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from flegel.cluster.master.actions import Action, RecordFact, SendTo
from flegel.cluster.master.facts import RUNNING, Fact, JobEntry, JobTable
from flegel.cluster.master.placement import SlaveCapacity
from flegel.cluster.master.worker_size import ONE_SLOT
from flegel.cluster.transport.protocol import COORDINATOR, CoordinatorStatus, ProcessStatus, SlaveBeat, ToSlave
from flegel.configuration.active import active

ProcessId = tuple[str, int, int, int]
"""Job, attempt, worker, incarnation: names a process for good."""


@dataclass
class KnownSlave:
    """What the last heartbeat of a slave said."""

    name: str
    beat: SlaveBeat
    last_beat: float
    present: bool = True
    """False for one that is only expected: it ran something before the master was restarted."""
    ordered: dict[ProcessId, float] = field(default_factory=dict)
    """Workers whose start was ordered and that no heartbeat has shown yet, and when."""

    @property
    def open(self) -> bool:
        """Whether it takes new processes."""
        return self.present and not self.beat.draining

    def silent(self, now: float) -> bool:
        """Whether its heartbeats have stopped."""
        return now - self.last_beat > active().cluster.slave_silence_seconds

    def processes(self, job: JobEntry) -> Iterator[ProcessStatus]:
        return (p for p in self.beat.processes if p.job == job.id and p.attempt == job.attempt)


class MasterState:
    """One for each master; the parts of the machine read and change it."""

    def __init__(self, table: JobTable, now: float, epoch: float) -> None:
        """`epoch`: seconds since 1970 minus `now`. Slaves that ran jobs before a restart are expected to come back."""
        self.table = table
        self.slaves: dict[str, KnownSlave] = {}
        self.coordinators: dict[str, CoordinatorStatus] = {}
        """By job: the last status of its coordinator."""
        self.reasons: dict[str, str] = {}
        """By job: why it waits."""
        self.now = now
        self._epoch = epoch
        self._actions: list[Action] = []
        for job in table.of_state(RUNNING):
            for name in {job.slave, *job.slots}:
                expected = SlaveBeat(name, job.boot if name == job.slave else "", 0, "")
                self.slaves[name] = KnownSlave(
                    name,
                    expected,
                    now + active().cluster.slave_return_seconds - active().cluster.slave_silence_seconds,
                    present=False,
                )

    @property
    def at(self) -> float:
        """Now, in seconds since 1970."""
        return self._epoch + self.now

    def renew_leases(self, away: float) -> None:
        """The master was stopped for `away` seconds and received no heartbeats: that time counts against no slave."""
        for slave in self.slaves.values():
            slave.last_beat = min(slave.last_beat + away, max(slave.last_beat, self.now))

    def add(self, action: Action) -> None:
        self._actions.append(action)

    def take_actions(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions

    def record(self, fact: Fact) -> None:
        self.table.apply(fact)
        self.add(RecordFact(fact))

    def send(self, slave: str, order: ToSlave) -> None:
        """An order to a slave that has not registered is dropped: its first heartbeat leads to the same
        decision again."""
        if slave in self.slaves and self.slaves[slave].present:
            self.add(SendTo(slave, order))

    def running(self, name: str, attempt: int) -> JobEntry | None:
        """The job, if this attempt of it is the one that runs."""
        job = self.table.jobs.get(name)
        return job if job is not None and job.state == RUNNING and job.attempt == attempt else None

    def coordinator(self, job: JobEntry) -> CoordinatorStatus | None:
        """The status of the current attempt's coordinator, if it has reported."""
        status = self.coordinators.get(job.id)
        return status if status is not None and status.attempt == job.attempt else None

    def capacities(self) -> list[SlaveCapacity]:
        """Slaves that take new processes, with the slots that are neither reserved nor used by ending workers."""
        reserved: dict[str, int] = {}
        running = self.table.of_state(RUNNING)
        for job in running:
            for name, count in job.slots.items():
                reserved[name] = reserved.get(name, 0) + count
        found = []
        for slave in self.slaves.values():
            if slave.open and not slave.silent(self.now):
                free = slave.beat.slots - reserved.get(slave.name, 0) - self.slots_of_ending_workers(slave)
                coordinators = sum(job.slave == slave.name for job in running)
                found.append(SlaveCapacity(slave.name, slave.beat.slots, max(free, 0), slave.beat.load, coordinators))
        return found

    def slots_of_ending_workers(self, slave: KnownSlave) -> int:
        """Slots that workers of attempts take that do not run any more; a team may have all of the slave's."""
        workers = (p for p in slave.beat.processes if p.alive and p.worker != COORDINATOR)
        ending = [self.table.jobs.get(p.job) for p in workers if self.running(p.job, p.attempt) is None]
        sizes = [job.size if job is not None else ONE_SLOT for job in ending]
        return min(sum(slave.beat.slots if size.alone else size.slots for size in sizes), slave.beat.slots)
