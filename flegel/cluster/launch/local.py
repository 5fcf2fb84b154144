"""Slaves as processes of this host: to try what a launch does. For training on one host `LocalCluster` is quicker."""

from __future__ import annotations

from typing import Any

from flegel.cluster.launch.launched_cluster import LaunchedCluster
from flegel.cluster.launch.processes.placer import CommandPlacer


class LocalLaunch(LaunchedCluster):
    """`with LocalLaunch(slaves=2) as cluster: …`."""

    def __init__(self, slaves: int, **launch: Any) -> None:
        super().__init__(CommandPlacer(), slaves, **launch)


Cluster = LocalLaunch
