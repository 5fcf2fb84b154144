"""A parameter server in a process of a job: the listening socket and the links around the state machine.

It lives in the I/O thread of a process that was started like a worker's, with the same keys and the same supervision,
and was told `ServeJob` instead of `LoadShard`. It decides nothing: what arrives goes to the machine, and what the
machine commands is sent.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import zmq

from flegel.core.pytree import Array
from flegel.errors import AlgorithmError, own_traceback
from flegel.loading.class_source import instantiate
from flegel.loading.code_gate import Consent
from flegel.machine.server.care import FIRST_SERVER
from flegel.machine.server.server import Command, ParameterServer, ToCoordinator, ToServer, ToWorker
from flegel.messages import Answer, TreeLayout, WorkerFailed
from flegel.params.tree_layout import build
from flegel.runtime import clock
from flegel.runtime.server.links import LINGER_MILLISECONDS, ServerLinks, decoded, lasting
from flegel.runtime.server.transfer_timer import TransferTimer, worth_timing
from flegel.runtime.system.freed_memory import return_freed_memory
from flegel.runtime.transport import zmq_frames
from flegel.runtime.transport.job_sockets import JobSockets
from flegel.runtime.transport.poller import Poller
from flegel.server_messages import (
    ParameterSlices,
    PushSlices,
    ServeJob,
    ServerBetween,
    ServerMap,
    ServerOrder,
    ServerReady,
    SlicesFolded,
    TransferAnnounced,
)

_log = logging.getLogger(__name__)

BETWEEN: frozenset[Any] = frozenset(get_args(ServerBetween))
Send = Callable[[Answer, tuple[Array, ...]], None]


class ServerShell:
    """One server in one job."""

    def __init__(
        self,
        order: ServeJob,
        sockets: JobSockets,
        poller: Poller,
        near: str,
        job: str,
        worker: int,
        incarnation: int,
        send: Send,
    ) -> None:
        """Listen, build the state machine with empty arrays of the right form, and tell the coordinator the address."""
        if order.large:
            return_freed_memory()
        self._send, self._poller = send, poller
        self._links = ServerLinks(sockets, poller, job, worker, incarnation)
        self._job = job
        self._timer = TransferTimer(worker)
        self._routes: dict[int, tuple[int, bytes]] = {}
        """By worker: its incarnation, and its name on the listening socket."""
        self._listener, address = sockets.listen(near)
        poller.watch(self._listener)
        algorithm = instantiate(order.algorithm, Consent.SUBMITTED)
        parameter, statistics = (
            build(TreeLayout(*form), tuple(np.zeros(0) for _ in form[1] or ("value",)), algorithm)
            for form in (order.parameter, order.statistics)
        )
        self._machine = ParameterServer(algorithm, worker, parameter, statistics, order.debug)
        send(ServerReady(address, socket.gethostname()), ())

    def order(self, body: ServerOrder, arrays: tuple[Array, ...]) -> None:
        if isinstance(body, ServerMap):
            self._links.use(body.addresses)
        self._run(lambda: self._machine.order(body, arrays))

    def receive(self) -> None:
        """Everything that workers and other servers have sent."""
        for _ in self._links.receive():
            pass  # servers answer on links of their own
        with contextlib.suppress(zmq.Again):
            while True:
                self._take(*zmq_frames.receive_from(self._listener))

    def _take(self, route: bytes, parts: list[memoryview]) -> None:
        """A message of a worker or another server; those of former lives are dropped."""
        message = decoded(parts, self._job)
        if message is None or type(message[0].body) not in BETWEEN:
            return
        envelope, arrays = message
        sender, body = envelope.worker, envelope.body
        if envelope.incarnation < self._routes.get(sender, (0, b""))[0]:
            return  # a former life
        self._routes[sender] = (envelope.incarnation, route)
        if isinstance(body, TransferAnnounced):
            self._timer.announced(sender, clock.now())
            return
        if isinstance(body, PushSlices):
            self._timer.arrived(sender, arrays, clock.now())
        hear = self._machine.hear_server if sender >= FIRST_SERVER else self._machine.hear_worker
        self._run(lambda: hear(sender, body, arrays))  # type: ignore[arg-type]

    def _run(self, act: Callable[[], list[Command]]) -> None:
        """Carry out what the server decides; an error of the algorithm goes to the coordinator."""
        try:
            commands = act()
        except AlgorithmError as error:
            self._send(WorkerFailed("server", -1, str(error), own_traceback(error)), ())
            return
        announced: set[int] = set()
        for command in commands:
            match command:
                case ToCoordinator(body, arrays):
                    self._send(body, arrays)
                    if isinstance(body, SlicesFolded) and (seen := self._timer.take()) is not None:
                        self._send(seen, ())
                case ToServer(server, body, arrays):
                    self._links.send(server, body, arrays)
                case ToWorker(worker, body, arrays):
                    if worker not in announced and isinstance(body, ParameterSlices) and worth_timing(arrays):
                        announced.add(worker)
                        self._to_worker(worker, TransferAnnounced(), ())
                    self._to_worker(worker, body, arrays)

    def _to_worker(self, worker: int, body: ServerBetween, arrays: tuple[Array, ...]) -> None:
        if worker in self._routes:
            frames = self._links.sequencer.wrap(body, lasting(arrays))
            with contextlib.suppress(zmq.ZMQError):
                zmq_frames.send(self._listener, frames, self._routes[worker][1])

    def close(self) -> None:
        self._links.close()
        self._poller.unwatch(self._listener)
        self._listener.close(linger=LINGER_MILLISECONDS)
