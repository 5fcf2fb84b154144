"""One worker in this process whose messages are calls: no socket, no thread for them. Decides nothing.

The thread that drives the coordinator runs the worker's state machine as well: an order is handled while it is sent,
and `receive` waits for the trainer, which has a thread of its own, so that signals, timers and limits work as ever. A
barrier of a small job is two wake-ups of a thread, where sockets and a thread for them take six.

As with all workers inside this process, a hook that never returns fails the job and goes on until the process ends.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections import deque
from collections.abc import Callable, Iterator
from queue import Empty
from typing import TYPE_CHECKING, Any

import numpy as np

from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.errors import ProtocolError, UsageError, WorkerLost
from flegel.machine.coordinator.events import LeaveJob, ScaleTo
from flegel.machine.worker import worker as machine
from flegel.machine.worker.executor import WorkerExecutor
from flegel.messages import (
    Answer,
    Envelope,
    Exit,
    LoadShard,
    MeasureMoments,
    Order,
    ReceivePoints,
    ReleaseJob,
    SendPoints,
    TransferOwnership,
    WorkerBeat,
)
from flegel.runtime import clock
from flegel.runtime.processes.cluster_protocol import WorkerDeath, ignore
from flegel.runtime.processes.held_arrays import HeldArrays
from flegel.runtime.transport.codec import EMPTY, PackedArrays
from flegel.runtime.transport.shared_memory import JobArray
from flegel.runtime.worker.trainer import Trainer
from flegel.runtime.worker.trainer_port import TrainerPort

if TYPE_CHECKING:
    from flegel.runtime.processes.cluster_protocol import Cluster

Message = tuple[Envelope, tuple[Array, ...]]
ONLY_WORKER = "the threads of this process train as one worker"


class Posted:
    """What the trainer thread sends to the coordinator."""

    def __init__(self, job: str, body: Answer, arrays: tuple[Array, ...]) -> None:
        self.job, self.body, self.arrays = job, body, arrays


class CalledWorker(TrainerPort):
    """The worker: its state machine, its trainer, and what it has sent."""

    def __init__(self, held: HeldArrays) -> None:
        """`held`: arrays of the caller, opened without a copy."""
        self._trainer = Trainer(held.open, same_process=True, piped=False)
        self._executor = WorkerExecutor(self)
        self.sent_messages: deque[Message] = deque()
        self._job, self._in_job = "", False
        self._next_sequence = 0
        self._timer: tuple[float, int] | None = None
        self._beat_at = 0.0

    def begin_job(self, job: str) -> None:
        """From now on what it sends belongs to this job; what is left of another one is dropped."""
        self._job = job
        self.sent_messages.clear()

    def order(self, body: Order, arrays: tuple[Array, ...]) -> None:
        """An order of the coordinator; what follows from it at once is done when this returns."""
        if isinstance(body, LoadShard | MeasureMoments):
            self._in_job, self._beat_at = True, clock.now()
        self._executor.order(body, arrays, clock.now())

    def wait(self, timeout: float) -> None:
        """Wait until the trainer has a result, the worker's timer is due or the timeout has passed, and act on it."""
        now = clock.now()
        due = min(now + timeout, self._timer[0] if self._timer else now + timeout, self._beat_at)
        with contextlib.suppress(Empty):
            self._take(self._trainer.results.get(timeout=max(due - now, 0.0)))
            while True:
                self._take(self._trainer.results.get_nowait())
        now = clock.now()
        if self._timer and now >= self._timer[0]:
            tag, self._timer = self._timer[1], None
            self._executor.handle(machine.OwnTimer(tag), now)
        if now >= self._beat_at:
            self._beat_at = now + active().liveness.heartbeat_seconds
            if self._in_job:
                self.send(WorkerBeat(self._trainer.visits, self._trainer.hook))

    def _take(self, result: Any) -> None:
        if isinstance(result, Posted):
            if result.job == self._job:
                self.send(result.body, result.arrays)
        else:
            self._executor.handle(result, clock.now())

    def close(self) -> None:
        self._trainer.quit()

    # -- the rest of the executor's port -------------------------------------------------------------------

    def send(self, body: Answer, arrays: tuple[Array, ...] = (), now: float = 0.0) -> None:
        """Copies of the arrays: training goes on in those that were reported."""
        envelope = Envelope(self._job, 0, 0, 0, self._next_sequence, body)
        self._next_sequence += 1
        self.sent_messages.append((envelope, tuple(_copied(array) for array in arrays)))

    def post(self, body: Answer, arrays: tuple[Array, ...]) -> None:
        self._trainer.results.put(Posted(self._job, body, arrays))  # type: ignore[arg-type]

    def transfer(self, order: TransferOwnership) -> None:
        self._trainer.order(machine.ApplyOwnership(order))

    def move(self, order: ReceivePoints | SendPoints) -> None:
        raise ProtocolError("Points cannot move: there is no other worker.")

    def set_timer(self, at: float, round_: int) -> None:
        self._timer = (at, round_)

    def drop(self) -> None:
        self._in_job, self._timer = False, None
        self._trainer.order(machine.DropShard())

    def quit(self) -> None:
        """`InlineCluster.close` ends the trainer."""


def _copied(array: Array) -> Array:
    copied = array.copy()
    copied.flags.writeable = False
    return copied


class InlineCluster:
    """A cluster of one worker in this process. Implements `cluster_protocol.Cluster`, as far as one worker can."""

    workers = 1

    def __init__(self) -> None:
        self.token = secrets.token_hex(16)
        self._host = socket.gethostname()  # observers ask for it at each look
        self._held_arrays = HeldArrays()
        self._worker: CalledWorker | None = None
        self._is_closed = False
        self._jobs = 0

    # -- life cycle ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self._worker is None and not self._is_closed:
            self._worker = CalledWorker(self._held_arrays)

    def wait_ready(self, silence: float = 0.0, say: Callable[[str], None] = ignore) -> None:
        """It is there as soon as it is started."""

    def close(self) -> None:
        self._is_closed = True
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def end_workers(self) -> None:
        """The trainer ends; `start` makes another one. Between jobs only."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def forget(self) -> None:
        """In a forked process, which has no copy of the trainer's thread."""

    # -- one job ---------------------------------------------------------------------------------------------------

    def new_job(self) -> str:
        self._jobs += 1
        job = f"{self.token}/{self._jobs}"
        self._here().begin_job(job)
        return job

    def end_job(self) -> None:
        if self._worker is not None:
            self._worker.order(ReleaseJob(), ())

    def new_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> JobArray:
        return self._held_arrays.hold(np.empty(shape, dtype))

    def lend_array(self, array: Array) -> JobArray | None:
        return self._held_arrays.hold(array)

    def crowded(self, workers: int) -> bool:
        return False

    def send(self, worker: int, body: Order, arrays: PackedArrays = EMPTY) -> None:
        if type(body) is Exit:
            return
        self._here().order(body, tuple(_read_only(array) for array in arrays.arrays))

    def receive(self, timeout: float) -> Iterator[Message]:
        worker = self._here()
        if not worker.sent_messages:
            worker.wait(timeout)
        while worker.sent_messages:
            yield worker.sent_messages.popleft()

    def _here(self) -> CalledWorker:
        if self._worker is None:
            raise UsageError("This cluster is closed; create a new one.")
        return self._worker

    # -- membership: nobody comes or goes --------------------------------------------------------------------------

    def incarnations(self) -> dict[int, int]:
        return {0: 0}

    def start_worker(self, worker: int) -> bool:
        if worker:
            raise WorkerLost(f"Worker {worker} is one too many: {ONLY_WORKER}.", "is one too many")
        return True

    def accept_hello(self, envelope: Envelope) -> bool:
        return False

    def deaths(self) -> list[WorkerDeath]:
        """A thread does not die."""
        return []

    def evict(self, worker: int, gently: bool = False) -> None:
        """The only worker is not replaced: without it the job fails."""

    def dismiss(self, envelope: Envelope) -> None:
        """Nobody was evicted."""

    def prepare_spare(self) -> None:
        """A trainer starts at once."""

    def scale(self, workers: int) -> None:
        if workers != 1:
            raise UsageError(f"The number of workers cannot become {workers}: {ONLY_WORKER}; give workers= to the job.")

    def drain(self, worker: int) -> None:
        raise UsageError(f"Worker {worker} cannot leave: {ONLY_WORKER}.")

    def hosts(self) -> dict[int, str]:
        return {0: self._host}

    def take_requests(self) -> list[ScaleTo | LeaveJob]:
        return []


def _read_only(array: Array) -> Array:
    """The arrays as read-only views, as if they came in a message: to compiled code these are different types."""
    view = array.view()
    view.flags.writeable = False
    return view


if TYPE_CHECKING:
    _implements: type[Cluster] = InlineCluster
