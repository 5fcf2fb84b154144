"""Sleep until a socket, a pipe or a moment: one wait with microsecond timeouts, the GIL released.

`zmq_poll` counts in milliseconds, which is longer than a barrier takes here. `select` on the sockets' own file
descriptors does not; those are edge-triggered, so the sockets' state is asked before each sleep.
"""

from __future__ import annotations

import select
from collections.abc import Sequence

import zmq


def wait(sockets: Sequence[zmq.Socket[bytes]], fds: Sequence[int], timeout: float) -> tuple[list[int], list[int]]:
    """Indices of readable sockets and readable descriptors; both empty when the time is over."""
    ready = _readable(sockets)
    watched = [*fds, *(int(s.getsockopt(zmq.FD)) for s in sockets)]
    open_fds, _, _ = select.select(watched, [], [], 0.0 if ready else max(timeout, 0.0))
    return _readable(sockets), [i for i, fd in enumerate(fds) if fd in open_fds]


def _readable(sockets: Sequence[zmq.Socket[bytes]]) -> list[int]:
    return [i for i, s in enumerate(sockets) if int(s.getsockopt(zmq.EVENTS)) & zmq.POLLIN]
