"""Slaves as tasks of Dask, one on each worker that is chosen, for as long as the launch lasts.

`flegel.dask.Cluster(client, slaves=2)`. A ticket is the argument of its task, which Dask sends by way of the
scheduler (encrypted where Dask's own connections are: `distributed.Security`). A worker that Dask ends is one lost
worker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flegel.cluster.client import own_address
from flegel.cluster.launch.launched_cluster import LaunchedCluster
from flegel.cluster.launch.processes import ticket as tickets
from flegel.cluster.launch.processes.placer import SLAVE_END_SECONDS
from flegel.cluster.launch.processes.slave_host import HostedSlave
from flegel.cluster.launch.processes.ticket import SlaveTicket
from flegel.errors import UsageError, in_words
from flegel.runtime import clock

_hosted: dict[str, HostedSlave] = {}
"""In a process of Dask: its slaves by name."""


def host_in_task(name: str, ticket: bytes) -> str:
    """In a task: run one slave until it ends. It takes no thread of the worker's pool, so Dask's own work goes on."""
    from distributed import secede

    slave = _hosted[name] = HostedSlave(ticket)
    try:
        secede()
        while (ended := slave.wait(0.5)) is None:
            pass
        return ended
    finally:
        _hosted.pop(name, None)
        slave.end()


def signal_hosted(names: Sequence[str], drain: bool) -> None:
    """On every worker: drain or end slaves that it has."""
    for name in names:
        slave = _hosted.get(name)
        if slave is not None:
            slave.drain() if drain else slave.end()


class DaskPlacer:
    """One task for each slave, on Dask's workers in turn."""

    system = "dask"

    def __init__(self, client: Any) -> None:
        self._client_or_address = client
        self._client: Any = None
        self._tasks: dict[str, Any] = {}
        self.workers: dict[str, str] = {}
        """Dask's address of the worker of each slave."""

    def address(self) -> str:
        parts = urlsplit(self._client.scheduler.address)
        return own_address(f"tcp://{parts.hostname}:{parts.port}") if parts.scheme in ("tcp", "tls") else "127.0.0.1"

    def open(self, folder: Path) -> None:
        """Connect to Dask's scheduler; raises `UsageError` where Dask is missing or does not answer."""
        try:
            from distributed import Client
        except ImportError:
            raise UsageError("Dask is not installed here: pip install 'flegel[dask]'.") from None
        try:
            self._client = (
                Client(self._client_or_address) if isinstance(self._client_or_address, str) else self._client_or_address
            )
        except (OSError, ValueError) as error:
            raise UsageError(
                f"No scheduler of Dask answers at {self._client_or_address!r} ({in_words(error)}); give tcp://HOST:8786."
            ) from None

    def place(self, ticket: SlaveTicket) -> None:
        """Submit the slave as a task on the worker of Dask that has the fewest slaves of this launch."""
        known = sorted(self._client.nthreads())
        if not known:
            raise UsageError("This Dask cluster has no workers; start some with `dask worker`.")
        used = list(self.workers.values())
        where = min(known, key=lambda address: (used.count(address), address))
        self.workers[ticket.name] = where
        self._tasks[ticket.name] = self._client.submit(
            host_in_task,
            ticket.name,
            tickets.encode(ticket),
            workers=[where],
            allow_other_workers=False,
            pure=False,
            retries=0,
            key=f"flegel-{ticket.launch}-{ticket.name}",
        )

    def ended(self) -> dict[str, str]:
        """Slaves whose task or Dask worker has ended since the last call, by name, and why; their tasks are
        cancelled."""
        found = {}
        here = set(self._client.nthreads())
        for name, task in list(self._tasks.items()):
            lost = self.workers[name] not in here
            if task.done() or lost:
                found[name] = f"was lost with worker {self.workers[name]}" if lost else _outcome(task)
                task.cancel(force=True)
                del self._tasks[name], self.workers[name]
        return found

    def remove(self, names: Sequence[str]) -> None:
        self._client.run(signal_hosted, list(names), True, on_error="ignore")

    def close(self) -> None:
        """End the slaves on all workers of Dask, and cancel tasks that have not ended within `SLAVE_END_SECONDS`."""
        if self._client is None:
            return
        tasks, self._tasks = self._tasks, {}
        with contextlib.suppress(OSError, TimeoutError):
            if tasks:
                self._client.run(signal_hosted, list(tasks), False, on_error="ignore")
            until = clock.now() + SLAVE_END_SECONDS
            while not all(task.done() for task in tasks.values()) and clock.now() < until:
                clock.sleep(0.05)
            self._client.cancel(list(tasks.values()), force=True)
        if isinstance(self._client_or_address, str):
            self._client.close()


def _outcome(task: Any) -> str:
    if task.status == "finished":
        return str(task.result())
    return f"was ended by Dask ({task.status})"


class DaskCluster(LaunchedCluster):
    """`with flegel.dask.Cluster(client, slaves=2) as cluster: …`."""

    def __init__(self, client: Any, slaves: int | None = None, **launch: Any) -> None:
        """`client` is a `distributed.Client` or the address of a scheduler; a slave on each worker by default."""
        placer = DaskPlacer(client)
        if slaves is None:
            placer.open(Path())
            slaves = max(len(placer._client.nthreads()), 1)
        super().__init__(placer, slaves, **launch)


Cluster = DaskCluster
