"""Framing of messages between hosts: limits before decoding, closed vocabularies, addresses. Keeps no state.

Whatever the bytes are, decoding raises `DecodeError` and nothing else; only typed MessagePack is decoded, nothing is
unpickled.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
import zmq

from flegel.cluster.transport.keys import JOB, ROLES
from flegel.cluster.transport.ordered_channel import MessageHeader
from flegel.errors import DecodeError, UsageError
from flegel.runtime.transport.codec import unpack

COPIED_FRAME_BYTES = 64 << 10
"""Smaller frames are copied by ZeroMQ, which costs less than keeping track of the buffer."""
HEADER_RESERVE_BYTES = 1024
"""Of the largest header, kept free for the numbers around a body."""
EMPTY_BODY = msgspec.Raw(b"\xc0")
"""MessagePack's nil: a message that only acknowledges."""
encoder = msgspec.msgpack.Encoder()
_headers = msgspec.msgpack.Decoder(MessageHeader)


class Limits(msgspec.Struct, frozen=True):
    """Largest sizes of a message, checked before anything is decoded."""

    header: int = 1 << 20
    frames: int = 64
    frame: int = 16 << 20
    total: int = 64 << 20

    @property
    def largest(self) -> int:
        return max(self.header, self.frame)


class _Tag(msgspec.Struct):
    type: str


_tags = msgspec.msgpack.Decoder(_Tag)


class Vocabulary:
    """A closed set of message types by tag (their class names), each with the roles that may send it."""

    def __init__(self, rights: Mapping[type[msgspec.Struct], Iterable[str]]) -> None:
        self.roles = {kind.__name__: frozenset(roles) for kind, roles in rights.items()}
        self._decoders = {kind.__name__: msgspec.msgpack.Decoder(kind) for kind in rights}
        for kind, roles in rights.items():
            config = kind.__struct_config__
            if config.tag != kind.__name__ or config.tag_field != "type" or not config.forbid_unknown_fields:
                raise TypeError(f"{kind.__name__} must be declared with tag=True and forbid_unknown_fields=True")
            unknown = set(roles) - {*ROLES, JOB}
            if unknown:
                raise TypeError(f"{kind.__name__} names roles that do not exist: {sorted(unknown)}")

    def tag(self, body: msgspec.Raw) -> str:
        """The type of a message, before the rest of it is decoded."""
        tag = unpack(_tags, body).type
        if tag not in self.roles:
            raise DecodeError(f"There is no message {tag[:40]!r}.")
        return tag

    def decode(self, tag: str, body: msgspec.Raw) -> Any:
        return unpack(self._decoders[tag], body)


def write_body(body: msgspec.Struct, frames: Sequence[Any], limits: Limits) -> bytes:
    """The bytes of a message; refused here if the other side would drop it."""
    try:
        packed = encoder.encode(body)
    except OverflowError:
        raise UsageError(
            f"A {type(body).__name__} holds a whole number beyond 64 bits, which cannot be sent; give a smaller one."
        ) from None
    sizes = [memoryview(f).nbytes for f in frames]
    fits = (
        len(packed) <= limits.header - HEADER_RESERVE_BYTES
        and len(sizes) <= limits.frames
        and max(sizes, default=0) <= limits.frame
    )
    if not fits or sum(sizes) > limits.total - limits.header:
        raise UsageError(
            f"A {type(body).__name__} of {len(packed)} bytes with {len(sizes)} frames of {sum(sizes)} bytes is too "
            f"large; send it in pieces."
        )
    return packed


def read_header(header: Any, limits: Limits) -> MessageHeader:
    """The outer header of a message; raises `DecodeError` and nothing else."""
    size = memoryview(header).nbytes
    if size > limits.header:
        raise DecodeError(f"A header has at most {limits.header} bytes, not {size}.")
    found = unpack(_headers, header)
    if min(found.session, found.server_id, found.number, found.base, found.received) < 0 or found.base < 1:
        raise DecodeError("A message has negative numbers.")
    if max(found.session, found.server_id, found.number, found.base, found.received) >= 2**63:
        raise DecodeError("A message has numbers that are too large.")
    return found


def receive_frames(socket: zmq.Socket[bytes], limits: Limits, skip: int) -> tuple[list[Any], str | None]:
    """The frames of the next message, not copied; and why it is refused, if it breaks a limit.

    `skip` frames at its beginning are not the sender's. Raises `zmq.Again` if there is no message.
    """
    frame = socket.recv(zmq.NOBLOCK, copy=False)
    parts: list[Any] = [frame]
    total, count, why = 0, 1, None
    while frame.more:
        frame = socket.recv(copy=False)
        count += 1
        size = len(frame)
        total += size
        if count > limits.frames + 1 + skip:
            why = "too many frames"
        elif size > limits.frame or total > limits.total:
            why = "too large"
        if why is None:
            parts.append(frame)
        else:
            parts = parts[:1]
    return parts, why


def is_loopback(host: str) -> bool:
    """Whether this address can be reached from this host alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(address: str) -> str:
    """The host of `tcp://HOST:PORT`; any other form is refused."""
    try:
        parts = urlsplit(address)
        if parts.scheme == "tcp" and parts.hostname and parts.port is not None and not parts.path:
            return parts.hostname
    except ValueError:
        pass
    raise UsageError(f"{address!r} is not an address; write tcp://HOST:PORT, such as tcp://127.0.0.1:7077.")


def bind(socket: zmq.Socket[bytes], address: str) -> str:
    """Bind a socket to an address (port 0: any that is free); returns the address with its port."""
    parts = urlsplit(address)
    if ":" in (parts.hostname or ""):
        socket.setsockopt(zmq.IPV6, 1)
    try:
        socket.bind(address if parts.port else f"{address.rpartition(':')[0]}:*")
    except zmq.ZMQError as error:
        raise UsageError(f"Cannot listen at {address}: {error.strerror}; choose another --listen address.") from None
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def send_frames(socket: zmq.Socket[bytes], frames: Sequence[Any]) -> None:
    """All or nothing, without waiting; large frames are not copied."""
    last = len(frames) - 1
    for place, frame in enumerate(frames):
        flags = zmq.NOBLOCK if place == last else zmq.NOBLOCK | zmq.SNDMORE
        socket.send(frame, flags, copy=memoryview(frame).nbytes < COPIED_FRAME_BYTES)
