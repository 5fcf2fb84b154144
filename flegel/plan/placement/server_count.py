"""How many parameter servers a job should have: by the load that folds show, or by a plan of moments. Pure.

The load of the servers is the part of the time between two folds in which the job waits for them: from the order to
fold to the last answer. Slices that were folded while reports still came in cost no wait and are no load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from flegel.configuration.active import active


class CountChange(NamedTuple):
    """Another number of servers, and why."""

    servers: int
    reason: str


class ServerCount(Protocol):
    """Decides about the number of servers of one job."""

    def after_fold(self, waited: float, period: float, servers: int, most: int) -> CountChange | None:
        """A fold is done, with all servers up: seconds of waiting for it, seconds since the fold before."""

    def at(self, seconds: float, servers: int) -> CountChange | None:
        """So long the job has had servers now."""


class CountByPlan:
    """So many servers from each moment on."""

    def __init__(self, steps: Sequence[tuple[float, int]]) -> None:
        self._steps = sorted(steps)

    def after_fold(self, waited: float, period: float, servers: int, most: int) -> CountChange | None:
        return None

    def at(self, seconds: float, servers: int) -> CountChange | None:
        """The last step that is due; steps that were missed meanwhile do not count."""
        due = [step for step in self._steps if step[0] <= seconds]
        self._steps = self._steps[len(due) :]
        if not due:
            return None
        moment, wanted = due[-1]
        return CountChange(wanted, f"planned for {moment:g} s") if wanted != servers else None


class CountByLoad:
    """One server more while the job waits long for them and the last one helped; one fewer while it hardly waits."""

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self._waits: list[tuple[float, float]] = []
        """Waiting and period of folds since the last change."""
        self._before: tuple[int, float] | None = None
        """Servers before the last one was added, and seconds of waiting for each fold then."""
        self._useless: tuple[int, float] | None = None
        """So many servers were no better than one fewer, at this wait for each fold."""

    def at(self, seconds: float, servers: int) -> CountChange | None:
        return None

    def after_fold(self, waited: float, period: float, servers: int, most: int) -> CountChange | None:
        settings = active().placement
        self._waits.append((waited, period))
        if len(self._waits) <= settings.load_folds:  # the first one after a change has its copies beside it
            return None
        seen, self._waits = self._waits[1:], []
        wait = sum(w for w, _ in seen) / len(seen)
        load = wait * len(seen) / max(sum(p for _, p in seen), 1e-12)
        return self._judged(wait, load, servers, min(most, self._most))

    def _judged(self, wait: float, load: float, servers: int, most: int) -> CountChange | None:
        settings = active().placement
        before, self._before = self._before, None
        told = f"the job waits for servers {load:.0%} of the time"
        if before is not None and servers <= before[0]:  # it did not start
            self._useless = before[0] + 1, wait
        elif before is not None and wait > (1 - settings.server_gain) * before[1]:
            self._useless = servers, wait
            return CountChange(before[0], f"{told}; {servers} servers answer no sooner than {before[0]}")
        if load > settings.busy_servers and servers < most and not self._tried(servers + 1, wait):
            self._before, self._useless = (servers, wait), None
            return CountChange(servers + 1, told)
        after_one_left = load * servers / max(servers - 1, 1)
        if servers > self._least and after_one_left < settings.idle_servers:
            return CountChange(servers - 1, told)
        return None

    def _tried(self, servers: int, wait: float) -> bool:
        """So many were of no use, and folds have not become twice as long since."""
        return self._useless is not None and servers >= self._useless[0] and wait < 2 * self._useless[1]
