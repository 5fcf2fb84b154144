"""Workers on any host, over TCP with CURVE and keys of the job's own. Starts processes only where it is told how.

`start` receives a `WorkerConfig` and returns a handle, be it of a process of this host (the default) or of one that a
daemon elsewhere supervises.
"""

from __future__ import annotations

from collections.abc import Callable

from flegel.runtime.processes.endpoints import CurveEndpoint
from flegel.runtime.processes.worker_cluster import WorkerCluster
from flegel.runtime.processes.worker_processes import Process, SubprocessLauncher, launch
from flegel.runtime.worker.process import WorkerConfig


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
