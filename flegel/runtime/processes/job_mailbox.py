"""Messages between a coordinator and its workers: envelopes out, checked envelopes in, large arrays in shared memory.

A message counts only if its sender is the worker and incarnation that its envelope names. Starts and ends no process.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import get_args

import msgspec
import zmq

from flegel.configuration.active import active
from flegel.core.changed_rows import ArraysOfStep
from flegel.core.pytree import Array
from flegel.errors import DecodeError, UsageError, WorkerLost
from flegel.messages import Answer, Envelope, Exit, LoadShard, Order, Report, Train
from flegel.params.parameter_changes import ParameterChanges
from flegel.params.tree_layout import without_statistics
from flegel.runtime.processes.endpoints import Endpoint
from flegel.runtime.processes.worker_registry import WorkerRegistry
from flegel.runtime.transport import shared_buffers, zmq_frames
from flegel.runtime.transport.codec import EMPTY, MissingSharedBuffer, PackedArrays, decode
from flegel.runtime.transport.poller import Poller
from flegel.runtime.transport.shared_buffers import SharedBuffers
from flegel.runtime.worker.process import identity

_log = logging.getLogger(__name__)

ANSWERS = frozenset(get_args(Answer))


class JobMailbox:
    """The coordinator's side of all its connections."""

    def __init__(self, endpoint: Endpoint, registry: WorkerRegistry) -> None:
        self._endpoint, self._registry = endpoint, registry
        self._socket: zmq.Socket[bytes] | None = None
        self._poller: Poller | None = None
        self._buffers: SharedBuffers | None = None
        self._changes = ParameterChanges()
        self._rows: tuple[Sequence[Array], PackedArrays] = ((), EMPTY)
        """Rows of θ that were packed last."""
        self._loads = (EMPTY, EMPTY)
        """Arrays of the last order to load, and what is sent of them."""
        self._job = ""
        self._workers = 0

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def open(self) -> Poller:
        """Listen; returns what `receive` waits with, for descriptors of others."""
        self._socket = self._endpoint.open()
        self._poller = Poller(self._socket)
        return self._poller

    def close(self) -> None:
        if self._poller is not None:
            self._poller.close()
            self._poller = None
        self._socket = None
        self._endpoint.close()

    def begin_job(self, job: str, workers: int) -> None:
        self._job, self._workers = job, workers
        self.end_job()

    def end_job(self) -> None:
        self._buffers, self._changes = None, ParameterChanges()
        self._rows, self._loads = ((), EMPTY), (EMPTY, EMPTY)

    def forget(self, worker: int) -> None:
        """Its shared buffers, and the θ that it holds, belong to an incarnation that is over."""
        self._changes.forget(worker)
        if self._buffers is not None:
            self._buffers.forget(worker)

    def _opened(self) -> zmq.Socket[bytes]:
        if self._socket is None:
            raise UsageError("This cluster is closed; create a new one.")
        return self._socket

    # -- out -------------------------------------------------------------------------------------------------------

    def send(self, worker: int, body: Order, arrays: PackedArrays = EMPTY) -> None:
        """Send an order to a worker, with θ in shared buffers where it can open them. Raises `WorkerLost` with the
        reason where it cannot be reached."""
        socket, sequencer = self._opened(), self._registry.sequencers[worker]
        if type(body) is LoadShard:
            body, arrays = self._load(worker, body, arrays)
        elif type(body) is Train and arrays.arrays:
            body, arrays = self._train(worker, body, arrays)
        try:
            zmq_frames.send(socket, sequencer.wrap(body, arrays), identity(worker, sequencer.incarnation))
        except zmq.ZMQError as error:
            deaths = self._registry.deaths()
            why = next((death.why for death in deaths if death.worker == worker), f"cannot be reached ({error})")
            raise WorkerLost(f"Worker {worker} {why}.", why) from None

    def _train(self, worker: int, body: Train, theta: PackedArrays) -> tuple[Train, PackedArrays]:
        """θ where this worker reads it in place, else all of it or the rows that it lacks."""
        arrays = theta if self._buffers is None else self._buffers.order(worker, body, theta)
        if arrays is not theta or sum(a.nbytes for a in theta.arrays) < active().transport.theta_changes_from_bytes:
            self._changes.forget(worker)
            return body, arrays
        made = theta.given.made if isinstance(theta.given, ArraysOfStep) else None
        version, since, found = self._changes.order(worker, body.round, theta.arrays, made)
        if found is not theta.arrays:
            if self._rows[0] is not found:  # packed once for all workers that hold the same θ
                self._rows = (found, PackedArrays(found).broadcast(zmq_frames.shared))
            arrays = self._rows[1]
        return msgspec.structs.replace(body, number=version, since=since), arrays

    def send_exit(self, worker: int, incarnation: int) -> None:
        """Tell an evicted incarnation to end, if it can be reached."""
        sequencer = self._registry.former.get((worker, incarnation))
        if sequencer is not None:
            with contextlib.suppress(zmq.ZMQError):
                zmq_frames.send(self._opened(), sequencer.wrap(Exit()), identity(worker, incarnation))

    def _load(self, worker: int, load: LoadShard, arrays: PackedArrays) -> tuple[LoadShard, PackedArrays]:
        """Large statistics, which are zeros, stay here."""
        load = self._with_buffers(worker, load, arrays)
        if (
            load.forms
            or load.theta_on_servers
            or sum(a.nbytes for a in arrays.arrays) < active().transport.theta_changes_from_bytes
        ):
            return load, arrays
        load, rest = without_statistics(load, arrays.arrays)
        if self._loads[0] is not arrays:  # θ goes to everybody: made ready once
            self._loads = (arrays, PackedArrays(rest).broadcast(zmq_frames.shared))
        return load, self._loads[1]

    def _with_buffers(self, worker: int, load: LoadShard, arrays: PackedArrays) -> LoadShard:
        """Workers of this host read a large θ in shared memory and write large reports there."""
        if not self._endpoint.same_host:
            return load
        if self._buffers is None:
            self._buffers = shared_buffers.for_job(load, arrays, self._workers)
        if self._buffers is None:
            return load
        name = identity(worker, self._registry.sequencers[worker].incarnation)
        return msgspec.structs.replace(load, shared_buffers=self._buffers.assign_slots(worker, name))

    # -- in --------------------------------------------------------------------------------------------------------

    def receive(self, timeout: float) -> Iterator[tuple[Envelope, tuple[Array, ...]]]:
        """Messages that have arrived, after waiting for the first one at most so long."""
        socket, take, poller = self._opened(), self._endpoint.receive, self._poller
        assert poller is not None
        waited = False
        while True:
            try:
                sender, parts = take(socket)
            except zmq.Again:
                if waited:
                    return
                poller.wait(timeout)
                waited = True
                continue
            waited = True
            try:
                message = decode(parts, self._buffers.slots(sender) if self._buffers else ())
            except DecodeError as error:
                # the shared buffers of a former job are gone, and so is the use of its messages
                if not isinstance(error, MissingSharedBuffer) or error.job == self._job:
                    _log.warning("dropped a message: %s", error)
                continue
            envelope = message[0]
            if sender == identity(envelope.worker, envelope.incarnation) and type(envelope.body) in ANSWERS:
                if self._buffers is not None and envelope.job == self._job:
                    self._buffers.hear(sender, envelope.body)
                if type(envelope.body) is Report and envelope.job == self._job:
                    self._changes.reported(envelope.worker, envelope.body.round)
                yield message
