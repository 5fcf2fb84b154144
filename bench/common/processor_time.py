"""What the threads of worker processes used of the processors: the figures that a busy machine does not change.

Read from /proc, so on Linux only. The busiest thread of a worker is its trainer; all others together are what
moving points, messages and memory took.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

SCHEDULED = 2  # of the three clocks that Linux keeps for a process, the one in nanoseconds


class Used(NamedTuple):
    """Of several processes together: seconds of processor time, and how often memory was touched for the first time."""

    training: float
    other: float
    faults: int

    def since(self, before: Used) -> Used:
        return Used(self.training - before.training, self.other - before.other, self.faults - before.faults)

    def plus(self, more: Used) -> Used:
        return Used(self.training + more.training, self.other + more.other, self.faults + more.faults)


NOTHING = Used(0.0, 0.0, 0)


def used(processes: Iterable[int]) -> Used:
    """Since these processes began. Processes that have ended count as nothing."""
    total = NOTHING
    for pid in processes:
        try:
            whole = time.clock_gettime((~pid << 3) | SCHEDULED)  # with threads that have ended
            trainer = max(_seconds(task) for task in Path(f"/proc/{pid}/task").iterdir())
            faults = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])
        except OSError:
            continue
        total = total.plus(Used(trainer, whole - trainer, faults))
    return total


def _seconds(task: Path) -> float:
    return int((task / "schedstat").read_text().split()[0]) / 1e9
