"""What a group waits for, in a sentence, and how often that is said. Pure.

Groups wait for each other for fractions of a second in every round; only what lasts is worth a line. A wait for a group
that never came lasts minutes and is said at once.
"""

from __future__ import annotations

import math

from flegel.configuration.active import active
from flegel.machine.group.events import Waiting


class WaitReports:
    """Decides when a wait is told, and when it is worth a line of the log."""

    def __init__(self) -> None:
        self._what = self._told = ""
        self._since, self._line_at = 0.0, -math.inf

    def look(self, what: str, at_once: bool, now: float) -> Waiting | None:
        """`what` this group waits for; empty where it does not. What is to be told now, if anything; an empty one ends
        what was told."""
        if what != self._what:
            self._what, self._since = what, now
        shown = what if at_once or now - self._since >= active().groups.wait_reported_after_seconds else ""
        line = bool(shown) and now - self._line_at >= active().groups.wait_reported_every_seconds
        if shown == self._told and not line:
            return None
        self._told = shown
        self._line_at = now if line else self._line_at
        return Waiting(shown, line)


def missing_groups(came: int, expected: int, limit: float) -> str:
    """The sentence for groups of --groups that were never seen."""
    more = expected - came
    return f"waits for {more} more group{'s' if more > 1 else ''} of {expected} (for {limit:g} s at most)"
