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
from typing import Any

import msgspec

from flegel.cluster.slave import coordinator_protocol
from flegel.cluster.slave.coordinator_pipe import CoordinatorPipe
from flegel.cluster.slave.process_limits import read_line
from flegel.cluster.transport.protocol import DrainWorkers, ResizeJob, StopAtBarrier, WorkerEnded
from flegel.errors import AlgorithmError, FlegelError, Interrupted, StorageError, UsageError, own_traceback
from flegel.runtime import clock, logs
from flegel.wording import speak_to

_log = logging.getLogger(__name__)

GLANCE = 0.5
"""Seconds between two reports of progress."""
CHECKPOINT = 15.0
"""Seconds between two checkpoints; a lost coordinator continues from the last commit, which is saved at once."""


def listen_to_slave(cluster: Any) -> None:
    """In a thread: execute what the slave sends, until it is gone."""
    with os.fdopen(0, "rb", closefd=False) as stream:
        for line in stream:
            match coordinator_protocol.decode_command(line):
                case WorkerEnded(worker=worker, incarnation=incarnation, why=why, fault=fault):
                    cluster.report_lost(worker, incarnation, why, fault)
                case ResizeJob(workers=workers):
                    cluster.scale(workers)
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
        finished = coordinator_protocol.JobFinished(False, str(error), suspended=True)
    except AlgorithmError as error:
        finished = coordinator_protocol.JobFinished(False, str(error), error.trace)
    except FlegelError as error:
        finished = coordinator_protocol.JobFinished(False, str(error), usage=isinstance(error, UsageError))
    except MemoryError:
        finished = coordinator_protocol.JobFinished(
            False, "The coordinator ran out of memory; give the job more --memory, or less data."
        )
    except BaseException as error:  # noqa: BLE001 - whatever it is, the owner of the job gets to read it
        finished = coordinator_protocol.JobFinished(False, f"{type(error).__name__}: {error}", own_traceback(error))
    pipe.send(finished)
    _log.info(finished.why)
    os._exit(0 if finished.done else 1)  # threads of user code must not keep the process alive


def run_job(assignment: coordinator_protocol.JobAssignment, pipe: CoordinatorPipe) -> coordinator_protocol.JobFinished:
    """Run the job and save its result."""
    from flegel.cluster.slave.slave_workers import SlaveWorkers

    cluster = SlaveWorkers(assignment.workers, assignment.host, pipe)
    threading.Thread(target=listen_to_slave, args=(cluster,), daemon=True).start()
    cluster.start()  # slaves start workers while this process imports
    pipe.send(coordinator_protocol.PhaseChanged("reading"))
    from flegel.job import Job
    from flegel.loading.class_source import instantiate
    from flegel.loading.code_gate import Consent
    from flegel.machine.coordinator.observation import JobSnapshot
    from flegel.options import options_of
    from flegel.runtime.checkpoint.reader import holds_job
    from flegel.runtime.checkpoint.resume import replace, resume
    from flegel.runtime.checkpoint.session import new_session
    from flegel.runtime.checkpoint.store import open_store
    from flegel.runtime.job.request import Request
    from flegel.runtime.job.run import execute
    from flegel.runtime.job.training_data import open_training_data
    from flegel.runtime.worker.current_hook import MODULE

    spec = assignment.spec
    ref = msgspec.structs.replace(spec.algorithm, source=Path(assignment.source).read_text(encoding="utf-8"))
    warnings.showwarning = lambda message, *_, **__: _log.warning("warning: %s", message)
    reported, phase = -GLANCE, "loading"
    kept: tuple[float, int] | None = None

    def watch(seen: JobSnapshot) -> None:
        nonlocal reported, phase, kept
        if seen.phase != phase:
            phase = seen.phase
            pipe.send(coordinator_protocol.PhaseChanged(phase, elastic=phase == "training"))
        if phase == "training":
            kept = kept or (clock.now(), seen.iteration)
            if clock.now() - kept[0] >= CHECKPOINT and seen.iteration > kept[1]:
                kept = (clock.now(), seen.iteration)
                pipe.send(coordinator_protocol.ProgressSaved())
        if clock.now() - reported >= GLANCE:
            reported = clock.now()
            pipe.send(coordinator_protocol.ProgressSeen(msgspec.to_builtins(seen)))

    def log(text: str) -> None:
        _log.info(text)

    def report_phase(name: str, hook: str = "") -> None:
        pipe.send(coordinator_protocol.PhaseChanged(name, hook=hook))

    told: dict[str, Any] = {"cluster": cluster, "watch": watch, "say": log, "phase": report_phase}
    place = spec.checkpoint or assignment.checkpoints
    try:
        kept_before = (assignment.resume or spec.checkpoint is not None) and holds_job(open_store(place))
        if kept_before and spec.checkpoint is None:
            return _saved(replace(place, workers=assignment.workers, **told), assignment, pipe)
        report_phase("init", MODULE)
        algorithm = instantiate(ref, Consent.SUBMITTED)
        if kept_before:  # by an earlier attempt, perhaps of another launch: continue if it is the same job
            changes = {name: option.value(spec) for name, option in options_of(Job).items() if option.about.resume}
            changes["workers"] = assignment.workers
            told |= {"algorithm": algorithm, "data": spec.data, "label": spec.label, "take_over": assignment.resume}
            return _saved(resume(place, changes, **told), assignment, pipe)
        report_phase("reading")
        dataset = open_training_data(spec.description, spec.data, algorithm)
        result = execute(
            Request(
                algorithm=algorithm,
                data=dataset,
                job=msgspec.structs.replace(spec.description, workers=assignment.workers),
                cluster=cluster,
                session=new_session(place, spec.checkpoint_every if spec.checkpoint else CHECKPOINT),
                watch=watch,
                phase=report_phase,
                say=log,
            )
        )
        return _saved(result, assignment, pipe)
    finally:
        cluster.close()


def _saved(
    result: Any, assignment: coordinator_protocol.JobAssignment, pipe: CoordinatorPipe
) -> coordinator_protocol.JobFinished:
    from flegel.runtime.job import result_store

    pipe.send(coordinator_protocol.PhaseChanged("saving"))
    for text in result.warnings:
        _log.info("note: %s", text)
    try:
        result_store.save_or_rescue(result, Path(assignment.result), job=assignment.job)
    except StorageError as error:
        raise StorageError(f"On {socket.gethostname()}: {error}") from None
    return coordinator_protocol.JobFinished(True, f"{'converged' if result.converged else 'stopped'}: {result.reason}")
