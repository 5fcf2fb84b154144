"""What libzmq tells about a connection: read from a monitor socket. Judges nothing.

`zmq.utils.monitor` does the same, and imports asyncio for it: 25 ms of every process.
"""

from __future__ import annotations

import struct
from typing import Any

import zmq

_EVENT = struct.Struct("=hi")  # number of the event, and a value


def next_event(monitor: zmq.Socket[Any]) -> int | None:
    """The number of the next event (`zmq.EVENT_…`); None where nothing has happened."""
    if not int(monitor.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
        return None
    described, _ = monitor.recv_multipart(zmq.NOBLOCK)
    event, _ = _EVENT.unpack(described)
    return int(event)
