"""The frames of one message to and from a socket, with as few Python calls as there can be. Knows no message.

pyzmq's `send_multipart` and `recv_multipart` do the same through enumerations and an extra question per frame, which
costs as much again as the message itself; its `send` is a Python call around the compiled one, which is called here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zmq
from zmq.backend import Socket as _Compiled

from flegel.configuration.active import active

_MORE = int(zmq.SNDMORE)
_AT_ONCE = int(zmq.NOBLOCK)
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)
_Frame = zmq.Frame
_send = _Compiled.send
_recv = _Compiled.recv
_get = _Compiled.get


def shared(part: Any) -> zmq.Frame:
    """A part that goes to many receivers: copied once, here; then ZeroMQ counts references to it."""
    return zmq.Frame(part, copy=True)


def lasting(part: Any) -> Any:
    """A part that does not change until it has left: a large one is sent without a copy."""
    return (
        zmq.Frame(part, copy=False)
        if memoryview(part).nbytes >= active().transport.sent_without_copy_from_bytes
        else part
    )


def send(socket: zmq.Socket[bytes], frames: Sequence[Any], route: bytes | None = None) -> None:
    """All frames as one message, where needed with the name of whom it goes to (from a ROUTER).

    Those made by `shared` and `lasting` are not copied, others are.
    """
    if route is not None:
        _send(socket, route, _MORE, True, False)
    *first, last = frames
    for frame in first:
        _send(socket, frame, _MORE, type(frame) is not _Frame, False)
    _send(socket, last, 0, type(last) is not _Frame, False)


def waiting(socket: zmq.Socket[bytes]) -> bool:
    """Is there a message? A tenth of what it costs to try and fail."""
    return bool(int(_get(socket, _EVENTS)) & _POLLIN)


def receive(socket: zmq.Socket[bytes]) -> list[memoryview]:
    """The frames of the next message, where ZeroMQ put them; raises `zmq.Again` where there is none."""
    frame: Any = _recv(socket, _AT_ONCE, False)
    frames = [memoryview(frame).toreadonly()]
    while frame.more:
        frame = _recv(socket, _AT_ONCE, False)
        frames.append(memoryview(frame).toreadonly())
    return frames


def receive_from(socket: zmq.Socket[bytes]) -> tuple[bytes, list[memoryview]]:
    """The sender's identity and the frames, from a ROUTER socket; at least one frame always follows the identity."""
    return _recv(socket, _AT_ONCE, True), receive(socket)
