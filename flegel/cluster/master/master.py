"""The master as a state machine: heartbeats and requests go in; facts, orders and answers come out. Pure.

Facts must be on the disk before the orders and answers of the same event are sent; the daemon around this machine sees
to it. What slaves run is never remembered across a restart: their heartbeats tell it again.
"""

from __future__ import annotations

from collections.abc import Container

from flegel.cluster.master.actions import Action, Caller, ReplyTo
from flegel.cluster.master.client_requests import ClientRequests
from flegel.cluster.master.facts import FAILED, RUNNING, JobEntry, JobTable
from flegel.cluster.master.job_lifecycle import JobLifecycle
from flegel.cluster.master.state import KnownSlave, MasterState
from flegel.cluster.master.worker_staffing import WorkerStaffing
from flegel.cluster.transport.protocol import (
    COORDINATOR,
    Denied,
    EndProcesses,
    ForgetProcesses,
    FromClient,
    JobView,
    ProcessStatus,
    SlaveBeat,
    SlaveView,
)
from flegel.configuration.active import active
from flegel.core.own_pauses import OwnPauses
from flegel.errors import UsageError


class Master:
    """Each event returns actions, in order."""

    def __init__(self, table: JobTable, now: float, epoch: float) -> None:
        """`epoch`: seconds since 1970 minus `now`."""
        self._state = MasterState(table, now, epoch)
        self._staffing = WorkerStaffing(self._state)
        self._lifecycle = JobLifecycle(self._state, self._staffing)
        self._requests = ClientRequests(self._state, self._lifecycle)
        self._pauses = OwnPauses(active().cluster.master_pause_seconds)

    # -- events ----------------------------------------------------------------------------------------------------

    def tick(self, now: float, unreachable: Container[str] = ()) -> list[Action]:
        """At least once a second. `unreachable`: those of the `silent` slaves whose connection is closed."""
        self._state.now = now
        self._state.renew_leases(self._pauses.look(now))
        for slave in list(self.slaves.values()):
            frozen = slave.present and slave.name not in unreachable
            if now - slave.last_beat > (
                active().cluster.frozen_slave_seconds if frozen else active().cluster.slave_silence_seconds
            ):
                self._lose_slave(slave)
        self._lifecycle.schedule()
        return self._state.take_actions()

    def beat_received(self, beat: SlaveBeat, now: float) -> list[Action]:
        """A slave's heartbeat: all that it runs, compared with all that it should run."""
        self._state.now, name = now, beat.slave
        before = self.slaves.get(name)
        if before is not None and before.present and before.beat.boot != beat.boot:
            self._lose_slave(before)
        slave = KnownSlave(name, beat, now, ordered=before.ordered if before is not None else {})
        self.slaves[name] = slave
        for process in beat.processes:
            slave.ordered.pop((process.job, process.attempt, process.worker, process.incarnation), None)
            self._process_reported(slave, process)
        for status in beat.coordinators:
            job = self._state.running(status.job, status.attempt)
            if job is not None and job.slave == name:
                self._lifecycle.coordinator_reported(job, status)
        for job in self.table.of_state(RUNNING):
            if job.slave == name:
                self._lifecycle.check_coordinator(job, slave)
            if job.slave == name or name in job.slots:
                self._staffing.reconcile(job)
            if beat.draining:
                self._staffing.slave_drains(job, slave)
        self._lifecycle.schedule()
        return self._state.take_actions()

    def request_received(self, caller: Caller, request: FromClient, now: float) -> list[Action]:
        """A client's request; exactly one of the actions is a `ReplyTo`."""
        self._state.now = now
        try:
            answer = self._requests.answer(caller, request)
        except UsageError as error:
            answer = Denied(str(error))
        self._state.add(ReplyTo(answer))
        self._lifecycle.schedule()
        return self._state.take_actions()

    def slave_left(self, name: str, now: float) -> list[Action]:
        """A slave says that it stops: whatever it had has ended."""
        self._state.now = now
        if name in self.slaves:
            self._lose_slave(self.slaves[name])
        self._lifecycle.schedule()
        return self._state.take_actions()

    def cannot_launch(self, name: str, attempt: int, why: str, now: float) -> list[Action]:
        """The order to start this attempt cannot be sent, and never will be."""
        self._state.now = now
        job = self._state.running(name, attempt)
        if job is not None:
            self._lifecycle.end(job, FAILED, why)
        return self._state.take_actions()

    def after_failure(self) -> list[Action]:
        """What an event that raised half-way had decided; its answer, if there was one, is void."""
        return [action for action in self._state.take_actions() if not isinstance(action, ReplyTo)]

    # -- questions -------------------------------------------------------------------------------------------------

    @property
    def table(self) -> JobTable:
        return self._state.table

    @property
    def slaves(self) -> dict[str, KnownSlave]:
        return self._state.slaves

    def silent(self, now: float) -> list[str]:
        """Slaves that should have sent something by now."""
        return [slave.name for slave in self.slaves.values() if slave.present and slave.silent(now)]

    def find(self, name: str) -> JobEntry:
        """Raises `UsageError` where there is no such job."""
        return self._requests.find(name)

    def view(self, job: JobEntry) -> JobView:
        return self._requests.view(job)

    def overview(self) -> tuple[list[JobView], list[SlaveView]]:
        """All jobs and slaves as clients see them."""
        return [self.view(job) for job in self.table.jobs.values()], self._requests.slave_views()

    def accepts_file(self, name: str, attempt: int, slave: str, file: str) -> bool:
        """Whether files of this attempt are taken from that slave; its result only from the coordinator's slave."""
        job = self.table.jobs.get(name)
        return job is not None and job.attempt == attempt and (not file or job.last_slave == slave)

    # -- slaves ----------------------------------------------------------------------------------------------------

    def _process_reported(self, slave: KnownSlave, process: ProcessStatus) -> None:
        """A slave reports a process: one of an attempt that is over is ended or forgotten; the end of a coordinator
        ends or repeats the attempt; the end of a worker is left to staffing."""
        name = (process.job, process.attempt, process.worker, process.incarnation)
        job = self._state.running(process.job, process.attempt)
        if job is None or (process.worker == COORDINATOR and job.slave != slave.name):
            order = EndProcesses(process.job, process.attempt) if process.alive else ForgetProcesses((name,))
            self._state.send(slave.name, order)
        elif process.worker == COORDINATOR and not process.alive:
            self._lifecycle.coordinator_ended(job, process)
            self._state.send(slave.name, ForgetProcesses((name,)))
        elif not process.alive:
            self._staffing.worker_ended(slave, job, process)

    def _lose_slave(self, slave: KnownSlave) -> None:
        """A slave is gone: its processes count as ended, or are told to end when it comes back."""
        del self.slaves[slave.name]
        why = f"slave {slave.name} is lost"
        for job in self.table.of_state(RUNNING):
            if job.slave == slave.name:  # the coordinator's host: the attempt cannot go on
                # Not the job's fault: more lost attempts are allowed than retries.
                self._lifecycle.attempt_lost(job, why, fault=False)
            elif slave.name in job.slots:  # some of its workers only
                self._staffing.slave_lost(job, slave, why)
