"""Workers on any host, over TCP with CURVE and keys of the job's own. Starts processes only where it is told how.

`start` receives a `WorkerConfig` and returns a handle, be it of a process of this host (the default) or of one that a
daemon elsewhere supervises.
"""

from __future__ import annotations

from collections.abc import Callable

from flegel.runtime.processes.endpoints import CurveEndpoint
from flegel.runtime.processes.worker_cluster import WorkerCluster
from flegel.runtime.processes.worker_processes import Process, launch
from flegel.runtime.system.exit_codes import describe_exit
from flegel.runtime.transport.poller import Poller
from flegel.runtime.worker.process import WorkerConfig


class SubprocessLauncher:
    """Starts each worker from scratch, by `start`."""

    def __init__(self, start: Callable[[WorkerConfig], Process] | None = None) -> None:
        self._start = start or launch

    def open(self, poller: Poller) -> None:
        """No descriptors: the driver looks at its processes ten times a second."""

    def launch(self, config: WorkerConfig) -> Process:
        return self._start(config)

    def prepare_spare(self) -> None:
        """Not possible: the keys of a worker are created when it is started."""

    def update(self) -> None:
        """`Popen.poll` asks the kernel itself."""

    def job_ended(self) -> None:
        """What workers have started ends with the process that waits for them, or with their host's slave."""

    def exit_cause(self, worker: int, code: int) -> tuple[str, bool]:
        return describe_exit(code)

    def worker_ready(self, worker: int) -> None:
        """Not needed here."""

    def worker_removed(self, worker: int) -> None:
        """Not needed here."""

    def ancestor(self) -> int | None:
        """Each worker is a child of this process."""
        return None

    def close(self) -> None:
        """Nothing is held."""


class RemoteCluster(WorkerCluster):
    """`host` is the address of this host that workers can reach; loopback by default."""

    def __init__(
        self,
        workers: int = 4,
        host: str = "127.0.0.1",
        port: int = 0,
        start: Callable[[WorkerConfig], Process] = launch,
    ) -> None:
        super().__init__(workers, CurveEndpoint(host, port), SubprocessLauncher(start))
