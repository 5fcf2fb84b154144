"""Rounds of a parameter server with plain sockets: who pushes which slice to whom, timed; nothing is computed.

Each node is a process in a namespace of its own. A worker pushes every slice to its primary; a server that has a slice
from every worker sends it back to all of them, so that pushes and answers overlap. What a node carries is decided by
`flegel.plan.placement`, outside. It never uses the servers of the engine: it shows what the network alone allows.
"""

from __future__ import annotations

import multiprocessing
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from bench.common.namespaces import Network, enter
from flegel.plan.placement.slice_map import Copy, SliceMap
from flegel.plan.placement.throughput import Transfer, trains

HEADER = struct.Struct("!BIII")  # kind, round, slice, bytes
PUSH, ANSWER, COPY = 1, 2, 3
CHUNK = 256 << 10
WIDTH = 4
"""Bytes of a parameter."""
PATIENCE = 300.0


@dataclass(frozen=True)
class RoundOrder:
    """What a node has to do in a round; `sensing`: report the transfers that arrived."""

    number: int
    found: SliceMap
    copies: tuple[Copy, ...]
    sensing: bool


@dataclass(frozen=True)
class RoundReport:
    """A node has all of θ. Seconds since its order arrived; slices that it received, as trains, and one by one."""

    node: int
    number: int
    seconds: float
    transfers: tuple[Transfer, ...] = ()
    slices: tuple[tuple[int, float], ...] = ()


@dataclass
class Incoming:
    """A connection from another node, in the middle of a slice or between two."""

    source: int = -1
    head: bytearray = field(default_factory=bytearray)
    kind: int = 0
    number: int = 0
    piece: int = 0
    left: int = 0
    size: int = 0
    began: float = 0.0


class Node:
    """One process: a worker, a server or both."""

    def __init__(self, me: int, addresses: Sequence[str], port: int, workers: Sequence[int], servers: Sequence[int]):
        self.me, self.addresses, self.port = me, addresses, port
        self.workers, self.servers = frozenset(workers), frozenset(servers)
        self.others = [node for node in sorted(self.workers | self.servers) if node != me]
        self.selector = selectors.DefaultSelector()
        self.room = memoryview(bytearray(CHUNK))
        self.queues: dict[int, deque[memoryview]] = {}
        self.links: dict[int, socket.socket] = {}
        self.waiting: set[int] = set()
        self.order: RoundOrder | None = None
        self.early: list[tuple[int, int, int, int]] = []

    def connect(self, control: Connection) -> None:
        """A connection of its own to every node that something is sent to, in one direction."""
        self.control = control
        server = socket.create_server((self.addresses[self.me], self.port), backlog=256)
        control.send("listening")
        control.recv()
        for other in self.others:
            link = socket.create_connection((self.addresses[other], self.port), timeout=PATIENCE)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CHUNK)
            link.sendall(struct.pack("!I", self.me))
            link.setblocking(False)
            self.links[other], self.queues[other] = link, deque()
        for _ in self.others:
            link, _ = server.accept()
            (source,) = struct.unpack("!I", link.recv(4, socket.MSG_WAITALL))
            link.setblocking(False)
            self.selector.register(link, selectors.EVENT_READ, Incoming(source))
        self.selector.register(control, selectors.EVENT_READ, None)
        control.send("connected")

    def serve(self) -> None:
        while True:
            for key, mask in self.selector.select():
                if key.data is None:
                    order = self.control.recv()
                    if order is None:
                        return
                    self.begin(order)
                elif isinstance(key.data, Incoming):
                    self.receive(key.fileobj, key.data)  # type: ignore[arg-type]
                elif mask & selectors.EVENT_WRITE:
                    self.flush(key.data)

    def begin(self, order: RoundOrder) -> None:
        self.order, self.began = order, time.monotonic()
        found, largest = order.found, max(order.found.slices)
        self.payload = memoryview(bytes(WIDTH * largest))
        self.pushed = [0] * len(found.slices)
        self.missing = len(found.slices) if self.me in self.workers else 0
        self.awaited = len(self.workers)
        self.arrivals: list[Transfer] = []
        self.pieces: list[tuple[int, float]] = []
        self.unready = {c.number for c in order.copies if c.target == self.me and c.as_primary}
        for copy in order.copies:
            if copy.source == self.me:
                self.queue(copy.target, COPY, copy.number)
        if self.me in self.workers:
            for number, primary in enumerate(found.primary):
                if primary == self.me:
                    self.count(number)
                else:
                    self.queue(primary, PUSH, number)
        early, self.early = self.early, []
        for kind, number, source, piece in early:
            self.arrived(kind, number, source, piece)
        self.end_if_complete()

    def count(self, number: int) -> None:
        """One more worker has pushed this slice; the last one makes it ready."""
        self.pushed[number] += 1
        self.answer_if_ready(number)

    def answer_if_ready(self, number: int) -> None:
        if self.pushed[number] < self.awaited or number in self.unready:
            return
        for worker in sorted(self.workers):
            if worker == self.me:
                self.missing -= 1
            else:
                self.queue(worker, ANSWER, number)

    def queue(self, target: int, kind: int, number: int) -> None:
        assert self.order is not None
        size = WIDTH * self.order.found.slices[number]
        self.queues[target].append(memoryview(HEADER.pack(kind, self.order.number, number, size)))
        self.queues[target].append(self.payload[:size])
        self.flush(target)

    def flush(self, target: int) -> None:
        link, queue = self.links[target], self.queues[target]
        with suppress(BlockingIOError):
            while queue:
                sent = link.sendmsg(list(queue)[:16] if len(queue) > 16 else list(queue))
                while queue and sent >= len(queue[0]):
                    sent -= len(queue.popleft())
                if sent:
                    queue[0] = queue[0][sent:]
        if queue and target not in self.waiting:
            self.selector.register(link, selectors.EVENT_WRITE, target)
            self.waiting.add(target)
        elif not queue and target in self.waiting:
            self.selector.unregister(link)
            self.waiting.discard(target)

    def receive(self, link: socket.socket, state: Incoming) -> None:
        with suppress(BlockingIOError):
            while True:
                want = HEADER.size - len(state.head) if not state.left else min(state.left, CHUNK)
                got = link.recv_into(self.room[:want])
                if not got:
                    self.selector.unregister(link)
                    return
                if state.left:
                    state.left -= got
                    if not state.left:
                        self.completed(state)
                    elif got < want:
                        return
                    continue
                state.head += self.room[:got]
                if len(state.head) == HEADER.size:
                    state.kind, state.number, state.piece, state.size = HEADER.unpack(state.head)
                    state.left, state.began = state.size, time.monotonic()

    def completed(self, state: Incoming) -> None:
        state.head.clear()
        now = time.monotonic()
        if self.order is None or state.number != self.order.number:
            self.early.append((state.kind, state.piece, state.source, state.number))
            return
        if self.order.sensing:
            size = state.size // WIDTH
            self.arrivals.append(
                Transfer(state.source, self.me, size, max(0.0, state.began - self.began), now - self.began)
            )
            self.pieces.append((size, now - state.began))
        self.arrived(state.kind, state.piece, state.source, state.number)
        self.end_if_complete()

    def arrived(self, kind: int, number: int, source: int, of_round: int) -> None:
        assert self.order is not None and of_round == self.order.number, (of_round, source)
        if kind == PUSH:
            self.count(number)
        elif kind == ANSWER:
            self.missing -= 1
        elif number in self.unready:
            self.unready.discard(number)
            self.answer_if_ready(number)

    def end_if_complete(self) -> None:
        if self.order is None or self.me not in self.workers or self.missing:
            return
        report = RoundReport(self.me, self.order.number, time.monotonic() - self.began)
        if self.order.sensing:
            by_source = sorted(self.arrivals, key=lambda one: (one.source, one.began))
            report = RoundReport(
                self.me, report.number, report.seconds, tuple(trains(by_source)), tuple(self.pieces[-64:])
            )
        self.missing = -1  # reported once
        self.control.send(report)


def _run(me: int, name: str, host: tuple[str, int], key: bytes, *about: Any) -> None:
    enter(name)
    with Client(host, authkey=key) as control:
        control.send(me)
        node = Node(me, *about)
        node.connect(control)
        node.serve()


class Exchange:
    """Processes in the namespaces of a network, and rounds that they do together."""

    def __init__(self, network: Network, workers: Sequence[int], servers: Sequence[int], port: int = 23_000) -> None:
        self.network, self.workers, self.servers, self.port = network, tuple(workers), tuple(servers), port
        self.nodes = tuple(sorted({*workers, *servers}))
        self.number = 0

    def __enter__(self) -> Exchange:
        context = multiprocessing.get_context("fork")
        addresses = [self.network.address(node) for node in range(len(self.network.names))]
        key = b"exchange"
        self.listener = Listener((self.network.host, 0), backlog=len(self.nodes), authkey=key)
        about = (addresses, self.port, self.workers, self.servers)
        self.processes = [
            context.Process(target=_run, args=(node, self.network.names[node], self.listener.address, key, *about))
            for node in self.nodes
        ]
        for process in self.processes:
            process.daemon = True
            process.start()
        self.controls: dict[int, Connection[Any, Any]] = {}
        for _ in self.nodes:
            control = self.listener.accept()
            self.controls[control.recv()] = control
        for expected in ("listening", "connected"):
            for control in self.controls.values():
                if (said := control.recv()) != expected:
                    raise RuntimeError(f"a node said {said!r} instead of {expected!r}")
            if expected == "listening":
                for control in self.controls.values():
                    control.send("go")
        return self

    def __exit__(self, *_: object) -> None:
        for control in self.controls.values():
            with suppress(OSError):
                control.send(None)
        for process in self.processes:
            process.join(2.0)
            if process.is_alive():
                process.kill()
                process.join()
        self.listener.close()

    def round(
        self, found: SliceMap, copies: tuple[Copy, ...] = (), sensing: bool = True
    ) -> tuple[float, list[RoundReport]]:
        """Seconds until every worker has all of θ, and what the nodes have seen."""
        self.number += 1
        order = RoundOrder(self.number, found, copies, sensing)
        began = time.monotonic()
        for control in self.controls.values():
            control.send(order)
        reports = []
        for worker in self.workers:
            if not self.controls[worker].poll(PATIENCE):
                raise TimeoutError(f"round {self.number}: node {worker} has not answered for {PATIENCE:.0f} s")
            reports.append(self.controls[worker].recv())
        return time.monotonic() - began, reports
