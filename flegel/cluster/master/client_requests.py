"""Requests of clients: submit, cancel, suspend, resume, scale, list. Checks each, answers with a sentence. Pure."""

from __future__ import annotations

from flegel.cluster.master.actions import Caller
from flegel.cluster.master.facts import (
    CANCELLED,
    FAILED,
    OVER,
    QUEUED,
    RUNNING,
    JobEntry,
    Requeued,
    Scaled,
    Submitted,
    WorkersPlaced,
)
from flegel.cluster.master.job_lifecycle import JobLifecycle
from flegel.cluster.master.message_budget import size
from flegel.cluster.master.placement import allocate
from flegel.cluster.master.state import KnownSlave, MasterState
from flegel.cluster.master.views import job_view, servers_of, short_name, slave_view
from flegel.cluster.transport.protocol import (
    MAX_JOB_SPEC_BYTES,
    Accepted,
    CancelJob,
    FromClient,
    JobList,
    JobView,
    ListSlaves,
    ResizeJob,
    ResumeJob,
    ScaleJob,
    ShowJobs,
    SlaveList,
    SlaveView,
    StopAtBarrier,
    SubmitJob,
    SuspendJob,
    ToClient,
    check_name,
)
from flegel.errors import UsageError, nearest
from flegel.job import check_server_change

MAX_WAITING_JOBS_PER_USER = 500
"""That may wait at a time: the journal and each round of placing hold all of them."""


class ClientRequests:
    """Answers one request at a time; raises `UsageError` where it is wrong."""

    def __init__(self, state: MasterState, lifecycle: JobLifecycle) -> None:
        self._state, self._lifecycle = state, lifecycle

    def answer(self, caller: Caller, request: FromClient) -> ToClient:
        """The answer to one request; what it changes is recorded in the state."""
        jobs = self._state.table.jobs
        match request:
            case SubmitJob():
                return self._submit(caller, request)
            case CancelJob(job=name):
                return self._cancel(self._own(caller, name))
            case ScaleJob(job=name, workers=workers, servers=servers):
                return self._scale(self._own(caller, name), workers, servers)
            case SuspendJob(job=name):
                return self._suspend(self._own(caller, name))
            case ResumeJob(job=name):
                return self._resume(self._own(caller, name))
            case ShowJobs(job=name):
                return JobList((self.view(self.find(name)),) if name else tuple(map(self.view, jobs.values())))
            case ListSlaves():
                return SlaveList(tuple(self.slave_views()))
        raise UsageError("The master cannot answer that.")

    def find(self, name: str) -> JobEntry:
        job = self._state.table.jobs.get(name)
        if job is None:
            known = list(self._state.table.jobs)[-20:]
            raise UsageError(f"There is no job {name!r}{nearest(name, known) if known else '; none was submitted yet'}")
        return job

    def _own(self, caller: Caller, name: str) -> JobEntry:
        job = self.find(name)
        if not job.belongs_to(caller.name, caller.key) and not caller.admin:
            key = f" (key {job.owner_key[:8]}…)" if job.owner_key else ""
            raise UsageError(f"Job {name} belongs to {job.owner}{key}, not to {caller.name}.")
        return job

    def _submit(self, caller: Caller, request: SubmitJob) -> ToClient:
        """Put a job into the queue. A ticket that was seen before names the job of that time: the client repeats a
        request whose answer was lost."""
        table, spec = self._state.table, request.spec
        if not 8 <= len(request.ticket) <= 128:
            raise UsageError("A ticket has 8 to 128 characters.")
        if request.ticket in table.tickets:
            return Accepted(table.tickets[request.ticket], "was submitted before")
        if size(spec) > MAX_JOB_SPEC_BYTES:
            raise UsageError(
                f"The description of the job takes {size(spec)} bytes, more than {MAX_JOB_SPEC_BYTES}; let large "
                "hyper-parameters be read from a file or made by the class itself."
            )
        waiting = self._waiting(caller.name, caller.key)
        if waiting >= MAX_WAITING_JOBS_PER_USER:
            raise UsageError(
                f"{waiting} jobs of {caller.name} are waiting, and no more than {MAX_WAITING_JOBS_PER_USER} may; "
                "submit again when some have begun, or cancel some."
            )
        name = spec.name or f"{short_name(spec.algorithm.name)}-{table.count + 1}"
        check_name(name, "job")
        if name in table.jobs:
            if spec.name:
                raise UsageError(f"There is a job {name} already; choose another --name.")
            name = f"{name}-{request.ticket[:6]}"
        if spec.workers is not None and not 1 <= spec.workers <= 1024:
            raise UsageError(f"--workers {spec.workers} must be 1 to 1024.")
        if not -1000 <= spec.priority <= 1000:
            raise UsageError(f"--priority {spec.priority} must be -1000 to 1000.")
        if not 0 <= spec.retries <= 100:
            raise UsageError(f"--retries {spec.retries} must be 0 to 100.")
        self._state.record(Submitted(name, self._state.at, request.ticket, caller.name, spec, caller.key))
        return Accepted(name)

    def _waiting(self, owner: str, key: str) -> int:
        return sum(job.belongs_to(owner, key) for job in self._state.table.of_state(QUEUED))

    def _cancel(self, job: JobEntry) -> ToClient:
        if job.state in OVER:
            return Accepted(job.id, f"is {job.state} already")
        self._lifecycle.end(job, CANCELLED, "cancelled by its owner")
        return Accepted(job.id, "is cancelled")

    def _suspend(self, job: JobEntry) -> ToClient:
        """Stop a job at its next barrier. One that does not train yet has no checkpoint: it is cancelled, and starts
        from the beginning when it is resumed. Its coordinator says that it is `elastic`, so that workers may join and
        leave, from when training begins until it ends."""
        status = self._state.coordinators.get(job.id)
        if job.state != RUNNING or status is None or not status.elastic:
            return self._cancel(job)
        self._state.send(job.slave, StopAtBarrier(job.id, job.attempt))
        return Accepted(job.id, "stops at its next barrier, with a checkpoint")

    def _resume(self, job: JobEntry) -> ToClient:
        """Put a job that failed or was cancelled into the queue again, unless its owner has too many waiting."""
        if job.state not in (FAILED, CANCELLED):
            raise UsageError(f"Job {job.id} is {job.state}; only one that failed or was cancelled can be resumed.")
        waiting = self._waiting(job.owner, job.owner_key)
        if waiting >= MAX_WAITING_JOBS_PER_USER:
            raise UsageError(f"{waiting} jobs of {job.owner} are waiting already; resume it when some have begun.")
        self._state.record(Requeued(job.id, self._state.at))
        return Accepted(job.id, "is in the queue again; it continues from its last checkpoint if it has one")

    def _scale(self, job: JobEntry, workers: int | None, servers: int | None) -> ToClient:
        """Change the number of workers, or of parameter servers: of a waiting job when it starts, of a training one
        now, as far as slots are free.

        A running job that becomes smaller keeps its slots until its processes have left.
        """
        state = self._state
        if workers is None and servers is None:
            raise UsageError("Give a number of workers, --servers N, or both.")
        if workers is not None and not 1 <= workers <= 1024:
            raise UsageError(f"A job has 1 to 1024 workers, not {workers}.")
        if job.state in OVER:
            raise UsageError(f"Job {job.id} is {job.state}.")
        status = state.coordinators.get(job.id)
        if servers is not None:
            seen = status.snapshot.get("servers") if status is not None else None
            check_server_change(job.spec.servers, servers, seen.get("most", 0) if seen else 0)
        if job.state == QUEUED:
            state.record(Scaled(job.id, state.at, workers, servers))
            return Accepted(job.id, f"will start with {_counted(workers, servers)}")
        if status is None or not status.elastic:
            raise UsageError(f"Job {job.id} is {status.phase if status else 'starting'}; try again when it trains.")
        have = job.places
        have_servers = servers_of(job, status)
        have_workers = have - have_servers
        need = (have_workers if workers is None else workers) + (have_servers if servers is None else servers)
        slots = allocate(max(need, have), state.capacities(), job.slots, job.size)
        if slots is None:
            free = sum(capacity.free for capacity in state.capacities())
            raise UsageError(f"That takes {job.size.in_words(need - have)} more, and {free} slots are free.")
        state.record(Scaled(job.id, state.at, workers, servers))
        if need > have:
            state.record(WorkersPlaced(job.id, state.at, job.attempt, slots))
        state.send(job.slave, ResizeJob(job.id, job.attempt, workers, servers))
        changes = [
            f"from {before} to {after} {what}"
            for before, after, what in ((have_workers, workers, "workers"), (have_servers, servers, "servers"))
            if after is not None
        ]
        return Accepted(job.id, f"goes {' and '.join(changes)}")

    def view(self, job: JobEntry) -> JobView:
        return job_view(job, self._state.coordinators.get(job.id), self._state.reasons.get(job.id, ""))

    def slave_views(self) -> list[SlaveView]:
        return [self._slave_view(slave) for slave in self._state.slaves.values()]

    def _slave_view(self, slave: KnownSlave) -> SlaveView:
        used = sum(job.slots.get(slave.name, 0) for job in self._state.table.of_state(RUNNING))
        silent = slave.present and slave.silent(self._state.now)
        return slave_view(slave.beat, slave.present, silent, used + self._state.slots_of_ending_workers(slave))


def _counted(workers: int | None, servers: int | None) -> str:
    """For people."""
    found = [f"{count} {what}" for count, what in ((workers, "workers"), (servers, "servers")) if count is not None]
    return " and ".join(found)
