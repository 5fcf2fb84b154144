"""Starts, watches and ends the processes of attempts on a slave. Decides nothing about jobs, sends nothing.

A spare process is kept ready: it has everything imported and becomes a worker or a coordinator when it is assigned.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from typing import Any

import msgspec

from flegel.cluster.master.message_budget import shortened
from flegel.cluster.slave import child_processes, coordinator_protocol
from flegel.cluster.slave.attempts import COORDINATOR_KEY, Attempts, JobAttempt
from flegel.cluster.slave.child_processes import ChildProcess, SpareProcess
from flegel.cluster.slave.coordinator_deadlines import CoordinatorDeadlines
from flegel.cluster.slave.data_access import MOVE_BY_SOCKET, confinement_for, why_refused
from flegel.cluster.slave.process_limits import ProcessLimits
from flegel.cluster.slave.settings import SlaveSettings
from flegel.cluster.slave.slave_folder import write_new
from flegel.cluster.transport.protocol import (
    COORDINATOR,
    CoordinatorStatus,
    DrainWorkers,
    EndProcesses,
    LaunchCoordinator,
    LaunchWorker,
    ProcessStatus,
    ResizeJob,
    StopAtBarrier,
    WorkerEnded,
    runs_submitted_code,
)
from flegel.core.hook_limits import BUILT_IN_START_SECONDS
from flegel.core.own_pauses import OwnPauses
from flegel.errors import UNDECODABLE
from flegel.runtime import clock
from flegel.runtime.system.exit_codes import describe_exit

SLAVE_PAUSE_SECONDS = 3.0
"""A longer time between two checks of limits (there are two a second) means that the slave itself was stopped."""
SPARE_START_DELAY_SECONDS = 2.0
"""From the last start of a process to that of the next spare one: the processes of a job get the processors first."""


class AttemptProcesses:
    """All child processes of a slave."""

    def __init__(self, settings: SlaveSettings, attempts: Attempts, owner: str) -> None:
        """`owner` marks the processes in their environment (see `child_processes.kill_leftovers`)."""
        self._settings, self._attempts, self._owner = settings, attempts, owner
        self._spare: SpareProcess | None = None
        self._spare_at = 0.0
        self._pauses = OwnPauses(SLAVE_PAUSE_SECONDS)
        self._measured_at = clock.now()
        self.changed = False
        """Something has happened that the master should learn at once; reset by the reader."""

    # -- starts ----------------------------------------------------------------------------------------------------

    def start_coordinator(self, order: LaunchCoordinator, frames: tuple[bytes, ...]) -> None:
        """Start the coordinator, unless it runs or has ended; whatever forbids it is reported as a failure of
        the job."""
        attempt = self._attempts.open(order.job, order.attempt)
        if COORDINATOR_KEY in attempt.children or COORDINATOR_KEY in attempt.ended:
            return
        content = frames[0] if frames else b""
        if order.spec.code and hashlib.sha256(content).hexdigest() != order.spec.code:
            self.refuse_coordinator(attempt, "the source of its class is not what was submitted")
            return
        try:
            source = content.decode()
        except UnicodeDecodeError:
            self.refuse_coordinator(attempt, "the source of its class is not UTF-8", usage=True)
            return
        places = (order.spec.data, order.spec.checkpoint, order.spec.sites.gate_data)
        refusals = [self._forbidden(place) for place in places if place]
        if refusal := next(filter(None, refusals), ""):
            self.refuse_coordinator(attempt, refusal, usage=True)
            return
        attempt.spec = order.spec
        # Hooks of built-in algorithms are known to end, on wide tables late; submitted code may never end.
        attempt.deadlines = CoordinatorDeadlines(
            order.spec.criteria.max_seconds,
            order.spec.hook_timeout,
            order.spec.worker_timeout,
            start_extra=0.0 if runs_submitted_code(order.spec) else BUILT_IN_START_SECONDS,
        )
        attempt.status = CoordinatorStatus(order.job, order.attempt)
        shutil.rmtree(attempt.result, ignore_errors=True)
        if not order.resume:  # left by an older job of the same name
            shutil.rmtree(attempt.checkpoints, ignore_errors=True)
        write_new(attempt.code, source)
        assignment = coordinator_protocol.JobAssignment(
            order.job,
            order.attempt,
            order.spec,
            str(attempt.code),
            order.workers,
            self._settings.address,
            str(attempt.result),
            str(attempt.checkpoints),
            order.resume,
            order.team_threads,
        )
        line = coordinator_protocol.encode(assignment)
        self._spawn(attempt, COORDINATOR_KEY, "coordinator", line, order.spec.memory, runs_submitted_code(order.spec))

    def start_worker(self, order: LaunchWorker) -> None:
        """Start a worker's process, unless this incarnation was started before; refused where its data must not be read
        here."""
        attempt = self._attempts.open(order.job, order.attempt)
        key = (order.worker, order.incarnation)
        if key in attempt.children or key in attempt.ended:
            return
        refusal = self._forbidden(order.data)
        if refusal:
            self.refuse_worker(attempt, order, refusal)
            return
        self._spawn(attempt, key, "worker", order.config.encode(), order.memory, order.submitted, order.threads)

    def _spawn(
        self,
        attempt: JobAttempt,
        key: tuple[int, int],
        role: str,
        line: bytes,
        memory: int | None,
        submitted: bool,
        threads: int = 0,
    ) -> None:
        """Make the spare process, or a new one, the process `key` of this attempt; `line` is its configuration. A team
        has so many threads, and the memory of as many slots."""
        name = (attempt.job, attempt.attempt, *key)
        limit = memory if memory is not None else self._settings.memory * max(threads, 1)
        other = next((child.process.pid for child in attempt.children.values() if child.alive), None)
        confinement = confinement_for(self._settings, attempt.folder, submitted, other)
        limits = ProcessLimits(role, str(attempt.scratch), limit, confinement, threads)
        try:
            spare, self._spare = self._spare, None
            if spare is not None and spare.dead:
                spare.drop()
                spare = None
            if spare is None:
                spare = self._start_spare(role)
            attempt.children[key] = child_processes.assign(spare, name, limits, line, attempt.log)
            self._spare_at = clock.now() + SPARE_START_DELAY_SECONDS
        except OSError as error:
            attempt.ended[key] = ProcessStatus(
                *name, alive=False, outcome="lost", why=f"could not be started: {error.strerror}"
            )

    def _start_spare(self, role: str) -> SpareProcess:
        settings = self._settings
        more = MOVE_BY_SOCKET if settings.isolation == "strict" else {}
        return child_processes.start_spare(role, self._owner, settings.folder, settings.data, more)

    def keep_spare(self, now: float) -> None:
        if self._spare is None and now >= self._spare_at:
            with contextlib.suppress(OSError):  # the next start reports why
                self._spare = self._start_spare("any")

    def refuse_coordinator(self, attempt: JobAttempt, why: str, usage: bool = False) -> None:
        attempt.ended[COORDINATOR_KEY] = ProcessStatus(
            attempt.job, attempt.attempt, COORDINATOR, alive=False, outcome="failed", why=why, usage=usage
        )

    def refuse_worker(self, attempt: JobAttempt, order: LaunchWorker, why: str) -> None:
        """Report a worker as lost, with the reason, without having started it."""
        attempt.ended[order.worker, order.incarnation] = ProcessStatus(
            attempt.job,
            attempt.attempt,
            order.worker,
            order.incarnation,
            alive=False,
            outcome="lost",
            why=why,
            fault=True,
        )

    def _forbidden(self, data: str) -> str:
        refusal = why_refused(data, self._settings.data)
        return f"on slave {self._settings.name} {refusal}" if refusal else ""

    # -- while they run --------------------------------------------------------------------------------------------

    def end(self, order: EndProcesses) -> None:
        """Ask the processes that the order names to end."""
        attempt = self._attempts.find(order.job, order.attempt)
        for key, child in list(attempt.children.items()) if attempt else []:
            if order.worker is None or key == (order.worker, order.incarnation):
                child_processes.request_end(child, "was dismissed")

    def forward(self, order: WorkerEnded | ResizeJob | StopAtBarrier | DrainWorkers) -> None:
        """Pass an order on to the coordinator that it is for."""
        attempt = self._attempts.find(order.job, order.attempt)
        if attempt is not None and attempt.coordinator is not None:
            child_processes.write_input(attempt.coordinator, coordinator_protocol.encode(order) + b"\n")

    def update(self) -> None:
        """Read what processes have written, write what they have not read yet, notice those that have ended."""
        for attempt in self._attempts:
            for key, child in list(attempt.children.items()):
                if not child.alive:
                    continue
                child_processes.read_output(child)
                child_processes.write_input(child)
                self._read_reports(attempt, child)
                child_processes.kill_overdue(child)
                if child_processes.has_ended(child):
                    self._read_reports(attempt, child)
                    child_processes.clean_up(child)
                    self._record_end(attempt, key, child)

    def _read_reports(self, attempt: JobAttempt, child: ChildProcess) -> None:
        for line in child_processes.reports(child):
            try:
                report = coordinator_protocol.decode_report(line)
            except UNDECODABLE:
                continue  # user code wrote into a descriptor that is not its own
            self._take_report(attempt, report)

    def _take_report(self, attempt: JobAttempt, report: coordinator_protocol.Report) -> None:
        """Take a report of the coordinator into its status; all but progress go to the master at once."""
        assert attempt.status is not None
        change: dict[str, Any] = {}
        match report:
            case coordinator_protocol.WorkersWanted(wanted=wanted, configs=configs, last_loss=last_loss):
                change = {"wanted": wanted, "configs": configs, "last_loss": last_loss}
            case coordinator_protocol.PhaseChanged(name=name, elastic=elastic, hook=hook):
                change = {"phase": name, "elastic": elastic}
                attempt.deadlines.phase_changed(name, hook, clock.now())
            case coordinator_protocol.ProgressSeen(snapshot=snapshot):
                change = {"snapshot": snapshot}
                attempt.deadlines.progress_seen(clock.now())
            case coordinator_protocol.ProgressSaved():
                change = {"saved": attempt.status.saved + 1}
            case coordinator_protocol.JobFinished():
                attempt.finished = report
        attempt.status = msgspec.structs.replace(attempt.status, **change)
        if not isinstance(report, coordinator_protocol.ProgressSeen):
            self.changed = True

    def _record_end(self, attempt: JobAttempt, key: tuple[int, int], child: ChildProcess) -> None:
        """Turn an ended process into a status for the master; workers end with their coordinator."""
        assert child.code is not None
        why, fault = describe_exit(child.code)
        if child.end_reason:
            why, fault = child.end_reason, True
        name = (attempt.job, attempt.attempt, *key)
        self.changed = True
        del attempt.children[key]
        last = attempt.finished
        if key == COORDINATOR_KEY and last is not None and not child.end_reason:
            outcome = "done" if last.done else "suspended" if last.suspended else "failed"
            status = ProcessStatus(
                *name, alive=False, outcome=outcome, why=last.why, trace=last.trace, usage=last.usage
            )
        else:
            subject = "The coordinator " if key == COORDINATOR_KEY else ""
            status = ProcessStatus(*name, alive=False, outcome="lost", why=f"{subject}{why}", fault=fault)
        attempt.ended[key] = shortened(status)
        if key == COORDINATOR_KEY:
            for other in attempt.children.values():
                child_processes.request_end(other, "was dismissed with its coordinator")
        if attempt.over:
            shutil.rmtree(attempt.scratch, ignore_errors=True)

    def enforce_limits(self, now: float) -> None:
        """Limits of memory and time. Time in which this slave or the coordinator was stopped does not count."""
        living = self._attempts.living()
        away, since = self._pauses.look(now), now - self._measured_at
        self._measured_at = now
        child_processes.measure_and_reap(living, self._spare)
        for child in living:
            if child.memory is not None and child.used > child.memory:
                limit = f"{child.memory / 2**30:.2f} GiB"
                child_processes.request_end(
                    child, f"used more memory than its limit of {limit} (--memory)", at_once=True
                )
        for attempt in self._attempts:
            coordinator = attempt.coordinator
            if coordinator is None or attempt.status is None:
                continue
            if away or coordinator.stopped:
                attempt.deadlines.excuse(away or since, now)
            if why := attempt.deadlines.exceeded(now, attempt.status.last_loss):
                child_processes.request_end(coordinator, why)

    # -- the end of the slave --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ask every process to end, and kill those that have not ended `KILL_AFTER_SECONDS` later."""
        living = self._attempts.living()
        for child in living:
            child_processes.request_end(child, "was ended with its slave")
        until = clock.now() + child_processes.KILL_AFTER_SECONDS + 1.0
        while not all(child_processes.has_ended(child) for child in living) and clock.now() < until:
            clock.sleep(0.02)
        for child in living:
            child_processes.request_end(child, "was ended with its slave", at_once=True)
            child_processes.clean_up(child)
        if self._spare is not None:
            self._spare.drop()
        child_processes.measure_and_reap([], None)
