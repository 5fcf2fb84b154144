"""A peer that stops reading: what is sent to it is acknowledged or pending, nothing vanishes, and memory is bounded.

A server sends to a frozen process (SIGSTOP). First a million messages are offered to the frozen peer: the server
takes a window of them and refuses the rest, and says so each time. Then the peer is let go and frozen again and again
while all messages are delivered. The peer checks that each came once and in order. At every step: sent =
acknowledged + pending. Prints the figures as JSON.

    python -m bench.chaos.slow_peer --messages 1000000
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from bench.common import program
from flegel.cluster.transport import keys, secure_server
from flegel.cluster.transport.secure_client import dial
from flegel.errors import PeerSlow

MAX_GROWTH = 32 << 20
PAYLOAD = b"p" * 200


class Number(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    n: int
    payload: bytes


class Ready(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    got: int
    wrong: int


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peer(address: str, server: str, total: int) -> None:
    """The process that is frozen: counts, and looks whether everything comes once and in order."""
    with dial(address, [Number], pair=keys.load("slave"), server=server) as client:
        client.send(Ready(0, 0))
        got = wrong = 0
        while got < total:
            for body, _ in client.receive(1.0):
                wrong += body.n != got
                got += 1
        client.send(Ready(got, wrong))
        client.drain(60.0)


class Run:
    def __init__(self, total: int, freezes: int) -> None:
        self.total, self.freezes = total, freezes
        pair, registry = keys.first_start(), keys.KeyRegistry()
        self.server = secure_server.listen("tcp://127.0.0.1:0", {Ready: ["slave"]}, pair=pair, registry=registry)
        words = ["--peer", self.server.address, pair.public, "--messages", str(total)]
        self.process = subprocess.Popen(program.command("bench.chaos.slow_peer", *words), env=program.environment())
        self.final: Ready | None = None
        self.broken = self.checks = self.accepted = self.refused = self.most_pending = 0
        self.to = self._first()

    def _first(self) -> secure_server.Sender:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for received in self.server.receive(1.0):
                return received.sender
        raise SystemExit("the peer did not come up")

    def offer(self) -> bool:
        """The next message, if the window has room."""
        try:
            self.server.send(self.to, Number(self.accepted, PAYLOAD))
        except PeerSlow:
            self.refused += 1
            return False
        self.accepted += 1
        return True

    def check(self) -> None:
        channel = self.server.channel(self.to)
        assert channel is not None
        self.checks += 1
        self.broken += not (channel.sent == self.accepted == channel.acknowledged + channel.pending)
        self.most_pending = max(self.most_pending, channel.pending)

    def listen(self, seconds: float) -> None:
        for received in self.server.receive(seconds):
            if received.body.got:
                self.final = received.body

    def go(self) -> dict[str, Any]:
        began, before = time.monotonic(), resident()
        self.process.send_signal(signal.SIGSTOP)
        for number in range(self.total):
            self.offer()
            if number % 1000 == 0:
                self.listen(0.0)
                self.check()
        frozen = {"offered": self.total, "taken": self.accepted, "refused": self.refused}
        frozen |= {"growth_mb": (resident() - before) / 1e6, "seconds": time.monotonic() - began}
        self.process.send_signal(signal.SIGCONT)
        growth, due = resident() - before, [self.total * (i + 1) // (self.freezes + 1) for i in range(self.freezes)]
        deadline = time.monotonic() + 120 + self.total / 500
        while self.final is None and time.monotonic() < deadline:
            if due and self.accepted >= due[0]:
                due.pop(0)
                self.process.send_signal(signal.SIGSTOP)
                until = time.monotonic() + 0.3
                while time.monotonic() < until:
                    while self.accepted < self.total and self.offer():
                        pass
                    self.listen(0.01)
                self.process.send_signal(signal.SIGCONT)
            while self.accepted < self.total and self.offer():
                pass
            self.listen(0.01)
            self.check()
            growth = max(growth, resident() - before)
        channel = self.server.channel(self.to)
        assert channel is not None
        found = {
            "to_a_frozen_peer": frozen,
            "sent": channel.sent, "acknowledged": channel.acknowledged, "pending": channel.pending,
            "received": self.final.got if self.final else None,
            "out_of_order_or_twice": self.final.wrong if self.final else None,
            "checks": self.checks, "broken_checks": self.broken, "most_pending": self.most_pending,
            "freezes": self.freezes + 1, "growth_mb": growth / 1e6, "seconds": time.monotonic() - began,
        }  # fmt: skip
        if self.final is not None:
            self.process.wait(60)
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.server.close()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--messages", type=int, default=1_000_000)
    options.add_argument("--freezes", type=int, default=10)
    options.add_argument("--peer", nargs=2, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.peer:
        peer(*given.peer, given.messages)
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FLEGEL_HOME"] = folder
        run = Run(given.messages, given.freezes)
        try:
            found = run.go()
        finally:
            run.close()
    print(json.dumps(found, indent=1))
    whole = found["received"] == found["sent"] == found["acknowledged"] == given.messages
    right = not (found["out_of_order_or_twice"] or found["broken_checks"] or found["pending"])
    sys.exit(not (whole and right and found["growth_mb"] * 1e6 <= MAX_GROWTH))


if __name__ == "__main__":
    main()
