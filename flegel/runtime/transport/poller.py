"""Sleep until a socket, a pipe or a moment: one wait with microsecond timeouts, the GIL released.

`zmq_poll` counts in milliseconds, which is longer than a barrier takes here. `select` on the socket's own file
descriptor does not; that one is edge-triggered, so the socket's state is asked before each sleep.
"""

from __future__ import annotations

import select
from collections.abc import Sequence

import zmq

from flegel.runtime.transport import zmq_frames

SELECTABLE = 1024  # FD_SETSIZE: descriptors from here on are not for select


class Poller:
    """Waits for a socket, and for pipes and further sockets, which may come and go.

    `select` knows descriptors below 1,024 only and looks at each of them; so all lie behind one epoll where the system
    has it, and `select` sees one descriptor however many workers there are.
    """

    def __init__(self, socket: zmq.Socket[bytes], pipes: Sequence[int] = ()) -> None:
        """Watch a ZeroMQ socket and file descriptors (`pipes`) together."""
        self._sockets = [socket]
        self._socket_descriptor = int(socket.getsockopt(zmq.FD))
        self._pipes: set[int] = set()
        self._always: set[int] = set()
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        if self._epoll is not None:
            self._epoll.register(self._socket_descriptor, select.EPOLLIN)
        for pipe in pipes:
            self.add(pipe)

    def add(self, pipe: int) -> None:
        self._pipes.add(pipe)
        if self._epoll is not None:
            try:
                self._epoll.register(pipe, select.EPOLLIN)
            except PermissionError:  # a plain file, or nothing at all: it can be read at any time
                self._always.add(pipe)

    def drop(self, pipe: int) -> None:
        """Stop watching a pipe, before it is closed."""
        self._pipes.discard(pipe)
        if pipe in self._always:
            self._always.discard(pipe)
        elif self._epoll is not None:
            self._epoll.unregister(pipe)

    def watch(self, socket: zmq.Socket[bytes]) -> None:
        """Wait for this socket, too."""
        self._sockets.append(socket)
        self.add(int(socket.getsockopt(zmq.FD)))

    def unwatch(self, socket: zmq.Socket[bytes]) -> None:
        """Before it is closed."""
        self._sockets.remove(socket)
        self.drop(int(socket.getsockopt(zmq.FD)))

    def close(self) -> None:
        if self._epoll is not None:
            self._epoll.close()

    def wait(self, timeout: float) -> list[int]:
        """Until something can be read, at most so long; the pipes that can. The sockets are for the caller to try."""
        ready = any(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN for socket in self._sockets)
        seconds = 0.0 if ready or self._always else max(timeout, 0.0)
        if self._epoll is None:
            readable, _, _ = select.select([self._socket_descriptor, *self._pipes], [], [], seconds)
        elif self._epoll.fileno() < SELECTABLE:
            found, _, _ = select.select([self._epoll], [], [], seconds)
            readable = [fd for fd, _ in self._epoll.poll(0)] if found else []
        else:  # in a process with very many open files, to the millisecond
            readable = [fd for fd, _ in self._epoll.poll(seconds)]
        return [pipe for pipe in (*readable, *self._always) if pipe in self._pipes]


def wait_any(sockets: Sequence[zmq.Socket[bytes]], pipe: int, timeout: float) -> bool:
    """Until one of several sockets or the pipe can be read, at most so long; True where the pipe can."""
    ready = any(zmq_frames.waiting(s) for s in sockets)
    watched = [pipe, *[s.fileno() for s in sockets]]
    readable, _, _ = select.select(watched, [], [], 0.0 if ready else max(timeout, 0.0))
    return pipe in readable
