"""Numbered messages between two processes: acknowledged, resent, accepted once and in order. Pure.

A message that ZeroMQ accepted may still be lost with its connection. An `OrderedChannel` keeps what was not
acknowledged, so that sent = acknowledged + pending at every moment, and refuses more than its window, so that a peer
that stopped reading costs a bounded amount of memory. Numbers are accepted in order only; a gap is filled by resending.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from flegel.errors import PeerSlow

CHANNEL_WINDOW_MESSAGES = 1000  # without an acknowledgement, in one conversation
CHANNEL_WINDOW_BYTES = 64 << 20
"""That may be unacknowledged: they stay in memory until the other side has them."""
FIRST_RESEND_SECONDS, LAST_RESEND_SECONDS = 1.0, 30.0
"""Without progress until the oldest message is sent again; each time twice as long, from the first to the last."""


class MessageHeader(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The header of every message between a client and a server. `number` 0 has an acknowledgement only."""

    session: int
    """Which conversation; chosen by the client, larger than in its earlier processes."""
    server_id: int
    """Which server process; 0 while the client does not know it."""
    number: int
    base: int
    """The oldest number that the sender keeps: lower ones were acknowledged."""
    received: int
    """The highest number of the other side that was accepted."""
    body: msgspec.Raw
    denied: str = ""
    """Why a message was refused, for the person on the other side."""


class UnacknowledgedMessage(NamedTuple):
    number: int
    body: bytes
    frames: tuple[Any, ...]
    size: int


class OrderedChannel:
    """One side of a conversation."""

    def __init__(self, window: int = CHANNEL_WINDOW_MESSAGES, window_bytes: int = CHANNEL_WINDOW_BYTES) -> None:
        self.window, self.window_bytes = window, window_bytes
        self.sent = 0
        """Number of the last message that was sent, acknowledged, and received."""
        self.acknowledged = 0
        self.received = 0
        self.unacknowledged = 0
        """Messages accepted since the last acknowledgement was sent."""
        self._pending_messages: deque[UnacknowledgedMessage] = deque()
        self._pending_bytes = 0
        self._resend_after = FIRST_RESEND_SECONDS
        self._progress_at = 0.0
        self._probed_number = 0

    @property
    def pending(self) -> int:
        return len(self._pending_messages)

    @property
    def pending_bytes(self) -> int:
        return self._pending_bytes

    @property
    def base(self) -> int:
        return self.acknowledged + 1

    def put(self, body: bytes, frames: Sequence[Any], now: float) -> UnacknowledgedMessage:
        """The next message, to be sent; refused if too much is unacknowledged."""
        size = len(body) + sum(memoryview(f).nbytes for f in frames)
        if self._pending_messages and (
            len(self._pending_messages) >= self.window or self._pending_bytes + size > self.window_bytes
        ):
            raise PeerSlow(
                f"{len(self._pending_messages)} messages ({self._pending_bytes} bytes) are not acknowledged yet; "
                "try again later."
            )
        if not self._pending_messages:
            self._progress_at, self._resend_after = now, FIRST_RESEND_SECONDS
        self.sent += 1
        message = UnacknowledgedMessage(self.sent, body, tuple(frames), size)
        self._pending_messages.append(message)
        self._pending_bytes += size
        return message

    def acknowledge(self, received: int, now: float) -> list[UnacknowledgedMessage]:
        """The other side has all up to `received`; returns what should be sent again at once."""
        if not self.acknowledged < received <= self.sent:
            return []
        while self._pending_messages and self._pending_messages[0].number <= received:
            self._pending_bytes -= self._pending_messages.popleft().size
        self.acknowledged = received
        self._progress_at, self._resend_after = now, FIRST_RESEND_SECONDS
        gap = self._probed_number == received
        self._probed_number = 0
        return list(self._pending_messages) if gap else []

    def overdue(self, now: float) -> UnacknowledgedMessage | None:
        """The oldest message, if it should be sent again; the others follow when that one is acknowledged."""
        if not self._pending_messages or now - self._progress_at < self._resend_after:
            return None
        self._progress_at, self._resend_after = now, min(2 * self._resend_after, LAST_RESEND_SECONDS)
        self._probed_number = self._pending_messages[0].number
        return self._pending_messages[0]

    def due(self) -> float:
        """When `overdue` should be asked next."""
        return self._progress_at + self._resend_after if self._pending_messages else float("inf")

    def resend_all(self, now: float) -> list[UnacknowledgedMessage]:
        """Everything pending, for a connection that is new."""
        self._progress_at, self._probed_number = now, 0
        return list(self._pending_messages)

    def begin_receiving(self, base: int) -> None:
        """Start with a new sender, or with a server that was restarted."""
        self.received = max(base - 1, 0)

    def accept(self, number: int) -> bool:
        """Whether this is the next message. Others were accepted already, or are early and will be sent again."""
        if number != self.received + 1:
            self.unacknowledged += number > 0
            return False
        self.received = number
        self.unacknowledged += 1
        return True
