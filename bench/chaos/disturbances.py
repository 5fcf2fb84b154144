"""Faults for a cluster of real processes: freezes, kills, and a network between daemons that can be cut and slowed.

`Link` is a TCP relay on this host. While it is cut, bytes of one or both directions wait, as they do in the buffers of
a network that is down; when it heals they arrive, and nothing was lost. Judges nothing.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import socket
import threading
import time
from urllib.parse import urlsplit

import psutil

from tests.cluster.daemon_cluster import DaemonCluster

CHUNK = 64 << 10


class Link:
    """A relay to an address; `cut` and `delay` hold from now on."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.stopped: set[str] = set()
        """Directions that are cut: `up` (to the target), `down`."""
        self.delay = 0.0
        self._over = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(OSError):
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(self._target, 5.0)
                except OSError:
                    near.close()
                    continue
                for source, sink, way in ((near, far, "up"), (far, near, "down")):
                    threading.Thread(target=self._pump, args=(source, sink, way), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while not self._over.is_set():
                if way in self.stopped:
                    time.sleep(0.02)
                    continue
                if not select.select([source], [], [], 0.05)[0] or way in self.stopped:
                    continue
                content = source.recv(CHUNK)
                if not content:
                    break
                if self.delay:
                    time.sleep(self.delay)
                sink.sendall(content)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
                each.close()

    def close(self) -> None:
        self._over.set()
        self._listener.close()


def role_of(process: psutil.Process) -> str:
    """`coordinator`, `worker`, or empty for a process that is neither (yet)."""
    with contextlib.suppress(psutil.Error, OSError):
        names = process.cmdline()
        descriptors = [os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{process.pid}/fd")]  # noqa: PTH115,PTH208
        if "flegel.cluster.slave.job_process" in names:
            listens = any(c.status == psutil.CONN_LISTEN for c in process.net_connections("tcp"))
            return "coordinator" if listens and len(descriptors) else "worker"
    return ""


def victims(cluster: DaemonCluster, who: str) -> list[int]:
    """Process numbers of `master`, `slave`, `coordinator`, `worker` or `host` (everything)."""
    assert cluster.master is not None
    daemons = {"master": [cluster.master.pid], "slave": [p.pid for p in cluster.slaves.values()][:1]}
    if who in daemons:
        return daemons[who]
    jobs = [(role_of(p), p.pid) for p in cluster.processes()]
    if who == "host":
        return [*daemons["master"], *(p.pid for p in cluster.slaves.values()), *(pid for _, pid in jobs)]
    found = [pid for role, pid in jobs if role == who] or [pid for _, pid in jobs]
    return found[:1]


def freeze(pids: list[int], seconds: float) -> None:
    """Stop processes for so long."""
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if number == signal.SIGSTOP:
            time.sleep(seconds)


def disturb(cluster: DaemonCluster, links: list[Link], rng: random.Random) -> str:
    """One fault of any kind, begun and ended; says which."""
    kind = rng.choice(("freeze", "freeze", "kill", "slave", "master", "cut", "delay"))
    if kind == "freeze":
        who = [rng.choice(("master", "slave", "coordinator", "worker", "host")) for _ in range(rng.choice((1, 1, 2)))]
        seconds = rng.choice((1.0, 5.0, 9.0, 15.0))
        freeze(sorted({pid for each in who for pid in victims(cluster, each)}), seconds)
        return f"{' and '.join(who)} frozen for {seconds:g} s"
    if kind == "kill":
        who_dies = rng.choice(("coordinator", "worker"))
        for pid in victims(cluster, who_dies):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return f"{who_dies} killed"
    if kind == "slave":
        name = rng.choice(sorted(cluster.slaves))
        number = sorted(cluster.slaves).index(name)
        cluster.kill_slave(name)
        cluster.start_slave(name, "--master", links[number].address)
        return f"slave {name} killed and started again"
    if kind == "master":
        cluster.kill_master()
        time.sleep(rng.uniform(0.1, 3.0))
        cluster.start_master()
        return "master killed and started again"
    link = rng.choice(links)
    seconds = rng.choice((5.0, 10.0, 15.0))
    if kind == "delay":
        link.delay = rng.choice((0.05, 0.2))
        time.sleep(seconds)
        link.delay = 0.0
        return f"a link delayed for {seconds:g} s"
    ways = rng.choice((("up",), ("down",), ("up", "down")))
    link.stopped.update(ways)
    time.sleep(seconds)
    link.stopped.clear()
    return f"a link cut ({' and '.join(ways)}) for {seconds:g} s"


class LinkedCluster(DaemonCluster):
    """Its slaves reach the master through links."""

    def __enter__(self) -> LinkedCluster:
        self.links = [Link(self.address) for _ in self._names]
        super().__enter__()
        return self

    def start_slave(self, name: str, *more: str) -> None:
        through = () if "--master" in more else ("--master", self.links[self._names.index(name)].address)
        super().start_slave(name, *through, *more)

    def __exit__(self, *_: object) -> None:
        for link in self.links:
            link.stopped.clear()
        super().__exit__()
        for link in self.links:
            link.close()
