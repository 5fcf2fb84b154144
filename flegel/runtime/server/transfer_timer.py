"""When data of servers arrived: timed by the receiver, from the announcement on. Decides nothing, reads no clock."""

from __future__ import annotations

from collections.abc import Sequence

from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.server_messages import TransfersSeen


def worth_timing(arrays: Sequence[Array]) -> bool:
    return sum(a.nbytes for a in arrays) >= active().transport.announced_from_bytes


class TransferTimer:
    """What arrives at one process."""

    def __init__(self, me: int) -> None:
        self._own_number = me
        self._first_transfer_at: float | None = None
        self._transfer_began: dict[int, float] = {}
        """By sender: when the message that is under way began."""
        self._transfers: list[tuple[int, int, int, float, float]] = []

    def announced(self, source: int, now: float) -> None:
        if self._first_transfer_at is None:
            self._first_transfer_at = now
        self._transfer_began[source] = now

    def arrived(self, source: int, arrays: Sequence[Array], now: float) -> None:
        """Several messages behind one announcement follow each other without a pause."""
        began = self._transfer_began.get(source)
        if began is not None and self._first_transfer_at is not None and worth_timing(arrays):
            size = sum(a.nbytes for a in arrays)
            self._transfers.append(
                (source, self._own_number, size, began - self._first_transfer_at, now - self._first_transfer_at)
            )
            self._transfer_began[source] = now

    def take(self) -> TransfersSeen | None:
        """All transfers that were timed since the last call."""
        if not self._transfers:
            return None
        seen = TransfersSeen(tuple(self._transfers))
        self._first_transfer_at, self._transfers = None, []
        self._transfer_began.clear()
        return seen
