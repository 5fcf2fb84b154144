"""A cluster made of parts: endpoint, launcher, registry of workers, mailbox. Decides nothing about training.

Where the workers are and who starts them is in the endpoint and the launcher alone. `LocalCluster` and
`SlaveWorkers` choose these two; all of them are this class otherwise. Implements `cluster_protocol.Cluster`.
"""

from __future__ import annotations

import contextlib
import secrets
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import zmq

from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.errors import FlegelError, UsageError, WorkerLost
from flegel.machine.coordinator.events import LeaveJob, ScaleTo
from flegel.messages import Envelope, Exit, Order, ReleaseJob
from flegel.runtime import clock
from flegel.runtime.processes.cluster_protocol import DEFAULT_SILENCE_SECONDS, WorkerDeath, ignore
from flegel.runtime.processes.endpoints import Endpoint
from flegel.runtime.processes.host import cores
from flegel.runtime.processes.job_mailbox import JobMailbox
from flegel.runtime.processes.starting_processes import StartingProcesses
from flegel.runtime.processes.worker_processes import Launcher
from flegel.runtime.processes.worker_registry import WorkerRegistry
from flegel.runtime.system.signals import DeferredSignals
from flegel.runtime.transport.codec import EMPTY, PackedArrays
from flegel.runtime.transport.shared_memory import JobArray
from flegel.runtime.worker.process import WorkerConfig

if TYPE_CHECKING:
    from typing import Self

    from flegel.runtime.processes.cluster_protocol import Cluster

MAX_WORKERS = 1024  # processes of a cluster


class WorkerCluster:
    """Workers at an endpoint, started by a launcher."""

    def __init__(self, workers: int, endpoint: Endpoint, launcher: Launcher) -> None:
        """`endpoint`: the coordinator's socket; `launcher` starts the processes of workers."""
        _check_count(workers)
        self.workers = workers
        self.token = secrets.token_hex(16)
        """What workers present in their hello."""
        self.endpoint, self.launcher = endpoint, launcher
        self.registry = WorkerRegistry(launcher)
        self._mailbox = JobMailbox(endpoint, self.registry)
        self._job = self.token
        self._jobs = 0
        self._in_job = False
        self._requests: deque[ScaleTo | LeaveJob] = deque()

    # -- life cycle ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start every worker that is not running, also in place of dead ones, and return; `wait_ready` waits."""
        if not self._mailbox.is_open:
            self.launcher.open(self._mailbox.open())
        for death in self.deaths():
            self.evict(death.worker)
        for worker in range(self.workers):
            if worker not in self.registry.processes:
                self._launch(worker)

    def _launch(self, worker: int) -> None:
        incarnation = self.registry.new_incarnation(worker, self._job)
        keys = self.endpoint.admit(worker, incarnation)
        config = WorkerConfig(self.endpoint.address, self.token, worker, incarnation, keys)
        self.registry.processes[worker] = self.launcher.launch(config)

    def wait_ready(self, silence: float = DEFAULT_SILENCE_SECONDS, say: Callable[[str], None] = ignore) -> None:
        """Wait until every worker has said hello; a worker that dies or is late is named. Where neither the
        fork server nor one of its workers does anything for `silence` seconds, it is replaced once; `say` hears of it
        halfway."""
        deadline = clock.now() + active().liveness.worker_start_seconds
        starting = StartingProcesses(self.launcher, silence, say)
        deaths = 0
        while not self.registry.ready >= set(range(self.workers)):
            for worker, why, _ in self.deaths():
                deaths += 1
                if deaths >= active().liveness.deaths_while_starting:
                    raise WorkerLost(f"Worker {worker} {why} while it started.")
                self.evict(worker)
                self._launch(worker)
            for envelope, _ in self.receive(0.1):
                self.accept_hello(envelope)
            late = {w: process for w, process in self.registry.processes.items() if w not in self.registry.ready}
            if starting.look(late, clock.now()):
                self.launcher.close()  # its workers end with it
                for worker in list(self.registry.processes):
                    self.evict(worker)
                    self._launch(worker)
            elif late and clock.now() > deadline:
                seconds = active().liveness.worker_start_seconds
                raise WorkerLost(f"Workers {sorted(late)} did not start within {seconds:.0f} s.")

    def __enter__(self) -> Self:
        """Start all workers and wait until they are ready."""
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
        """Ask workers to end, then force them; afterwards no process, socket or memory of the cluster is left."""
        with DeferredSignals():
            self._in_job = False
            for worker, process in self.registry.processes.items():
                if process.poll() is None and worker in self.registry.ready:
                    with contextlib.suppress(zmq.ZMQError, FlegelError):
                        self.send(worker, Exit())
            self.registry.close()
            self.launcher.close()
            self._mailbox.close()

    # -- one job ---------------------------------------------------------------------------------------------------

    def new_job(self) -> str:
        """A name that fences this job's messages from those of earlier ones."""
        self._jobs += 1
        self._in_job = True
        self._job = f"{self.token}/{self._jobs}"
        self._mailbox.begin_job(self._job, self.workers)
        self.registry.set_job(self._job)
        return self._job

    def end_job(self) -> None:
        """Workers drop the data of the job."""
        self._in_job = False
        self._mailbox.end_job()
        self._requests.clear()
        for worker, process in self.registry.processes.items():
            if process.poll() is None:
                with contextlib.suppress(FlegelError):
                    self.send(worker, ReleaseJob())
        self.registry.job_ended()

    def new_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> JobArray:
        """An array that all workers can read."""
        return self.endpoint.new_array(shape, dtype)

    def lend_array(self, array: Array) -> JobArray | None:
        """The array itself, where all workers can read ranges of it in place; None: it has to be copied."""
        return self.endpoint.lend_array(array, self.launcher.ancestor())

    def crowded(self, workers: int) -> bool:
        """Whether so many workers have to share processors; on other hosts each is assumed to have its own."""
        return self.endpoint.same_host and workers > len(cores())

    def send(self, worker: int, body: Order, arrays: PackedArrays = EMPTY) -> None:
        """Raises `WorkerLost` where the worker cannot be reached."""
        self._mailbox.send(worker, body, arrays)

    def receive(self, timeout: float) -> Iterator[tuple[Envelope, tuple[Array, ...]]]:
        """Messages that have arrived, after waiting for the first one at most so long."""
        return self._mailbox.receive(timeout)

    # -- membership ------------------------------------------------------------------------------------------------

    def incarnations(self) -> dict[int, int]:
        """The current incarnation of each worker that was ever started."""
        return self.registry.incarnations()

    def start_worker(self, worker: int) -> bool:
        """Start a process for this worker unless it has one; True if it is ready, otherwise it will say hello."""
        if not 0 <= worker < MAX_WORKERS:
            raise WorkerLost(f"Worker {worker} is one too many; {MAX_WORKERS} is the most.", "is one too many")
        if worker not in self.registry.processes:
            self._launch(worker)
        return worker in self.registry.ready

    def accept_hello(self, envelope: Envelope) -> bool:
        """Whether this is the hello of a worker that was just started; it is ready from then on."""
        return self.registry.accept_hello(envelope, self.token)

    def deaths(self) -> list[WorkerDeath]:
        """Workers whose process has ended, how, and whether by its own fault; until they are evicted."""
        self.endpoint.supervise()
        return self.registry.deaths()

    def evict(self, worker: int, gently: bool = False) -> None:
        """End this worker's process, even a stopped one, and forget it: its next start is another incarnation."""
        ready = worker in self.registry.ready
        process = self.registry.remove(worker)
        if process is None:
            return
        self._mailbox.forget(worker)
        if gently and ready:
            with contextlib.suppress(FlegelError):
                self.send(worker, Exit())
        self.registry.end(worker, process, gently)

    def dismiss(self, envelope: Envelope) -> None:
        """Tell the sender, which was evicted, to end."""
        self._mailbox.send_exit(envelope.worker, envelope.incarnation)

    def end_workers(self) -> None:
        """End the processes of all workers; `start` starts others. Between jobs only."""
        for worker in list(self.registry.processes):
            self.evict(worker, gently=True)

    def forget(self) -> None:
        """Let go of the workers in a forked process: they are the parent's."""
        for process in self.registry.processes.values():
            with contextlib.suppress(OSError):
                if process.stdin is not None:
                    process.stdin.close()

    def prepare_spare(self) -> None:
        """Make the next start quick, where that is possible."""
        self.launcher.prepare_spare()

    def scale(self, workers: int) -> None:
        """Have `workers` workers from now on, for the job that runs and for those that follow. May be called from any
        thread.

        Points are handed over while the job pauses for a moment; workers that have to go hand theirs over first.
        """
        _check_count(workers)
        self.workers = workers
        if self._in_job:
            self._requests.append(ScaleTo(workers))

    def drain(self, worker: int) -> None:
        """Have this worker, for instance one whose host is about to go, hand its points over and end. May be called
        from any thread."""
        if not self._in_job:
            raise UsageError(f"No job is running, so worker {worker} has nothing to hand over.")
        self._requests.append(LeaveJob(worker))

    def hosts(self) -> dict[int, str]:
        """The host of each worker that has said hello."""
        return self.registry.hosts

    def take_requests(self) -> list[ScaleTo | LeaveJob]:
        """Calls of `scale` and `drain` since the last look."""
        found = []
        while self._requests:
            found.append(self._requests.popleft())
        return found


def _check_count(workers: int) -> None:
    if not 1 <= workers <= MAX_WORKERS:
        raise UsageError(f"The number of workers must be 1 to {MAX_WORKERS}, not {workers}.")


if TYPE_CHECKING:
    _implements: type[Cluster] = WorkerCluster
