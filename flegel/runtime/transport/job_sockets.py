"""How the processes of one job find and trust each other: ipc on one host, TCP with CURVE between hosts.

A worker gets its keys when it starts. With its own pair it proves to the coordinator which incarnation of which worker
it is; the pair `between` is the job's: every process of this job has it. Without keys all are children of one
process on one host. Where the system has abstract sockets (Linux), theirs are such ones, which no other user can open;
elsewhere they are TCP on 127.0.0.1, which every user of that host can dial.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec
import zmq

from flegel.runtime.transport.curve import KeyPair, ZapAuthenticator, apply_limits, secure_dialer, secure_listener

MAX_MESSAGE_BYTES = 4 << 30  # of a frame; ZeroMQ closes a connection that sends more
INPROC = "inproc://"
QUEUED_MESSAGES = 10_000  # messages; far more than the protocols of a job ever have under way
ABSTRACT = os.name == "posix" and os.path.exists("/proc/self/fd")  # noqa: PTH110 - asked once, at import
"""Are there local sockets that have no file?"""


class JobKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker on any host is given at birth, through a pipe or a file that only its owner can read."""

    own: KeyPair
    server: str
    """The coordinator's public key."""
    between: KeyPair


class JobSockets:
    """Sockets of one process to others of its job."""

    def __init__(self, keys: JobKeys | None = None, context: zmq.Context[Any] | None = None) -> None:
        """`context`: that of a coordinator in this process, which ends it; without one, sockets have their own."""
        self.keys = keys
        self._context_is_shared = context is not None
        self.context: zmq.Context[Any] = zmq.Context() if context is None else context
        self._authenticator: ZapAuthenticator | None = None

    def to_coordinator(
        self, address: str, name: bytes, before: Callable[[zmq.Socket[bytes]], None] = lambda dealer: None
    ) -> zmq.Socket[bytes]:
        """What is under way is bounded by the protocol: one report an order, one beat a second. `before` it is dialled,
        the socket is shown to whoever has to see everything that becomes of it."""
        dealer = self._socket(zmq.DEALER)
        dealer.setsockopt(zmq.IDENTITY, name)
        if self.keys is not None:
            secure_dialer(dealer, self.keys.own, self.keys.server)
        before(dealer)
        dealer.connect(address)
        return dealer

    def listen(self, near: str) -> tuple[zmq.Socket[bytes], str]:
        """A socket that others of this job can dial, and its address. `near`: the address of the coordinator, which
        says where the others are: threads of this process, processes of this host, or hosts on the way to it."""
        listener = self._socket(zmq.ROUTER)
        if near.startswith(INPROC):
            return listener, bind_inside(listener)
        if self.keys is None and ABSTRACT and not near.startswith("tcp:"):
            return listener, bind_here(listener)
        if self.keys is not None:
            between = self.keys.between
            if self._authenticator is None:
                self._authenticator = ZapAuthenticator(self.context, lambda key: key == between.public)
            self._authenticator.supervise()
            secure_listener(listener, between)
        host = own_address(near)
        return listener, f"tcp://{host}:{listener.bind_to_random_port(f'tcp://{host}')}"

    def dial(self, address: str, buffer: int = 0) -> zmq.Socket[bytes]:
        """Connect to a listening socket of another process of this job. `buffer`: bytes of what is sent that the kernel
        holds; 0: as many as it chooses."""
        link = self._socket(zmq.DEALER)
        if buffer:
            link.setsockopt(zmq.SNDBUF, buffer)
        if self.keys is not None:
            secure_dialer(link, self.keys.between, self.keys.between.public)
        link.connect(address)
        return link

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        """A socket with the limits of this job: bounded queues and sizes where peers may be strangers (keys), else
        none."""
        made: zmq.Socket[bytes] = self.context.socket(kind)
        if self.keys is not None:
            apply_limits(made, MAX_MESSAGE_BYTES, QUEUED_MESSAGES)
            made.setsockopt(zmq.SNDTIMEO, 0)  # a full queue is an error, not a wait
        else:
            for option in (zmq.LINGER, zmq.SNDHWM, zmq.RCVHWM):
                made.setsockopt(option, 0)
        return made

    def close(self) -> None:
        """All sockets must be closed before."""
        if self._authenticator is not None:
            self._authenticator.stop()
            self._authenticator = None
        if not self._context_is_shared:
            self.context.term()


def bind_inside(local: zmq.Socket[bytes]) -> str:
    """A socket that only threads with the same context can reach."""
    address = f"{INPROC}flegel-{secrets.token_hex(12)}"
    local.bind(address)
    return address


def bind_here(local: zmq.Socket[bytes]) -> str:
    """A local socket without a name in the file system, open to processes of this user alone."""
    local.setsockopt(zmq.IPC_FILTER_UID, os.getuid())
    address = f"ipc://@flegel-{secrets.token_hex(12)}"
    local.bind(address)
    return address


def own_address(peer: str) -> str:
    """The address of this host on the way to a peer, so that others on that way can reach it."""
    parts = urlsplit(peer)
    if parts.scheme != "tcp" or not parts.hostname:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET6 if ":" in parts.hostname else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((parts.hostname, parts.port or 1))
        return str(probe.getsockname()[0])


def same_host(address: str, near: str) -> bool:
    """Is this the address of a socket on this host?"""
    return address.startswith(("ipc:", INPROC)) or urlsplit(address).hostname == own_address(near)
