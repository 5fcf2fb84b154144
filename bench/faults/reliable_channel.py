"""The network layer of the fault simulation: numbers, acknowledgements, resending over packets that get lost. Pure.

Real jobs do not use it: their sockets keep order and lose nothing while a connection lasts, and a worker whose
connection breaks is replaced. The simulated network loses, doubles and reorders packets, so the simulation needs this
layer below the machines of a job. It lives in `sim` for that reason.

Each end of a conversation has a `ReliableChannel`. What is `put` into one comes out of the other's `take` exactly once
and in order, however often packets are lost, doubled or overtaken, as long as some get through:

- every message has a number; the receiver keeps those that come early and gives them out in order;
- every packet says up to which number its sender has received the other side (`heard`). At a barrier an order thereby
  acknowledges the report before it and the report the order, so a barrier costs no packet of its own. Only where
  nothing is sent for `hold` seconds does an acknowledgement travel alone;
- what is not acknowledged after `patience` seconds is sent again, each time after twice as long;
- at most `window` messages are under way; further ones wait here, so the receiver never has to keep more.

A conversation belongs to a session, (epoch of the coordinator, incarnation of the worker). Packets of another session
are dropped, and a closed channel sends nothing: neither what a fenced process sent late nor what was meant for it ever
reaches a machine. Sent = acknowledged + under way + waiting, always.

It reads no clock and owns no socket: time comes in, packets go out, `due` says when to call `tick`. Items are whatever
the caller sends; arrays among them must not change until they are acknowledged.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import msgspec

WINDOW = 32
PATIENCE, LONGEST = 0.05, 2.0  # seconds until the first resend, and between two at most
HOLD = 0.02  # seconds that an acknowledgement waits for a message to travel with
BURST = 8  # messages that are sent again at once

Session = tuple[int, int]
"""Epoch of the coordinator, incarnation of the worker."""


class Packet(msgspec.Struct, frozen=True, array_like=True):
    """What travels. Number 0: an acknowledgement alone."""

    session: Session
    number: int
    heard: int
    """The sender has taken every message of the other side up to this number."""
    item: Any = None


class ReliableChannel:
    """One end."""

    def __init__(
        self, session: Session, window: int = WINDOW, patience: float = PATIENCE, longest: float = LONGEST,
        hold: float = HOLD,
    ) -> None:  # fmt: skip
        self.session, self.window, self.hold = session, window, hold
        self.sent = self.acknowledged = self.heard = 0
        self.again = self.refused = 0
        """Packets sent again; packets that were doubled, too early or of another session."""
        self.closed = False
        self._first, self._longest = patience, longest
        self._patience = patience
        self._pending: deque[tuple[int, Any]] = deque()
        self._waiting: deque[Any] = deque()
        self._early: dict[int, Any] = {}
        self._resend_at = self._owed_at = math.inf

    @property
    def under_way(self) -> int:
        return len(self._pending)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def put(self, item: Any, now: float) -> list[Packet]:
        """Say something; what is to be sent now."""
        if self.closed:
            return []
        self.sent += 1
        self._waiting.append(item)
        return self._pump(now)

    def take(self, packet: Packet, now: float) -> tuple[list[Any], list[Packet]]:
        """A packet came: items whose turn it is, and what is to be sent now."""
        if self.closed or packet.session != self.session:
            self.refused += 1
            return [], []
        self._acknowledge(packet.heard, now)
        items: list[Any] = []
        if packet.number:
            items = self._hear(packet, now)
        return items, self._pump(now)

    def tick(self, now: float) -> list[Packet]:
        """Time has passed: what is to be sent again, or an acknowledgement alone."""
        if self.closed:
            return []
        packets: list[Packet] = []
        if now >= self._resend_at:
            packets = [self._packet(number, item) for number, item in list(self._pending)[:BURST]]
            self.again += len(packets)
            self._patience = min(2 * self._patience, self._longest)
            self._resend_at = now + self._patience
        if now >= self._owed_at:
            packets.append(self._packet(0))
        return packets

    def due(self) -> float:
        """When to call `tick` next; infinity: not before something happens."""
        return math.inf if self.closed else min(self._resend_at, self._owed_at)

    def close(self) -> None:
        """The session is over: nothing is sent any more, nothing that comes is taken."""
        self.closed = True
        self._pending.clear()
        self._waiting.clear()
        self._early.clear()

    def _packet(self, number: int, item: Any = None) -> Packet:
        self._owed_at = math.inf
        return Packet(self.session, number, self.heard, item)

    def _pump(self, now: float) -> list[Packet]:
        packets: list[Packet] = []
        while self._waiting and len(self._pending) < self.window:
            number = self.sent - len(self._waiting) + 1
            item = self._waiting.popleft()
            if not self._pending:
                self._patience, self._resend_at = self._first, now + self._first
            self._pending.append((number, item))
            packets.append(self._packet(number, item))
        return packets

    def _acknowledge(self, heard: int, now: float) -> None:
        if not self.acknowledged < heard <= self.sent - len(self._waiting):
            return  # an old one that was overtaken, or of somebody who knows more than was said
        self.acknowledged = heard
        while self._pending and self._pending[0][0] <= heard:
            self._pending.popleft()
        self._patience = self._first
        self._resend_at = now + self._first if self._pending else math.inf

    def _hear(self, packet: Packet, now: float) -> list[Any]:
        number = packet.number
        if number <= self.heard or number in self._early:
            self.refused += 1
            self._owed_at = now  # the other side does not know: tell it at once
            return []
        if number > self.heard + self.window:
            self.refused += 1
            return []
        self._early[number] = packet.item
        items: list[Any] = []
        while self.heard + 1 in self._early:
            self.heard += 1
            items.append(self._early.pop(self.heard))
        self._owed_at = min(self._owed_at, now + self.hold)
        return items
