"""A cluster in memory: workers say hello when they are started, end when they are told to, and do nothing else."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from flegel.core.pytree import Array
from flegel.errors import UsageError, WorkerLost
from flegel.machine.coordinator.events import LeaveJob, ScaleTo
from flegel.messages import Envelope, Exit, Hello, Order
from flegel.runtime.processes.cluster_protocol import WorkerDeath, ignore
from flegel.runtime.transport.codec import EMPTY, PackedArrays
from flegel.runtime.transport.shared_memory import SharedArray


class FakeCluster:
    """Passes `check_cluster`, so tests of the driver may rely on it."""

    def __init__(self, workers: int = 1) -> None:
        self.workers = workers
        self.inbox: deque[tuple[Envelope, tuple[Array, ...]]] = deque()
        self._incarnations: dict[int, int] = {}
        self._running: set[int] = set()
        self._ready: set[int] = set()
        self._ended: dict[int, str] = {}
        self._requests: list[ScaleTo | LeaveJob] = []
        self._jobs, self._busy, self._open = 0, False, False

    def start(self) -> None:
        self._open = True
        for worker in range(self.workers):
            self.start_worker(worker)

    def wait_ready(self, silence: float = 0.0, say: Callable[[str], None] = ignore) -> None:
        for envelope, _ in self.receive(0.0):
            self.accept_hello(envelope)

    def close(self) -> None:
        self._open = self._busy = False
        self._running.clear()
        self._ready.clear()

    def new_job(self) -> str:
        self._jobs, self._busy = self._jobs + 1, True
        return f"fake/{self._jobs}"

    def end_job(self) -> None:
        self._busy = False
        self._requests.clear()

    def new_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> SharedArray:
        return SharedArray(shape, dtype)

    def lend_array(self, array: Array) -> None:
        return None

    def crowded(self, workers: int) -> bool:
        return False

    def send(self, worker: int, body: Order, arrays: PackedArrays = EMPTY) -> None:
        if not self._open:
            raise UsageError("This cluster is closed; create a new one.")
        if worker not in self._running:
            raise WorkerLost(f"Worker {worker} is gone.", "is gone")
        if isinstance(body, Exit):
            self._running.discard(worker)
            self._ended[worker] = "ended with exit code 0"

    def receive(self, timeout: float) -> Iterator[tuple[Envelope, tuple[Array, ...]]]:
        while self.inbox:
            yield self.inbox.popleft()

    def incarnations(self) -> dict[int, int]:
        return dict(self._incarnations)

    def start_worker(self, worker: int) -> bool:
        if worker not in self._running:
            incarnation = self._incarnations[worker] = self._incarnations.get(worker, -1) + 1
            self._running.add(worker)
            self.inbox.append((Envelope("token", 0, worker, incarnation, 0, Hello(1, "fake")), ()))
        return worker in self._ready

    def accept_hello(self, envelope: Envelope) -> bool:
        current = self._incarnations.get(envelope.worker) == envelope.incarnation
        if current and isinstance(envelope.body, Hello):
            self._ready.add(envelope.worker)
            return True
        return False

    def deaths(self) -> list[WorkerDeath]:
        return [WorkerDeath(worker, why, True) for worker, why in self._ended.items()]

    def evict(self, worker: int, gently: bool = False) -> None:
        self._running.discard(worker)
        self._ready.discard(worker)
        self._ended.pop(worker, None)

    def dismiss(self, envelope: Envelope) -> None:
        """An evicted worker has ended at once."""

    def prepare_spare(self) -> None:
        """Every start is quick."""

    def scale(self, workers: int) -> None:
        if not 1 <= workers <= 1024:
            raise UsageError(f"The number of workers must be 1 to 1024, not {workers}.")
        self.workers = workers
        if self._busy:
            self._requests.append(ScaleTo(workers))

    def drain(self, worker: int) -> None:
        if not self._busy:
            raise UsageError("No job is running.")
        self._requests.append(LeaveJob(worker))

    def take_requests(self) -> list[ScaleTo | LeaveJob]:
        found, self._requests = self._requests, []
        return found
