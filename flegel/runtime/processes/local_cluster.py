"""Workers on this host: started, watched and ended by the process that uses them. Decides nothing about training.

A `LocalCluster` keeps its workers warm for many jobs. Whatever happens to the owning process, its workers see their
standard input close and end, and the kernel ends those that can see nothing; nothing has a name in the file system that
could be left behind.

Workers are forks of a process that has everything imported (`nest.py`), so that one more, or one in place of a lost
one, is there in no time.
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from typing import IO, Any, Protocol, get_args

import msgspec
import numpy as np
import zmq

from flegel.core.pytree import Array
from flegel.errors import DecodeError, FlegelError, UsageError, WorkerLost
from flegel.machine.coordinator.events import LeaveJob, ScaleTo
from flegel.messages import Answer, Envelope, Exit, Hello, LoadShard, Order, ReleaseJob, Train
from flegel.runtime import clock
from flegel.runtime.job.signals import DeferredSignals
from flegel.runtime.processes import fork_server
from flegel.runtime.processes.host import cores, io_threads
from flegel.runtime.processes.parent_death import nursery
from flegel.runtime.transport import job_sockets, shared_buffers, zmq_frames
from flegel.runtime.transport.codec import EMPTY, MissingSharedBuffer, PackedArrays, Sequencer, decode
from flegel.runtime.transport.poller import Poller
from flegel.runtime.transport.remote_arrays import ServedArray
from flegel.runtime.transport.shared_buffers import SharedBuffers
from flegel.runtime.transport.shared_memory import SharedArray
from flegel.runtime.worker.process import WorkerConfig, identity

START_DEADLINE = 120.0
MAX_WORKERS = 1024
STARTS = 3  # how often a worker may die before it ever said hello
EXTERNAL = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
"""Signals that somebody else sends; a process that ends by any other has itself to blame."""
ANSWERS = frozenset(get_args(Answer))


class Process(Protocol):
    """A worker process as its cluster sees it, here or on another host."""

    @property
    def stdin(self) -> IO[bytes] | None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


class LocalCluster:
    """`with LocalCluster(workers=4) as cluster: flegel.run(..., cluster=cluster)`."""

    def __init__(self, workers: int = 4) -> None:
        if not 1 <= workers <= MAX_WORKERS:
            raise UsageError(f"The number of workers must be 1 to {MAX_WORKERS}, not {workers}.")
        self.workers = workers
        self.token = secrets.token_hex(16)
        self._job = self.token
        self._jobs = 0
        self._busy = False
        self._requests: deque[ScaleTo | LeaveJob] = deque()
        self._nest: fork_server.ForkServer | None = None
        self._departing: list[Process] = []
        self._former: dict[tuple[int, int], Sequencer] = {}
        self._processes: dict[int, Process] = {}
        self._voices: dict[int, Sequencer] = {}
        self._ready: set[int] = set()
        self._address = ""
        self._context: zmq.Context[Any] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._board: SharedBuffers | None = None

    # -- life ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start what is not running, also in place of workers that died, and return at once; `wait_ready` waits."""
        if self._context is None:
            self._open()
        for worker, *_ in self.deaths():
            self.expel(worker)
        for worker in range(self.workers):
            if worker not in self._processes:
                self._spawn(worker)

    def _open(self) -> None:
        self._context = zmq.Context(io_threads())
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        if job_sockets.ABSTRACT:
            self._address = job_sockets.bind_here(self._socket)
        else:
            self._address = f"tcp://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"
        self._sleeper = Poller(self._socket)

    def _spawn(self, worker: int) -> None:
        life = self._voices[worker].incarnation + 1 if worker in self._voices else 0
        self._voices[worker] = Sequencer(self._job, 0, worker, life)
        self._ready.discard(worker)
        self._processes[worker] = self._launch(worker, life)

    def _launch(self, worker: int, life: int) -> Process:
        birth = WorkerConfig(self._address, self.token, worker, life)
        if not fork_server.AVAILABLE:
            return launch(birth)
        self.keep_spare()
        assert self._nest is not None
        return self._nest.hatch(msgspec.json.encode(birth) + b"\n")

    def _opened(self) -> zmq.Socket[bytes]:
        if self._socket is None:
            raise UsageError("This LocalCluster is closed; make a new one.")
        return self._socket

    def wait_ready(self) -> None:
        """Until every worker has said hello; a worker that dies or is late is named."""
        deadline = clock.now() + START_DEADLINE
        deaths = 0
        while not self._ready >= set(range(self.workers)):
            for worker, why, _ in self.deaths():
                deaths += 1
                if deaths >= STARTS:
                    raise WorkerLost(f"Worker {worker} {why} while it started.")
                self.expel(worker)
                self._spawn(worker)
            if clock.now() > deadline:
                late = sorted(set(self._processes) - self._ready)
                raise WorkerLost(f"Workers {late} did not start within {START_DEADLINE:.0f} s.")
            for envelope, _ in self.receive(0.1):
                self.greet(envelope)

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
        with DeferredSignals():
            self._close()

    def _close(self) -> None:
        self._busy = False
        for worker, process in self._processes.items():
            if process.poll() is None and worker in self._ready:
                with contextlib.suppress(zmq.ZMQError, FlegelError):
                    self.send(worker, Exit())
        everyone = [*self._processes.values(), *self._departing]
        for process in everyone:
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
        for process in everyone:
            _end(process)
        self._leave_nest()
        self._processes.clear()
        self._departing.clear()
        self._ready.clear()
        if self._socket is not None:
            self._sleeper.close()
            self._socket.close()
            self._socket = None
        if self._context is not None:
            self._context.term()
            self._context = None

    def crowded(self, workers: int) -> bool:
        """Do so many workers have to share processors?"""
        return workers > len(cores())

    # -- use by a job --------------------------------------------------------------------------------------

    def new_job(self) -> str:
        """A name that fences this job's messages from those of earlier ones."""
        self._jobs += 1
        self._busy = True
        self._board = None
        self._job = f"{self.token}/{self._jobs}"
        for voice in self._voices.values():
            voice.job = self._job
        return self._job

    def incarnations(self) -> dict[int, int]:
        return {worker: voice.incarnation for worker, voice in self._voices.items()}

    def end_job(self) -> None:
        """Workers forget their shares."""
        self._busy = False
        self._board = None
        self._requests.clear()
        for worker, process in self._processes.items():
            if process.poll() is None:
                with contextlib.suppress(FlegelError):
                    self.send(worker, ReleaseJob())

    def send(self, worker: int, body: Order, parcel: PackedArrays = EMPTY) -> None:
        socket, voice = self._opened(), self._voices[worker]
        if type(body) is LoadShard:
            body = self._with_board(worker, body, parcel)
        elif type(body) is Train and self._board is not None:
            parcel = self._board.order(worker, body, parcel)
        try:
            zmq_frames.send(socket, voice.wrap(body, parcel), identity(worker, voice.incarnation))
        except zmq.ZMQError as error:
            why = next((w for n, w, _ in self.deaths() if n == worker), f"cannot be reached ({error})")
            raise WorkerLost(f"Worker {worker} {why}.", why) from None

    def _with_board(self, worker: int, load: LoadShard, parcel: PackedArrays) -> LoadShard:
        """The workers of this host read θ where it lies, and report likewise, where these are large."""
        if self._board is None:
            self._board = shared_buffers.for_job(load, parcel, self.workers)
        if self._board is None:
            return load
        life = identity(worker, self._voices[worker].incarnation)
        return msgspec.structs.replace(load, board=self._board.describe(worker, life))

    def receive(self, timeout: float) -> Iterator[tuple[Envelope, tuple[Array, ...]]]:
        """Messages that have arrived, after waiting for the first one at most so long."""
        socket, take = self._opened(), self._take
        waited = False
        while True:
            try:
                speaker, parts = take(socket)
            except zmq.Again:
                if waited:
                    return
                self._sleeper.wait(timeout)
                waited = True
                continue
            waited = True
            try:
                message = decode(parts, self._board.rooms(speaker) if self._board else ())
            except DecodeError as error:
                if (
                    not isinstance(error, MissingSharedBuffer) or error.job == self._job
                ):  # the board of a former job is gone
                    print(f"flegel: dropped a message: {error}", file=sys.stderr)
                continue
            envelope = message[0]
            if speaker == identity(envelope.worker, envelope.incarnation) and type(envelope.body) in ANSWERS:
                if self._board is not None and envelope.job == self._job:
                    self._board.hear(speaker, envelope.body)
                yield message

    def _take(self, socket: zmq.Socket[bytes]) -> tuple[bytes, list[Any]]:
        """Who speaks, and the frames of what it says."""
        return zmq_frames.receive_from(socket)

    def new_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> SharedArray | ServedArray:
        """An array that all workers can read."""
        return SharedArray(shape, dtype)

    # -- a crew that changes -------------------------------------------------------------------------------

    def deaths(self) -> list[tuple[int, str, bool]]:
        """Workers whose process has ended, how, and whether by its own fault; until they are expelled."""
        if self._nest is not None:
            self._nest.hear()
        self._departing = [p for p in self._departing if p.poll() is None]
        asked = ((w, p.poll()) for w, p in self._processes.items())
        return [(w, _how(code), -code not in EXTERNAL) for w, code in asked if code is not None]

    def greet(self, envelope: Envelope) -> bool:
        """Is this the hello of a worker that was just started? Then it can be used from now on."""
        if not isinstance(envelope.body, Hello) or envelope.job != self.token:
            return False
        if self.incarnations().get(envelope.worker) != envelope.incarnation:
            return False
        self._ready.add(envelope.worker)
        return True

    def hire(self, worker: int) -> bool:
        """Start a process for this worker unless it has one; True where it is up already, else it will say hello."""
        if not 0 <= worker < MAX_WORKERS:
            raise WorkerLost(f"Worker {worker} is one too many; {MAX_WORKERS} is the most.", "is one too many")
        if worker not in self._processes:
            self._spawn(worker)
        return worker in self._ready

    def expel(self, worker: int, gently: bool = False) -> None:
        """End this worker's process, frozen or not, and forget it: its next life is another one."""
        process = self._processes.pop(worker, None)
        if process is None:
            return
        if self._board is not None:
            self._board.forget(worker)
        voice = self._voices[worker]
        self._former[worker, voice.incarnation] = voice
        if gently and worker in self._ready:
            with contextlib.suppress(FlegelError):
                self.send(worker, Exit())
        self._ready.discard(worker)
        self._put_down(process, gently)

    def _put_down(self, process: Process, gently: bool) -> None:
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        if not gently:
            process.kill()
            _end(process)
        else:
            self._departing.append(process)

    def dismiss(self, envelope: Envelope) -> None:
        """Somebody speaks who was expelled: it is told to end."""
        voice = self._former.get((envelope.worker, envelope.incarnation))
        if voice is not None:
            with contextlib.suppress(zmq.ZMQError):
                zmq_frames.send(self._opened(), voice.wrap(Exit()), identity(envelope.worker, envelope.incarnation))

    def keep_spare(self) -> None:
        """Have a nest ready for the next worker."""
        if self._nest is not None and not self._nest.alive:
            self._leave_nest()
        if self._nest is None and fork_server.AVAILABLE:
            self._nest = fork_server.take()
            self._sleeper.add(self._nest.fileno())

    def _leave_nest(self) -> None:
        if self._nest is not None:
            self._sleeper.drop(self._nest.fileno())
            self._nest.close()
            self._nest = None

    def scale(self, workers: int) -> None:
        """From any thread: so many workers from now on, for the job that runs and for those that follow.

        Points are handed over while the job rests for a moment; workers that have to go give theirs away first.
        """
        if not 1 <= workers <= MAX_WORKERS:
            raise UsageError(f"The number of workers must be 1 to {MAX_WORKERS}, not {workers}.")
        self.workers = workers
        if self._busy:
            self._requests.append(ScaleTo(workers))

    def drain(self, worker: int) -> None:
        """From any thread: this worker, whose host is about to go for instance, gives its points away and ends."""
        if not self._busy:
            raise UsageError(f"No job is running, so worker {worker} has nothing to give away.")
        self._requests.append(LeaveJob(worker))

    def requests(self) -> list[ScaleTo | LeaveJob]:
        """What was asked for since the last look."""
        found = []
        while self._requests:
            found.append(self._requests.popleft())
        return found


def launch(birth: WorkerConfig, through: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """A worker process of this host from scratch; it ends when its standard input closes. `through`: a command that
    runs another one in its place."""
    process = nursery.start(
        lambda: subprocess.Popen(
            [*through, sys.executable, "-P", "-m", "flegel.runtime.worker.process"],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=fork_server.environment(), start_new_session=True,
        )
    )  # fmt: skip
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it died already, which will be noticed
        process.stdin.write(msgspec.json.encode(birth) + b"\n")
        process.stdin.flush()
    return process


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
    return f"was killed by {name}"


def _end(process: Process) -> None:
    for grace, insist in ((2.0, process.terminate), (1.0, process.kill), (5.0, lambda: None)):
        try:
            process.wait(timeout=grace)
            return
        except subprocess.TimeoutExpired:
            insist()
