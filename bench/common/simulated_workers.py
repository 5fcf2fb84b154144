"""Many workers played by one process: each has its own connection and identity, none trains. See coordinator_load.py.

Speaks ZMTP 3 (what ZeroMQ speaks on TCP) on plain sockets, so that playing costs a few microseconds a message and the
coordinator on the other end is what is measured. A message counts as sent when the kernel has taken it, and as received
when its last byte is here. Checks on the way that nothing is lost, doubled or changed: each worker gets every round
once, in order, with the same θ as everybody else.

Reads one line of JSON (a `Part`) from standard input, and writes one line of JSON (`Played`) when it is told to exit.
"""

from __future__ import annotations

import gc
import select
import socket
import struct
import sys
import time

import msgspec
import numpy as np

from bench.common.program import words_of
from flegel.messages import Answer, Envelope, Exit, Hello, LoadShard, ReleaseJob, Report, ShardLoaded, Train, WorkerBeat
from flegel.runtime.transport.codec import EMPTY, PackedArrays, Sequencer, decode
from flegel.runtime.worker.process import identity

SILENT = 120.0  # seconds without any message: the coordinator hangs
BEAT = 1.0
BREATH = 5e-4
"""Seconds between two looks for θ. Woken by each message, the players would take the processors that they measure."""
_LONG, _MORE, _COMMAND = 2, 1, 4
_LEAST = 2  # bytes of the shortest frame
_SPARE = 1 << 12  # bytes for what may come behind a message


class Part(msgspec.Struct):
    """What one process plays."""

    address: str
    token: str
    first: int
    last: int
    aggregator: int
    """Bytes of the statistics."""
    think: float
    """Seconds from the last θ to the first report."""
    spread: float = 0.0
    """Seconds over which reports are strewn evenly; 0: all at once."""


class Played(msgspec.Struct):
    """What was seen, by round. Times are those of the monotonic clock, which processes of one host share."""

    sent: list[float]
    """The last report was with the kernel."""
    got: list[float]
    """The last worker had θ."""
    errors: list[str]


def statistics(size: int) -> tuple[int, int]:
    """Numbers in the two fields of the statistics of so many bytes."""
    numbers = max(size // 8, 2)
    counts = max(1, min(10, numbers // 2))
    return numbers - counts, counts


def frame(body: bytes | memoryview, more: bool) -> list[bytes | memoryview]:
    size = len(body)
    flags = _MORE if more else 0
    head = bytes((flags, size)) if size < 256 else struct.pack(">BQ", flags | _LONG, size)
    return [head, body]


def dial(address: str) -> socket.socket:
    """A connection over TCP, or over a local socket, with or without a file (`@`)."""
    kind, _, place = address.partition("://")
    if kind == "ipc":
        found = socket.socket(socket.AF_UNIX)
        found.connect("\0" + place[1:] if place.startswith("@") else place)
    else:
        host, _, port = place.rpartition(":")
        found = socket.create_connection((host, int(port)))
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    deadline = struct.pack("@ll", int(SILENT), 0)  # kept by the kernel; Python's own asks `poll` before every call
    found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, deadline)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, deadline)
    return found


class Connection:
    """One worker. Its buffer is kept from round to round: memory that is new each time costs more than the message."""

    def __init__(self, part: Part, worker: int) -> None:
        self.worker = worker
        self.round = -1
        self.voice = Sequencer(part.token, 0, worker, 0)
        self.socket = dial(part.address)
        self._buffer = bytearray(1 << 14)
        self._here = 0
        self._wanted = _LEAST
        name = identity(worker, 0)
        ready = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
        ready += b"\x08Identity" + struct.pack(">I", len(name)) + name
        self.socket.sendall(
            b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" + bytes(31)
            + bytes((_COMMAND, len(ready))) + ready
        )  # fmt: skip
        greeting = self._exactly(64)
        if greeting[0] != 0xFF or greeting[12:16] != b"NULL":
            raise SystemExit(f"Worker {worker}: the other end does not speak plain ZMTP 3.")
        flags, size = self._exactly(2)
        if flags != _COMMAND or not self._exactly(size).startswith(b"\x05READY"):
            raise SystemExit(f"Worker {worker}: the other end did not get ready.")

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            found += self.socket.recv(size - len(found)) or self._gone()
        return found

    def _gone(self) -> bytes:
        raise SystemExit(f"Worker {self.worker}: the coordinator hung up.")

    def prepare(self, body: Answer, parcel: PackedArrays = EMPTY) -> list[bytes | memoryview]:
        header, *parts = self.voice.wrap(body, parcel)
        pieces = frame(header, bool(parts))
        for at, each in enumerate(parts):
            pieces += frame(memoryview(each).cast("B") if not isinstance(each, bytes) else each, at < len(parts) - 1)
        if sum(map(len, pieces)) <= 1 << 16:
            return [b"".join(pieces)]
        return pieces

    def say(self, pieces: list[bytes | memoryview]) -> None:
        for piece in pieces:
            self.socket.sendall(piece)

    def receive(self) -> bool:
        """Takes what is here now; True where that makes a message whole."""
        here = self._here
        try:
            if here:
                got = self.socket.recv_into(memoryview(self._buffer)[here:], 0, socket.MSG_DONTWAIT)
            else:
                got = self.socket.recv_into(self._buffer, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        if not got:
            self._gone()
        self._here = here = here + got
        return here >= self._wanted and self.whole()

    def whole(self) -> bool:
        """Is there a whole message? Else the buffer is made large enough for what is known of it."""
        at = 0
        while True:
            head = at + (9 if at < self._here and self._buffer[at] & _LONG else 2)
            if self._here < head:
                self._wanted = head
                return False
            more = self._buffer[at] & _MORE
            at = head + int.from_bytes(self._buffer[at + 1 : head], "big")
            if at > self._here:
                self._wanted = at
                if at + _SPARE > len(self._buffer):
                    self._buffer.extend(bytes(at + _SPARE - len(self._buffer)))
                return False
            if not more:
                return True

    def take(self) -> list[memoryview]:
        """The frames of the message that is whole; commands of the protocol are left out."""
        frames, at, more = [], 0, _MORE
        whole = memoryview(bytes(memoryview(self._buffer)[: self._here]))
        while more:
            flags = whole[at]
            more, head = flags & _MORE, at + (9 if flags & _LONG else 2)
            body, at = head, head + int.from_bytes(whole[at + 1 : head], "big")
            if not flags & _COMMAND:
                frames.append(whole[body:at])
        rest = self._here - at
        self._buffer[:rest] = self._buffer[at : self._here]
        self._here, self._wanted = rest, _LEAST
        return frames


class Players:
    """All workers of this process, in lock step with the coordinator."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.connections = [Connection(part, w) for w in range(part.first, part.last)]
        self.by_socket = {c.socket.fileno(): c for c in self.connections}
        self.epoll = select.epoll(len(self.connections))
        for each in self.by_socket:
            self.epoll.register(each, select.EPOLLIN)
        self.played = Played([], [], [])
        self._beat_at = time.monotonic() + BEAT
        sums, counts = statistics(part.aggregator)
        self.parcels = {
            c.worker: PackedArrays((np.full(sums, float(c.worker + 1)), np.ones(counts))) for c in self.connections
        }

    def run(self) -> None:
        for c in self.connections:
            c.say(c.prepare(Hello(0, "played")))
        self.answer_loads()
        while self.round():
            pass

    def gather(self) -> tuple[float, list[tuple[Connection, Envelope, bytes]]]:
        """One message to every worker; when the last of them was here. Nothing is decoded before that."""
        missing = {fd for fd, c in self.by_socket.items() if not c.whole()}
        poll, by_socket = self.epoll.poll, self.by_socket
        while missing:
            ready = poll(SILENT)
            if not ready:
                raise SystemExit(f"{len(missing)} workers have waited for {SILENT:.0f} s.")
            for fd, _ in ready:
                if by_socket[fd].receive():
                    missing.discard(fd)
            if missing:
                time.sleep(BREATH)
        now = time.monotonic()
        found = [(c, *decode(c.take())) for c in self.connections]
        return now, [(c, envelope, b"".join(a.tobytes() for a in arrays)) for c, envelope, arrays in found]

    def answer_loads(self) -> None:
        _, messages = self.gather()
        for c, envelope, _ in messages:
            if not isinstance(envelope.body, LoadShard):
                raise SystemExit(f"{type(envelope.body).__name__} came instead of Load.")
            c.voice.job = envelope.job
            c.say(c.prepare(ShardLoaded(1000, 10, "played", "", 0.0)))

    def round(self) -> bool:
        now, messages = self.gather()
        trains = [m for m in messages if isinstance(m[1].body, Train)]
        if not trains:
            if not all(isinstance(e.body, ReleaseJob | Exit) for _, e, _ in messages):
                self.played.errors.append("neither training nor its end")
            return all(isinstance(e.body, ReleaseJob) for _, e, _ in messages)
        self.played.got.append(now)
        self._check(messages)
        rounds = {c.worker: c.round for c in self.connections}
        reports = [
            (c, c.prepare(Report(rounds[c.worker], 1000, True, 0, 0, 1e-3, 0.0, 0.0), self.parcels[c.worker]))
            for c in self.connections
        ]
        time.sleep(max(0.0, now + self.part.think - time.monotonic()))
        began, gap = time.monotonic(), self.part.spread / len(reports)
        for n, (c, pieces) in enumerate(reports):
            if gap:
                time.sleep(max(0.0, began + n * gap - time.monotonic()))
            c.say(pieces)
        self.played.sent.append(time.monotonic())
        if time.monotonic() > self._beat_at:
            self._beat_at = time.monotonic() + BEAT
            for c in self.connections:
                c.say(c.prepare(WorkerBeat(0)))
        return True

    def _check(self, messages: list[tuple[Connection, Envelope, bytes]]) -> None:
        """Nothing lost, doubled or changed."""
        theta = messages[0][2]
        heard = set()
        for c, envelope, arrays in messages:
            body = envelope.body
            if not isinstance(body, Train) or c.worker in heard or body.round != c.round + 1:
                self.played.errors.append(f"worker {c.worker} got {body} after round {c.round}")
                continue
            heard.add(c.worker)
            c.round = body.round
            if arrays != theta:
                self.played.errors.append(f"worker {c.worker} has another θ in round {body.round}")


def main() -> None:
    words_of(__doc__)
    part = msgspec.json.decode(sys.stdin.buffer.readline(), type=Part)
    players = Players(part)
    gc.freeze()
    gc.disable()  # its looks around would be measured
    players.run()
    sys.stdout.buffer.write(msgspec.json.encode(players.played) + b"\n")


if __name__ == "__main__":
    main()
