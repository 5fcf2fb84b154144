"""Key pairs of CURVE and the authenticator (ZAP) that admits only known keys. Knows no file and no role.

It fails closed: sockets enforce their ZAP domain, so where the authenticator is dead, slow or in doubt every connection
is refused. What a message's sender may do is asked of the key that CURVE proved, never of anything the message says.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import zmq
from zmq.utils import z85

from flegel.errors import UsageError

_log = logging.getLogger(__name__)

DOMAIN = b"flegel"
HANDSHAKE_MILLISECONDS = 10_000  # milliseconds until a peer that does not complete its handshake is cut off
PING_MILLISECONDS = 5_000  # milliseconds between two pings of the transport
SILENCE_MILLISECONDS = 30_000  # without an answer a connection is closed then; longer than a freeze of 20 s
ENCRYPTION_BYTES_PER_FRAME = 256  # bytes that encryption may add to a frame; libzmq measures it encrypted
_ZAP = "inproc://zeromq.zap.01"


class KeyPair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key pair, both halves as 64 hexadecimal digits."""

    public: str
    secret: str

    def __repr__(self) -> str:
        return f"Pair({self.public}, …)"


def new_key_pair() -> KeyPair:
    public, secret = zmq.curve_keypair()
    return KeyPair(z85.decode(public).hex(), z85.decode(secret).hex())


def private_bytes(path: Path, largest: int = 1 << 20) -> bytes:
    """The content of a file that only this user can read; refused where it holds a secret that others may know."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise UsageError(f"There is no key {path}; make one with `flegel keys new`.") from None
    except OSError as error:
        raise UsageError(f"The key {path} cannot be read: {error.strerror}.") from None
    with os.fdopen(descriptor, "rb") as stream:
        found = os.fstat(stream.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(f"{path} is not a file; a key is a plain file.")
        if found.st_mode & 0o077:
            raise UsageError(f"Others can read the secret key {path}; make a new one, or run `chmod 600 {path}`.")
        if found.st_uid != os.geteuid():
            raise UsageError(f"The key {path} belongs to another user; use one of your own.")
        return stream.read(largest)


def derive_public(secret: str) -> str:
    """The public half that belongs to a secret one."""
    return z85.decode(zmq.curve_public(z85.encode(raw(secret)))).hex()


def raw(key: str) -> bytes:
    """The 32 bytes of a key as libzmq takes them."""
    try:
        made = bytes.fromhex(key)
    except ValueError:
        made = b""
    if len(made) != 32 or len(key) != 64:
        raise UsageError(f"{key[:80]!r} is no key; a key has 64 hexadecimal digits, see `flegel keys show`.")
    return made


def apply_limits(socket: zmq.Socket[bytes], largest: int, queue: int) -> None:
    """Bounds of every TCP socket: sizes, queues, time to shake hands, time to answer a ping."""
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, largest + ENCRYPTION_BYTES_PER_FRAME)
    socket.setsockopt(zmq.SNDHWM, queue)
    socket.setsockopt(zmq.RCVHWM, queue)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MILLISECONDS)
    socket.setsockopt(zmq.HEARTBEAT_IVL, PING_MILLISECONDS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE_MILLISECONDS)
    socket.setsockopt(zmq.HEARTBEAT_TTL, SILENCE_MILLISECONDS)
    socket.setsockopt(zmq.RECONNECT_IVL, 100)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2_000)


def secure_listener(socket: zmq.Socket[bytes], pair: KeyPair) -> None:
    """A listening socket that talks CURVE only, to keys that the authenticator of its context knows."""
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, raw(pair.secret))
    socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


def secure_dialer(socket: zmq.Socket[bytes], pair: KeyPair, server: str) -> None:
    """A connecting socket that proves its own key and accepts one listener's key only."""
    socket.setsockopt(zmq.CURVE_SERVERKEY, raw(server))
    socket.setsockopt(zmq.CURVE_PUBLICKEY, raw(pair.public))
    socket.setsockopt(zmq.CURVE_SECRETKEY, raw(pair.secret))


def key_of(frame: Any) -> str:
    """The key that CURVE proved for the sender of a received frame; empty without CURVE."""
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:
        return ""


class ZapAuthenticator:
    """Answers libzmq's question "may this key come in?" in a thread of its own; `admit` must be safe to call there.

    The thread owns its socket and sleeps in `poll`. `supervise` starts it again where it has died; until then every
    handshake fails.
    """

    def __init__(self, context: zmq.Context[Any], admit: Callable[[str], bool]) -> None:
        self._context, self._admit = context, admit
        self._thread: threading.Thread | None = None
        self._control: zmq.Socket[bytes] | None = None
        self._lives = 0
        self.start()

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the thread that authenticates; returns when it answers."""
        self._lives += 1
        ready = threading.Event()
        control = f"inproc://authenticator.{id(self)}.{self._lives}"
        self._control = self._context.socket(zmq.PAIR)
        self._control.setsockopt(zmq.LINGER, 0)
        self._control.bind(control)
        self._thread = threading.Thread(target=self._loop, args=(control, ready), name="authenticator", daemon=True)
        self._thread.start()
        ready.wait(10.0)

    def supervise(self) -> None:
        """Put a new one in the place of one that died; nothing to do nearly always."""
        if self._control is not None and not self.alive:
            _log.warning("the authenticator died and was restarted; it refused connections meanwhile.")
            self._control.close(linger=0)
            self.start()

    def stop(self) -> None:
        """End the thread; afterwards all new connections are refused."""
        if self._control is not None:
            with contextlib.suppress(zmq.ZMQError):
                self._control.send(b"", zmq.NOBLOCK)
            if self._thread is not None:
                self._thread.join(timeout=5.0)
            self._control.close(linger=0)
            self._control = None

    def _loop(self, control_name: str, ready: threading.Event) -> None:
        """Answer ZeroMQ's questions about keys, until the control socket says to stop."""
        zap, control = self._context.socket(zmq.REP), self._context.socket(zmq.PAIR)
        try:
            for socket in (zap, control):
                socket.setsockopt(zmq.LINGER, 0)
            control.connect(control_name)
            zap.bind(_ZAP)
            ready.set()
            poller = zmq.Poller()
            poller.register(zap, zmq.POLLIN)
            poller.register(control, zmq.POLLIN)
            while control not in dict(poller.poll()):
                zap.send_multipart(self._answer(zap.recv_multipart()))
        except zmq.ContextTerminated:
            pass
        finally:
            zap.close(linger=0)
            control.close(linger=0)
            ready.set()

    def _answer(self, question: list[bytes]) -> list[bytes]:
        number = question[1] if len(question) > 1 else b""
        refused = [b"1.0", number, b"400", b"This key is not known here.", b"", b""]
        if len(question) != 7 or question[0] != b"1.0" or question[2] != DOMAIN or question[5] != b"CURVE":
            return refused
        key = question[6].hex()
        return [b"1.0", number, b"200", b"OK", key.encode(), b""] if len(key) == 64 and self._may(key) else refused

    def _may(self, key: str) -> bool:
        try:
            return self._admit(key)
        except Exception as error:  # noqa: BLE001 - doubt means no, whatever the doubt is
            _log.warning("a key was refused because the list of keys failed: %s", error)
            return False
