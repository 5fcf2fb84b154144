"""Workers that slaves start for a coordinator: the cluster that a job on several hosts trains with.

The launcher only says which workers are wanted, with the configuration of each; the slave passes this on to the master,
which finds a slot. `report_lost` says what became of them, from the thread that listens to the slave.
"""

from __future__ import annotations

from typing import IO

import msgspec

from flegel.cluster.slave import coordinator_protocol
from flegel.cluster.slave.coordinator_pipe import CoordinatorPipe
from flegel.runtime import clock
from flegel.runtime.processes.endpoints import CurveEndpoint
from flegel.runtime.processes.worker_cluster import WorkerCluster
from flegel.runtime.transport.poller import Poller
from flegel.runtime.worker.process import WorkerConfig

UPDATE_DELAY_SECONDS = 0.5
"""From the hello of a worker to the report that its configuration is not needed any more; many workers share one."""


class RemoteProcess:
    """A worker process on some host, as its coordinator knows it. Its slave ends it, not this process."""

    stdin: IO[bytes] | None = None

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        self.why: str | None = None
        """How it ended; None while it runs."""
        self.fault = False

    def poll(self) -> int | None:
        """1 for any end: the real exit code stays with its slave, and `why` has it in words."""
        return None if self.why is None else 1

    def wait(self, timeout: float | None = None) -> int:
        """Returns at once: its slave ends it, and nothing here waits for that."""
        return 1

    def terminate(self) -> None:
        """See the class."""

    def kill(self) -> None:
        """See the class."""


class SlaveLauncher:
    """Asks the slave for workers, by one record that lists all that are wanted."""

    def __init__(self, pipe: CoordinatorPipe) -> None:
        self._pipe = pipe
        self._processes: dict[int, RemoteProcess] = {}
        self._ready_workers: set[int] = set()
        self._last_loss = ""
        self._update_at: float | None = None

    def open(self, poller: Poller) -> None:
        """Losses arrive in another thread; the driver looks ten times a second."""

    def launch(self, config: WorkerConfig) -> RemoteProcess:
        process = self._processes[config.worker] = RemoteProcess(config)
        self._ready_workers.discard(config.worker)
        self._report()
        return process

    def _report(self) -> None:
        self._update_at = None
        configs = {worker: process.config for worker, process in list(self._processes.items()) if process.why is None}
        ready = set(self._ready_workers)
        new = {worker: msgspec.json.encode(c).decode() for worker, c in configs.items() if worker not in ready}
        wanted = {worker: config.incarnation for worker, config in configs.items()}
        self._pipe.send(coordinator_protocol.WorkersWanted(wanted, new, self._last_loss))

    def report_lost(self, worker: int, incarnation: int, why: str, fault: bool = False) -> None:
        """A worker has ended; may be said more than once."""
        process = self._processes.get(worker)
        if process is not None and process.config.incarnation == incarnation and process.why is None:
            process.fault, process.why = fault, why
            self._last_loss = f"worker {worker} {why}"
            self._report()

    def prepare_spare(self) -> None:
        """Slaves keep spare processes themselves."""

    def update(self) -> None:
        if self._update_at is not None and clock.now() >= self._update_at:
            self._report()

    def job_ended(self) -> None:
        """Slaves end the processes of a job with all that those have started."""

    def exit_cause(self, worker: int, code: int) -> tuple[str, bool]:
        process = self._processes[worker]
        return process.why or "", process.fault

    def worker_ready(self, worker: int) -> None:
        self._ready_workers.add(worker)
        if self._update_at is None:
            self._update_at = clock.now() + UPDATE_DELAY_SECONDS

    def worker_removed(self, worker: int) -> None:
        """A worker is not wanted any more: its slave ends it."""
        process = self._processes.pop(worker, None)
        self._ready_workers.discard(worker)
        if process is not None:
            process.why = process.why or "has left"
            self._report()

    def ancestor(self) -> int | None:
        """Workers are on other hosts."""
        return None

    def close(self) -> None:
        """Slaves end the workers of a coordinator that has ended."""


class SlaveWorkers(WorkerCluster):
    """Workers on slaves."""

    def __init__(self, workers: int, host: str, pipe: CoordinatorPipe) -> None:
        slaves = SlaveLauncher(pipe)
        super().__init__(workers, CurveEndpoint(host), slaves)
        self.report_lost = slaves.report_lost
