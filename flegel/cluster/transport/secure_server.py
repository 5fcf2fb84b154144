"""The server socket of a daemon: CURVE proves the sender, and a table says which messages its role may send.

`listen` opens a server, `dial` connects a client. A message reaches the caller only if its key is registered, its role
may send this type, its number is the next one of its conversation, and all of it is within the limits; refused messages
are counted by reason. Rights come from the key alone. Only typed MessagePack is decoded, nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import secrets
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import zmq

from flegel.cluster.transport.framing import (
    EMPTY_BODY,
    Limits,
    Vocabulary,
    bind,
    encoder,
    host_of,
    is_loopback,
    read_header,
    receive_frames,
    send_frames,
    write_body,
)
from flegel.cluster.transport.keys import KeyEntry, KeyRegistry
from flegel.cluster.transport.ordered_channel import (
    CHANNEL_WINDOW_BYTES,
    CHANNEL_WINDOW_MESSAGES,
    MessageHeader,
    OrderedChannel,
    UnacknowledgedMessage,
)
from flegel.cluster.transport.secure_client import MESSAGES_PER_ACKNOWLEDGEMENT
from flegel.core.own_pauses import OwnPauses
from flegel.errors import DecodeError, PeerRefused, UsageError
from flegel.runtime import clock
from flegel.runtime.transport.curve import KeyPair, ZapAuthenticator, apply_limits, key_of, secure_listener
from flegel.runtime.transport.poller import Poller

__all__ = ["ANYBODY", "Limits", "Received", "SecureServer", "Sender", "listen"]

MAX_SESSIONS = 4096
"""Conversations at a time; the longest silent one is forgotten for a new one."""
MAX_PENDING_BYTES = 512 << 20
"""Unacknowledged, of all conversations together; beyond that the longest silent one that has some is forgotten."""
IDLE_SESSION_SECONDS = 3600.0
"""Without a message for so long, a conversation is forgotten; its client begins a new one when it comes back."""
SERVER_PAUSE_SECONDS = 60.0
"""A longer time between two calls of `receive` means that this process was stopped, or that its clock jumped."""
ANYBODY = "anybody"
"""The role of every client of a server without keys."""


class Sender(NamedTuple):
    """Who sent a message, as proven by its key; also the address for an answer."""

    key: str
    role: str
    name: str
    session: int
    admin: bool = False
    """It may change everybody's jobs."""


class Received(NamedTuple):
    sender: Sender
    body: Any
    frames: tuple[bytes, ...]


class _Peer:
    """A conversation as the server keeps it."""

    def __init__(self, sender: Sender, now: float, window: int, window_bytes: int) -> None:
        self.sender, self.route, self.last = sender, b"", now
        self.channel = OrderedChannel(window, window_bytes)


class SecureServer:
    """Made by `listen`. Belongs to one thread."""

    def __init__(
        self,
        address: str,
        vocabulary: Vocabulary,
        pair: KeyPair | None,
        registry: KeyRegistry | None,
        limits: Limits,
        window: int,
        window_bytes: int,
    ) -> None:
        """Listen at the address; a `registry` decides which keys may connect. Without `pair` nothing is encrypted."""
        self.refused: Counter[str] = Counter()
        """Refused messages, by reason."""
        self._vocabulary, self._registry, self._limits = vocabulary, registry, limits
        self._window, self._window_bytes = window, window_bytes
        self._peers: OrderedDict[tuple[str, int], _Peer] = OrderedDict()
        self._floor: dict[str, int] = {}
        self._to_acknowledge: set[tuple[str, int]] = set()
        self._server_id = secrets.randbits(62) + 1
        self._expired_at = clock.now()
        self._pauses = OwnPauses(SERVER_PAUSE_SECONDS)
        self._context = zmq.Context()
        self.authenticator = ZapAuthenticator(self._context, registry.admit) if registry is not None else None
        self.socket = self._context.socket(zmq.ROUTER)
        """For `Poller` alone, if the caller waits for pipes as well."""
        try:
            apply_limits(self.socket, limits.largest, 2 * window)
            self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            if pair is not None:
                secure_listener(self.socket, pair)
            self.address = bind(self.socket, address)
        except BaseException:
            self.close()
            raise
        self._poller = Poller(self.socket)

    def receive(self, timeout: float) -> Iterator[Received]:
        """Accepted messages, after waiting for the first one at most so long."""
        now = clock.now()
        self._expire(now)
        until, waited = now + timeout, False
        while True:
            try:
                parts, why = receive_frames(self.socket, self._limits, skip=1)
            except zmq.Again:
                self._acknowledge()
                now = clock.now()
                if waited or now >= until:
                    return
                due = min((p.channel.due() for p in self._peers.values()), default=until)
                self._poller.wait(min(until, due) - now)
                waited = clock.now() >= until or self._readable()
                self._resend(clock.now())
                continue
            waited = True
            received = self._check(parts, why)
            if received is not None:
                yield received
                if self.socket.closed:
                    return

    def send(self, to: Sender, body: msgspec.Struct, frames: Sequence[Any] = ()) -> None:
        """To the conversation that a message came from; raises `PeerSlow` if too much is unacknowledged.

        What the client has not acknowledged is sent again when it comes back, as long as its conversation is known.
        """
        peer = self._peers.get((to.key, to.session))
        if peer is None:
            raise PeerRefused(f"The conversation with {to.name or to.key[:8]} is over; it must dial again.")
        if self._registry is not None and not self._registry.admit(to.key):
            raise PeerRefused(f"The key of {to.name or to.key[:8]} was revoked.")
        self._transmit(peer, peer.channel.put(write_body(body, frames, self._limits), frames, clock.now()))
        if sum(p.channel.pending_bytes for p in self._peers.values()) > MAX_PENDING_BYTES:
            self._forget(next(n for n, p in self._peers.items() if p.channel.pending_bytes))

    def reachable(self, to: Sender) -> bool:
        """Whether a connection to that conversation's peer is open: its process lives, though it may be frozen."""
        peer = self._peers.get((to.key, to.session))
        if peer is None:
            return False
        try:
            self.socket.send_multipart([peer.route, self._header(peer, 0, bytes(EMPTY_BODY))], zmq.NOBLOCK)
        except zmq.Again:
            return True  # its queue is full, so it exists
        except zmq.ZMQError:
            return False
        return True

    def channel(self, to: Sender) -> OrderedChannel | None:
        """The numbers of a conversation: sent, acknowledged, pending."""
        peer = self._peers.get((to.key, to.session))
        return peer.channel if peer else None

    def close(self) -> None:
        """Stop listening; what is pending is dropped."""
        if not self.socket.closed:
            self.socket.close(linger=0)
        if self.authenticator is not None:
            self.authenticator.stop()
            self.authenticator = None
        self._context.term()

    def __enter__(self) -> SecureServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- in ------------------------------------------------------------------------------------------------

    def _check(self, parts: list[Any], why: str | None) -> Received | None:
        """A message from the network: accepted, or counted under the reason for its refusal."""
        if why is not None or len(parts) < 2:
            return self._refuse(why or "not a message")
        route, frame = parts[0].bytes, parts[1]
        entry = self._identify(frame)
        try:
            header = read_header(frame.buffer, self._limits)
        except DecodeError:
            return self._refuse("not a message")
        if not entry.role:
            self._deny(route, header, "This key is not known here any more; ask the owner of the master to add it.")
            return self._refuse("unknown key")
        peer = self._peer(Sender(entry.key, entry.role, entry.name, header.session, entry.admin), header)
        if peer is None:
            self._deny(route, header, "This conversation is over; dial again.", self._floor[entry.key])
            return self._refuse("replay")
        now = clock.now()
        if peer.route != route:
            peer.route = route
            self._transmit_all(peer, peer.channel.resend_all(now))
        if header.server_id == self._server_id:
            self._transmit_all(peer, peer.channel.acknowledge(header.received, now))
        accepted = peer.channel.accept(header.number)
        if peer.channel.unacknowledged or header.number == 0:
            self._to_acknowledge.add((entry.key, header.session))
        if peer.channel.unacknowledged >= MESSAGES_PER_ACKNOWLEDGEMENT:
            self._acknowledge()
        if not accepted:
            return self._refuse("replay") if header.number else None
        return self._open(peer, header, parts)

    def _open(self, peer: _Peer, header: MessageHeader, parts: list[Any]) -> Received | None:
        """Decode a message whose number is the next one, if the role of its sender may send it."""
        try:
            tag = self._vocabulary.tag(header.body)
            allowed = self._vocabulary.roles[tag]
            if peer.sender.role != ANYBODY and peer.sender.role not in allowed:
                self._refuse("wrong role")
                self._deny(
                    peer.route,
                    header,
                    f"A key with role {peer.sender.role} may not send {tag}; that takes "
                    f"{' or '.join(sorted(allowed)) or 'no key at all'}.",
                )
                return None
            body = self._vocabulary.decode(tag, header.body)
        except DecodeError as error:
            self._refuse("not a message")
            self._deny(peer.route, header, str(error))
            return None
        return Received(peer.sender, body, tuple(f.bytes for f in parts[2:]))

    def _identify(self, frame: Any) -> KeyEntry:
        """The sender by its key; an empty role if it may not send (any more)."""
        if self._registry is None:
            return KeyEntry("", ANYBODY)
        key = key_of(frame)
        return (self._registry.find(key) if key else None) or KeyEntry(key, "")

    def _peer(self, sender: Sender, header: MessageHeader) -> _Peer | None:
        """The conversation of a message, a new one where it is not known; None for one that is over."""
        name = (sender.key, sender.session)
        peer = self._peers.get(name)
        now = clock.now()
        if peer is None:
            if sender.session <= self._floor.get(sender.key, -1):
                return None
            peer = self._peers[name] = _Peer(sender, now, self._window, self._window_bytes)
            peer.channel.begin_receiving(header.base)
            while len(self._peers) > MAX_SESSIONS:
                self._forget(next(iter(self._peers)))
        self._peers.move_to_end(name)
        peer.sender, peer.last = sender, now
        return peer

    def _refuse(self, why: str) -> Received | None:
        self.refused[why] += 1
        return None

    def _deny(self, route: bytes, header: MessageHeader, why: str, floor: int = 0) -> None:
        """`floor`: a conversation that is to be accepted must have a larger number, whatever the peer's clock says."""
        denial = MessageHeader(header.session, self._server_id, 0, 1, floor, EMPTY_BODY, why)
        with contextlib.suppress(zmq.ZMQError):
            self.socket.send_multipart([route, encoder.encode(denial)], zmq.NOBLOCK)

    # -- out -----------------------------------------------------------------------------------------------

    def _transmit_all(self, peer: _Peer, messages: list[UnacknowledgedMessage]) -> None:
        for message in messages:
            self._transmit(peer, message)

    def _transmit(self, peer: _Peer, message: UnacknowledgedMessage) -> None:
        """What the socket does not accept now stays pending."""
        with contextlib.suppress(zmq.ZMQError):
            header = self._header(peer, message.number, message.body)
            send_frames(self.socket, [peer.route, header, *message.frames])
            peer.channel.unacknowledged = 0

    def _header(self, peer: _Peer, number: int, body: bytes) -> bytes:
        channel = peer.channel
        header = MessageHeader(
            peer.sender.session, self._server_id, number, channel.base, channel.received, msgspec.Raw(body)
        )
        return encoder.encode(header)

    def _acknowledge(self) -> None:
        """Acknowledge what was accepted and not answered."""
        for name in self._to_acknowledge:
            peer = self._peers.get(name)
            if peer is not None:
                peer.channel.unacknowledged = 0
                with contextlib.suppress(zmq.ZMQError):
                    self.socket.send_multipart([peer.route, self._header(peer, 0, bytes(EMPTY_BODY))], zmq.NOBLOCK)
        self._to_acknowledge.clear()

    def _resend(self, now: float) -> None:
        for peer in list(self._peers.values()):
            message = peer.channel.overdue(now)
            if message is not None:
                self._transmit(peer, message)

    def _readable(self) -> bool:
        return bool(int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def _expire(self, now: float) -> None:
        """Forget sessions of peers that were silent for long. Time in which this process itself was stopped does not
        count."""
        if self.authenticator is not None:
            self.authenticator.supervise()
        away = self._pauses.look(now)
        if away:  # this process received nothing meanwhile, so the time counts against no client
            for peer in self._peers.values():
                peer.last = min(peer.last + away, now)
        if now - self._expired_at > 10.0:
            self._expired_at = now
            for name in [n for n, p in self._peers.items() if now - p.last > IDLE_SESSION_SECONDS]:
                self._forget(name)

    def _forget(self, name: tuple[str, int]) -> None:
        key, session = name
        del self._peers[name]
        self._floor[key] = max(self._floor.get(key, -1), session)


def listen(
    address: str,
    rights: Mapping[type[msgspec.Struct], Iterable[str]],
    *,
    pair: KeyPair | None = None,
    registry: KeyRegistry | None = None,
    insecure: bool = False,
    limits: Limits | None = None,
    window: int = CHANNEL_WINDOW_MESSAGES,
    window_bytes: int = CHANNEL_WINDOW_BYTES,
) -> SecureServer:
    """A server at `tcp://HOST:PORT` (port 0: any that is free; see `.address`) for the messages that `rights` lists.

    Without `pair` and `registry` every process that can reach the address may connect; `insecure` must confirm that.
    """
    host = host_of(address)
    if (pair is None) != (registry is None):
        raise TypeError("a server needs its own pair and a registry, or neither")
    if pair is None and not insecure:
        where = "this host" if is_loopback(host) else "everybody who can reach this host"
        raise UsageError(
            f"Listening at {address} without keys would let {where} run code; make keys with `flegel keys new`, "
            "or type --insecure."
        )
    return SecureServer(address, Vocabulary(rights), pair, registry, limits or Limits(), window, window_bytes)
