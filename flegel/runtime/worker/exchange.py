"""Slices of statistics between workers that fold their reports: sockets of the trainer thread, which has nothing else
to do at a barrier. Adds nothing up itself (`machine/worker/replica.py`).

A worker listens from its load on and dials the others at the first fold. Whoever waits here is woken when the
coordinator drops the fold, because a member is lost; without that, after `liveness.exchange_seconds`.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence

import zmq

from flegel.configuration.active import active
from flegel.core.own_pauses import LONGEST_WAIT_SECONDS, Deadline
from flegel.core.pytree import Array
from flegel.errors import DecodeError, ProtocolError
from flegel.machine.worker.replica import Replica, SliceSum
from flegel.messages import ReduceReports, StatisticsPiece
from flegel.runtime import clock
from flegel.runtime.transport import zmq_frames
from flegel.runtime.transport.codec import PackedArrays, Sequencer, decode
from flegel.runtime.transport.job_sockets import JobSockets
from flegel.runtime.transport.poller import wait_any

_log = logging.getLogger(__name__)


Piece = tuple[int, bool, tuple[Array, ...]]


class PieceExchange:
    """All but `drop` and `close` are for the trainer thread."""

    def __init__(self, sockets: JobSockets, near: str, worker: int, incarnation: int) -> None:
        self._sockets, self._near, self.worker = sockets, near, worker
        self._sequencer = Sequencer("", 0, worker, incarnation)
        self._listener: zmq.Socket[bytes] | None = None
        self._address = ""
        self._links: dict[str, zmq.Socket[bytes]] = {}
        self._early: dict[int, list[Piece]] = {}
        """Pieces of folds that this worker has not been told of yet."""
        self._dropped = -1
        self._wakeup, self._wakeup_writer = -1, -1

    def listen(self) -> str:
        """The address for the other workers; a new one for each job, so that no piece of a former one arrives."""
        self.close()
        self._dropped = -1
        self._wakeup, self._wakeup_writer = os.pipe()
        self._listener, self._address = self._sockets.listen(self._near)
        return self._address

    def drop(self, fold: int) -> None:
        """From the I/O thread: leave this fold and all before it."""
        self._dropped = max(self._dropped, fold)
        with contextlib.suppress(OSError):
            os.write(self._wakeup_writer, b"!")

    def close(self) -> None:
        """From the trainer thread, or from the I/O thread when that has ended or does not come back from a hook."""
        for socket in (*self._links.values(), *([self._listener] if self._listener is not None else [])):
            socket.close(linger=0)
        if self._wakeup >= 0:
            os.close(self._wakeup)
            os.close(self._wakeup_writer)
        self._listener, self._wakeup, self._wakeup_writer = None, -1, -1
        self._links.clear()
        self._early.clear()

    def fold(
        self, job: str, order: ReduceReports, copy: Replica, report: Sequence[Array] | None
    ) -> tuple[Array, ...] | None:
        """The statistics with the reports of all; None where the fold was dropped."""
        self._sequencer.job = job
        part = SliceSum(order, self.worker, copy.total, report)
        addresses = dict(order.members)
        self._hang_up(set(addresses.values()))
        for member, arrays in part.outgoing().items():
            self._send(addresses[member], StatisticsPiece(order.fold, False), arrays)
        for piece in self._early.pop(order.fold, []):
            part.put(*piece)
        limit = active().liveness.exchange_seconds
        deadline = Deadline(limit, clock.now())
        while True:
            own = part.own_sum()
            if own is not None:
                for member in part.members:
                    if member != self.worker:
                        self._send(addresses[member], StatisticsPiece(order.fold, True), own)
            if not part.missing:
                return part.statistics
            if self._dropped >= order.fold:
                return None
            if deadline.passed(clock.now()):
                raise ProtocolError(f"workers {part.missing} sent nothing for {limit:.0f} s in {order.place}")
            self._receive(part, order.fold, job)

    def _receive(self, part: SliceSum, fold: int, job: str) -> None:
        assert self._listener is not None
        if wait_any([self._listener], self._wakeup, LONGEST_WAIT_SECONDS):
            os.read(self._wakeup, 4096)
        while zmq_frames.waiting(self._listener):
            _, parts = zmq_frames.receive_from(self._listener)
            try:
                envelope, arrays = decode(parts)
                body = envelope.body
                if envelope.job != job or not isinstance(body, StatisticsPiece) or body.fold < fold:
                    continue
                if body.fold > fold:
                    self._early.setdefault(body.fold, []).append((envelope.worker, body.summed, arrays))
                elif envelope.worker in part.members:
                    part.put(envelope.worker, body.summed, arrays)
            except DecodeError as error:
                _log.warning("dropped a slice of statistics: %s", error)

    def _send(self, address: str, body: StatisticsPiece, arrays: tuple[Array, ...]) -> None:
        if address not in self._links:
            self._links[address] = self._sockets.dial(address)
        frames = self._sequencer.wrap(body, PackedArrays(arrays))
        zmq_frames.send(self._links[address], [zmq_frames.lasting(frame) for frame in frames])

    def _hang_up(self, used: set[str]) -> None:
        """Links to workers that are gone."""
        for address in [address for address in self._links if address not in used]:
            self._links.pop(address).close(linger=0)
