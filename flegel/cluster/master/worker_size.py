"""How many slots of a slave the workers of a job take. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flegel.wording import counted

MAX_SLOTS_PER_SLAVE = 1024
"""Heartbeats of slaves that name more are refused."""


@dataclass(frozen=True)
class WorkerSize:
    """How many slots each worker of a job takes: a slot is a core, and each thread of a team takes one."""

    slots: int = 1
    alone: bool = False
    """A slave has one worker of the job, which takes all slots of the job there: `slots` at most."""

    @property
    def least(self) -> int:
        """Slots without which there is no worker."""
        return 1 if self.alone else self.slots

    def workers(self, slots: int) -> int:
        """Workers that so many slots of one slave are for."""
        return min(slots, 1) if self.alone else slots // self.slots

    def workers_of(self, slots: Mapping[str, int]) -> int:
        """Workers that slots of several slaves are for."""
        return sum(self.workers(count) for count in slots.values())

    def slots_in_use(self, workers: int, slots: int) -> int:
        """What so many workers take of the job's slots on one slave."""
        return (slots if workers else 0) if self.alone else min(workers * self.slots, slots)

    def next_worker(self, free: int, held: int) -> int:
        """Slots for one more worker on a slave with so many free ones, where the job holds others; 0: none fits."""
        if self.alone:
            return 0 if held else min(free, self.slots)
        return self.slots if free >= self.slots else 0

    def in_words(self, workers: int) -> str:
        """What so many workers need, for people."""
        if self.alone:
            return f"free slots of {counted(workers, 'slave')}"
        each = f", {self.slots} of one slave for each worker" if self.slots > 1 else ""
        return f"{workers * self.slots} free slots{each}"


ONE_SLOT = WorkerSize()
