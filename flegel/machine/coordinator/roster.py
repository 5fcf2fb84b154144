"""Which workers are starting, new, leaving or called back, and how often workers were lost. Bookkeeping, no points."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flegel.configuration.active import active
from flegel.machine.coordinator.events import Command, StartWorker
from flegel.sync.policy import View, WorkerView


@dataclass
class Incident:
    """A change of the workers, for the trace and the result."""

    kind: str
    """lost, joined, left, excluded; with worker −1: recount (of all points), rest and recall (of several workers)."""
    worker: int
    why: str
    at: float
    resumed: float | None = None
    redone: int = 0
    """Visits that were reported and do not count: at most the interval under way."""
    unvisited: int = 0
    """Points that had to be visited anew."""


class Roster:
    """Workers that come and go."""

    def __init__(self) -> None:
        """At the beginning no worker is starting, new, leaving or called back."""
        self.hired: dict[int, float] = {}
        """Being started, and since when."""
        self.replacing: set[int] = set()
        """Started in place of a lost worker: worth waiting for."""
        self.newcomers: set[int] = set()
        """Loaded, and without points so far."""
        self.leaving: set[int] = set()
        """Workers that were asked to leave and still train."""
        self.excluded: set[int] = set()
        """Workers that leave with their points, which nobody trains from then on."""
        self.to_rest: set[int] = set()
        """Of the leaving: those that stay at hand."""
        self.recalled: set[int] = set()
        """Of the hired: those that rested, and load again."""
        self._faults = self._faults_in_a_row = self._kills_in_a_row = 0
        self._silences: dict[int, int] = {}

    def hire(self, worker: int, now: float, replacing: bool) -> list[Command]:
        self.hired[worker] = now
        if replacing:
            self.replacing.add(worker)
        return [StartWorker(worker)]

    def unhire(self, worker: int) -> None:
        self.hired.pop(worker, None)
        self.replacing.discard(worker)
        self.recalled.discard(worker)

    def recall(self, workers: Iterable[int], now: float, urgent: bool) -> None:
        """Workers that rested come back; `urgent`: it is worth waiting for them."""
        for worker in workers:
            self.hired[worker] = now
            self.recalled.add(worker)
            if urgent:
                self.replacing.add(worker)

    def lose(self, worker: int, fault: bool, silent: bool = False) -> str:
        """A worker is gone; says where that has happened too often.

        Of one that fell `silent` while it loaded nobody knows whether its code holds the interpreter or its host is out
        of reach; when that happens to all its lives, it does not matter."""
        self.unhire(worker)
        self.newcomers.discard(worker)
        self.leaving.discard(worker)
        self.excluded.discard(worker)
        self.to_rest.discard(worker)
        limits = active().liveness
        if not fault:
            self._kills_in_a_row += 1
            losses = self._kills_in_a_row
            return f"; that was loss {losses} in a row" if losses >= limits.losses_in_a_row else ""
        if silent:
            self._silences[worker] = self._silences.get(worker, 0) + 1
            if self._silences[worker] < limits.crashes_in_a_row:
                return ""
            return (
                f", as were {limits.crashes_in_a_row} of its lives in a row; its code may hold the interpreter "
                "(initState, or what that calls), or its host is out of reach"
            )
        self._faults += 1
        self._faults_in_a_row += 1
        cause = "the fault is in the code that it runs: initState, contribution or updateDataPoint, or what these call"
        if self._faults_in_a_row >= limits.crashes_in_a_row:
            return f"; that was crash {self._faults_in_a_row} in a row at the same place; {cause}"
        return f"; that was crash {self._faults} of this job; {cause}" if self._faults >= limits.crashes else ""

    def passed(self) -> None:
        """The points of the lost were visited anew: the place of the crash is behind."""
        self._faults_in_a_row = self._kills_in_a_row = 0
        self._silences.clear()

    def stop_waiting(self, now: float, timeout: float) -> None:
        """Replacements that are still not here will be given points when they come."""
        for worker in [w for w in self.replacing if now - self.hired[w] >= timeout]:
            self.replacing.discard(worker)

    def late(self, now: float, timeout: float) -> list[int]:
        """Hired longer ago than the timeout, and not here."""
        return [worker for worker, at in self.hired.items() if now - at > timeout]

    def staying(self, view: View) -> list[int]:
        return [w for w in view.workers if w not in self.leaving and w not in self.excluded]


def newcomer(view: View, worker: int, former: WorkerView | None) -> WorkerView:
    """How a worker without points is seen: as far as the slowest, as fast as its former life or as the mean."""
    clock = min((w.clock for w in view.workers.values()), default=0)
    rates = sorted(w.rate for w in view.workers.values())
    seen = former or WorkerView(worker, 0, rate=rates[len(rates) // 2] if rates else 0.0)
    seen.points = seen.unseen = seen.halted = 0
    seen.carried, seen.clock = -seen.visits, clock
    seen.phase, seen.stopping, seen.exhausted = "idle", False, False
    return seen
