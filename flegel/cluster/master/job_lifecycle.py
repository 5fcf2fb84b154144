"""The life of a job: placed, started, tried again, ended. Decides by the table of jobs and by heartbeats. Pure."""

from __future__ import annotations

from flegel.cluster.master.actions import RemoveFiles
from flegel.cluster.master.facts import (
    CANCELLED,
    DONE,
    FAILED,
    OVER,
    QUEUED,
    RUNNING,
    Begun,
    Ended,
    Forgotten,
    JobEntry,
    Placed,
    Released,
)
from flegel.cluster.master.placement import may_be_overtaken, place, queue_order
from flegel.cluster.master.state import KnownSlave, MasterState
from flegel.cluster.master.worker_staffing import WorkerStaffing
from flegel.cluster.transport.protocol import (
    COORDINATOR,
    CoordinatorStatus,
    EndProcesses,
    LaunchCoordinator,
    ProcessStatus,
)
from flegel.configuration.active import active

MAX_LISTED_ENDED_JOBS = 1000
"""Ended jobs whose results and logs are kept; the oldest are forgotten with their files."""
MAX_JOBS_PER_SCHEDULING = 200
"""Waiting jobs that are considered at each event: placing must stay short beside heartbeats."""


class JobLifecycle:
    """All jobs, from the queue to their end."""

    def __init__(self, state: MasterState, staffing: WorkerStaffing) -> None:
        self._state, self._staffing = state, staffing
        self._launched: dict[str, float] = {}
        """By job: when its coordinator's start was last ordered."""

    # -- placing ---------------------------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Place waiting jobs, in order, as far as slots are free."""
        state = self._state
        waiting = state.table.of_state(QUEUED)
        if not waiting:
            return
        running = state.table.of_state(RUNNING)
        capacities = state.capacities()
        for number, job in enumerate(queue_order(waiting, running, state.table.served)):
            if number >= MAX_JOBS_PER_SCHEDULING:
                break
            found = place(job, capacities, len(waiting) + len(running))
            if found.slots is None:
                state.reasons[job.id] = found.why
                fits = (job.wanted or 1) <= sum(job.size.workers(capacity.slots) for capacity in capacities)
                if capacities and not may_be_overtaken(job, state.at) and fits:
                    break
                continue
            boot = state.slaves[found.slave].beat.boot
            state.record(Placed(job.id, state.at, job.attempt + 1, found.slave, boot, dict(found.slots)))
            state.reasons.pop(job.id, None)
            self._launch(job)
            capacities = state.capacities()

    def _launch(self, job: JobEntry) -> None:
        self._launched[job.id] = self._state.now
        order = LaunchCoordinator(job.id, job.attempt, job.spec_now, job.places, job.attempt > 1, job.team_threads)
        self._state.send(job.slave, order)

    # -- the coordinator -------------------------------------------------------------------------------------------

    def coordinator_reported(self, job: JobEntry, status: CoordinatorStatus) -> None:
        self._state.coordinators[job.id] = status
        if status.wanted and not job.begun:
            self._state.record(Begun(job.id, self._state.at, job.attempt))
        self._staffing.coordinator_reported(job, status)

    def check_coordinator(self, job: JobEntry, slave: KnownSlave) -> None:
        """Check that the slave of a job runs its coordinator; an order that had no effect is given again."""
        if job.boot != slave.beat.boot:
            self.attempt_lost(job, f"slave {slave.name} was restarted", fault=False)
            return
        here = any(p.worker == COORDINATOR for p in slave.processes(job))
        again = active().cluster.repeat_order_seconds
        if not here and self._state.now - self._launched.get(job.id, -again) >= again:
            self._launch(job)

    def coordinator_ended(self, job: JobEntry, process: ProcessStatus) -> None:
        """The coordinator's process of a job has ended: so does the job, or it is tried again where the process was
        lost."""
        if process.outcome == "done":
            self.end(job, DONE, process.why)
        elif process.outcome == "suspended":
            self.end(job, CANCELLED, process.why)
        elif process.outcome == "failed":
            self.end(job, FAILED, process.why, process.trace, process.usage)
        else:
            self.attempt_lost(job, process.why, process.fault)

    # -- ends ------------------------------------------------------------------------------------------------------

    def attempt_lost(self, job: JobEntry, why: str, fault: bool) -> None:
        """Try again, unless the job itself is at fault or has lost too many attempts without a checkpoint."""
        status = self._state.coordinator(job)
        saved = status is not None and status.saved > 0
        lost = 1 if saved else job.lost_attempts + 1
        allowed = job.spec.retries if fault else max(active().cluster.lost_attempts, job.spec.retries)
        if lost > allowed:
            attempts = f" ({job.attempt} attempts)" if job.attempt > 1 else ""
            self.end(job, FAILED, f"{why}{attempts}")
            return
        self._end_processes(job)
        self._state.record(Released(job.id, self._state.at, job.attempt, why, lost))
        self._forget_attempt(job)

    def end(self, job: JobEntry, state: str, why: str, trace: str = "", usage: bool = False) -> None:
        """Record that a job is over, end its processes, and forget the oldest ended jobs beyond
        `MAX_LISTED_ENDED_JOBS`."""
        self._end_processes(job)
        self._state.record(Ended(job.id, self._state.at, job.attempt, state, why, trace, usage))
        self._forget_attempt(job)
        over = self._state.table.of_state(*OVER)
        for old in sorted(over, key=lambda j: j.ended or 0.0)[: max(len(over) - MAX_LISTED_ENDED_JOBS, 0)]:
            self._state.record(Forgotten(old.id, self._state.at))
            self._state.add(RemoveFiles(old.id))

    def _end_processes(self, job: JobEntry) -> None:
        if job.state == RUNNING:
            for slave in self._state.slaves.values():
                if slave.name == job.slave or slave.name in job.slots or any(slave.processes(job)):
                    self._state.send(slave.name, EndProcesses(job.id, job.attempt))

    def _forget_attempt(self, job: JobEntry) -> None:
        self._state.coordinators.pop(job.id, None)
        self._state.reasons.pop(job.id, None)
        self._launched.pop(job.id, None)
        self._staffing.forget(job)
