"""A job's coordinator as a process of its own: trains with workers that slaves start, and reports to its slave.

User code runs here and in the job's workers, nowhere else. Standard input has the assignment and then what happens to
workers; when it closes, the slave is gone and this process ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from flegel.cluster.slave import coordinator_protocol
from flegel.cluster.slave.coordinator_pipe import CoordinatorPipe
from flegel.cluster.slave.process_limits import read_line
from flegel.cluster.transport.protocol import DrainWorkers, ResizeJob, StopAtBarrier, WorkerEnded
from flegel.errors import AlgorithmError, FlegelError, Interrupted, StorageError, UsageError, own_traceback
from flegel.runtime import clock, logs
from flegel.runtime.job.observers import (
    JobBegan,
    JobControl,
    JobEvent,
    JobSeen,
    Observer,
    Observers,
    PhaseBegan,
    RemarkMade,
)
from flegel.wording import speak_to

if TYPE_CHECKING:
    from flegel.machine.coordinator.observation import JobSnapshot

_log = logging.getLogger(__name__)

PROGRESS_REPORT_SECONDS = 0.5
"""Between two reports of progress to the slave, which sends them on with its heartbeats, one a second."""
CHECKPOINT_SECONDS = 15.0
"""Between two checkpoints of a job that names no `--checkpoint-every`; a replaced coordinator continues from the last
one."""


def listen_to_slave(cluster: Any, reports: ProgressReports) -> None:
    """In a thread: execute what the slave sends, until it is gone."""
    with os.fdopen(0, "rb", closefd=False) as stream:
        for line in stream:
            match coordinator_protocol.decode_command(line):
                case WorkerEnded(worker=worker, incarnation=incarnation, why=why, fault=fault):
                    cluster.report_lost(worker, incarnation, why, fault)
                case ResizeJob(workers=workers, servers=servers):
                    if workers is not None:
                        cluster.scale(workers)
                    if servers is not None:
                        reports.scale_servers(servers)
                case StopAtBarrier():
                    os.kill(os.getpid(), signal.SIGTERM)  # as for a job on one host
                case DrainWorkers(workers=leaving):
                    for worker in leaving:
                        with contextlib.suppress(UsageError):  # the job is over, or has not begun
                            cluster.drain(worker)
    os._exit(1)


def main() -> None:
    """Entry point of the process (by way of `flegel.cluster.slave.job_process`)."""
    os.dup2(2, 1)
    speak_to("command-line")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # so that KeyboardInterrupt comes from user code alone
    assignment = msgspec.json.decode(read_line(), type=coordinator_protocol.JobAssignment)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    logs.configure("", job=assignment.job, worker="coordinator", level=logging.INFO, everything=True)
    descriptor = int(os.environ.pop("FLEGEL_REPORTS"))
    os.set_inheritable(descriptor, False)
    pipe = CoordinatorPipe(descriptor)
    try:
        finished = run_job(assignment, pipe)
    except Interrupted as error:
        finished = coordinator_protocol.JobFinished(done=False, why=str(error), suspended=True)
    except AlgorithmError as error:
        finished = coordinator_protocol.JobFinished(done=False, why=str(error), trace=error.trace)
    except FlegelError as error:
        finished = coordinator_protocol.JobFinished(done=False, why=str(error), usage=isinstance(error, UsageError))
    except MemoryError:
        finished = coordinator_protocol.JobFinished(
            done=False, why="The coordinator ran out of memory; give the job more --memory, or less data."
        )
    except BaseException as error:  # noqa: BLE001 - whatever it is, the owner of the job gets to read it
        finished = coordinator_protocol.JobFinished(
            done=False, why=f"{type(error).__name__}: {error}", trace=own_traceback(error)
        )
    pipe.send(finished)
    _log.info(finished.why)
    os._exit(0 if finished.done else 1)  # threads of user code must not keep the process alive


class ProgressReports(Observer):
    """Tells the slave of phases, of progress, and that progress was saved; what is said goes to the job's log."""

    required = True

    def __init__(self, pipe: CoordinatorPipe) -> None:
        self._pipe = pipe
        self._phase = "loading"
        self._reported_at = -PROGRESS_REPORT_SECONDS
        self._saved: tuple[float, int] | None = None
        """When saved progress was last reported, and the iteration of that time; None before training."""
        self._control: JobControl | None = None

    def scale_servers(self, servers: int) -> None:
        """From any thread: the master has checked that the job can have so many."""
        if self._control is not None:
            try:
                self._control.scale(servers=servers)
            except UsageError as error:
                _log.warning(str(error))

    def see(self, event: JobEvent) -> None:
        """Send phases and progress to the slave; remarks go to the log."""
        match event:
            case JobBegan(control=control):
                self._control = control
            case PhaseBegan(name, hook):
                self._pipe.send(coordinator_protocol.PhaseChanged(name, hook=hook))
            case RemarkMade(text):
                _log.info(text)
            case JobSeen(seen):
                self._look(seen)

    def _look(self, seen: JobSnapshot) -> None:
        """Tell the slave of a new phase, of checkpoints that are due, and of progress, the latter about once a
        second."""
        now = clock.now()
        if seen.phase != self._phase:
            self._phase = seen.phase
            self._pipe.send(coordinator_protocol.PhaseChanged(seen.phase, elastic=seen.phase == "training"))
        if seen.phase == "training":
            self._saved = self._saved or (now, seen.iteration)
            if now - self._saved[0] >= CHECKPOINT_SECONDS and seen.iteration > self._saved[1]:
                self._saved = (now, seen.iteration)
                self._pipe.send(coordinator_protocol.ProgressSaved())
        if now - self._reported_at >= PROGRESS_REPORT_SECONDS:
            self._reported_at = now
            self._pipe.send(coordinator_protocol.ProgressSeen(msgspec.to_builtins(seen)))


def run_job(assignment: coordinator_protocol.JobAssignment, pipe: CoordinatorPipe) -> coordinator_protocol.JobFinished:
    """Run the job with workers that slaves start, and save its result."""
    from flegel.cluster.slave.slave_workers import SlaveWorkers

    cluster = SlaveWorkers(assignment.workers, assignment.host, pipe)
    reports = ProgressReports(pipe)
    threading.Thread(target=listen_to_slave, args=(cluster, reports), daemon=True).start()
    cluster.start()  # slaves start workers while this process imports the engine
    pipe.send(coordinator_protocol.PhaseChanged("reading"))
    warnings.showwarning = lambda message, *_, **__: _log.warning("warning: %s", message)
    try:
        return _saved(_trained(assignment, cluster, reports), assignment, pipe)
    finally:
        cluster.close()


def _trained(assignment: coordinator_protocol.JobAssignment, cluster: Any, reports: ProgressReports) -> Any:
    """The result of training, from the checkpoint of an earlier attempt where there is one."""
    from flegel.job import Job
    from flegel.loading.class_source import instantiate
    from flegel.loading.code_gate import Consent
    from flegel.messages import CLASS_MODULE_CODE
    from flegel.options import options_of
    from flegel.runtime.checkpoint.reader import holds_job
    from flegel.runtime.checkpoint.resume import replace, resume
    from flegel.runtime.checkpoint.session import new_session
    from flegel.runtime.checkpoint.store import open_store
    from flegel.runtime.job.request import Request
    from flegel.runtime.job.run import execute
    from flegel.runtime.job.training_data import open_training_data

    spec, observers = assignment.spec, Observers([reports])
    ref = msgspec.structs.replace(spec.algorithm, source=Path(assignment.source).read_text(encoding="utf-8"))
    told: dict[str, Any] = {"cluster": cluster, "observers": observers}
    place = spec.checkpoint or assignment.checkpoints
    threads = max(assignment.team_threads, default=None)
    kept_before = (assignment.resume or spec.checkpoint is not None) and holds_job(open_store(place))
    if kept_before and spec.checkpoint is None:
        return replace(place, workers=assignment.workers, threads=threads, servers=spec.servers, **told)
    observers.phase("init", CLASS_MODULE_CODE)
    algorithm = instantiate(ref, Consent.SUBMITTED)
    if kept_before:  # by an earlier attempt, perhaps of another launch: continue if it is the same job
        changes = {name: option.value(spec) for name, option in options_of(Job).items() if option.about.resume}
        changes |= {"workers": assignment.workers, "threads": threads, "servers": spec.servers}
        told |= {"algorithm": algorithm, "data": spec.data, "label": spec.label, "take_over": assignment.resume}
        return resume(place, changes, **told)
    observers.phase("reading")
    return execute(
        Request(
            algorithm=algorithm,
            data=open_training_data(spec.description, spec.data, algorithm),
            job=msgspec.structs.replace(spec.description, workers=assignment.workers, threads=threads),
            session=new_session(place, spec.checkpoint_every if spec.checkpoint else CHECKPOINT_SECONDS),
            team_threads=assignment.team_threads,
            **told,
        )
    )


def _saved(
    result: Any, assignment: coordinator_protocol.JobAssignment, pipe: CoordinatorPipe
) -> coordinator_protocol.JobFinished:
    """Save the result of a job in its folder on this host; returns the message that says so."""
    from flegel.runtime.job import result_store

    pipe.send(coordinator_protocol.PhaseChanged("saving"))
    for text in result.warnings:
        _log.info("note: %s", text)
    try:
        result_store.save_or_rescue(result, Path(assignment.result), job=assignment.job)
    except StorageError as error:
        raise StorageError(f"On {socket.gethostname()}: {error}") from None
    return coordinator_protocol.JobFinished(
        done=True, why=f"{'converged' if result.converged else 'stopped'}: {result.reason}"
    )
