"""Plain transports on loopback, to compare moves with: a TCP socket, and ZeroMQ with frames of the same size.

`kind`: "drop", a receiver that reads into the same memory again and again, or "keep", one whose bytes end in memory
that it then has, touched for the first time, as whoever wants to use the points must.
"""

from __future__ import annotations

import mmap
import os
import secrets
import socket
import time

import numpy as np
import zmq

WINDOW = 4 << 20
CREDITS = 4


def warm_memory(size: int) -> None:
    """Have the host of a virtual machine provide that much memory, and leave it to the system.

    Memory that has been free for some seconds may have gone back to the host; to get it again takes fifty times as long
    as to clear it, and says nothing about a transport.
    """
    room = _room(size)
    room[:: mmap.PAGESIZE] = 1


def _room(size: int) -> np.ndarray:
    mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapped.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapped, np.uint8)


def raw_socket(size: int, kind: str, window: int = WINDOW) -> float:
    """Megabytes a second of one plain TCP connection on loopback, between two processes."""
    server = socket.create_server(("127.0.0.1", 0))
    windows = -(-size // window)
    child = os.fork()
    if not child:
        payload = b"\x5a" * window
        with socket.create_connection(server.getsockname()) as link:
            for _ in range(windows):
                link.sendall(payload)
        os._exit(0)
    link, _ = server.accept()
    room = _room(windows * window if kind == "keep" else window)
    began, got = time.monotonic(), 0
    view = memoryview(room)
    while got < windows * window:
        at = got % len(room)
        got += link.recv_into(view[at : at + window])
    took = time.monotonic() - began
    link.close()
    server.close()
    os.waitpid(child, 0)
    return got / took / 1e6


def raw_zeromq(size: int, kind: str, window: int = WINDOW) -> float:
    """The same of a DEALER and a ROUTER without encryption, with answers and as many windows under way as in a move."""
    windows = -(-size // window)
    address = f"ipc://@flegel-{secrets.token_hex(12)}"
    child = os.fork()
    if not child:
        _deal(address, windows, window)
        os._exit(0)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as link:
        link.bind(address)
        room = _room(windows * window)
        name, _ = link.recv_multipart()
        began = time.monotonic()
        link.send_multipart([name, b"go"])
        for number in range(windows):
            frames = link.recv_multipart(copy=False)
            if kind == "keep":
                room[number * window : (number + 1) * window] = np.frombuffer(frames[1].buffer, np.uint8)
            link.send_multipart([name, b"got"])
        took = time.monotonic() - began
        os.waitpid(child, 0)
    return windows * window / took / 1e6


def _deal(address: str, windows: int, window: int) -> None:
    payload = np.full(window, 0x5A, np.uint8)
    with zmq.Context() as context, context.socket(zmq.DEALER) as link:
        link.connect(address)
        link.send(b"here")
        link.recv()
        for number in range(windows):
            if number >= CREDITS:
                link.recv()
            link.send(payload, copy=False)
        for _ in range(min(CREDITS, windows)):
            link.recv()
