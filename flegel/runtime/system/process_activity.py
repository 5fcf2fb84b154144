"""What other processes of this host are doing, as /proc shows it: stopped, working or asleep. Linux only; elsewhere
nothing is known of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_STOPPED, _WORKING = "Tt", "RD"
"""By a signal or a debugger; on a processor or waiting for one, or waiting for a disk."""
_TICKS = slice(11, 13)  # utime and stime, counted from the state


class Activity(NamedTuple):
    """One look at a process."""

    state: str
    ticks: int
    """Of processor time so far."""


def activity(pid: int) -> Activity | None:
    """None where it has ended or nothing is known of it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return Activity(fields[0], sum(map(int, fields[_TICKS])))
    except (OSError, ValueError, IndexError):
        return None


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal, such as SIGSTOP, or by a debugger."""
    seen = activity(pid)
    return seen is not None and seen.state in _STOPPED


class Silence:
    """For how long none of some processes has done anything."""

    def __init__(self, longest_step: float) -> None:
        """`longest_step`: seconds between two looks above which the observing process itself was held up; no more than
        that is counted."""
        self._longest_step = longest_step
        self._looked_at: float | None = None
        self._seen: dict[int, Activity] = {}
        self.seconds = 0.0

    def look(self, pids: Iterable[int], now: float) -> float:
        """Seconds of silence so far; 0 where one of them has worked since the last look."""
        seen = {pid: found for pid in pids if (found := activity(pid)) is not None}
        worked = any(one.state in _WORKING or self._seen.get(pid) != one for pid, one in seen.items())
        passed = 0.0 if self._looked_at is None else now - self._looked_at
        self.seconds = 0.0 if worked else self.seconds + min(passed, self._longest_step)
        self._looked_at, self._seen = now, seen
        return self.seconds
