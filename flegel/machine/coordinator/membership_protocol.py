"""How a coordinator copes with a crew that changes: workers lost, hired, leaving. Pure, as the rest of it.

Who does what with which points is `machine/coordinator/membership.py`; here the change is fitted into the life of
the job: everybody
commits and rests, the books are closed, the crew is put in order, and one round under the old θ visits what became
unvisited before anything else is learned. So at each commit every point has one owner and has contributed once.
"""

from __future__ import annotations

import itertools

import msgspec

from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.errors import FlegelError, WorkerLost
from flegel.machine.coordinator.balance_control import BalanceControl
from flegel.machine.coordinator.checkpoint_schedule import CheckpointSchedule
from flegel.machine.coordinator.events import (
    Command,
    EvictWorker,
    LeaveJob,
    Note,
    ScaleTo,
    Send,
    SetTimer,
    Timeouts,
    Timer,
    WorkerDied,
    WorkerJoined,
)
from flegel.machine.coordinator.events import Event as Happening
from flegel.machine.coordinator.liveness import Liveness
from flegel.machine.coordinator.membership import Incident, Membership, newcomer
from flegel.machine.coordinator.totals import Totals
from flegel.machine.ledger import Ledger
from flegel.messages import LoadShard, Order, ResetPoints, ShardLoaded
from flegel.plan.termination import Verdict
from flegel.sync.policy import Event, Regrouped, Started, TrainWorkers, Updated, View, WorkerView


class MembershipProtocol:
    """The part of the coordinator that changes its crew. The attributes are the coordinator's."""

    phase: str
    view: View
    ledger: Ledger
    parameter: Tree
    scaling: tuple[Array, ...]
    loads: dict[int, LoadShard]
    loaded: dict[int, ShardLoaded]
    states: dict[int, tuple[Array, Array]]
    balancing: BalanceControl | None
    verdict: Verdict | None
    iteration: int
    began: float
    rows: int
    replace: bool
    crew: Membership
    keeping: CheckpointSchedule | None
    parts: dict[int, tuple[Array, ...]]
    patience: Timeouts
    watch: Liveness
    _out: list[Command]
    _held: dict[int, Tree]
    _spans: dict[int, tuple[int, float, float, int, float, float, float]]
    _estimate: float | None
    _updated_at: float
    _waiting: Updated | None
    _reason: str
    _former: dict[int, WorkerView]
    _catching: set[int] | None
    _owed_verdict: Verdict | None
    _wanted: int
    _lingering: set[int]
    _tally: Totals

    def _begin(self, now: float) -> None:
        raise NotImplementedError

    def _decide(self, event: Event, now: float) -> None:
        raise NotImplementedError

    def _train(self, action: TrainWorkers, now: float) -> None:
        raise NotImplementedError

    def _stop(self, workers: tuple[int, ...], now: float) -> None:
        raise NotImplementedError

    def _update(self, workers: tuple[int, ...], now: float) -> None:
        raise NotImplementedError

    def _commit(self, views: list[WorkerView], changes: list[Tree]) -> None:
        raise NotImplementedError

    def _send_all(self, orders: list[tuple[int, Order]]) -> None:
        raise NotImplementedError

    def _fail(self, error: FlegelError) -> None:
        raise NotImplementedError

    def _where(self) -> str:
        raise NotImplementedError

    def _steady(self) -> bool:
        """The crew is not about to change, and not recovering from it."""
        return not self.crew.phase and self._catching is None

    def _crew_event(self, event: Happening, now: float) -> None:
        """Somebody came, went or is to go."""
        match event:
            case Timer("hire"):
                self.crew.stop_waiting(now, self.patience.hire)
                self._step(now)
            case WorkerDied(worker, why, fault):
                self._lost(worker, why, fault, now)
            case WorkerJoined(worker):
                self._joined(worker, now)
            case ScaleTo(workers):
                self._scale(workers, now)
            case LeaveJob(worker):
                self._leave((worker,), now)

    # -- coming and going ----------------------------------------------------------------------------------

    def _lost(self, worker: int, why: str, fault: bool, now: float, silent: bool = False) -> None:
        """Nothing that the worker has not committed counts, and what it committed is subtracted."""
        crew = self.crew
        known = worker in (self.loads if self.phase == "loading" else self.view.workers)
        if not known and worker not in crew.hired:
            return
        where, hired = self._where(), worker in crew.hired
        if self.keeping is not None and not hired:
            self.keeping.lost()
        self._out.append(EvictWorker(worker, why))
        self.watch.forget(worker)
        too_often = crew.lose(worker, fault, silent)
        if too_often:
            self._fail(WorkerLost(f"Worker {worker} {why} in {where}{too_often}.", why))
            return
        if hired and not fault:
            self._out.append(Note(f"worker {worker} {why} before it was of use"))
        seen = self.view.workers.pop(worker, None)
        if seen is not None:
            self._former[worker] = seen
            redone = seen.last_visits if self._held.pop(worker, None) is not None else 0
            crew.incidents.append(Incident("lost", worker, why, now - self.began, redone=redone, unvisited=seen.points))
            crew.lost.add(self.ledger.bury(worker))
            crew.orphans = True
        self.loaded.pop(worker, None)
        self.states.pop(worker, None)
        self._spans.pop(worker, None)
        self._lingering.discard(worker)
        if self.replace and (fault or not hired):
            self._out += crew.hire(worker, now, replacing=True)
            self._out.append(SetTimer(now + self.patience.hire, Timer("hire")))
        elif self.phase == "loading":
            self.loads.pop(worker, None)
            crew.orphans = True
        if not (self.view.workers or crew.hired or (self.phase == "loading" and self.loads)):
            self._fail(WorkerLost(f"Worker {worker} {why} in {where}, and no worker is left.", why))
        elif self.phase == "loading":
            self._begin(now)
        elif seen is not None or crew.orphans or crew.phase:  # a newcomer that nobody has met disturbs nobody
            self._change_crew(now)

    def _joined(self, worker: int, now: float) -> None:
        """A hired worker is up: it loads what the lost one should have, or gets ready to be given points."""
        if worker not in self.crew.hired:
            self._out.append(EvictWorker(worker, "is not wanted any more", gently=True))
            return
        self.watch.expect(worker, now)
        arrays = (*pytree.flatten(self.parameter), *pytree.flatten(self.ledger.total), *self.scaling)
        load = self.loads.get(worker) or msgspec.structs.replace(next(iter(self.loads.values())), index=worker)
        if self.phase != "loading":
            load = msgspec.structs.replace(load, empty=True, kept=None)
        elif load.kept is not None:
            arrays += self.parts[worker]
        self._out.append(Send(worker, load, arrays))

    def _welcome(self, worker: int, body: ShardLoaded, now: float) -> None:
        self.crew.unhire(worker)
        if self.phase != "training" or self.verdict is not None:
            self._out.append(EvictWorker(worker, "came too late", gently=True))
            return
        self.loaded[worker] = body
        self.view.workers[worker] = newcomer(self.view, worker, self._former.pop(worker, None))
        self.crew.newcomers.add(worker)
        if not any(i.worker == worker and i.resumed is None for i in self.crew.incidents):
            self.crew.incidents.append(Incident("joined", worker, "was hired", now - self.began))
        self._change_crew(now)

    def _scale(self, workers: int, now: float) -> None:
        """So many workers from now on: hire the missing ones, or let the last ones go."""
        crew = self.crew
        have = sorted({*crew.staying(self.view), *crew.hired})
        if self.phase == "loading":
            self._wanted = workers
        elif self.phase != "training" or self.verdict is not None:
            self._out.append(Note(f"the job is about to end; it keeps its {len(have)} workers"))
        elif not 1 <= workers <= max(self.rows or workers, 1):
            self._out.append(
                Note(f"{workers} workers cannot share {self.rows} points; there are {len(have)} as before")
            )
        elif workers > len(have):
            free = (n for n in itertools.count() if n not in have and n not in self.view.workers)
            for number in itertools.islice(free, workers - len(have)):
                self._out += crew.hire(number, now, replacing=False)
        else:
            self._leave(tuple(have[workers:]), now)

    def _leave(self, workers: tuple[int, ...], now: float) -> None:
        crew = self.crew
        present = {*crew.staying(self.view), *crew.hired}
        if self.phase != "training" or self.verdict is not None or not present - set(workers):
            self._out.append(Note(f"workers {sorted(workers)} cannot leave in {self._where()}"))
            return
        for worker in sorted(present & set(workers)):
            if worker in crew.hired:
                crew.unhire(worker)
                self._out.append(EvictWorker(worker, "is not wanted any more", gently=True))
            else:
                crew.leaving.add(worker)
                crew.incidents.append(Incident("left", worker, "was asked to leave", now - self.began))
        if crew.leaving or crew.phase:
            self._change_crew(now)

    # -- the change ----------------------------------------------------------------------------------------

    def _change_crew(self, now: float) -> None:
        """Everybody commits and rests; no points are on their way any more."""
        self.crew.begin()
        self._catching, self._waiting = None, None
        if self.verdict is not None:
            self._owed_verdict, self.verdict = self.verdict, None
        self.phase = "training"
        self.states.clear()
        if not self.crew.staying(self.view) and not self.crew.hired:
            self.crew.leaving.clear()
        if self.balancing is not None:
            orders = self.balancing.abandon("the crew changes")
            self._send_all([(worker, order) for worker, order in orders if worker in self.view.workers])
        self._stop(tuple(w for w in self.view.training() if not self.view.workers[w].stopping), now)
        self._step(now)

    def _step(self, now: float) -> None:
        """The next step of the change, once nobody trains and nobody owes an answer."""
        crew = self.crew
        if not crew.phase or self.view.training() or crew.busy(self.view):
            return
        if crew.phase == "quieting":
            lingering = tuple(w for w in self.view.workers if w in self._lingering)
            if lingering:  # what they did since their report is to be committed too
                self.view.round += 1
                self._train(TrainWorkers(lingering, dict.fromkeys(lingering, 0)), now)
                return
            self._close_books()
        self._out += crew.advance(self.view)
        for worker in self.view.workers:
            self.watch.asked_at[worker] = now
        if not crew.phase:
            self._resume(now)

    def _close_books(self) -> None:
        """Accounts of the lost are subtracted; who shared one begins again; everybody else's report counts."""
        again: set[int] = set()
        for ghost in sorted(self.crew.lost):
            again |= set(self.ledger.forget(ghost)) & set(self.view.workers)
        self.crew.lost.clear()
        for worker in sorted(self._held):
            seen, change = self.view.workers[worker], self._held.pop(worker)
            seen.phase = "idle"
            if worker not in again:
                self._commit([seen], [change])
        for worker in sorted(again):
            seen = self.view.workers[worker]
            seen.unseen, seen.halted = seen.points, 0
            self.crew.unvisited.add(worker)
            self.crew.incidents[-1].unvisited += seen.points
            self._out.append(Send(worker, ResetPoints()))

    def _resume(self, now: float) -> None:
        """All points have an owner again. One round under the old θ, until what is unvisited has been visited, for θ is
        never made from statistics with a hole in them."""
        crew = self.crew
        for worker in sorted(crew.leaving):
            self.view.workers.pop(worker, None)
            self.ledger.retire(worker)
            self.watch.forget(worker)
            self._out.append(EvictWorker(worker, "leaves", gently=True))
        crew.leaving.clear()
        crew.newcomers.clear()
        for incident in crew.incidents:
            incident.resumed = now - self.began if incident.resumed is None else incident.resumed
            if incident.kind == "joined" or not self._reason:
                self._reason = f"worker {incident.worker} {incident.why}"
        self._estimate, self._updated_at, self._tally.stale = None, now, True
        if self.balancing is not None:
            self.balancing.go_on(now)
        self.view.round += 1
        if self.iteration == 0:
            crew.unvisited.clear()
            self._decide(Started(), now)
            return
        self._catching = {w for w in crew.unvisited if w in self.view.workers}
        crew.unvisited.clear()
        points = {w.id: w.unseen if w.id in self._catching else w.points for w in self.view.workers.values()}
        self._train(TrainWorkers(tuple(self.view.workers), points), now)

    def _catch_up(self, worker: int, exhausted: bool, now: float) -> None:
        """The round after a change ends when what is unvisited has been visited, or somebody's whole share."""
        assert self._catching is not None
        waited = bool(self._catching)
        self._catching.discard(worker)
        if not self._catching and (waited or exhausted):
            self._stop(tuple(w for w in self.view.training() if not self.view.workers[w].stopping), now)
        if not self.view.training():
            self._catching = None
            self.crew.passed()
            self._decide(Regrouped(), now)
            self._update(tuple(self.view.workers), now)
