"""One direction-pair of numbered messages between two processes: acknowledged, resent, never taken twice. Pure.

What ZeroMQ accepted is not delivered: it vanishes with a connection. A `Channel` keeps what was not acknowledged, so
that sent = acknowledged + pending at every moment, and refuses to take more than its window, so that a peer which
stopped reading costs a bounded amount of memory. Numbers are taken strictly in order; a gap is filled by resending.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from flegel.errors import PeerSlow

WINDOW = 1000
WINDOW_BYTES = 64 << 20
FIRST_RESEND, LAST_RESEND = 1.0, 30.0  # seconds without progress until the oldest message is sent again


class MessageHeader(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The header of every message through a gate. `number` 0 carries nothing but the acknowledgement."""

    session: int
    """Which conversation; chosen by the side that dialed, larger than in its former processes."""
    life: int
    """Which process listens; 0 while the dialing side does not know."""
    number: int
    base: int
    """The oldest number that the sender keeps: what is below was acknowledged by somebody."""
    heard: int
    """The highest number of the other side that was taken."""
    body: msgspec.Raw
    denied: str = ""
    """Why a message was not taken, for the person on the other side."""


class UnacknowledgedMessage(NamedTuple):
    number: int
    body: bytes
    frames: tuple[Any, ...]
    size: int


class OrderedChannel:
    """What one side knows of a conversation."""

    def __init__(self, window: int = WINDOW, window_bytes: int = WINDOW_BYTES) -> None:
        self.window, self.window_bytes = window, window_bytes
        self.sent = 0
        self.acknowledged = 0
        self.heard = 0
        self.owes = 0
        """Messages taken since the other side was last told."""
        self._pending: deque[UnacknowledgedMessage] = deque()
        self._bytes = 0
        self._patience = FIRST_RESEND
        self._since = 0.0
        self._probed = 0

    @property
    def pending(self) -> int:
        return len(self._pending)

    @property
    def pending_bytes(self) -> int:
        return self._bytes

    @property
    def base(self) -> int:
        return self.acknowledged + 1

    def put(self, body: bytes, frames: Sequence[Any], now: float) -> UnacknowledgedMessage:
        """The next message, to be sent; refused where too much is under way."""
        size = len(body) + sum(memoryview(f).nbytes for f in frames)
        if self._pending and (len(self._pending) >= self.window or self._bytes + size > self.window_bytes):
            raise PeerSlow(
                f"{len(self._pending)} messages ({self._bytes} bytes) are not acknowledged yet; try again later."
            )
        if not self._pending:
            self._since, self._patience = now, FIRST_RESEND
        self.sent += 1
        message = UnacknowledgedMessage(self.sent, body, tuple(frames), size)
        self._pending.append(message)
        self._bytes += size
        return message

    def acknowledge(self, heard: int, now: float) -> list[UnacknowledgedMessage]:
        """The other side has all up to `heard`; returns what should be sent again at once."""
        if not self.acknowledged < heard <= self.sent:
            return []
        while self._pending and self._pending[0].number <= heard:
            self._bytes -= self._pending.popleft().size
        self.acknowledged = heard
        self._since, self._patience = now, FIRST_RESEND
        gap = self._probed == heard
        self._probed = 0
        return list(self._pending) if gap else []

    def overdue(self, now: float) -> UnacknowledgedMessage | None:
        """The oldest message, where it should be sent again; the rest follows when that one is acknowledged."""
        if not self._pending or now - self._since < self._patience:
            return None
        self._since, self._patience = now, min(2 * self._patience, LAST_RESEND)
        self._probed = self._pending[0].number
        return self._pending[0]

    def due(self) -> float:
        """When `overdue` should be asked next."""
        return self._since + self._patience if self._pending else float("inf")

    def again(self, now: float) -> list[UnacknowledgedMessage]:
        """Everything pending, for a connection that is new."""
        self._since, self._probed = now, 0
        return list(self._pending)

    def begin_hearing(self, base: int) -> None:
        """A sender that this side hears for the first time, or that listens in a new life."""
        self.heard = max(base - 1, 0)

    def takes(self, number: int) -> bool:
        """Is this the message that comes next? Others were taken already, or come too early and will come again."""
        if number != self.heard + 1:
            self.owes += number > 0
            return False
        self.heard = number
        self.owes += 1
        return True
