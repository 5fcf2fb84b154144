"""The moments of all rows, before a job whose data are to be scaled: ask every worker, merge the answers.

A machine like the coordinator's, for the same driver: events in, commands out, a deadline that names its peer. The part
of a worker that is lost is read by its successor, or else by one that has done its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from flegel.core.pytree import Array
from flegel.errors import FlegelError, ProtocolError, WorkerLost
from flegel.machine.coordinator.coordinator import WATCH, failure
from flegel.machine.coordinator.events import (
    Command,
    Done,
    Event,
    EvictWorker,
    FromWorker,
    Send,
    SetTimer,
    Timeouts,
    Timer,
    WorkerDied,
    WorkerJoined,
)
from flegel.machine.coordinator.liveness import Liveness
from flegel.machine.coordinator.membership import Membership
from flegel.messages import MeasureMoments, MomentsMeasured, WorkerFailed


class MomentsCollector:
    """Collects what the workers answer; `moments` holds it by share when `Done` comes out."""

    def __init__(
        self, orders: Mapping[int, MeasureMoments], patience: Timeouts | None = None, replace: bool = True
    ) -> None:
        self._patience = patience or Timeouts()
        self._replace = replace
        self._orders = dict(orders)
        self._free: set[int] = set()
        self._doing: dict[int, int] = {}
        self._left: list[int] = []
        """Shares that nobody reads now."""
        self._crew, self._watch = Membership(0), Liveness(self._patience)
        self.moments: dict[int, tuple[Array, ...]] = {}
        self.notes: list[str] = []

    def start(self, now: float) -> list[Command]:
        self._free, self._left = set(self._orders), list(self._orders)
        return [*self._ask(now), SetTimer(now + WATCH, Timer("watch"))]

    def handle(self, event: Event, now: float) -> list[Command]:
        match event:
            case FromWorker(worker, body, arrays):
                self._watch.hear(worker, body, now)
                if isinstance(body, WorkerFailed):
                    return [Done(failure(worker, body))]
                if isinstance(body, MomentsMeasured) and worker in self._doing:
                    self.moments[self._doing.pop(worker)] = arrays
                    self._free.add(worker)
                    return [Done()] if len(self.moments) == len(self._orders) else self._ask(now)
            case WorkerDied(worker, why, fault):
                return self._lost(worker, why, fault, now)
            case WorkerJoined(worker) if worker in self._crew.hired:
                self._crew.unhire(worker)
                self._free.add(worker)
                return self._ask(now)
            case Timer("watch"):
                return self._look(now)
        return []

    def rest(self) -> None:
        """Nothing is put off."""

    def _ask(self, now: float) -> list[Command]:
        """Each free worker reads its own share, or one that nobody else will."""
        commands: list[Command] = []
        for worker in sorted(self._free):
            mine = [i for i in self._left if i == worker] or [i for i in self._left if not self._has_reader(i)]
            if mine:
                self._free.discard(worker)
                self._left.remove(mine[0])
                self._doing[worker] = mine[0]
                self._watch.expect(worker, now)
                commands.append(Send(worker, self._orders[mine[0]]))
        return commands

    def _has_reader(self, share: int) -> bool:
        return share in self._crew.hired or share in self._free or share in self._doing

    def _lost(self, worker: int, why: str, fault: bool, now: float) -> list[Command]:
        hired = worker in self._crew.hired
        if worker not in self._free and worker not in self._doing and not hired:
            return []
        too_often = self._crew.lose(worker, fault)
        if too_often:
            return self._fail(WorkerLost(f"Worker {worker} {why} while it read its share{too_often}.", why))
        self._watch.forget(worker)
        self._free.discard(worker)
        if worker in self._doing:
            self._left.append(self._doing.pop(worker))
        commands: list[Command] = [EvictWorker(worker, why)]
        if self._replace and not hired:
            commands += self._crew.hire(worker, now, replacing=True)
        if not (self._free or self._doing or self._crew.hired):
            return self._fail(WorkerLost(f"Worker {worker} {why} while it read its share, and no worker is left.", why))
        return commands + self._ask(now)

    def _look(self, now: float) -> list[Command]:
        commands: list[Command] = [SetTimer(now + WATCH, Timer("watch"))]
        self._watch.look(now)
        for worker, why in self._watch.silent(now):
            commands += self._lost(worker, why, False, now)
        for worker in self._crew.late(now, self._patience.start):
            commands += self._lost(worker, "did not start in time", False, now)
        late = [w for w in self._doing if now - self._watch.asked_at[w] > self._patience.load]
        if late:
            waited = self._patience.load
            return self._fail(ProtocolError(f"Workers {late} did not read their shares within {waited:.0f} s."))
        return commands

    def _fail(self, error: FlegelError) -> list[Command]:
        return [Done(error)]
