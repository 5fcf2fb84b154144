"""Carries out slowness made on purpose inside a worker: sleeps in the trainer thread, or real load on its core.

As in the paper, a pause suspends the training thread and nothing interrupts it: a straggler is slow to respond to the
barrier as well, by up to a pause. A worker slowed by a factor responds like a slower processor would, between two
points: a signal ends its sleep, and what is left of it is slept in the next round. Decides nothing;
`plan/stragglers.py`
says who is slow when.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Any

from flegel.configuration.active import active
from flegel.core.entry_point import EntryPoint
from flegel.core.shard import TILE
from flegel.core.stop_flag import new_flag
from flegel.plan.stragglers import NONE, Slowdown, Stragglers
from flegel.runtime import clock

_SPIN = EntryPoint("flegel.core.atomic_flag", "spin")


class StragglerInjection:
    """Slows one worker down on purpose; used by the trainer thread only."""

    def __init__(self, stragglers: Stragglers, worker: int, workers: int, elapsed: float = 0.0) -> None:
        """`stragglers`: what the job asks for. `elapsed`: seconds of training before this worker began."""
        self._stragglers, self._worker, self._workers = stragglers, worker, workers
        self._elapsed = elapsed
        self._began_at: float | None = None
        self._owed_seconds = 0.0
        self._chunk_points = 0
        self._load: BusyThreads | None = None
        self.now = NONE

    def look(self, now: float) -> Slowdown:
        """What holds this worker back at this moment."""
        if self._began_at is None:
            self._began_at = now - self._elapsed
        self.now = self._stragglers.slowdown(self._worker, self._workers, now - self._began_at)
        self._press(self.now.load)
        return self.now

    def slice(self, cursor: int, left: int, points: int, least: int) -> int:
        """Where to stop next, so that sleeps fall where they should: a multiple of `least`, or the end."""
        size = self.now.every if self.now.pause else max(self._chunk_points, TILE)
        end = cursor + max(size, least)
        end -= end % least
        return min(max(end, cursor + 1), cursor + left, points)

    def pay(self, points: int, compute: float, flag: Any) -> None:
        """Sleep for what was computed. Parts of a pause are carried over, and what a signal leaves of other sleep."""
        rules = active().training
        self._owed_seconds += self.now.delay(points, compute)
        if compute > 0:
            self._chunk_points = int(points / compute * rules.computing_between_sleeps_seconds)
        if self.now.pause:
            due = self._owed_seconds // self.now.pause * self.now.pause
            if due:
                clock.sleep(due)
                self._owed_seconds -= due
            return
        while self._owed_seconds >= rules.shortest_sleep_seconds and not flag[0]:
            self._owed_seconds -= clock.sleep(min(self._owed_seconds, rules.sleep_check_seconds))

    def close(self) -> None:
        self._press(0)

    def _press(self, threads: int) -> None:
        if self._load is not None and self._load.threads != threads:
            self._load.stop()
            self._load = None
        if threads and self._load is None:
            self._load = BusyThreads(threads, self._worker)


class BusyThreads:
    """Busy threads on the core that this worker is pinned to as long as they run."""

    def __init__(self, threads: int, worker: int) -> None:
        """Pin this worker to one core and start `threads` threads there that compute without purpose."""
        self.threads = threads
        self._stop = new_flag()
        self._former_affinity = os.sched_getaffinity(0)
        cores = sorted(self._former_affinity)
        self._cores = {cores[worker % len(cores)]}
        self._pin(self._cores)
        for _ in range(threads):
            threading.Thread(target=self._burn, name="load", daemon=True).start()

    def _burn(self) -> None:
        os.sched_setaffinity(0, self._cores)
        _SPIN(self._stop)

    def stop(self) -> None:
        self._stop[0] = 1
        self._pin(self._former_affinity)

    def _pin(self, cores: set[int]) -> None:
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # a load thread that ends just now
                os.sched_setaffinity(int(thread.name), cores)
