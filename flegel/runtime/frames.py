"""The frames of one message to and from a socket, with as few Python calls as there can be. Knows no message.

pyzmq's `send_multipart` and `recv_multipart` do the same through enumerations and an extra question per frame, which
costs as much again as the message itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import zmq

COPY_BELOW = 64 << 10
ALIGNMENT = 8
_MORE = int(zmq.SNDMORE)
_AT_ONCE = int(zmq.NOBLOCK)


def send(socket: zmq.Socket[bytes], frames: Sequence[Any]) -> None:
    """All frames as one message."""
    for frame in frames[:-1]:
        socket.send(frame, _MORE)
    socket.send(frames[-1])


def receive(socket: zmq.Socket[bytes]) -> list[bytes]:
    """The frames of the next message; raises `zmq.Again` where there is none.

    Each is copied once, because arrays must begin at an aligned address and a received frame may not.
    """
    frame = socket.recv(_AT_ONCE, copy=False)
    frames = [frame.bytes]
    while frame.more:
        frame = socket.recv(copy=False)
        frames.append(frame.bytes)
    return frames


def aligned(frame: zmq.Frame) -> Any:
    """The bytes of a frame where arrays can begin: large ones as they are if they lie well, others copied."""
    if len(frame) < COPY_BELOW:
        return frame.bytes
    view = frame.buffer
    return view.toreadonly() if np.frombuffer(view, np.uint8).ctypes.data % ALIGNMENT == 0 else frame.bytes
