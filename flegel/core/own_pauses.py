"""Pauses of this process itself: it was stopped, its host slept, its virtual machine moved, its clock jumped. Pure.

A process that was away has heard nobody meanwhile, so that time counts against nobody: whoever judges others by their
silence asks here first and renews their leases by what is answered. Reads no clock.
"""

from __future__ import annotations

LOOK = 1.0
"""Seconds that a wait with a `Deadline` lasts at most before it asks again whether that has passed."""
AWAY = 3.0
"""Seconds between two such questions; longer, and this process was away. Three times `LOOK`: hosts may be busy."""


class OwnPauses:
    """Asked regularly; two looks far apart mean that this process did not run in between."""

    def __init__(self, limit: float) -> None:
        """`limit`: seconds between two looks; longer, and this process was away."""
        self._limit = limit
        self._last: float | None = None

    def look(self, now: float) -> float:
        """Seconds since the last look if this process was away, else 0. A clock that went back is a pause of 0."""
        away = now - self._last if self._last is not None else 0.0
        self._last = now
        return away if away > self._limit else 0.0


class Deadline:
    """A limit on a wait for somebody else. Time in which this process was away is added to it."""

    def __init__(self, seconds: float, now: float) -> None:
        self._until, self._pauses = now + seconds, OwnPauses(AWAY)
        self._pauses.look(now)

    def passed(self, now: float) -> bool:
        """Asked once a second at least while this process waits."""
        self._until += self._pauses.look(now)
        return now >= self._until
