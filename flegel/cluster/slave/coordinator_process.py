"""A job's coordinator as a process of its own: trains with workers that slaves start for it, and tells its slave.

User code runs here and in the job's workers, nowhere else. Standard input brings the errand and then what happens to
workers; when it closes, the slave is gone, and so is this process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import msgspec

from flegel.cluster.slave import coordinator_protocol
from flegel.cluster.slave.coordinator_pipe import CoordinatorPipe
from flegel.cluster.slave.job_process import read_line
from flegel.cluster.transport.protocol import DrainWorkers, ResizeJob, WorkerEnded
from flegel.errors import AlgorithmError, FlegelError, UsageError, own_traceback
from flegel.runtime import clock

GLANCE = 0.5
"""Seconds between two looks for people who watch."""
CHECKPOINT = 15.0
"""Seconds between two checkpoints; what a lost coordinator goes on from is the last commit, which is kept at once."""


def listen(cluster: Any) -> None:
    """In a thread: what the slave says, until it is gone."""
    with os.fdopen(0, "rb", closefd=False) as stream:
        for line in stream:
            match coordinator_protocol.read_down(line):
                case WorkerEnded(worker=worker, life=life, why=why, fault=fault):
                    cluster.lose(worker, life, why, fault)
                case ResizeJob(workers=workers):
                    cluster.scale(workers)
                case DrainWorkers(workers=leaving):
                    for worker in leaving:
                        with contextlib.suppress(UsageError):  # the job is over, or has not begun
                            cluster.drain(worker)
    os._exit(1)


def main() -> None:
    """Entry point of the process (by way of `flegel.cluster.slave.job_process`)."""
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # so that KeyboardInterrupt comes from user code alone
    errand = msgspec.json.decode(read_line(), type=coordinator_protocol.JobAssignment)
    pen = int(os.environ.pop("FLEGEL_REPORTS"))
    os.set_inheritable(pen, False)
    voice = CoordinatorPipe(pen)
    try:
        finished = carry_out(errand, voice)
    except AlgorithmError as error:
        finished = coordinator_protocol.JobFinished(False, str(error), error.trace)
    except FlegelError as error:
        finished = coordinator_protocol.JobFinished(False, str(error), usage=isinstance(error, UsageError))
    except MemoryError:
        finished = coordinator_protocol.JobFinished(
            False, "The coordinator ran out of memory; give the job more --memory, or less data."
        )
    except BaseException as error:  # noqa: BLE001 - whatever it is, the owner of the job must read it
        finished = coordinator_protocol.JobFinished(False, f"{type(error).__name__}: {error}", own_traceback(error))
    voice.tell(finished)
    print(finished.why, file=sys.stderr, flush=True)
    os._exit(0 if finished.done else 1)  # threads of user code must not keep it


def carry_out(errand: coordinator_protocol.JobAssignment, voice: CoordinatorPipe) -> coordinator_protocol.JobFinished:
    """The job, from its errand to a saved result."""
    from flegel.cluster.slave.slave_workers import SlaveWorkers

    cluster = SlaveWorkers(errand.workers, errand.host, voice)
    threading.Thread(target=listen, args=(cluster,), daemon=True).start()
    cluster.start()  # slaves bring workers up while this process gets ready
    voice.tell(coordinator_protocol.PhaseChanged("reading"))
    from flegel.datasets import open_data
    from flegel.result import glance
    from flegel.runtime.checkpoint.reader import holds_job
    from flegel.runtime.checkpoint.store import open_store
    from flegel.runtime.job.checkpoint_session import new_session
    from flegel.runtime.job.class_source import instantiate
    from flegel.runtime.job.request import Request
    from flegel.runtime.job.resume import replace
    from flegel.runtime.job.run import execute
    from flegel.runtime.worker.current_hook import MODULE

    spec = errand.spec
    ref = msgspec.structs.replace(spec.algorithm, source=Path(errand.source).read_text(encoding="utf-8"))
    warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr, flush=True)
    seen, phase = -GLANCE, "loading"
    kept: tuple[float, int] | None = None

    def watch(machine: Any) -> None:
        nonlocal seen, phase, kept
        if machine.phase != phase:
            phase = machine.phase
            voice.tell(coordinator_protocol.PhaseChanged(phase, elastic=phase == "training"))
        if phase == "training":
            kept = kept or (clock.now(), machine.iteration)
            if clock.now() - kept[0] >= CHECKPOINT and machine.iteration > kept[1]:
                kept = (clock.now(), machine.iteration)
                voice.tell(coordinator_protocol.ProgressSaved())
        if clock.now() - seen >= GLANCE:
            seen = clock.now()
            voice.tell(coordinator_protocol.ProgressSeen(msgspec.to_builtins(glance(machine))))

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def tell_phase(name: str, hook: str = "") -> None:
        voice.tell(coordinator_protocol.PhaseChanged(name, hook=hook))

    try:
        if errand.resume and holds_job(open_store(errand.checkpoints)):
            result = replace(
                errand.checkpoints,
                workers=errand.workers,
                cluster=cluster,
                watch=watch,
                say=say,
                phase=tell_phase,
            )
            return _saved(result, errand, voice)
        tell_phase("init", MODULE)
        algorithm = instantiate(ref)
        tell_phase("reading")
        dataset = open_data(spec.data, label=spec.label)
        result = execute(
            Request(
                algorithm=algorithm,
                data=dataset,
                job=msgspec.structs.replace(spec.description, workers=errand.workers),
                cluster=cluster,
                session=new_session(errand.checkpoints, CHECKPOINT),
                watch=watch,
                phase=tell_phase,
                say=say,
            )
        )
        return _saved(result, errand, voice)
    finally:
        cluster.close()


def _saved(
    result: Any, errand: coordinator_protocol.JobAssignment, voice: CoordinatorPipe
) -> coordinator_protocol.JobFinished:
    from flegel.runtime.job import result_store

    voice.tell(coordinator_protocol.PhaseChanged("saving"))
    for text in result.warnings:
        print(f"note: {text}", file=sys.stderr, flush=True)
    result_store.save(result, Path(errand.result))
    return coordinator_protocol.JobFinished(True, f"{'converged' if result.converged else 'stopped'}: {result.reason}")
