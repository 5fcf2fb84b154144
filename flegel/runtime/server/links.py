"""Sockets of one process to the parameter servers of its job: dialled by the map, closed when the map has others.

One thread owns them: the I/O thread of the process. What cannot be sent is dropped; whoever needs it asks again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import zmq

from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.errors import DecodeError
from flegel.messages import Envelope
from flegel.runtime.transport import zmq_frames
from flegel.runtime.transport.codec import PackedArrays, Sequencer, decode
from flegel.runtime.transport.job_sockets import JobSockets
from flegel.runtime.transport.poller import Poller

_log = logging.getLogger(__name__)

LINGER_MILLISECONDS = 100
"""Milliseconds for which a closed socket still sends. With 0, libzmq 4.3 aborts the process when the other side closes
while a message of several parts is half sent (session_base.cpp, clean_pipes)."""


class ServerLinks:
    """The connections to each server of the map, by its number."""

    def __init__(self, sockets: JobSockets, poller: Poller, job: str, worker: int, incarnation: int) -> None:
        self._sockets, self._poller = sockets, poller
        self.sequencer = Sequencer(job, 0, worker, incarnation)
        self._addresses: dict[int, str] = {}
        self._links: dict[int, zmq.Socket[bytes]] = {}

    def use(self, addresses: Mapping[int, str]) -> None:
        """Servers are at these addresses from now on."""
        for number in [n for n, address in self._addresses.items() if addresses.get(n) != address]:
            self._hang_up(number)
        self._addresses = dict(addresses)

    def send(self, server: int, body: Any, arrays: tuple[Array, ...]) -> None:
        """Send to a server, dialling it at the first message; nothing where its address is not known."""
        if server not in self._addresses:
            return
        link = self._links.get(server)
        if link is None:
            link = self._links[server] = self._sockets.dial(self._addresses[server])
            self._poller.watch(link)
        try:
            zmq_frames.send(link, self.sequencer.wrap(body, lasting(arrays)))
        except zmq.ZMQError as error:
            _log.warning("server %d takes nothing: %s", server, error)

    def receive(self) -> Iterator[tuple[Envelope, tuple[Array, ...]]]:
        """Everything that has come, of this job."""
        for link in list(self._links.values()):
            with contextlib.suppress(zmq.Again):
                while True:
                    message = decoded(zmq_frames.receive(link), self.sequencer.job)
                    if message is not None:
                        yield message

    def close(self) -> None:
        for number in list(self._links):
            self._hang_up(number)
        self._addresses.clear()

    def _hang_up(self, number: int) -> None:
        link = self._links.pop(number, None)
        if link is not None:
            self._poller.unwatch(link)
            link.close(linger=LINGER_MILLISECONDS)


def lasting(arrays: tuple[Array, ...]) -> PackedArrays:
    """Slices of θ, reports and copies are made anew each time and never written to: large ones are not copied."""
    packed = PackedArrays(arrays)
    large = any(a.nbytes >= active().transport.sent_without_copy_from_bytes for a in packed.arrays)
    return packed.broadcast(zmq_frames.lasting) if large else packed


def decoded(parts: list[memoryview], job: str) -> tuple[Envelope, tuple[Array, ...]] | None:
    """A message of this job; None for everything else."""
    try:
        envelope, arrays = decode(parts)
    except DecodeError as error:
        _log.warning("dropped a message: %s", error)
        return None
    return (envelope, arrays) if envelope.job == job else None
