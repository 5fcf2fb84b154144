"""Workers on this host, forked from a fork server and kept warm for many jobs. Decides nothing about training.

Whatever happens to the owning process, its workers see their standard input close and end, and the kernel ends those
that are stopped; nothing has a name in the file system that could be left behind. `flegel.LocalCluster` is this with a
method `run`.
"""

from __future__ import annotations

from flegel.runtime.processes.endpoints import LocalEndpoint
from flegel.runtime.processes.worker_cluster import WorkerCluster
from flegel.runtime.processes.worker_processes import ForkServerLauncher


class HostCluster(WorkerCluster):
    """Worker processes of this host."""

    def __init__(self, workers: int = 4) -> None:
        super().__init__(workers, LocalEndpoint(), ForkServerLauncher())
