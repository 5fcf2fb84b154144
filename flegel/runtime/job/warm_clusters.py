"""Workers that stay between two calls of `flegel.run`, in threads or processes, until this process ends. Runs no job.

At most one cluster of each kind waits. A job takes it and gives it back; a second job at the same time has one of its
own, which ends with it, and so does one whose job failed. Processes are not used again where modules would be found
elsewhere by now, and those that ran a user's class end with their job: modules that it imported may have changed. The
fork server, which has imported nothing of the user's, stays, so the next workers start in milliseconds.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Literal

from flegel.errors import FlegelError
from flegel.runtime.processes.inline_cluster import InlineCluster
from flegel.runtime.processes.local_cluster import HostCluster
from flegel.runtime.processes.thread_cluster import ThreadCluster

Kind = Literal["inline", "threads", "processes"]
"""inline: one worker of this process, called without messages; threads: several of them."""
AnyCluster = HostCluster | ThreadCluster | InlineCluster


class WarmClusters:
    """Clusters that no job uses at the moment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle_clusters: dict[Kind, AnyCluster] = {}
        self._surroundings: dict[Kind, object] = {}
        self._clusters_of_parent: list[object] = []
        """Clusters of the process that this one was forked from: never touched, so never finalized here."""

    def waiting(self, kind: Kind) -> int:
        """How many workers of this kind wait for a job."""
        with self._lock:
            found = self._idle_clusters.get(kind)
            return found.workers if found is not None and self._surroundings[kind] == _surroundings(kind) else 0

    @contextlib.contextmanager
    def lease(self, kind: Kind, workers: int, keep: bool = True, renew: bool = False) -> Iterator[HostCluster]:
        """A cluster of at least so many workers; started by who uses it. Kept afterwards if `keep`, and nothing was
        raised. `renew`: its workers end, and others take their place when they are needed."""
        cluster = self._take(kind, workers)
        good = False
        try:
            yield cluster  # type: ignore[misc]
            good = True
        finally:
            if not (good and keep and self._give_back(kind, cluster, renew)):
                cluster.close()

    def _take(self, kind: Kind, workers: int) -> AnyCluster:
        """An idle cluster of this kind, where there is one that still fits (same environment), scaled up where it has
        too few workers; else a new one."""
        with self._lock:
            found = self._idle_clusters.pop(kind, None)
            usable = found is not None and self._surroundings.pop(kind) == _surroundings(kind)
        if found is not None and usable:
            if workers > found.workers:
                found.scale(workers)
            return found
        if found is not None:
            found.close()
        if kind == "inline":
            return InlineCluster()
        return HostCluster(workers) if kind == "processes" else ThreadCluster(workers)

    def _give_back(self, kind: Kind, cluster: AnyCluster, renew: bool) -> bool:
        """Keep a cluster for the next job; False where another one of its kind is kept already."""
        if renew:
            with contextlib.suppress(FlegelError, OSError):
                cluster.end_workers()
        with self._lock:
            if kind in self._idle_clusters:
                return False
            self._idle_clusters[kind], self._surroundings[kind] = cluster, _surroundings(kind)
            return True

    def close(self) -> None:
        """End all workers that wait; a later job starts others."""
        with self._lock:
            clusters = list(self._idle_clusters.values())
            self._idle_clusters.clear()
            self._surroundings.clear()
        for cluster in clusters:
            cluster.close()

    def forget(self) -> None:
        """Drop all clusters in a forked process: their workers belong to the parent, which must not wait for this
        process."""
        self._lock = threading.Lock()
        for cluster in self._idle_clusters.values():
            self._clusters_of_parent.append(cluster)
            cluster.forget()
        self._idle_clusters.clear()
        self._surroundings.clear()


def _surroundings(kind: Kind) -> object:
    """What a process was given when it was started, and cannot be changed any more; threads see every change."""
    return (tuple(sys.path), str(os.getcwd()), dict(os.environ)) if kind == "processes" else None  # noqa: PTH109


warm_clusters = WarmClusters()
atexit.register(warm_clusters.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=warm_clusters.forget)
