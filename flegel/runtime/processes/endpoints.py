"""The socket at which a coordinator's workers connect: local sockets on one host, TCP with CURVE between hosts.

An endpoint knows who sent a message and what a new worker needs in order to connect; it reads no message.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import zmq

from flegel.core.pytree import Array
from flegel.runtime.processes.host import io_threads
from flegel.runtime.transport import job_sockets, zmq_frames
from flegel.runtime.transport.curve import ZapAuthenticator, apply_limits, key_of, new_key_pair, secure_listener
from flegel.runtime.transport.job_sockets import MAX_MESSAGE_BYTES, QUEUED_MESSAGES, JobKeys, JobSockets
from flegel.runtime.transport.process_memory import LentArray, readable
from flegel.runtime.transport.remote_arrays import ArrayServer, ServedArray
from flegel.runtime.transport.shared_memory import JobArray, SharedArray
from flegel.runtime.worker.process import identity


class Endpoint(Protocol):
    """A socket that workers connect to."""

    same_host: bool
    """Are all workers known to be on this host? Then they share its processors and can share memory."""
    address: str

    def open(self) -> zmq.Socket[bytes]:
        """A ROUTER socket at `address`."""
        ...

    def admit(self, worker: int, incarnation: int) -> JobKeys | None:
        """Let this incarnation connect, and its predecessor no more; the keys that it needs."""
        ...

    def receive(self, socket: zmq.Socket[bytes]) -> tuple[bytes, list[Any]]:
        """The sender's identity (empty if unknown) and the frames of a message; raises `zmq.Again` without one."""
        ...

    def new_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> JobArray:
        """An array that all workers can read."""
        ...

    def lend_array(self, array: Array, readers: int | None) -> JobArray | None:
        """The array itself, where workers, all descendants of the process `readers`, can read ranges of it in place;
        None: it has to be copied into a new one."""
        ...

    def supervise(self) -> None:
        """Called several times a second: restart what has died."""
        ...

    def close(self) -> None:
        """Close the socket and everything behind it."""
        ...


class LocalEndpoint:
    """A socket that only processes of this user on this host can reach; `host` puts it on TCP at that address."""

    same_host = True

    def __init__(self, host: str = "") -> None:
        self.address = ""
        self._host = host
        self._context: zmq.Context[Any] | None = None
        self._socket: zmq.Socket[bytes] | None = None

    def open(self) -> zmq.Socket[bytes]:
        """Open and bind the coordinator's socket; queues have no limit, and sending to a worker that is not connected
        is an error."""
        self._context = zmq.Context(io_threads())
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self.address = self._bind(self._socket)
        return self._socket

    def _bind(self, listener: zmq.Socket[bytes]) -> str:
        if job_sockets.ABSTRACT and not self._host:
            return job_sockets.bind_here(listener)
        host = f"tcp://{self._host or '127.0.0.1'}"
        return f"{host}:{listener.bind_to_random_port(host)}"

    def admit(self, worker: int, incarnation: int) -> JobKeys | None:
        return None

    def receive(self, socket: zmq.Socket[bytes]) -> tuple[bytes, list[Any]]:
        return zmq_frames.receive_from(socket)

    def new_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> JobArray:
        return SharedArray(shape, dtype)

    def lend_array(self, array: Array, readers: int | None) -> JobArray | None:
        return LentArray(array) if readable(readers) else None

    def supervise(self) -> None:
        """Nothing of its own runs."""

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._context is not None:
            self._context.term()
            self._context = None


class CurveEndpoint:
    """TCP with CURVE. Each incarnation of a worker has a key of its own: no other process can send in its name."""

    same_host = False

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """`host`, `port`: where to listen; port 0: any that is free."""
        self.address = ""
        self.senders: dict[str, bytes] = {}
        """By the key that CURVE proves: the identity of the incarnation that it belongs to."""
        self._host, self._port = host, port
        self._pair, self._between = new_key_pair(), new_key_pair()
        self._keys: dict[int, str] = {}
        self._context: zmq.Context[Any] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._authenticator: ZapAuthenticator | None = None
        self._array_sockets: JobSockets | None = None
        self._array_server: ArrayServer | None = None

    def open(self) -> zmq.Socket[bytes]:
        """Open and bind the coordinator's socket: encrypted, for peers with known keys only; sizes and queues are
        limited."""
        self._context = zmq.Context(io_threads())
        self._authenticator = ZapAuthenticator(self._context, self.senders.__contains__)
        self._socket = self._context.socket(zmq.ROUTER)
        apply_limits(self._socket, MAX_MESSAGE_BYTES, QUEUED_MESSAGES)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.SNDTIMEO, 0)
        secure_listener(self._socket, self._pair)
        self._socket.bind(f"tcp://{self._host}:{self._port or '*'}")
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        return self._socket

    def admit(self, worker: int, incarnation: int) -> JobKeys | None:
        pair = new_key_pair()
        self.senders.pop(self._keys.get(worker, ""), None)  # the former incarnation may not send any more
        self._keys[worker] = pair.public
        self.senders[pair.public] = identity(worker, incarnation)
        return JobKeys(pair, self._pair.public, self._between)

    def receive(self, socket: zmq.Socket[bytes]) -> tuple[bytes, list[Any]]:
        """The sender is the owner of the key, and must have connected under that identity."""
        route = socket.recv(zmq.NOBLOCK, copy=False)
        parts: list[Any] = []
        frame = route
        while frame.more:
            frame = socket.recv(copy=False)
            parts.append(frame)
        sender = self.senders.get(key_of(parts[0]) if parts else "", b"")
        known = sender if sender == route.bytes else b""
        return known, [memoryview(f).toreadonly() for f in parts] if known else []

    def new_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> JobArray:
        if self._array_server is None:
            self._array_sockets = JobSockets(JobKeys(self._pair, self._pair.public, self._between))
            self._array_server = ArrayServer(self._array_sockets, self.address)
        return ServedArray(self._array_server, shape, dtype)

    def lend_array(self, array: Array, readers: int | None) -> JobArray | None:
        return None

    def supervise(self) -> None:
        if self._authenticator is not None:
            self._authenticator.supervise()

    def close(self) -> None:
        """Sockets close before the context that they belong to; closing twice does nothing."""
        if self._array_server is not None:
            self._array_server.close()
            self._array_server = None
        if self._array_sockets is not None:
            self._array_sockets.close()
            self._array_sockets = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._authenticator is not None:
            self._authenticator.stop()
            self._authenticator = None
        if self._context is not None:
            self._context.term()
            self._context = None
