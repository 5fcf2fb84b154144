"""Plain transports on loopback, to compare moves with: a TCP socket, and ZeroMQ with frames of the same size.

`kind`: "drop", a receiver that reads into the same memory again and again, or "keep", one whose bytes end in memory
that it then has, touched for the first time, as whoever wants to use the points must.

    python -m bench.micro.raw_transport            megabytes a second, and processor time of both ends a byte
"""

from __future__ import annotations

import mmap
import os
import resource
import secrets
import socket
import statistics
import time
from collections.abc import Callable

import numpy as np
import zmq

from bench.common.program import words_of

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


def raw_zeromq(size: int, kind: str, window: int = WINDOW, curve: bool = False) -> float:
    """The same of a DEALER and a ROUTER, answers and as many windows under way as in a move; `curve`: encrypted."""
    windows = -(-size // window)
    address = f"ipc://@flegel-{secrets.token_hex(12)}"
    keys = zmq.curve_keypair() if curve else None
    child = os.fork()
    if not child:
        _deal(address, windows, window, keys)
        os._exit(0)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as link:
        if keys:
            link.curve_publickey, link.curve_secretkey = keys
            link.curve_server = True
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


def _deal(address: str, windows: int, window: int, keys: tuple[bytes, bytes] | None) -> None:
    payload = np.full(window, 0x5A, np.uint8)
    with zmq.Context() as context, context.socket(zmq.DEALER) as link:
        if keys:
            link.curve_publickey, link.curve_secretkey = keys
            link.curve_serverkey = keys[0]
        link.connect(address)
        link.send(b"here")
        link.recv()
        for number in range(windows):
            if number >= CREDITS:
                link.recv()
            link.send(payload, copy=False)
        for _ in range(min(CREDITS, windows)):
            link.recv()


def _processor_time() -> float:
    """Of this process and of children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def main() -> None:
    words_of(__doc__)
    size = 256 << 20
    ways: dict[str, Callable[[], float]] = {
        "socket, dropped": lambda: raw_socket(size, "drop"),
        "socket, kept": lambda: raw_socket(size, "keep"),
        "ZeroMQ, dropped": lambda: raw_zeromq(size, "drop"),
        "ZeroMQ, kept": lambda: raw_zeromq(size, "keep"),
        "ZeroMQ with CURVE, kept": lambda: raw_zeromq(size, "keep", curve=True),
    }
    for name, way in ways.items():
        found, spent = [], []
        for _ in range(3):
            warm_memory(size)
            before = _processor_time()
            found.append(way())
            spent.append((_processor_time() - before) / size * 1e9)
        speed, each = statistics.median(found), statistics.median(spent)
        print(f"{name:24} {speed:6.0f} MB/s ({max(found):.0f}), {each:.2f} ns a byte", flush=True)


if __name__ == "__main__":
    main()
