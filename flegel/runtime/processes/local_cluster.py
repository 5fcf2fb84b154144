"""Workers on this host, forked from a fork server and kept warm for many jobs. Decides nothing about training.

Whatever happens to the owning process, its workers see their standard input close and end, and the kernel ends those
that are stopped; nothing has a name in the file system that could be left behind.
"""

from __future__ import annotations

from flegel.runtime.processes.endpoints import LocalEndpoint
from flegel.runtime.processes.worker_cluster import WorkerCluster
from flegel.runtime.processes.worker_processes import ForkServerLauncher


class LocalCluster(WorkerCluster):
    """`with LocalCluster(workers=4) as cluster: flegel.run(..., cluster=cluster)`."""

    def __init__(self, workers: int = 4) -> None:
        super().__init__(workers, LocalEndpoint(), ForkServerLauncher())
