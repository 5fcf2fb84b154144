"""The client side of a secure connection: messages are numbered, acknowledged and resent.

What is pending survives a restart of the server, and a conversation that the server has forgotten: the client then
begins a new one. What the server had sent in the old one and this client has not received is lost in both cases.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import zmq

from flegel.cluster.transport.framing import (
    EMPTY_BODY,
    Limits,
    Vocabulary,
    encoder,
    host_of,
    read_header,
    receive_frames,
    send_frames,
    write_body,
)
from flegel.cluster.transport.ordered_channel import (
    CHANNEL_WINDOW_BYTES,
    CHANNEL_WINDOW_MESSAGES,
    MessageHeader,
    OrderedChannel,
    UnacknowledgedMessage,
)
from flegel.core.own_pauses import Deadline
from flegel.errors import FlegelError, PeerRefused, UsageError
from flegel.runtime import clock
from flegel.runtime.transport.curve import KeyPair, apply_limits, secure_dialer
from flegel.runtime.transport.poller import Poller
from flegel.runtime.transport.socket_events import next_event

MESSAGES_PER_ACKNOWLEDGEMENT = 32
"""Accepted messages after which an acknowledgement is sent even if others are waiting to be read."""
FROZEN_HANDSHAKE_SECONDS = 5.0
"""A handshake that takes longer has met a process that is stopped: one with a wrong key fails at once."""
ACKNOWLEDGEMENT_SECONDS = 2.0
"""Longest time between two acknowledgements, so that a restarted server learns of this client."""
FROZEN_SERVER_TEXT = "it accepts the connection and does not answer; its process may be stopped or overloaded"
WRONG_KEY_TEXT = "it has another key than the one known here, or uses no keys"
_floors: dict[str, int] = {}
"""By address: the largest number of a conversation that is over. Larger than the clock's where that was set back."""


class SecureClient:
    """Made by `dial`. Belongs to one thread."""

    def __init__(
        self,
        address: str,
        vocabulary: Vocabulary,
        pair: KeyPair | None,
        server: str | None,
        limits: Limits,
        window: int,
        window_bytes: int,
    ) -> None:
        """Connect; does not wait for the server. Without `pair` and `server` messages are not encrypted."""
        self.address = address
        self._vocabulary, self._limits = vocabulary, limits
        self.channel = OrderedChannel(window, window_bytes)
        self.session = self._next_session()
        self._server_id = 0
        """Number of the server's process; 0: it was not heard yet in this conversation."""
        self.heard_at: float | None = None
        """When the server was last heard."""
        self._acknowledge_at = 0.0
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        """For `Poller` alone, if the caller waits for pipes as well."""
        apply_limits(self.socket, limits.largest, 2 * window)
        if ":" in host_of(address):
            self.socket.setsockopt(zmq.IPV6, 1)
        if pair is not None and server is not None:
            secure_dialer(self.socket, pair, server)
        self._monitor = self.socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_CONNECTED
        )
        self.socket.connect(address)
        self._poller = Poller(self.socket)
        self._handshake_trouble = ""
        self._connected_at: float | None = None
        """Since when a handshake has been under way."""

    def send(self, body: msgspec.Struct, frames: Sequence[Any] = ()) -> None:
        """Numbered, and sent again until it is acknowledged; raises `PeerSlow` if too much is unacknowledged."""
        self._transmit(self.channel.put(write_body(body, frames, self._limits), frames, clock.now()))

    def receive(self, timeout: float) -> Iterator[tuple[Any, tuple[bytes, ...]]]:
        """Messages of the server, after waiting for the first one at most so long.

        Raises `PeerRefused` if the server does not know this key, or refuses what was sent with it.
        """
        until, waited = clock.now() + timeout, False
        while True:
            try:
                parts, why = receive_frames(self.socket, self._limits, skip=0)
            except zmq.Again:
                self._read_monitor()
                now = clock.now()
                self._upkeep(now)
                if waited or now >= until:
                    return
                self._poller.wait(min(until, self.channel.due(), self._acknowledge_at) - now)
                waited = clock.now() >= until or bool(int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)
                continue
            waited = True
            message = self._check(parts) if why is None else None
            if message is not None:
                yield message
                if self.socket.closed:
                    return

    def wait_ready(self, timeout: float = 10.0) -> None:
        """Wait until the server has answered; otherwise one sentence that says what is wrong."""
        deadline = Deadline(timeout, clock.now())
        self._acknowledge()
        while not self._server_id:
            if deadline.passed(clock.now()):
                raise FlegelError(f"No connection to {self.address} within {timeout:.0f} s: {self.trouble}")
            for _ in self.receive(0.05):
                pass

    @property
    def answered(self) -> bool:
        """The server has sent something: address and keys are right."""
        return bool(self._server_id)

    @property
    def trouble(self) -> str:
        """The likely reason why the server has not answered yet."""
        if self._connected_at is not None and clock.now() - self._connected_at > FROZEN_HANDSHAKE_SECONDS:
            return f"{FROZEN_SERVER_TEXT}."
        return (
            f"{self._handshake_trouble}."
            if self._handshake_trouble
            else "nothing answers there; is `flegel master` running?"
        )

    def drain(self, timeout: float) -> bool:
        """Wait until everything sent is acknowledged, for `timeout` seconds at most; what arrives meanwhile is
        dropped."""
        deadline = Deadline(timeout, clock.now())
        while self.channel.pending and not deadline.passed(clock.now()):
            for _ in self.receive(0.05):
                pass
        return not self.channel.pending

    def close(self) -> None:
        if not self.socket.closed:
            self.socket.disable_monitor()
            self._monitor.close(linger=0)
            self.socket.close(linger=0)
        self._context.term()

    def __enter__(self) -> SecureClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self, parts: list[Any]) -> tuple[Any, tuple[bytes, ...]] | None:
        """The body and frames of a message that is the next one; its acknowledgements are taken in either way.

        A server that was restarted gets again all that its former process had not acknowledged.
        """
        header = read_header(parts[0].buffer, self._limits)
        if header.session != self.session:
            return None
        if header.denied:
            if header.received:
                self._begin_again(header.received)
                return None
            raise PeerRefused(f"{self.address}: {header.denied[:500]}")
        now = self.heard_at = clock.now()
        if header.server_id != self._server_id:
            restarted, self._server_id = bool(self._server_id), header.server_id
            self.channel.begin_receiving(header.base)
            if restarted:  # what the former server process had received and not acknowledged is lost
                self._transmit_all(self.channel.resend_all(now))
        self._transmit_all(self.channel.acknowledge(header.received, now))
        if not self.channel.accept(header.number):
            return None
        if self.channel.unacknowledged >= MESSAGES_PER_ACKNOWLEDGEMENT:
            self._acknowledge()
        body = self._vocabulary.decode(self._vocabulary.tag(header.body), header.body)
        return body, tuple(f.bytes for f in parts[1:])

    def _begin_again(self, floor: int) -> None:
        """The server has forgotten this conversation: begin a new one with what it has not acknowledged.

        `floor`: the number of the new one must be larger, whatever the clock says.
        """
        _floors[self.address] = max(_floors.get(self.address, 0), floor)
        self.session, self._server_id = self._next_session(), 0
        self._acknowledge()
        self._transmit_all(self.channel.resend_all(clock.now()))

    def _next_session(self) -> int:
        # Grows with time; random bits tell two clients of one microsecond apart.
        return max((clock.microseconds() << 12) | secrets.randbits(12), _floors.get(self.address, 0) + 1)

    def _transmit(self, message: UnacknowledgedMessage) -> None:
        with contextlib.suppress(zmq.Again):
            send_frames(self.socket, [self._header(message.number, message.body), *message.frames])
            self.channel.unacknowledged = 0
            self._acknowledge_at = clock.now() + ACKNOWLEDGEMENT_SECONDS

    def _transmit_all(self, messages: list[UnacknowledgedMessage]) -> None:
        for message in messages:
            self._transmit(message)

    def _header(self, number: int, body: bytes) -> bytes:
        channel = self.channel
        header = MessageHeader(self.session, self._server_id, number, channel.base, channel.received, msgspec.Raw(body))
        return encoder.encode(header)

    def _acknowledge(self) -> None:
        self._acknowledge_at = clock.now() + ACKNOWLEDGEMENT_SECONDS
        self.channel.unacknowledged = 0
        with contextlib.suppress(zmq.Again):
            self.socket.send(self._header(0, bytes(EMPTY_BODY)), zmq.NOBLOCK)

    def _upkeep(self, now: float) -> None:
        message = self.channel.overdue(now)
        if message is not None:
            self._transmit(message)
        if self.channel.unacknowledged or now >= self._acknowledge_at:
            self._acknowledge()

    def _read_monitor(self) -> None:
        """Results of handshakes, as libzmq reports them."""
        while (event := next_event(self._monitor)) is not None:
            if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                raise PeerRefused(
                    f"{self.address} does not know this key; on its host, run `flegel keys add` with the key that "
                    "`flegel keys show` prints here."
                )
            if event == zmq.EVENT_CONNECTED:
                self._connected_at = self._connected_at or clock.now()
                continue
            waited = clock.now() - (self._connected_at or clock.now())
            self._connected_at = None
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._handshake_trouble = ""
            else:
                self._handshake_trouble = FROZEN_SERVER_TEXT if waited > FROZEN_HANDSHAKE_SECONDS else WRONG_KEY_TEXT


def dial(
    address: str,
    accepts: Iterable[type[msgspec.Struct]],
    *,
    pair: KeyPair | None = None,
    server: str | None = None,
    insecure: bool = False,
    limits: Limits | None = None,
    window: int = CHANNEL_WINDOW_MESSAGES,
    window_bytes: int = CHANNEL_WINDOW_BYTES,
) -> SecureClient:
    """A client of the server at `tcp://HOST:PORT` whose key is `server`; `accepts` are the messages it may send."""
    host_of(address)
    if (pair is None) != (server is None):
        raise TypeError("a client needs its own pair and the server's key, or neither")
    if pair is None and not insecure:
        raise UsageError(f"Without keys, messages to {address} can be read and changed on their way; type --insecure.")
    vocabulary = Vocabulary(dict.fromkeys(accepts, ()))
    return SecureClient(address, vocabulary, pair, server, limits or Limits(), window, window_bytes)
