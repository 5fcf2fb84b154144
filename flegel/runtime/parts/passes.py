"""Observers that want it are shown the end of each pass, when it ends: looks come ten times a second, and a short job
is over before the first of them. Never influences training, unless an observer asks for its end.
"""

from __future__ import annotations

from collections.abc import Iterable

from flegel.core import pytree
from flegel.core.pytree import Tree
from flegel.machine.coordinator.events import EndJob, Event
from flegel.runtime.job.observers import PassEnded
from flegel.runtime.job.part import JobRun, Part


class EndsOfPasses(Part):
    """Tells of each pass once, and of several that end together as one."""

    def __init__(self, running: JobRun) -> None:
        super().__init__(running)
        self._told = 0

    def arrivals(self) -> Iterable[Event]:
        """The loop wakes up: a pass may have ended; the job ends at once where an observer of it has asked for that."""
        if not self._tell():
            return []
        why = self.request.control.why()
        return [EndJob(why)] if why else []

    def look(self) -> None:
        """The last pass ends with the job."""
        if self.running.machine.phase == "over":
            self._tell()

    def _tell(self) -> bool:
        machine = self.running.machine
        made = int(machine.state.totals.slowest_pass)
        if not machine.trace or made <= self._told:
            return False
        self._told = made
        event = PassEnded(made, machine.trace[-1].estimate, self._parameter)
        for observer in self.request.observers:
            if observer.passes:
                self.request.observers.show(observer, event)
        return True

    def _parameter(self) -> Tree:
        return pytree.present(pytree.copy(self.running.machine.commits.final_parameter()))
