"""Sleep until a socket, a pipe or a moment: one wait with microsecond timeouts, the GIL released.

`zmq_poll` counts in milliseconds, which is longer than a barrier takes here. `select` on the socket's own file
descriptor does not; that one is edge-triggered, so the socket's state is asked before each sleep.
"""

from __future__ import annotations

import select
from collections.abc import Sequence

import zmq


class Sleeper:
    """Waits for one socket and some pipes."""

    def __init__(self, socket: zmq.Socket[bytes], pipes: Sequence[int] = ()) -> None:
        self._socket = socket
        self._pipes = list(pipes)
        self._watched = [*pipes, int(socket.getsockopt(zmq.FD))]

    def wait(self, timeout: float) -> list[int]:
        """Until something can be read, at most so long; the pipes that can. The socket is for the caller to try."""
        ready = int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN
        readable, _, _ = select.select(self._watched, [], [], 0.0 if ready else max(timeout, 0.0))
        return [pipe for pipe in self._pipes if pipe in readable]


def wait_any(sockets: Sequence[zmq.Socket[bytes]], pipe: int, timeout: float) -> bool:
    """Until one of several sockets or the pipe can be read, at most so long; True where the pipe can."""
    ready = any(int(s.getsockopt(zmq.EVENTS)) & zmq.POLLIN for s in sockets)
    watched = [pipe, *(int(s.getsockopt(zmq.FD)) for s in sockets)]
    readable, _, _ = select.select(watched, [], [], 0.0 if ready else max(timeout, 0.0))
    return pipe in readable
