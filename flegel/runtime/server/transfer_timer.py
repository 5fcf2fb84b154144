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
        self._me = me
        self._zero: float | None = None
        self._since: dict[int, float] = {}
        self._seen: list[tuple[int, int, int, float, float]] = []

    def announced(self, source: int, now: float) -> None:
        if self._zero is None:
            self._zero = now
        self._since[source] = now

    def arrived(self, source: int, arrays: Sequence[Array], now: float) -> None:
        """Several messages behind one announcement follow each other without a pause."""
        began = self._since.get(source)
        if began is not None and self._zero is not None and worth_timing(arrays):
            size = sum(a.nbytes for a in arrays)
            self._seen.append((source, self._me, size, began - self._zero, now - self._zero))
            self._since[source] = now

    def take(self) -> TransfersSeen | None:
        """Everything since the last call."""
        if not self._seen:
            return None
        seen = TransfersSeen(tuple(self._seen))
        self._zero, self._seen = None, []
        self._since.clear()
        return seen
