"""The moments of all rows, before a job whose data are to be scaled: ask every worker, merge the answers.

A machine like the coordinator's, for the same driver: events in, commands out, a deadline that names its peer.
"""

from __future__ import annotations

from collections.abc import Mapping

from flegel.errors import FlegelError, ProtocolError, WorkerLost
from flegel.machine.coordinator import WATCH, failure
from flegel.machine.events import Command, Died, Done, Event, FromWorker, Patience, Send, SetTimer, Timer
from flegel.messages import Failed, Survey, Surveyed
from flegel.tree import Array


class Surveyor:
    """Collects what the workers answer; `moments` holds it by worker when `Done` comes out."""

    def __init__(self, orders: Mapping[int, Survey], patience: Patience | None = None) -> None:
        self._orders = orders
        self._patience = patience or Patience()
        self._asked_at = 0.0
        self.moments: dict[int, tuple[Array, ...]] = {}
        self.notes: list[str] = []

    def start(self, now: float) -> list[Command]:
        self._asked_at = now
        return [*(Send(worker, order) for worker, order in self._orders.items()), SetTimer(now + WATCH, Timer("watch"))]

    def handle(self, event: Event, now: float) -> list[Command]:
        match event:
            case FromWorker(worker, Surveyed(), arrays):
                self.moments[worker] = arrays
                return [Done()] if len(self.moments) == len(self._orders) else []
            case FromWorker(worker, Failed() as failed):
                return self._fail(failure(worker, failed))
            case Died(worker, why):
                return self._fail(WorkerLost(f"Worker {worker} {why} while it read its share."))
            case Timer("watch"):
                return self._watch(now)
        return []

    def _watch(self, now: float) -> list[Command]:
        waited = now - self._asked_at
        if waited > self._patience.load:
            late = sorted(set(self._orders) - set(self.moments))
            return self._fail(ProtocolError(f"Workers {late} did not read their shares within {waited:.0f} s."))
        return [SetTimer(now + WATCH, Timer("watch"))]

    def _fail(self, error: FlegelError) -> list[Command]:
        return [Done(error)]
