"""All-reduce: workers exchange slices of statistics to add up (fold) their reports. The sockets belong to the trainer
thread, which has nothing else to do at a barrier. The sums are made in `machine/worker/replica.py`.

A worker listens once it has loaded its shard, and dials the other workers at the first fold. A fold that waits ends
when the coordinator drops it, because a member is lost, and otherwise after `liveness.exchange_seconds`.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from typing import NamedTuple

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


class Piece(NamedTuple):
    """A slice of statistics that arrived: a report's slice, or, where `summed`, the sum of that slice over reports."""

    sender: int
    summed: bool
    arrays: tuple[Array, ...]


class PieceExchange:
    """Sends and receives the pieces of folds for one worker. All methods but `drop` and `close` are for the trainer
    thread."""

    def __init__(self, sockets: JobSockets, coordinator_address: str, worker: int, incarnation: int) -> None:
        """`coordinator_address`: the address of the coordinator, by which this host's own address is found."""
        self._sockets, self._coordinator_address, self.worker = sockets, coordinator_address, worker
        self._sequencer = Sequencer("", 0, worker, incarnation)
        self._listener: zmq.Socket[bytes] | None = None
        self._address = ""
        self._links: dict[str, zmq.Socket[bytes]] = {}
        self._pieces_before_order: dict[int, list[Piece]] = {}
        """By number of a fold that the coordinator has not ordered here yet: pieces that arrived already."""
        self._last_dropped_fold = -1
        """Number of the last fold that the coordinator has dropped."""
        self._wakeup, self._wakeup_writer = -1, -1

    def listen(self) -> str:
        """Open a socket for the pieces of other workers and return its address. Each job has a new one, so that no
        piece of an earlier job arrives."""
        self.close()
        self._last_dropped_fold = -1
        self._wakeup, self._wakeup_writer = os.pipe()
        self._listener, self._address = self._sockets.listen(self._coordinator_address)
        return self._address

    def drop(self, fold: int) -> None:
        """Leave this fold and all before it. Called by the I/O thread."""
        self._last_dropped_fold = max(self._last_dropped_fold, fold)
        with contextlib.suppress(OSError):
            os.write(self._wakeup_writer, b"!")

    def close(self) -> None:
        """Close all sockets. Called by the trainer thread, or by the I/O thread when that has ended or does not come
        back from a hook."""
        for socket in (*self._links.values(), *([self._listener] if self._listener is not None else [])):
            socket.close(linger=0)
        if self._wakeup >= 0:
            os.close(self._wakeup)
            os.close(self._wakeup_writer)
        self._listener, self._wakeup, self._wakeup_writer = None, -1, -1
        self._links.clear()
        self._pieces_before_order.clear()

    def fold(
        self, job: str, order: ReduceReports, replica: Replica, report: Sequence[Array] | None
    ) -> tuple[Array, ...] | None:
        """Add the reports of all members of `order` to the statistics: send each member its slice of `report`, sum the
        slices that arrive here, send that sum to all members, and collect theirs. Returns the new statistics; None
        where the coordinator dropped the fold. `report`: of this worker, None where it has none in this fold."""
        self._sequencer.job = job
        part = SliceSum(order, self.worker, replica.total, report)
        addresses = dict(order.members)
        self._hang_up(set(addresses.values()))
        for member, arrays in part.outgoing().items():
            self._send(addresses[member], StatisticsPiece(order.fold, summed=False), arrays)
        for piece in self._pieces_before_order.pop(order.fold, []):
            part.put(*piece)
        limit = active().liveness.exchange_seconds
        deadline = Deadline(limit, clock.now())
        while True:
            own = part.take_own_sum()
            if own is not None:
                for member in part.members:
                    if member != self.worker:
                        self._send(addresses[member], StatisticsPiece(order.fold, summed=True), own)
            if not part.missing:
                return part.statistics
            if self._last_dropped_fold >= order.fold:
                return None
            if deadline.passed(clock.now()):
                raise ProtocolError(f"workers {part.missing} sent nothing for {limit:.0f} s in {order.place}")
            self._receive(part, order.fold, job)

    def _receive(self, part: SliceSum, fold: int, job: str) -> None:
        """Wait for a message, and put the pieces that have arrived where they belong: into `part`, or aside where they
        are of a later fold; those of other jobs and earlier folds are dropped."""
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
                    early = self._pieces_before_order.setdefault(body.fold, [])
                    early.append(Piece(envelope.worker, body.summed, arrays))
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
        """Close links to workers that are no longer members; `used`: the addresses of those that are."""
        for address in [address for address in self._links if address not in used]:
            self._links.pop(address).close(linger=0)
