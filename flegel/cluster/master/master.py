"""The master as a state machine: what slaves and clients say goes in, facts, orders and answers come out. Pure.

Facts must be on the disk before the orders and answers of the same event are sent; the shell around this machine sees
to it. What slaves run is never remembered across a restart: their beats tell it again. Every decision is made by
comparing what should be with what a beat says, so lost, repeated and late messages are all the same to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from flegel.cluster.master.facts import (
    CANCELLED,
    DONE,
    FAILED,
    OVER,
    QUEUED,
    RUNNING,
    Begun,
    Books,
    Ended,
    Fact,
    Forgotten,
    JobEntry,
    Placed,
    Released,
    Requeued,
    Scaled,
    Submitted,
    WorkersPlaced,
)
from flegel.cluster.master.message_budget import size
from flegel.cluster.master.placement import SlaveCapacity, overtaken, place, seat, turns
from flegel.cluster.master.views import job_view, slave_view, stem
from flegel.cluster.transport.protocol import (
    COORDINATOR,
    MAX_SPEC,
    Accepted,
    CancelJob,
    CoordinatorStatus,
    Denied,
    DrainWorkers,
    EndProcesses,
    ForgetProcesses,
    FromClient,
    JobList,
    JobView,
    LaunchCoordinator,
    LaunchWorker,
    ListSlaves,
    ProcessStatus,
    ResizeJob,
    ResumeJob,
    ScaleJob,
    ShowJobs,
    SlaveBeat,
    SlaveList,
    SlaveView,
    SubmitJob,
    ToClient,
    ToSlave,
    WorkerEnded,
    check_name,
)
from flegel.errors import UsageError, nearest

LOST_AFTER = 6.0
"""Seconds without a beat after which a slave, and all that it ran, is lost."""
RETURN_WITHIN = 30.0
"""Seconds that slaves with running jobs have to come back after the master was started again."""
ORDER_AGAIN = 3.0
"""Seconds after which an order without a visible effect is given again."""
STRIKES = 3
"""Attempts without a checkpoint that a job may lose through no fault of its own."""
KEEP = 1000
"""Jobs that are over and still listed."""
MAX_WAITING = 500
"""Jobs of one user that may wait at a time."""
LOOK_AT = 200
"""Waiting jobs that are looked at in one round of placing."""


@dataclass(frozen=True)
class RecordFact:
    fact: Fact


@dataclass(frozen=True)
class SendTo:
    slave: str
    order: ToSlave


@dataclass(frozen=True)
class ReplyTo:
    answer: ToClient


@dataclass(frozen=True)
class RemoveFiles:
    """The files of this job are needed no more."""

    job: str


Action = RecordFact | SendTo | ReplyTo | RemoveFiles


@dataclass(frozen=True)
class Caller:
    """Who asks: the name bound to the key; an administrator may change everybody's jobs."""

    name: str
    admin: bool = False


@dataclass
class KnownSlave:
    """What is known of a slave, from its last beat."""

    name: str
    beat: SlaveBeat
    heard: float
    present: bool = True
    """False for one that is only expected: it ran something before the master was started again."""
    hired: dict[tuple[str, int, int, int], float] = field(default_factory=dict)
    """Workers that were ordered and not seen yet, and when."""

    @property
    def open(self) -> bool:
        return self.present and not self.beat.draining

    def parts(self, job: JobEntry) -> Iterator[ProcessStatus]:
        return (p for p in self.beat.parts if p.job == job.id and p.attempt == job.attempt)


class Master:
    """`handle…` methods return actions, in order."""

    def __init__(self, books: Books, now: float, epoch: float) -> None:
        """`epoch`: seconds since 1970 minus `now`."""
        self.books = books
        self.slaves: dict[str, KnownSlave] = {}
        self.doors: dict[str, CoordinatorStatus] = {}
        self.reasons: dict[str, str] = {}
        self._epoch, self._now = epoch, now
        self._out: list[Action] = []
        self._losses: dict[tuple[str, int, int, int], tuple[str, bool]] = {}
        self._leaving: set[tuple[str, int, int, int]] = set()
        self._started: dict[str, float] = {}
        for job in books.of_state(RUNNING):
            for name in {job.slave, *job.seats}:
                expected = SlaveBeat(name, job.boot if name == job.slave else "", 0, "")
                self.slaves[name] = KnownSlave(name, expected, now + RETURN_WITHIN - LOST_AFTER, present=False)

    # -- events ------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Action]:
        """Now and then, at least once a second."""
        self._now = now
        for slave in list(self.slaves.values()):
            if now - slave.heard > LOST_AFTER:
                self._lose_slave(slave)
        self._schedule()
        return self._taken()

    def heard(self, beat: SlaveBeat, now: float) -> list[Action]:
        """A slave's beat."""
        self._now, name = now, beat.slave
        before = self.slaves.get(name)
        if before is not None and before.present and before.beat.boot != beat.boot:
            self._lose_slave(before)
        slave = KnownSlave(name, beat, now, hired=before.hired if before is not None else {})
        self.slaves[name] = slave
        for part in beat.parts:
            slave.hired.pop((part.job, part.attempt, part.worker, part.life), None)
            self._compare(slave, part)
        for door in beat.doors:
            job = self._current(door.job, door.attempt)
            if job is not None and job.slave == name:
                self._hear_door(job, door)
        for job in self.books.of_state(RUNNING):
            if job.slave == name:
                self._check_coordinator(job, slave)
            if job.slave == name or name in job.seats:
                self._staff(job)
            if beat.draining:
                self._see_off(job, slave)
        self._schedule()
        return self._taken()

    def asked(self, caller: Caller, request: FromClient, now: float) -> list[Action]:
        """A client's request; exactly one of the actions is a `Reply`."""
        self._now = now
        try:
            answer = self._answer(caller, request)
        except UsageError as error:
            answer = Denied(str(error))
        self._out.append(ReplyTo(answer))
        self._schedule()
        return self._taken()

    def left(self, name: str, now: float) -> list[Action]:
        """A slave says good-bye: whatever it had has ended."""
        self._now = now
        if name in self.slaves:
            self._lose_slave(self.slaves[name])
        self._schedule()
        return self._taken()

    def unstartable(self, name: str, attempt: int, why: str, now: float) -> list[Action]:
        """The order to start this attempt cannot be given, and never will be."""
        self._now = now
        job = self._current(name, attempt)
        if job is not None:
            self._end(job, FAILED, why)
        return self._taken()

    def salvage(self) -> list[Action]:
        """What an event that failed half-way had decided; its answer, if there was one, is void."""
        return [action for action in self._taken() if not isinstance(action, ReplyTo)]

    def _taken(self) -> list[Action]:
        out, self._out = self._out, []
        return out

    def _record(self, fact: Fact) -> None:
        self.books.apply(fact)
        self._out.append(RecordFact(fact))

    def _tell(self, slave: str, order: ToSlave) -> None:
        if slave in self.slaves and self.slaves[slave].present:
            self._out.append(SendTo(slave, order))

    @property
    def _at(self) -> float:
        return self._epoch + self._now

    def _current(self, name: str, attempt: int) -> JobEntry | None:
        job = self.books.jobs.get(name)
        return job if job is not None and job.state == RUNNING and job.attempt == attempt else None

    def knows(self, name: str, attempt: int, slave: str, file: str) -> bool:
        """Is there a reason to take files of this attempt from that slave? Its result has the coordinator's alone."""
        job = self.books.jobs.get(name)
        return job is not None and job.attempt == attempt and (not file or job.home == slave)

    # -- what a beat says, against what should be ----------------------------------------------------------------

    def _compare(self, slave: KnownSlave, part: ProcessStatus) -> None:
        name = (part.job, part.attempt, part.worker, part.life)
        job = self._current(part.job, part.attempt)
        if job is None or (part.worker == COORDINATOR and job.slave != slave.name):
            order = EndProcesses(part.job, part.attempt) if part.alive else ForgetProcesses((name,))
            self._tell(slave.name, order)
        elif part.worker == COORDINATOR and not part.alive:
            self._coordinator_over(job, part)
            self._tell(slave.name, ForgetProcesses((name,)))
        elif part.worker != COORDINATOR and not part.alive:
            door = self.doors.get(job.id)
            if door is None or door.attempt != job.attempt:
                return  # nobody to tell yet
            if door.wants.get(part.worker) == part.life:
                self._losses[name] = (part.why, part.fault)
                self._tell(job.slave, WorkerEnded(*name, part.why, part.fault))
            else:
                self._tell(slave.name, ForgetProcesses((name,)))

    def _hear_door(self, job: JobEntry, door: CoordinatorStatus) -> None:
        self.doors[job.id] = door
        if door.wants and not job.begun:
            self._record(Begun(job.id, self._at, job.attempt))
        for name, how in list(self._losses.items()):
            if name[:2] == (job.id, job.attempt):
                if door.wants.get(name[2]) == name[3]:
                    self._tell(job.slave, WorkerEnded(*name, *how))
                else:
                    del self._losses[name]

    def _check_coordinator(self, job: JobEntry, slave: KnownSlave) -> None:
        if job.boot != slave.beat.boot:
            self._attempt_lost(job, f"slave {slave.name} was started again", fault=False)
            return
        here = any(p.worker == COORDINATOR for p in slave.parts(job))
        if not here and self._now - self._started.get(job.id, -ORDER_AGAIN) >= ORDER_AGAIN:
            self._start(job)

    def _start(self, job: JobEntry) -> None:
        self._started[job.id] = self._now
        workers = sum(job.seats.values())
        self._tell(job.slave, LaunchCoordinator(job.id, job.attempt, job.spec, workers, resume=job.attempt > 1))

    def _staff(self, job: JobEntry) -> None:
        """Every worker that the coordinator wants runs on one of the job's seats; nobody else does."""
        door = self.doors.get(job.id)
        if job.state != RUNNING or door is None or door.attempt != job.attempt:
            return
        homes = [self.slaves.get(name) for name in job.seats]
        if any(home is None or not home.present for home in homes):
            return  # they may run what is missing; a beat or their loss will tell
        self._refill(job, len(door.wants))
        taken = dict.fromkeys(job.seats, 0)
        seen: dict[tuple[int, int], str] = {}
        for home in self.slaves.values():
            for part in home.parts(job):
                if part.worker == COORDINATOR:
                    continue
                seen[part.worker, part.life] = home.name
                if part.alive and door.wants.get(part.worker) == part.life:
                    taken[home.name] = taken.get(home.name, 0) + 1
                elif part.alive:
                    self._tell(home.name, EndProcesses(job.id, job.attempt, part.worker, part.life))
            for name, at in list(home.hired.items()):
                if name[:2] == (job.id, job.attempt) and name[2:] not in seen:
                    taken[home.name] = taken.get(home.name, 0) + 1
                    if door.wants.get(name[2]) != name[3]:
                        del home.hired[name]
                    elif self._now - at >= ORDER_AGAIN:
                        self._hire(job, door, home, name[2], name[3])
                    seen[name[2:]] = home.name
        for worker, life in door.wants.items():
            if (worker, life) in seen or (job.id, job.attempt, worker, life) in self._losses:
                continue
            if worker not in door.births:
                continue  # there were many at once; a later beat brings it
            free = [s for s in job.seats if taken[s] < job.seats[s] and self.slaves[s].open]
            if not free:
                return
            chosen = min(free, key=lambda s: (taken[s] - job.seats[s], s))
            taken[chosen] += 1
            self._hire(job, door, self.slaves[chosen], worker, life)
        self._vacate(job, door, taken)

    def _vacate(self, job: JobEntry, door: CoordinatorStatus, taken: dict[str, int]) -> None:
        """Give back seats that the job has left: on slaves that go away, or because it was made smaller."""
        seats = {s: count if self.slaves[s].open else taken[s] for s, count in job.seats.items()}
        spare = sum(seats.values()) - max(len(door.wants), job.workers or sum(seats.values()))
        for name in sorted(seats, key=lambda s: taken[s] - seats[s]):
            given = min(spare, seats[name] - taken[name])
            if given > 0:
                seats[name] -= given
                spare -= given
        seats = {name: count for name, count in seats.items() if count}
        if seats != job.seats and seats:
            self._record(WorkersPlaced(job.id, self._at, job.attempt, seats))

    def _see_off(self, job: JobEntry, slave: KnownSlave) -> None:
        """A slave drains: its workers are to give their points to the others first."""
        door = self.doors.get(job.id)
        if door is None or not door.elastic or len(door.wants) < 2:
            return
        names = {
            (p.job, p.attempt, p.worker, p.life)
            for p in slave.parts(job)
            if p.alive and p.worker != COORDINATOR and door.wants.get(p.worker) == p.life
        }
        new = sorted(names - self._leaving)
        if new and len(names) < len(door.wants):
            self._leaving |= names
            self._tell(job.slave, DrainWorkers(job.id, job.attempt, tuple(name[2] for name in new)))

    def _refill(self, job: JobEntry, wanted: int) -> None:
        """Seats that were lost with a slave, or never found, as far as there is room now."""
        have, rooms = sum(job.seats.values()), self.rooms()
        possible = min(wanted, have + sum(room.free for room in rooms))
        if possible > have:
            seats = seat(possible, rooms, job.seats)
            assert seats is not None
            self._record(WorkersPlaced(job.id, self._at, job.attempt, seats))

    def _hire(self, job: JobEntry, door: CoordinatorStatus, home: KnownSlave, worker: int, life: int) -> None:
        home.hired[job.id, job.attempt, worker, life] = self._now
        if worker in door.births:
            birth = door.births[worker]
            self._tell(
                home.name, LaunchWorker(job.id, job.attempt, worker, life, birth, job.spec.memory, job.spec.data)
            )

    # -- ends ----------------------------------------------------------------------------------------------------

    def _coordinator_over(self, job: JobEntry, part: ProcessStatus) -> None:
        if part.outcome == "done":
            self._end(job, DONE, part.why)
        elif part.outcome == "failed":
            self._end(job, FAILED, part.why, part.trace, part.usage)
        else:
            self._attempt_lost(job, part.why, part.fault)

    def _attempt_lost(self, job: JobEntry, why: str, fault: bool) -> None:
        """Once more, unless the job itself is to blame or it was lost too often without getting on."""
        door = self.doors.get(job.id)
        saved = door is not None and door.attempt == job.attempt and door.saved > 0
        strikes = 1 if saved else job.strikes + 1
        allowed = job.spec.retries if fault else max(STRIKES, job.spec.retries)
        if strikes > allowed:
            often = f" ({job.attempt} attempts)" if job.attempt > 1 else ""
            self._end(job, FAILED, f"{why}{often}")
            return
        self._dismiss(job)
        self._record(Released(job.id, self._at, job.attempt, why, strikes))
        self._forget_attempt(job)

    def _end(self, job: JobEntry, state: str, why: str, trace: str = "", usage: bool = False) -> None:
        self._dismiss(job)
        self._record(Ended(job.id, self._at, job.attempt, state, why, trace, usage))
        self._forget_attempt(job)
        over = self.books.of_state(*OVER)
        for old in sorted(over, key=lambda j: j.ended or 0.0)[: max(len(over) - KEEP, 0)]:
            self._record(Forgotten(old.id, self._at))
            self._out.append(RemoveFiles(old.id))

    def _dismiss(self, job: JobEntry) -> None:
        if job.state == RUNNING:
            for slave in self.slaves.values():
                if slave.name == job.slave or slave.name in job.seats or any(slave.parts(job)):
                    self._tell(slave.name, EndProcesses(job.id, job.attempt))

    def _forget_attempt(self, job: JobEntry) -> None:
        self.doors.pop(job.id, None)
        self._started.pop(job.id, None)
        self.reasons.pop(job.id, None)
        self._losses = {name: how for name, how in self._losses.items() if name[0] != job.id}
        self._leaving = {name for name in self._leaving if name[0] != job.id}
        for slave in self.slaves.values():
            slave.hired = {name: at for name, at in slave.hired.items() if name[0] != job.id}

    def _lose_slave(self, slave: KnownSlave) -> None:
        """Its processes have ended, or will be told to when it comes back."""
        del self.slaves[slave.name]
        why = f"slave {slave.name} is lost"
        for job in self.books.of_state(RUNNING):
            if job.slave == slave.name:
                self._attempt_lost(job, why, fault=False)
            elif slave.name in job.seats:
                self._lose_seats(job, slave, why)

    def _lose_seats(self, job: JobEntry, slave: KnownSlave, why: str) -> None:
        lost = {(p.worker, p.life) for p in slave.parts(job) if p.alive}
        lost |= {name[2:] for name in slave.hired if name[:2] == (job.id, job.attempt)}
        door = self.doors.get(job.id)
        for worker, life in sorted(lost):
            if door is not None and door.wants.get(worker) == life:
                self._losses[job.id, job.attempt, worker, life] = (f"is lost: {why}", False)
                self._tell(job.slave, WorkerEnded(job.id, job.attempt, worker, life, f"is lost: {why}"))
        left = {name: count for name, count in job.seats.items() if name != slave.name}
        wanted = sum(job.seats.values())
        self._record(WorkersPlaced(job.id, self._at, job.attempt, seat(wanted, self.rooms(), left) or left))

    # -- placing ---------------------------------------------------------------------------------------------------

    def rooms(self) -> list[SlaveCapacity]:
        """Slaves that take new processes, with what is free: neither reserved nor used by what is still ending."""
        reserved: dict[str, int] = {}
        running = self.books.of_state(RUNNING)
        for job in running:
            for name, count in job.seats.items():
                reserved[name] = reserved.get(name, 0) + count
        found = []
        for slave in self.slaves.values():
            if slave.open:
                free = slave.beat.slots - reserved.get(slave.name, 0) - self._strays(slave)
                chiefs = sum(job.slave == slave.name for job in running)
                found.append(SlaveCapacity(slave.name, slave.beat.slots, max(free, 0), slave.beat.load, chiefs))
        return found

    def _strays(self, slave: KnownSlave) -> int:
        """Workers that are still ending."""
        parts = (p for p in slave.beat.parts if p.alive and p.worker != COORDINATOR)
        return sum(self._current(p.job, p.attempt) is None for p in parts)

    def _schedule(self) -> None:
        waiting = self.books.of_state(QUEUED)
        if not waiting:
            return
        running = self.books.of_state(RUNNING)
        rooms = self.rooms()
        for number, job in enumerate(turns(waiting, running, self.books.served)):
            if number >= LOOK_AT:
                break
            found = place(job, rooms, len(waiting) + len(running))
            if found.seats is None:
                self.reasons[job.id] = found.why
                if rooms and not overtaken(job, self._at) and (job.wanted or 1) <= sum(r.slots for r in rooms):
                    break
                continue
            boot = self.slaves[found.slave].beat.boot
            self._record(Placed(job.id, self._at, job.attempt + 1, found.slave, boot, dict(found.seats)))
            self.reasons.pop(job.id, None)
            self._start(job)
            rooms = self.rooms()

    # -- clients -------------------------------------------------------------------------------------------------

    def _answer(self, caller: Caller, request: FromClient) -> ToClient:
        match request:
            case SubmitJob():
                return self._submit(caller, request)
            case CancelJob(job=name):
                return self._cancel(self._own(caller, name))
            case ScaleJob(job=name, workers=workers):
                return self._scale(self._own(caller, name), workers)
            case ResumeJob(job=name):
                return self._resume(self._own(caller, name))
            case ShowJobs(job=name):
                return JobList(
                    (self.view(self.find(name)),) if name else tuple(map(self.view, self.books.jobs.values()))
                )
            case ListSlaves():
                return SlaveList(tuple(self._slave_view(s) for s in self.slaves.values()))
        raise UsageError("The master cannot answer that.")

    def find(self, name: str) -> JobEntry:
        job = self.books.jobs.get(name)
        if job is None:
            known = list(self.books.jobs)[-20:]
            raise UsageError(f"There is no job {name!r}{nearest(name, known) if known else '; none was submitted yet'}")
        return job

    def _own(self, caller: Caller, name: str) -> JobEntry:
        job = self.find(name)
        if job.owner != caller.name and not caller.admin:
            raise UsageError(f"Job {name} belongs to {job.owner}, not to {caller.name}.")
        return job

    def _submit(self, caller: Caller, request: SubmitJob) -> ToClient:
        if not 8 <= len(request.ticket) <= 128:
            raise UsageError("A ticket has 8 to 128 characters.")
        if request.ticket in self.books.tickets:
            return Accepted(self.books.tickets[request.ticket], "was submitted before")
        spec = request.spec
        if size(spec) > MAX_SPEC:
            raise UsageError(
                f"The description of the job takes {size(spec)} bytes, more than {MAX_SPEC}; let large "
                "hyper-parameters be read from a file or made by the class itself."
            )
        waiting = sum(job.owner == caller.name for job in self.books.of_state(QUEUED))
        if waiting >= MAX_WAITING:
            raise UsageError(
                f"{waiting} jobs of {caller.name} are waiting, and no more than {MAX_WAITING} may; submit again when "
                "some have begun, or cancel some."
            )
        name = spec.name or f"{stem(spec.algorithm.name)}-{self.books.count + 1}"
        check_name(name, "job")
        if name in self.books.jobs:
            if spec.name:
                raise UsageError(f"There is a job {name} already; choose another --name.")
            name = f"{name}-{request.ticket[:6]}"
        if spec.workers is not None and not 1 <= spec.workers <= 1024:
            raise UsageError(f"--workers {spec.workers} must be 1 to 1024.")
        if not -1000 <= spec.priority <= 1000:
            raise UsageError(f"--priority {spec.priority} must be -1000 to 1000.")
        if not 0 <= spec.retries <= 100:
            raise UsageError(f"--retries {spec.retries} must be 0 to 100.")
        self._record(Submitted(name, self._at, request.ticket, caller.name, spec))
        return Accepted(name)

    def _cancel(self, job: JobEntry) -> ToClient:
        if job.state in OVER:
            return Accepted(job.id, f"is {job.state} already")
        self._end(job, CANCELLED, "cancelled by its owner")
        return Accepted(job.id, "is cancelled")

    def _resume(self, job: JobEntry) -> ToClient:
        if job.state not in (FAILED, CANCELLED):
            raise UsageError(f"Job {job.id} is {job.state}; only one that failed or was cancelled can be resumed.")
        waiting = sum(other.owner == job.owner for other in self.books.of_state(QUEUED))
        if waiting >= MAX_WAITING:
            raise UsageError(f"{waiting} jobs of {job.owner} are waiting already; resume it when some have begun.")
        self._record(Requeued(job.id, self._at))
        return Accepted(job.id, "is in the queue again; it goes on from its last checkpoint where it has one")

    def _scale(self, job: JobEntry, workers: int) -> ToClient:
        if not 1 <= workers <= 1024:
            raise UsageError(f"A job has 1 to 1024 workers, not {workers}.")
        if job.state in OVER:
            raise UsageError(f"Job {job.id} is {job.state}.")
        if job.state == QUEUED:
            self._record(Scaled(job.id, self._at, workers))
            return Accepted(job.id, f"will start with {workers} workers")
        door = self.doors.get(job.id)
        if door is None or not door.elastic:
            raise UsageError(f"Job {job.id} is {door.phase if door else 'starting'}; try again when it trains.")
        have = sum(job.seats.values())
        seats = seat(max(workers, have), self.rooms(), job.seats)
        if seats is None:
            free = sum(r.free for r in self.rooms())
            raise UsageError(f"{workers - have} more slots are needed, but {free} are free.")
        self._record(Scaled(job.id, self._at, workers))
        if workers > have:
            self._record(WorkersPlaced(job.id, self._at, job.attempt, seats))
        self._tell(job.slave, ResizeJob(job.id, job.attempt, workers))
        return Accepted(job.id, f"goes from {have} to {workers} workers")

    def view(self, job: JobEntry) -> JobView:
        return job_view(job, self.doors.get(job.id), self.reasons.get(job.id, ""))

    def _slave_view(self, slave: KnownSlave) -> SlaveView:
        used = sum(job.seats.get(slave.name, 0) for job in self.books.of_state(RUNNING))
        return slave_view(slave.beat, slave.present, used + self._strays(slave))
