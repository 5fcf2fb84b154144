"""Everybody who must not get in tries to: how many of their messages reach a master's dispatcher? None may.

A server with the master's own table of rights is attacked by plain clients, unknown keys, revoked keys, keys of the
wrong role for every type of message, forged identities, repeated and recorded messages, messages beyond the limits,
raw bytes, and by everybody again while the authenticator is dead. Before and after each kind, a message that may
come in does come in, so that the server is known to be open. Prints one line of JSON for each kind.

    python -m bench.chaos.intruder --tries 10000 --out intruder.jsonl
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import zmq

from bench.chaos.decoder import example
from flegel.cluster.transport import keys, protocol, secure_server
from flegel.cluster.transport.ordered_channel import MessageHeader
from flegel.cluster.transport.secure_client import dial
from flegel.runtime.transport.curve import KeyPair, apply_limits, new_key_pair, secure_dialer

ENCODE = msgspec.msgpack.Encoder().encode
PERMITTED = ("read", protocol.ListSlaves.__name__)
"""Role and type of the message that may come in."""


class AttackedServer:
    """A server in a thread, which counts what comes through."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pair = keys.first_start(folder)
        self.registry = keys.KeyRegistry(folder)
        self.pairs = {role: keys.ensure(role, folder) for role in keys.ROLES}
        for role, pair in self.pairs.items():
            self.registry.add(pair.public, role, role)
        self.through: list[tuple[str, str]] = []
        """Role and type of each message that reached the dispatcher."""
        self._over = threading.Event()
        self.server = secure_server.listen("tcp://127.0.0.1:0", protocol.RIGHTS, pair=self.pair, registry=self.registry)
        self.address = self.server.address
        self._halt, self._halted = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._loop)
        self._thread.start()

    def _loop(self) -> None:
        while not self._over.is_set():
            if self._halt.is_set():
                self._halted.set()
                time.sleep(0.005)
                continue
            for received in self.server.receive(0.02):
                self.through.append((received.sender.role, type(received.body).__name__))

    @contextlib.contextmanager
    def without_authenticator(self) -> Iterator[None]:
        """The authenticator is dead and nobody starts it again, though messages are received as ever."""
        authenticator = self.server.authenticator
        assert authenticator is not None
        self._halted.clear()
        self._halt.set()
        self._halted.wait(10)
        authenticator.stop()
        self._halt.clear()
        try:
            yield
        finally:
            self._halted.clear()
            self._halt.set()
            self._halted.wait(10)
            authenticator.start()
            self._halt.clear()

    def knock(self) -> None:
        """One message that may come in."""
        before = len(self.through)
        with dial(self.address, [], pair=self.pairs["read"], server=self.pair.public) as line:
            line.send(protocol.ListSlaves())
            assert line.drain(30.0), "the server does not answer those who may come in"
        deadline = time.monotonic() + 30
        while len(self.through) <= before and time.monotonic() < deadline:
            time.sleep(0.002)
        assert self.through[before:] == [PERMITTED], self.through[before:]

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self.server.close()


def message(body: Any, number: int = 1, session: int | None = None, base: int = 1) -> bytes:
    packed = msgspec.Raw(ENCODE(body))
    return ENCODE(MessageHeader(session if session is not None else time.time_ns() >> 2, 0, number, base, 0, packed))


class Attacker:
    """Raw DEALER sockets, some at a time, each with a message of its own."""

    def __init__(self, target: AttackedServer) -> None:
        self.target = target
        self.context: zmq.Context[Any] = zmq.Context()
        self.rng = random.Random(7)

    def socket(self, pair: KeyPair | None, server: str | None, identity: bytes = b"") -> zmq.Socket[bytes]:
        made = self.context.socket(zmq.DEALER)
        apply_limits(made, 1 << 40, 1000)
        made.setsockopt(zmq.RECONNECT_IVL, -1)
        if identity:
            made.setsockopt(zmq.IDENTITY, identity)
        if pair is not None and server is not None:
            secure_dialer(made, pair, server)
        made.connect(self.target.address)
        return made

    def volley(
        self, tries: int, make: Callable[[int], tuple[zmq.Socket[bytes], list[bytes]]], arriving: float = 0.0
    ) -> None:
        """Each try a new connection, fifty at once, long enough open for what they send to arrive.

        `arriving`: the part of them whose key is known, so that the server must have read what they say.
        """
        server = self.target.server
        done = 0
        while done < tries:
            some = [make(done + i) for i in range(min(50, tries - done))]
            for attacker, frames in some:
                with contextlib.suppress(zmq.Again):
                    attacker.send_multipart(frames, zmq.NOBLOCK)
            before, until = server.refused.total(), time.monotonic() + 3.0
            time.sleep(0.15)
            while server.refused.total() - before < arriving * len(some) and time.monotonic() < until:
                time.sleep(0.01)
            for attacker, _ in some:
                attacker.close(0)
            done += len(some)

    def anything(self) -> Any:
        return example(self.rng.choice(list(protocol.RIGHTS)), self.rng)


def plain(a: Attacker, tries: int) -> None:
    a.volley(tries, lambda _: (a.socket(None, None), [message(a.anything())]))


def unknown_key(a: Attacker, tries: int) -> None:
    a.volley(tries, lambda _: (a.socket(new_key_pair(), a.target.pair.public), [message(a.anything())]))


def wrong_server_key(a: Attacker, tries: int) -> None:
    a.volley(tries, lambda _: (a.socket(a.target.pairs["submit"], new_key_pair().public), [message(a.anything())]))


def revoked_key(a: Attacker, tries: int) -> None:
    """New connections of a key that was known, and one that was open when it was revoked."""
    target, pair = a.target, new_key_pair()
    target.registry.add(pair.public, "submit")
    old = a.socket(pair, target.pair.public)
    with dial(target.address, [], pair=pair, server=target.pair.public) as line:
        line.wait_ready(30)
    time.sleep(0.2)
    target.registry.revoke(pair.public)
    time.sleep(2 * keys.KEYS_CACHE_SECONDS)
    half = tries // 2
    for number in range(half):
        with contextlib.suppress(zmq.Again):
            old.send(message(a.anything(), session=number + 1), zmq.NOBLOCK)
        if number % 500 == 0:
            time.sleep(0.05)
    a.volley(tries - half, lambda _: (a.socket(pair, target.pair.public), [message(a.anything())]))
    old.close(0)


def dead_authenticator(a: Attacker, tries: int) -> None:
    """Known keys, unknown ones and none, while nobody can vouch for any."""
    f = a.target

    def make(number: int) -> tuple[zmq.Socket[bytes], list[bytes]]:
        who = number % 3
        pair = (f.pairs["submit"], new_key_pair(), None)[who]
        body = protocol.ListSlaves() if who == 0 else a.anything()
        return a.socket(pair, f.pair.public if pair else None), [message(body)]

    with f.without_authenticator():
        mine, a.context = a.context, zmq.Context()
        try:
            a.volley(tries, make)
        finally:  # known keys may come in as soon as somebody vouches for them, so all must be gone before
            a.context.destroy(0)
            a.context = mine


def wrong_role(a: Attacker, tries: int) -> None:
    """Every type of message from every role that may not say it, in valid conversations."""
    f = a.target
    forbidden = [(kind, role) for kind, roles in protocol.RIGHTS.items() for role in keys.ROLES if role not in roles]
    lines = {role: a.socket(f.pairs[role], f.pair.public) for role in keys.ROLES}
    session, numbers = time.time_ns() >> 2, dict.fromkeys(keys.ROLES, 0)
    for attempt in range(tries):
        kind, role = forbidden[attempt % len(forbidden)]
        numbers[role] += 1
        lines[role].send(message(example(kind, a.rng), numbers[role], session))
        if attempt % 200 == 0:
            time.sleep(0.05)
    _flush(a, lines)


def forged_identity(a: Attacker, tries: int) -> None:
    """A key that may read claims a slave's or the master's name, socket by socket: what counts is its key."""
    f = a.target
    names = [b"master", b"slave", b"submit", f.pairs["slave"].public.encode(), b"0.0"]

    def make(number: int) -> tuple[zmq.Socket[bytes], list[bytes]]:
        identity = names[number % len(names)] + (b"" if number % 10 == 0 else str(number).encode())
        kind = a.rng.choice([k for k, roles in protocol.RIGHTS.items() if "read" not in roles])
        return a.socket(f.pairs["read"], f.pair.public, identity), [message(example(kind, a.rng))]

    a.volley(tries, make, arriving=0.9)


def replay(a: Attacker, tries: int) -> None:
    """One message that came in, again and again: on its connection, on others, from others' keys, as raw bytes."""
    f = a.target
    session = time.time_ns() >> 2
    recorded = message(protocol.ListSlaves(), 1, session)
    first = a.socket(f.pairs["read"], f.pair.public)
    before = len(f.through)
    first.send(recorded)
    while len(f.through) == before:
        time.sleep(0.002)
    other = a.socket(f.pairs["read"], f.pair.public)
    stranger = a.socket(f.pairs["slave"], f.pair.public)
    for number in range(tries):
        (first, other, stranger)[number % 3].send(recorded)
        if number % 200 == 0:
            time.sleep(0.05)
    _flush(a, {"first": first, "other": other, "stranger": stranger})
    f.through[before:] = [t for t in f.through[before:] if t != PERMITTED] + [PERMITTED] * max(
        f.through[before:].count(PERMITTED) - 1, 0
    )  # the original may come in, once


def recording(a: Attacker, tries: int) -> None:
    """The bytes of a whole valid connection, recorded on the wire and played back."""
    f = a.target
    record = _record(f)
    target = urlsplit(f.address)
    for _ in range(tries):
        wire = socket.create_connection((target.hostname, target.port), timeout=10)
        with wire, contextlib.suppress(OSError):
            wire.sendall(record)
            wire.settimeout(0.02)
            wire.recv(4096)


def beyond_limits(a: Attacker, tries: int) -> None:
    """Messages that a key may send, but too long, too many frames, or not MessagePack."""
    f = a.target
    limits = secure_server.Limits()

    def make(number: int) -> tuple[zmq.Socket[bytes], list[bytes]]:
        good = message(protocol.ListSlaves())
        frames = {
            0: [good + b"x" * (limits.header - len(good) + 1)],
            1: [good, *[b""] * (limits.frames + 1)],
            2: [b"\x97" + a.rng.randbytes(40)],
            3: [good[:-1]],
            4: [b"\x91" * 3000],
            5: [b""],
            6: [good, b"x" * (limits.largest + 1)] if number < 100 else [b"\xc1"],
            7: [good.replace(PERMITTED[1].encode(), PERMITTED[1][::-1].encode())],
        }[number % 8]
        return a.socket(f.pairs["read"], f.pair.public), frames

    a.volley(tries, make, arriving=0.75)


def raw_bytes(a: Attacker, tries: int) -> None:
    """No ZeroMQ at all, or half of it."""
    target = urlsplit(a.target.address)
    greeting = bytes.fromhex("ff00000000000000017f0301") + b"CURVE".ljust(20, b"\0") + bytes(32)
    for number in range(tries):
        with socket.create_connection((target.hostname, target.port), timeout=10) as wire:
            data = a.rng.randbytes(a.rng.randrange(300))
            with contextlib.suppress(OSError):
                wire.sendall((greeting if number % 2 else b"") + data)


def _flush(a: Attacker, lines: dict[str, zmq.Socket[bytes]]) -> None:
    """Until the server has read all of it."""
    deadline = time.monotonic() + 60
    for line in lines.values():
        with contextlib.suppress(zmq.Again):
            while True:
                line.recv(zmq.NOBLOCK)
        while not line.poll(100) and time.monotonic() < deadline:
            with contextlib.suppress(zmq.Again):
                line.send(message(None, 0, 1), zmq.NOBLOCK)
        line.close(0)


def _record(f: AttackedServer) -> bytes:
    """What a client that may come in sends, by a relay between it and the server."""
    heard = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as relay:
        target = urlsplit(f.address)

        def carry() -> None:
            inner, _ = relay.accept()
            outer = socket.create_connection((target.hostname, target.port))
            ends = [(inner, outer, True), (outer, inner, False)]
            workers = [threading.Thread(target=pump, args=e, daemon=True) for e in ends]
            for w in workers:
                w.start()

        def pump(source: socket.socket, sink: socket.socket, keep: bool) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(65536):
                    if keep:
                        heard.extend(data)
                    sink.sendall(data)

        threading.Thread(target=carry, daemon=True).start()
        address = f"tcp://127.0.0.1:{relay.getsockname()[1]}"
        before = len(f.through)
        with dial(address, [], pair=f.pairs["read"], server=f.pair.public) as line:
            line.send(protocol.ListSlaves())
            assert line.drain(30.0)
        while len(f.through) == before:
            time.sleep(0.002)
        f.through.pop()  # that one was let in by right
    return bytes(heard)


KINDS: dict[str, Callable[[Attacker, int], None]] = {
    "plain client": plain,
    "unknown key": unknown_key,
    "wrong server key": wrong_server_key,
    "revoked key": revoked_key,
    "dead authenticator": dead_authenticator,
    "wrong role": wrong_role,
    "forged identity": forged_identity,
    "replay": replay,
    "recording": recording,
    "beyond limits": beyond_limits,
    "raw bytes": raw_bytes,
}


def attack(folder: Path, tries: int, kinds: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """About so many tries in all, by every kind of intruder."""
    chosen = kinds or list(KINDS)
    each = -(-tries // len(chosen))
    target = AttackedServer(folder)
    attacker = Attacker(target)
    try:
        for name in chosen:
            target.knock()
            before, refused, began = len(target.through), target.server.refused.copy(), time.monotonic()
            KINDS[name](attacker, each)
            time.sleep(0.3)
            got = target.through[before:]
            target.knock()
            yield {
                "kind": name,
                "tries": each,
                "reached_the_dispatcher": len(got),
                "what": sorted(set(got)),
                "refused_by_the_server": dict(target.server.refused - refused),
                "seconds": round(time.monotonic() - began, 1),
            }
    finally:
        attacker.context.destroy(0)
        target.close()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tries", type=int, default=10_000, help="in all, over all kinds")
    options.add_argument("--kinds", default="", help=f"with commas between; all by default: {', '.join(KINDS)}")
    options.add_argument("--out", type=Path, help="append the lines to this file")
    given = options.parse_args()
    os.environ.pop("FLEGEL_HOME", None)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for found in attack(Path(folder), given.tries, [k.strip() for k in given.kinds.split(",") if k.strip()]):
            print(json.dumps(found), flush=True)
            failed += found["reached_the_dispatcher"]
            if given.out:
                with given.out.open("a") as stream:
                    stream.write(json.dumps(found) + "\n")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
