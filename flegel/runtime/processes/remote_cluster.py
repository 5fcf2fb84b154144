"""Workers on any host: the same cluster as a local one, over TCP with CURVE and the job's own keys.

Who starts the processes is not decided here: `start` is given a `Birth` and returns a handle, be it of a process of
this host or of one that a daemon elsewhere looks after. Each life of a worker has a key of its own, so nobody speaks
for it but itself, and what a former life says never counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import zmq

from flegel.messages import LoadShard
from flegel.runtime.processes.host import io_threads
from flegel.runtime.processes.local_cluster import LocalCluster, Process, launch
from flegel.runtime.transport.codec import PackedArrays
from flegel.runtime.transport.curve import ZapAuthenticator, apply_limits, key_of, new_key_pair, secure_listener
from flegel.runtime.transport.job_sockets import LARGEST, QUEUE, JobKeys, JobSockets
from flegel.runtime.transport.poller import Poller
from flegel.runtime.transport.remote_arrays import ArrayServer, ServedArray
from flegel.runtime.transport.shared_memory import SharedArray
from flegel.runtime.worker.process import WorkerConfig, identity


class RemoteCluster(LocalCluster):
    """`host` is the address of this host that workers can reach; loopback unless told otherwise."""

    def __init__(
        self,
        workers: int = 4,
        host: str = "127.0.0.1",
        port: int = 0,
        start: Callable[[WorkerConfig], Process] = launch,
    ) -> None:
        super().__init__(workers)
        self._host, self._port, self._start = host, port, start
        self._pair, self._between = new_key_pair(), new_key_pair()
        self._speakers: dict[str, bytes] = {}
        """By the key that CURVE proves: the worker and life that it belongs to."""
        self._keys: dict[int, str] = {}
        self._doorman: ZapAuthenticator | None = None
        self._doors: JobSockets | None = None
        self._server: ArrayServer | None = None

    def _open(self) -> None:
        self._context = zmq.Context(io_threads())
        self._doorman = ZapAuthenticator(self._context, self._speakers.__contains__)
        self._socket = self._context.socket(zmq.ROUTER)
        apply_limits(self._socket, LARGEST, QUEUE)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.SNDTIMEO, 0)
        secure_listener(self._socket, self._pair)
        self._socket.bind(f"tcp://{self._host}:{self._port or '*'}")
        self._address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._sleeper = Poller(self._socket)

    def deaths(self) -> list[tuple[int, str, bool]]:
        if self._doorman is not None:
            self._doorman.supervise()
        return super().deaths()

    def keep_spare(self) -> None:
        """Where a worker will be, and which keys it has, is not known before it is wanted."""

    def _launch(self, worker: int, life: int) -> Process:
        pair = new_key_pair()
        self._speakers.pop(self._keys.get(worker, ""), None)  # a former life may not speak any more
        self._keys[worker] = pair.public
        self._speakers[pair.public] = identity(worker, life)
        keys = JobKeys(pair, self._pair.public, self._between)
        return self._start(WorkerConfig(self._address, self.token, worker, life, keys))

    def _take(self, socket: zmq.Socket[bytes]) -> tuple[bytes, list[Any]]:
        """The speaker is who its key says, and must have dialed under that name."""
        route = socket.recv(zmq.NOBLOCK, copy=False)
        parts: list[Any] = []
        frame = route
        while frame.more:
            frame = socket.recv(copy=False)
            parts.append(frame)
        speaker = self._speakers.get(key_of(parts[0]) if parts else "", b"")
        known = speaker if speaker == route.bytes else b""
        return known, [memoryview(f).toreadonly() for f in parts] if known else []

    def crowded(self, workers: int) -> bool:
        """Nobody knows; whoever starts the workers of a host gives each a processor, most likely."""
        return False

    def _with_board(self, worker: int, load: LoadShard, parcel: PackedArrays) -> LoadShard:
        """Nobody knows whether a worker is on this host."""
        return load

    def new_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> SharedArray | ServedArray:
        if self._server is None:
            self._doors = JobSockets(JobKeys(self._pair, self._pair.public, self._between))
            self._server = ArrayServer(self._doors, self._address)
        return ServedArray(self._server, shape, dtype)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._doors is not None:
            self._doors.close()
            self._doors = None
        context, self._context = self._context, None
        super().close()
        if self._doorman is not None:
            self._doorman.stop()
            self._doorman = None
        if context is not None:
            context.term()
