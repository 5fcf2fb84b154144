"""The moments of all rows, before a job whose data are to be scaled: ask every worker, merge the answers.

A machine like the coordinator's, for the same driver: events in, commands out, a deadline that names its peer. The part
of a worker that is lost is read by its successor, or else by one that has done its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.errors import FlegelError, ProtocolError, WorkerLost
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
from flegel.machine.coordinator.liveness import Liveness, failure
from flegel.machine.coordinator.roster import Roster
from flegel.messages import MeasureMoments, MomentsMeasured, WorkerFailed


class MomentsCollector:
    """Collects what the workers answer; `moments` holds it by shard when `Done` comes out."""

    def __init__(
        self, orders: Mapping[int, MeasureMoments], timeouts: Timeouts | None = None, replace: bool = True
    ) -> None:
        """`orders`: by shard, what its worker is to measure. `replace`: start other workers for lost ones."""
        self._timeouts = timeouts or Timeouts()
        self._replace = replace
        self._orders = dict(orders)
        self._free_workers: set[int] = set()
        self._doing: dict[int, int] = {}
        self._left: list[int] = []
        """Shards that are not assigned to a worker."""
        self._roster, self._liveness = Roster(), Liveness(self._timeouts)
        self.moments: dict[int, tuple[Array, ...]] = {}
        self.notes: list[str] = []

    def start(self, now: float) -> list[Command]:
        self._free_workers, self._left = set(self._orders), list(self._orders)
        return [*self._ask(now), SetTimer(now + active().liveness.silence_check_seconds, Timer("watch"))]

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take moments as they arrive, replace lost workers, and end when every shard is measured."""
        match event:
            case FromWorker(worker, body, arrays):
                self._liveness.hear(worker, body, now)
                if isinstance(body, WorkerFailed):
                    return [Done(failure(worker, body))]
                if isinstance(body, MomentsMeasured) and worker in self._doing:
                    self.moments[self._doing.pop(worker)] = arrays
                    self._free_workers.add(worker)
                    return [Done()] if len(self.moments) == len(self._orders) else self._ask(now)
            case WorkerDied(worker, why, fault):
                return self._lost(worker, why, fault, now)
            case WorkerJoined(worker) if worker in self._roster.hired:
                self._roster.unhire(worker)
                self._free_workers.add(worker)
                return self._ask(now)
            case Timer("watch"):
                return self._look(now)
        return []

    def rest(self) -> None:
        """No work is deferred."""

    def _ask(self, now: float) -> list[Command]:
        """Each free worker reads its own shard, or else one whose own worker is lost and not being replaced."""
        commands: list[Command] = []
        for worker in sorted(self._free_workers):
            mine = [i for i in self._left if i == worker] or [i for i in self._left if not self._has_reader(i)]
            if mine:
                self._free_workers.discard(worker)
                self._left.remove(mine[0])
                self._doing[worker] = mine[0]
                self._liveness.expect(worker, now)
                commands.append(Send(worker, self._orders[mine[0]]))
        return commands

    def _has_reader(self, shard: int) -> bool:
        return shard in self._roster.hired or shard in self._free_workers or shard in self._doing

    def _lost(self, worker: int, why: str, fault: bool, now: float) -> list[Command]:
        """Put the shard of a lost worker back into the queue; fail where no worker is left or workers are lost too
        often."""
        hired = worker in self._roster.hired
        if worker not in self._free_workers and worker not in self._doing and not hired:
            return []
        too_often = self._roster.lose(worker, fault)
        if too_often:
            return self._fail(WorkerLost(f"Worker {worker} {why} while it read its shard{too_often}.", why))
        self._liveness.forget(worker)
        self._free_workers.discard(worker)
        if worker in self._doing:
            self._left.append(self._doing.pop(worker))
        commands: list[Command] = [EvictWorker(worker, why)]
        if self._replace and not hired:
            commands += self._roster.hire(worker, now, replacing=True)
        if not (self._free_workers or self._doing or self._roster.hired):
            return self._fail(WorkerLost(f"Worker {worker} {why} while it read its shard, and no worker is left.", why))
        return commands + self._ask(now)

    def _look(self, now: float) -> list[Command]:
        """Once a tick: workers that are silent or did not start are lost; one that reads for too long ends the job."""
        commands: list[Command] = [SetTimer(now + active().liveness.silence_check_seconds, Timer("watch"))]
        self._liveness.look(now)
        for worker, why in self._liveness.silent(now):
            commands += self._lost(worker, why, fault=False, now=now)
        for worker in self._roster.late(now, self._timeouts.start):
            commands += self._lost(worker, "did not start in time", fault=False, now=now)
        late = [w for w in self._doing if now - self._liveness.asked_at[w] > self._timeouts.load]
        if late:
            waited = self._timeouts.load
            return self._fail(ProtocolError(f"Workers {late} did not read their shards within {waited:.0f} s."))
        return commands

    def _fail(self, error: FlegelError) -> list[Command]:
        return [Done(error)]
