"""What has happened to jobs: the facts in the journal, and the table of jobs that they add up to. Pure.

The table is a fold over the facts and nothing else, so a master that reads its journal again knows what it knew.
The states of a job:

    queued ──Placed──▶ running ──Ended──▶ done | failed | cancelled
       ▲                  │                        │
       └─────Released─────┘◀───────Requeued────────┘ (failed and cancelled only)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from flegel.cluster.master.worker_size import MAX_SLOTS_PER_SLAVE, WorkerSize
from flegel.cluster.transport.protocol import ClusterJob

QUEUED, RUNNING, DONE, FAILED, CANCELLED = "queued", "running", "done", "failed", "cancelled"
# A job in one of these states has ended; only `Requeued` leads out of `FAILED` and `CANCELLED`.
OVER = (DONE, FAILED, CANCELLED)


class _Fact(msgspec.Struct, forbid_unknown_fields=True, tag=True):
    """`at` is in seconds since 1970, so that it is comparable after a restart."""

    job: str
    at: float


class Submitted(_Fact):
    ticket: str
    owner: str
    spec: ClusterJob
    owner_key: str = ""
    """Who may change it; empty where clients have no keys, and for jobs of earlier versions."""


class Placed(_Fact):
    """The coordinator goes to `slave`, workers to `slots` (slave → how many slots)."""

    attempt: int
    slave: str
    boot: str
    slots: dict[str, int]


class Begun(_Fact):
    """The coordinator is up."""

    attempt: int


class WorkersPlaced(_Fact):
    """The slots have changed: a slave was lost, or the job was scaled."""

    attempt: int
    slots: dict[str, int]


class Scaled(_Fact):
    """The owner wants so many workers or parameter servers; None: as many as before."""

    workers: int | None = None
    servers: int | None = None


class Released(_Fact):
    """The attempt is lost, and there will be another."""

    attempt: int
    why: str
    lost_attempts: int
    """Attempts lost in a row without a checkpoint in between."""


class Ended(_Fact):
    attempt: int
    state: str
    why: str
    trace: str = ""
    usage: bool = False


class Requeued(_Fact):
    """The owner of a job that is over wants it to continue."""


class Forgotten(_Fact):
    """An old job that is not listed any more."""


Fact = Submitted | Placed | Begun | WorkersPlaced | Scaled | Released | Ended | Requeued | Forgotten


@dataclass
class JobEntry:
    """A job in the table."""

    id: str
    ticket: str
    owner: str
    spec: ClusterJob
    submitted: float
    state: str = QUEUED
    attempt: int = 0
    slave: str = ""
    """The coordinator's host; workers are on those in `slots`. Empty while the job is queued."""
    boot: str = ""
    slots: dict[str, int] = field(default_factory=dict)
    """Slave → how many of its slots the job has."""
    begun: bool = False
    lost_attempts: int = 0
    started: float | None = None
    ended: float | None = None
    why: str = ""
    trace: str = ""
    usage: bool = False
    last_slave: str = ""
    """The slave of the last attempt, where its checkpoints are."""
    workers: int | None = None
    """How many it should have now; None until it is scaled."""
    servers: int | None = None
    """The same of parameter servers."""
    owner_key: str = ""

    def belongs_to(self, name: str, key: str) -> bool:
        """By key where there are keys; a name may be given to another key later."""
        return self.owner_key == key if self.owner_key else self.owner == name

    @property
    def wanted(self) -> int | None:
        return self.workers if self.workers is not None else self.spec.workers

    @property
    def size(self) -> WorkerSize:
        """Slots that each of its workers takes. A team that takes the place of another one is not larger than the
        largest: the coordinator knows no larger one."""
        if self.spec.team_per_host:
            return WorkerSize(max(self.slots.values(), default=MAX_SLOTS_PER_SLAVE), alone=True)
        return WorkerSize(self.spec.threads or 1)

    @property
    def places(self) -> int:
        """Workers, and parameter servers, that its slots are for."""
        return self.size.workers_of(self.slots)

    def threads_on(self, slave: str) -> int:
        """Of each of its workers there; 0 where workers are no teams."""
        return self.slots.get(slave, 0) if self.spec.team_per_host else self.spec.threads or 0

    @property
    def team_threads(self) -> tuple[int, ...]:
        """Of each of its workers, the largest team first, which is the order in which they are started; empty where
        workers are no teams."""
        teams = [self.threads_on(slave) for slave, taken in self.slots.items() for _ in range(self.size.workers(taken))]
        return tuple(sorted(filter(None, teams), reverse=True))

    @property
    def spec_now(self) -> ClusterJob:
        """The job with as many parameter servers as its owner wants by now."""
        return self.spec if self.servers is None else msgspec.structs.replace(self.spec, servers=self.servers)


@dataclass
class JobTable:
    """All jobs, by name and by ticket."""

    jobs: dict[str, JobEntry] = field(default_factory=dict)
    tickets: dict[str, str] = field(default_factory=dict)
    count: int = 0
    """Jobs that were ever submitted: no number is used twice."""
    served: dict[str, float] = field(default_factory=dict)
    """When a job of each user was last placed."""

    def apply(self, fact: Fact) -> None:
        """Change the table by one fact. Decides nothing: a journal that is read again gives the same table."""
        if isinstance(fact, Submitted):
            self.count += 1
            entry = JobEntry(fact.job, fact.ticket, fact.owner, fact.spec, fact.at, owner_key=fact.owner_key)
            self.jobs[fact.job] = entry
            self.tickets[fact.ticket] = fact.job
            return
        job = self.jobs[fact.job]
        match fact:
            case Placed(attempt=attempt, slave=slave, boot=boot, slots=slots):
                job.state, job.attempt, job.slave, job.boot, job.slots = RUNNING, attempt, slave, boot, dict(slots)
                job.begun, job.why, job.last_slave = False, "", slave
                self.served[job.owner] = fact.at
                job.started = fact.at if job.started is None else job.started
            case Begun():
                job.begun = True
            case WorkersPlaced(slots=slots):
                job.slots = dict(slots)
            case Scaled(workers=workers, servers=servers):
                job.workers = job.workers if workers is None else workers
                job.servers = job.servers if servers is None else servers
            case Released(why=why, lost_attempts=lost_attempts):
                job.state, job.slave, job.boot, job.slots, job.begun = QUEUED, "", "", {}, False
                job.why, job.lost_attempts = why, lost_attempts
            case Ended(state=state, why=why, trace=trace, usage=usage):
                job.state, job.why, job.trace, job.usage, job.ended = state, why, trace, usage, fact.at
                job.slots = {}
            case Requeued():
                job.state, job.why, job.trace, job.usage, job.ended = QUEUED, "", "", False, None
                job.lost_attempts, job.slave, job.boot, job.begun = 0, "", "", False
            case Forgotten():
                del self.jobs[fact.job]
                self.tickets.pop(job.ticket, None)

    def of_state(self, *states: str) -> list[JobEntry]:
        return [job for job in self.jobs.values() if job.state in states]


class JobTableSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """The table in one record: a compacted journal begins with it."""

    count: int
    jobs: tuple[JobEntry, ...]
    served: dict[str, float]


def snapshot(table: JobTable) -> JobTableSnapshot:
    return JobTableSnapshot(table.count, tuple(table.jobs.values()), table.served)


def restore(found: JobTableSnapshot) -> JobTable:
    jobs = {job.id: job for job in found.jobs}
    return JobTable(jobs, {job.ticket: job.id for job in found.jobs}, found.count, dict(found.served))
