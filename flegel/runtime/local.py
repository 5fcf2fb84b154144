"""Workers on this host: started, watched and ended by the process that uses them. Decides nothing about training.

A `LocalCluster` keeps its workers warm for many jobs. Whatever happens to the owning process, its workers see their
standard input close and end; nothing has a name in the file system that could be left behind.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import zmq

from flegel.errors import DecodeError, FlegelError, UsageError, WorkerLost
from flegel.messages import Answer, Envelope, Exit, Hello, Order, Release
from flegel.runtime import clock, frames
from flegel.runtime.poll import Sleeper
from flegel.runtime.wire import EMPTY, Numbered, Parcel, decode
from flegel.runtime.worker import Birth, identity
from flegel.tree import Array

START_DEADLINE = 120.0
MAX_WORKERS = 1024
ANSWERS = frozenset(get_args(Answer))


class LocalCluster:
    """`with LocalCluster(workers=4) as cluster: flegel.run(..., cluster=cluster)`."""

    def __init__(self, workers: int = 4) -> None:
        if not 1 <= workers <= MAX_WORKERS:
            raise UsageError(f"The number of workers must be 1 to {MAX_WORKERS}, not {workers}.")
        self.workers = workers
        self.token = secrets.token_hex(16)
        self._jobs = 0
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._voices: dict[int, Numbered] = {}
        self._ready: set[int] = set()
        self._address = ""
        self._context: zmq.Context[Any] | None = None
        self._socket: zmq.Socket[bytes] | None = None

    # -- life ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start what is not running, also in place of workers that died, and return at once; `wait_ready` waits."""
        if self._context is None:
            self._open()
        ended = {worker for worker, _ in self.deaths()}
        for worker in range(self.workers):
            if worker in ended or worker not in self._processes:
                self._spawn(worker)

    def _open(self) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self._address = f"tcp://127.0.0.1:{port}"
        self._sleeper = Sleeper(self._socket)

    def _spawn(self, worker: int) -> None:
        life = self._voices[worker].incarnation + 1 if worker in self._voices else 0
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "NUMBA_NUM_THREADS": "1",
        }
        environment["PYTHONPATH"] = os.pathsep.join(p or str(Path.cwd()) for p in sys.path)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "flegel.runtime.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        self._processes[worker] = process
        self._voices[worker] = Numbered(self.token, 0, worker, life)
        self._ready.discard(worker)
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(Birth(self._address, self.token, worker, life)) + b"\n")
        process.stdin.flush()

    def wait_ready(self) -> None:
        """Until every worker has said hello; a worker that dies or is late is named."""
        deadline = clock.now() + START_DEADLINE
        while len(self._ready) < self.workers:
            for worker, why in self.deaths():
                raise WorkerLost(f"Worker {worker} {why} while it started.")
            if clock.now() > deadline:
                late = sorted(set(self._processes) - self._ready)
                raise WorkerLost(f"Workers {late} did not start within {START_DEADLINE:.0f} s.")
            for envelope, _ in self.receive(0.1):
                if isinstance(envelope.body, Hello) and envelope.job == self.token and self._is_current(envelope):
                    self._ready.add(envelope.worker)

    def _is_current(self, envelope: Envelope) -> bool:
        return self.incarnations().get(envelope.worker) == envelope.incarnation

    def __enter__(self) -> LocalCluster:
        try:
            self.start()
            self.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ask, then insist; afterwards no process, socket or memory of ours is left."""
        for worker, process in self._processes.items():
            if process.poll() is None and worker in self._ready:
                with contextlib.suppress(zmq.ZMQError, FlegelError):
                    self.send(worker, Exit())
        for process in self._processes.values():
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
        for process in self._processes.values():
            _end(process)
        self._processes.clear()
        self._ready.clear()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._context is not None:
            self._context.term()
            self._context = None

    # -- use by a job --------------------------------------------------------------------------------------

    def new_job(self) -> str:
        """A name that fences this job's messages from those of earlier ones."""
        self._jobs += 1
        job = f"{self.token}/{self._jobs}"
        for voice in self._voices.values():
            voice.job = job
        return job

    def incarnations(self) -> dict[int, int]:
        return {worker: voice.incarnation for worker, voice in self._voices.items()}

    def end_job(self) -> None:
        """Workers forget their shares."""
        for worker, process in self._processes.items():
            if process.poll() is None:
                with contextlib.suppress(FlegelError):
                    self.send(worker, Release())

    def send(self, worker: int, body: Order, parcel: Parcel = EMPTY) -> None:
        if self._socket is None:
            raise UsageError("This LocalCluster is closed; make a new one.")
        voice = self._voices[worker]
        try:
            frames.send(self._socket, [identity(worker, voice.incarnation), *voice.wrap(body, parcel)])
        except zmq.ZMQError as error:
            why = dict(self.deaths()).get(worker, f"cannot be reached ({error})")
            raise WorkerLost(f"Worker {worker} {why}.", why) from None

    def receive(self, timeout: float) -> Iterator[tuple[Envelope, tuple[Array, ...]]]:
        """Messages that have arrived, after waiting for the first one at most so long."""
        if self._socket is None:
            raise UsageError("This LocalCluster is closed; make a new one.")
        waited = False
        while True:
            try:
                speaker, parts = frames.receive_from(self._socket)
            except zmq.Again:
                if waited:
                    return
                self._sleeper.wait(timeout)
                waited = True
                continue
            waited = True
            try:
                envelope, arrays = decode(parts)
            except DecodeError as error:
                print(f"flegel: dropped a message: {error}", file=sys.stderr)
                continue
            if speaker == identity(envelope.worker, envelope.incarnation) and type(envelope.body) in ANSWERS:
                yield envelope, arrays

    def deaths(self) -> list[tuple[int, str]]:
        """Workers whose process has ended, and how."""
        ended = ((w, p.poll()) for w, p in self._processes.items())
        return [(w, _how(code)) for w, code in ended if code is not None]


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
    return f"was killed by {name}"


def _end(process: subprocess.Popen[bytes]) -> None:
    for grace, insist in ((2.0, process.terminate), (1.0, process.kill), (5.0, lambda: None)):
        try:
            process.wait(timeout=grace)
            return
        except subprocess.TimeoutExpired:
            insist()
