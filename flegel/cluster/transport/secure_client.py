"""The dialing side of a gate: one conversation, resent and acknowledged, that survives a restart of the other side."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from flegel.cluster.transport.framing import (
    NIL,
    Limits,
    Vocabulary,
    encoder,
    host_of,
    read_header,
    send_frames,
    take,
    write_body,
)
from flegel.cluster.transport.ordered_channel import (
    WINDOW,
    WINDOW_BYTES,
    MessageHeader,
    OrderedChannel,
    UnacknowledgedMessage,
)
from flegel.errors import FlegelError, PeerRefused, UsageError
from flegel.runtime import clock
from flegel.runtime.transport.curve import KeyPair, apply_limits, secure_dialer
from flegel.runtime.transport.poller import Poller

ACK_EVERY = 32
BEAT = 2.0  # seconds between signs of life, so that a gate that restarted finds this line again


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
        self.address = address
        self._vocabulary, self._limits = vocabulary, limits
        self.channel = OrderedChannel(window, window_bytes)
        self.session = (clock.microseconds() << 12) | secrets.randbits(12)
        self._life = 0
        self._beat_at = 0.0
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        """For `Sleeper` alone, where the caller waits for pipes as well."""
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
        )
        self.socket.connect(address)
        self._sleeper = Poller(self.socket)
        self._failed = ""

    def send(self, body: msgspec.Struct, frames: Sequence[Any] = ()) -> None:
        """Numbered, and sent again until it is acknowledged; raises `PeerSlow` where too much is under way."""
        self._put(self.channel.put(write_body(body, frames, self._limits), frames, clock.now()))

    def receive(self, timeout: float) -> Iterator[tuple[Any, tuple[bytes, ...]]]:
        """What the gate said, after waiting for the first message at most so long.

        Raises `PeerRefused` where the gate does not know this key, or says that it may not say what it said.
        """
        until, waited = clock.now() + timeout, False
        while True:
            try:
                parts, why = take(self.socket, self._limits, skip=0)
            except zmq.Again:
                self._look()
                now = clock.now()
                self._upkeep(now)
                if waited or now >= until:
                    return
                self._sleeper.wait(min(until, self.channel.due(), self._beat_at) - now)
                waited = clock.now() >= until or bool(int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)
                continue
            waited = True
            heard = self._judge(parts) if why is None else None
            if heard is not None:
                yield heard
                if self.socket.closed:
                    return

    def wait_ready(self, timeout: float = 10.0) -> None:
        """Until the gate has answered; else one sentence that says what is wrong."""
        until = clock.now() + timeout
        self._beat()
        while not self._life:
            if clock.now() > until:
                raise FlegelError(f"No connection to {self.address} within {timeout:.0f} s: {self.trouble}")
            for _ in self.receive(0.05):
                pass

    @property
    def answered(self) -> bool:
        """The gate has said something: address and keys are right."""
        return bool(self._life)

    @property
    def trouble(self) -> str:
        """Why it may be that nobody has answered yet."""
        return f"{self._failed}." if self._failed else "nobody answers there; is `flegel master` running?"

    def drain(self, timeout: float) -> bool:
        """Until everything sent is acknowledged, at most so long; what comes in meanwhile is dropped."""
        until = clock.now() + timeout
        while self.channel.pending and clock.now() < until:
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

    def _judge(self, parts: list[Any]) -> tuple[Any, tuple[bytes, ...]] | None:
        slip = read_header(parts[0].buffer, self._limits)
        if slip.session != self.session:
            return None
        if slip.denied:
            raise PeerRefused(f"{self.address}: {slip.denied[:500]}")
        now = clock.now()
        if slip.life != self._life:
            restarted, self._life = bool(self._life), slip.life
            self.channel.begin_hearing(slip.base)
            if restarted:  # what the former process had read and not acknowledged is lost
                self._all(self.channel.again(now))
        self._all(self.channel.acknowledge(slip.heard, now))
        if not self.channel.takes(slip.number):
            return None
        if self.channel.owes >= ACK_EVERY:
            self._beat()
        body = self._vocabulary.decode(self._vocabulary.tag(slip.body), slip.body)
        return body, tuple(f.bytes for f in parts[1:])

    def _put(self, message: UnacknowledgedMessage) -> None:
        with contextlib.suppress(zmq.Again):
            send_frames(self.socket, [self._header(message.number, message.body), *message.frames])
            self.channel.owes = 0
            self._beat_at = clock.now() + BEAT

    def _all(self, messages: list[UnacknowledgedMessage]) -> None:
        for message in messages:
            self._put(message)

    def _header(self, number: int, body: bytes) -> bytes:
        channel = self.channel
        slip = MessageHeader(self.session, self._life, number, channel.base, channel.heard, msgspec.Raw(body))
        return encoder.encode(slip)

    def _beat(self) -> None:
        self._beat_at = clock.now() + BEAT
        self.channel.owes = 0
        with contextlib.suppress(zmq.Again):
            self.socket.send(self._header(0, bytes(NIL)), zmq.NOBLOCK)

    def _upkeep(self, now: float) -> None:
        message = self.channel.overdue(now)
        if message is not None:
            self._put(message)
        if self.channel.owes or now >= self._beat_at:
            self._beat()

    def _look(self) -> None:
        """What became of the handshake, where libzmq has something to tell."""
        while int(self._monitor.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            event = recv_monitor_message(self._monitor, zmq.NOBLOCK)["event"]
            if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                raise PeerRefused(
                    f"{self.address} does not know this key; on its host, run `flegel keys add` with the key that "
                    "`flegel keys show` prints here."
                )
            failed = event != zmq.EVENT_HANDSHAKE_SUCCEEDED
            self._failed = "it has another key than the one known here, or talks without keys" if failed else ""


def dial(
    address: str,
    hears: Iterable[type[msgspec.Struct]],
    *,
    pair: KeyPair | None = None,
    server: str | None = None,
    insecure: bool = False,
    limits: Limits | None = None,
    window: int = WINDOW,
    window_bytes: int = WINDOW_BYTES,
) -> SecureClient:
    """A line to the gate at `tcp://HOST:PORT` whose key is `server`; `hears` are the messages it may answer with."""
    host_of(address)
    if (pair is None) != (server is None):
        raise TypeError("a line needs its own pair and the gate's key, or neither")
    if pair is None and not insecure:
        raise UsageError(f"Speaking to {address} without keys can be read and changed on its way; type --insecure.")
    vocabulary = Vocabulary(dict.fromkeys(hears, ()))
    return SecureClient(address, vocabulary, pair, server, limits or Limits(), window, window_bytes)
