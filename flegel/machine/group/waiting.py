"""What a group waits for, in a sentence, and how often that is said. Pure.

Groups wait for each other for fractions of a second in every round; only what lasts is worth a line. A wait for a group
that never came lasts minutes and is said at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from flegel.configuration.active import active
from flegel.machine.coordinator.observation import SiteSnapshot, SitesSnapshot
from flegel.machine.group.events import SitesSeen, Waiting


class WaitReports:
    """Decides when a wait is told, and when it is worth a line of the log."""

    def __init__(self) -> None:
        self._present_wait = self._told_wait = ""
        self._wait_began, self._line_at = 0.0, -math.inf

    def look(self, what: str, at_once: bool, now: float) -> Waiting | None:
        """`what` this group waits for; empty where it does not. What is to be told now, if anything; an empty one ends
        what was told."""
        if what != self._present_wait:
            self._present_wait, self._wait_began = what, now
        shown = what if at_once or now - self._wait_began >= active().groups.wait_reported_after_seconds else ""
        line = bool(shown) and now - self._line_at >= active().groups.wait_reported_every_seconds
        if shown == self._told_wait and not line:
            return None
        self._told_wait = shown
        self._line_at = now if line else self._line_at
        return Waiting(shown, line)


class SiteReports:
    """Decides when it is told who is there."""

    def __init__(self) -> None:
        self._told, self._told_at = (0, tuple[SiteSnapshot, ...]()), -math.inf

    def look(
        self, round_: int, sites: Callable[[], tuple[SiteSnapshot, ...]], every: float, now: float
    ) -> SitesSeen | None:
        """`sites`: asked at most once in so many seconds."""
        if now - self._told_at < every:
            return None
        self._told_at, before = now, self._told
        self._told = (round_, sites())
        return SitesSeen(SitesSnapshot(*self._told)) if self._told != before else None


def missing_groups(groups_seen: int, groups_expected: int, limit: float) -> str:
    """The sentence for groups of --groups that were never seen."""
    more = groups_expected - groups_seen
    return f"waits for {more} more group{'s' if more > 1 else ''} of {groups_expected} (for {limit:g} s at most)"
