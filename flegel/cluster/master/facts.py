"""What has happened to jobs: the facts in the journal, and the books that they add up to. Pure.

The books are a fold over the facts and nothing else, so a master that reads its journal again knows what it knew.
A job's life:

    queued ──Placed──▶ running ──Ended──▶ done | failed | cancelled
       ▲                  │                        │
       └─────Released─────┘◀───────Requeued────────┘ (failed and cancelled only)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from flegel.cluster.transport.protocol import ClusterJob

QUEUED, RUNNING, DONE, FAILED, CANCELLED = "queued", "running", "done", "failed", "cancelled"
OVER = (DONE, FAILED, CANCELLED)


class _Fact(msgspec.Struct, forbid_unknown_fields=True, tag=True):
    """`at` is in seconds since 1970, so that it means something after a restart."""

    job: str
    at: float


class Submitted(_Fact):
    ticket: str
    owner: str
    spec: ClusterJob


class Placed(_Fact):
    """The coordinator goes to `slave`, workers to `seats` (slave → how many)."""

    attempt: int
    slave: str
    boot: str
    seats: dict[str, int]


class Begun(_Fact):
    """The coordinator is up."""

    attempt: int


class WorkersPlaced(_Fact):
    """The seats have changed: a slave was lost, or the job was scaled."""

    attempt: int
    seats: dict[str, int]


class Scaled(_Fact):
    workers: int


class Released(_Fact):
    """The attempt is lost, and there will be another."""

    attempt: int
    why: str
    strikes: int
    """Attempts that were lost one after the other without a checkpoint in between."""


class Ended(_Fact):
    attempt: int
    state: str
    why: str
    trace: str = ""
    usage: bool = False


class Requeued(_Fact):
    """Its owner wants a job that is over to go on."""


class Forgotten(_Fact):
    """An old job whose story nobody needs any more."""


Fact = Submitted | Placed | Begun | WorkersPlaced | Scaled | Released | Ended | Requeued | Forgotten


@dataclass
class JobEntry:
    """A job in the books."""

    id: str
    ticket: str
    owner: str
    spec: ClusterJob
    submitted: float
    state: str = QUEUED
    attempt: int = 0
    slave: str = ""
    boot: str = ""
    seats: dict[str, int] = field(default_factory=dict)
    begun: bool = False
    strikes: int = 0
    started: float | None = None
    ended: float | None = None
    why: str = ""
    trace: str = ""
    usage: bool = False
    home: str = ""
    """The slave of the last attempt, where its checkpoints lie."""
    workers: int | None = None
    """How many it should have now; None until somebody says so."""

    @property
    def wanted(self) -> int | None:
        return self.workers if self.workers is not None else self.spec.workers


@dataclass
class Books:
    """All jobs, by name and by ticket."""

    jobs: dict[str, JobEntry] = field(default_factory=dict)
    tickets: dict[str, str] = field(default_factory=dict)
    count: int = 0
    """Jobs that were ever submitted: no number is used twice."""
    served: dict[str, float] = field(default_factory=dict)
    """When each user last got a place."""

    def apply(self, fact: Fact) -> None:
        if isinstance(fact, Submitted):
            self.count += 1
            self.jobs[fact.job] = JobEntry(fact.job, fact.ticket, fact.owner, fact.spec, fact.at)
            self.tickets[fact.ticket] = fact.job
            return
        job = self.jobs[fact.job]
        match fact:
            case Placed(attempt=attempt, slave=slave, boot=boot, seats=seats):
                job.state, job.attempt, job.slave, job.boot, job.seats = RUNNING, attempt, slave, boot, dict(seats)
                job.begun, job.why, job.home = False, "", slave
                self.served[job.owner] = fact.at
                job.started = fact.at if job.started is None else job.started
            case Begun():
                job.begun = True
            case WorkersPlaced(seats=seats):
                job.seats = dict(seats)
            case Scaled(workers=workers):
                job.workers = workers
            case Released(why=why, strikes=strikes):
                job.state, job.slave, job.boot, job.seats, job.begun = QUEUED, "", "", {}, False
                job.why, job.strikes = why, strikes
            case Ended(state=state, why=why, trace=trace, usage=usage):
                job.state, job.why, job.trace, job.usage, job.ended = state, why, trace, usage, fact.at
                job.seats = {}
            case Requeued():
                job.state, job.why, job.trace, job.usage, job.ended = QUEUED, "", "", False, None
                job.strikes, job.slave, job.boot, job.begun = 0, "", "", False
            case Forgotten():
                del self.jobs[fact.job]
                self.tickets.pop(job.ticket, None)

    def of_state(self, *states: str) -> list[JobEntry]:
        return [job for job in self.jobs.values() if job.state in states]


class BooksSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """The books in one record: what a compacted journal begins with."""

    count: int
    jobs: tuple[JobEntry, ...]
    served: dict[str, float]


def snapshot(books: Books) -> BooksSnapshot:
    return BooksSnapshot(books.count, tuple(books.jobs.values()), books.served)


def restore(found: BooksSnapshot) -> Books:
    jobs = {job.id: job for job in found.jobs}
    return Books(jobs, {job.ticket: job.id for job in found.jobs}, found.count, dict(found.served))
