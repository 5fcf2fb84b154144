"""Pauses of this process itself: it was stopped, its host slept, its virtual machine moved, its clock jumped. Pure.

A process that did not run has received no messages, so that time must not count as silence of the senders: code that
judges others by their silence asks here first and extends its deadlines by the answer. Reads no clock.
"""

from __future__ import annotations

LONGEST_WAIT_SECONDS = 1.0
"""A wait with a `Deadline` lasts at most so long before it asks again whether the deadline has passed."""
OWN_PAUSE_SECONDS = 3.0
"""If more time passes between two such questions, this process did not run meanwhile. Three times
`LONGEST_WAIT_SECONDS`, because a busy host delays wake-ups."""


class OwnPauses:
    """Asked regularly; two looks far apart mean that this process did not run in between."""

    def __init__(self, limit: float) -> None:
        """`limit`: seconds between two looks; longer, and this process was away."""
        self._limit = limit
        self._last_look_at: float | None = None

    def look(self, now: float) -> float:
        """Seconds since the last look if this process was away, else 0. A clock that went back is a pause of 0."""
        away = now - self._last_look_at if self._last_look_at is not None else 0.0
        self._last_look_at = now
        return away if away > self._limit else 0.0


class Deadline:
    """A limit on a wait for somebody else. Time in which this process was away is added to it."""

    def __init__(self, seconds: float, now: float) -> None:
        self._ends_at, self._pauses = now + seconds, OwnPauses(OWN_PAUSE_SECONDS)
        self._pauses.look(now)

    def passed(self, now: float) -> bool:
        """Asked once a second at least while this process waits."""
        self._ends_at += self._pauses.look(now)
        return now >= self._ends_at
