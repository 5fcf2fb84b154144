"""Direct messages between groups over ZeroMQ with CURVE: each beat, sent to everybody who can be reached. Only hints.

A group that listens tells its address and the public key of this life in its beat, which is signed. Whoever reads that
connects, so a group behind a firewall sends without being reachable. Messages are sealed as the object in the bucket
is, and what is not signed by its group is dropped. Nothing waits for a message; what is lost is read from the bucket.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

import zmq

from flegel.errors import UsageError, in_words
from flegel.machine.group.records import MEMBERS, NAME
from flegel.runtime.group.keys import RefusedObject, Seal
from flegel.wording import option

MAX_PEER_MESSAGE_BYTES = 64 << 10  # bytes of a message; a beat has some hundred
MAX_QUEUED_MESSAGES = 16  # messages to a group that does not answer; later ones are dropped
ADDRESSES_OF_ALL_INTERFACES = ("0.0.0.0", "::", "*")  # addresses of all interfaces: to listen at, not to send to
STOP_CHECK_MILLISECONDS = 200  # milliseconds between two looks whether it is over


class ListenAddress(NamedTuple):
    """Where a group can be reached, and the one address of this host at which it listens for that."""

    host: str
    port: int
    """0: any that is free."""
    own: str


def parse_listen(text: str) -> ListenAddress:
    """'paris.example.org:7700', or '10.0.0.5/paris.example.org:7700' where this host has another address than the one
    under which others reach it."""
    place, _, port = text.rpartition(":")
    own, _, host = place.rpartition("/")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(
            f"{option('group_listen', text)}: give the host as other groups reach it, and a port: host:7700."
        )
    if host.strip("[]") in ADDRESSES_OF_ALL_INTERFACES:
        raise UsageError(f"{option('group_listen', text)}: {host} is no place to send to; say {host}/host:{port}.")
    return ListenAddress(host, int(port), own or host)


class GroupMessenger:
    """Exchanges direct messages with other groups: sends from the thread of the group, receives in its own."""

    def __init__(self, listen: str, seal: Seal, hear: Callable[[bytes], None]) -> None:
        """`listen` is empty for a group that cannot be reached."""
        self._seal, self._hear = seal, hear
        self._context = zmq.Context()
        self._public, self._secret = zmq.curve_keypair()
        self._peers: dict[str, zmq.Socket[bytes]] = {}
        self._closed_event = threading.Event()
        self.received = self.refused = 0
        """Messages that were taken, and messages that were not."""
        self.address = ""
        self._thread: threading.Thread | None = None
        if listen:
            place = parse_listen(listen)
            self._thread = threading.Thread(target=self._receive, name="flegel-peers", daemon=True)
            self._inbox = self._bound(listen, place)
            bound = self._inbox.getsockopt(zmq.LAST_ENDPOINT).decode().rstrip("\0").rpartition(":")[2]  # type: ignore[union-attr]
            self.address = f"tcp://{place.host}:{bound} {self._public.decode('ascii')}"
            self._thread.start()

    def _bound(self, listen: str, place: ListenAddress) -> zmq.Socket[bytes]:
        """At the one address that was given, and no other of this host."""
        try:
            found = socket.getaddrinfo(place.own.strip("[]"), place.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise UsageError(
                f"{option('group_listen', listen)}: {place.own} is no known host ({in_words(error)})."
            ) from None
        family, own = found[0][0], str(found[0][4][0])
        inbox = self._context.socket(zmq.PULL)
        inbox.linger, inbox.maxmsgsize = 0, MAX_PEER_MESSAGE_BYTES
        inbox.curve_server = True
        inbox.curve_publickey, inbox.curve_secretkey = self._public, self._secret
        try:
            inbox.ipv6 = family == socket.AF_INET6
            inbox.bind(f"tcp://{f'[{own}]' if inbox.ipv6 else own}:{place.port or '*'}")
        except zmq.ZMQError as error:
            inbox.close()
            self._context.destroy(linger=0)
            raise UsageError(
                f"{option('group_listen', listen)}: {own}, port {place.port}, cannot be used ({error}); "
                "where this host has "
                f"another address than others send to, say ADDRESS/{place.host}:{place.port}."
            ) from None
        return inbox

    def _receive(self) -> None:
        """Take messages of other groups until the end. What is not signed by its sender is counted and ignored."""
        while not self._closed_event.is_set():
            if not self._inbox.poll(STOP_CHECK_MILLISECONDS):
                continue
            frames = self._inbox.recv_multipart()
            name = frames[0].decode("ascii", "replace")
            if len(frames) != 2 or not NAME.fullmatch(name):
                self.refused += 1
                continue
            try:
                content = self._seal.open(MEMBERS + name, frames[1])
            except RefusedObject:
                self.refused += 1
                continue
            self.received += 1
            self._hear(content)
        self._inbox.close()

    def send(self, name: str, content: bytes, addresses: Iterable[str]) -> None:
        """Send to all other groups that listen; connects to those that are new, forgets those that are gone."""
        wanted = set(addresses)
        for address in [a for a in self._peers if a not in wanted]:
            self._peers.pop(address).close()
        sealed = self._seal.seal(MEMBERS + name, content)
        for address in sorted(wanted):
            peer = self._peers.get(address) or self._connect(address)
            if peer is not None:
                with contextlib.suppress(zmq.Again):
                    peer.send_multipart([name.encode("ascii"), sealed], zmq.DONTWAIT)

    def _connect(self, address: str) -> zmq.Socket[bytes] | None:
        """A socket to another group; None where its address cannot be used, since the bucket carries the same
        messages."""
        place, _, key = address.partition(" ")
        peer = self._context.socket(zmq.PUSH)
        peer.linger, peer.sndhwm = 0, MAX_QUEUED_MESSAGES
        try:
            peer.curve_serverkey = key.encode("ascii", "replace")
            peer.curve_publickey, peer.curve_secretkey = self._public, self._secret
            peer.ipv6 = "[" in place
            peer.connect(place)
        except (zmq.ZMQError, ValueError):
            peer.close()
            return None  # an address that cannot be used; the bucket is enough
        self._peers[address] = peer
        return peer

    def close(self) -> None:
        self._closed_event.set()
        if self._thread is not None:
            self._thread.join(2.0)
        for peer in self._peers.values():
            peer.close()
        self._context.destroy(linger=0)
