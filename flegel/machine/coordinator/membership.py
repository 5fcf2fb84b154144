"""Workers of a job: loaded, lost, joining, leaving, resting, and how a change of them fits into the job's life. Pure.

Who does what with which points is `redistribution.py`. Around that: everybody commits and rests, accounts of the lost
are subtracted, points get their owners, and one round under the old θ visits what became unvisited before anything else
is learned. So at each commit every point has one owner and has contributed once. What has to happen outside of this
part is returned as `Next`; the coordinator does it.

A worker that rests has handed its points over as if it left, and its process waits as between two jobs; when it is
called back it loads and joins like a new one.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from enum import Enum, auto

import msgspec

from flegel.core import pytree
from flegel.core.pytree import Array
from flegel.errors import FlegelError, UsageError, WorkerLost
from flegel.machine.coordinator.events import EvictWorker, Note, SetTimer, Timer
from flegel.machine.coordinator.liveness import Liveness
from flegel.machine.coordinator.orders import WorkerOrders
from flegel.machine.coordinator.redistribution import Redistribution
from flegel.machine.coordinator.roster import Incident, Roster, newcomer
from flegel.machine.coordinator.state import JobState
from flegel.messages import LoadShard, PointsAssigned, PointsGivenUp, PointsListed, ReleaseJob, ResetPoints, ShardLoaded
from flegel.plan.active_workers import ActiveWorkers
from flegel.sync.policy import TrainWorkers, WorkerView
from flegel.wording import counted


class Next(Enum):
    """What the coordinator is to do next; `Coordinator.carry_out` does it."""

    NOTHING = auto()
    TRY_TO_BEGIN = auto()
    """Training begins if all workers have loaded their shards."""
    BRING_TO_REST = auto()
    """All workers commit and stop; then `step`."""
    FOLD_WITHOUT_UPDATE = auto()
    """All workers have stopped: add their reports to the statistics without a new θ; then `accounts_closed`."""
    TELL_CHANGED = auto()
    """All points have an owner again: tell the parts; then `resume`."""
    START_MODEL = auto()
    """No round was trained yet: the synchronization model begins from the start."""

    def __bool__(self) -> bool:
        return self is not Next.NOTHING


class Membership:
    """The workers of one job."""

    def __init__(
        self,
        job: JobState,
        orders: WorkerOrders,
        liveness: Liveness,
        loads: dict[int, LoadShard],
        *,
        shards: dict[int, tuple[Array, ...]] | None = None,
        scaling: tuple[Array, ...] = (),
        rows: int = 0,
        keys: Array | None = None,
        replace_lost_workers: bool = True,
        devices: tuple[str, ...] = (),
    ) -> None:
        """`shards`, of a resumed job: what follows each worker's load. `scaling`: shift and factor of each column.
        `rows`: points of the whole data; 0 is the sum of what workers load. `keys`: of each, where those
        of one key stay together. `replace_lost_workers`: start another process where a worker is lost; otherwise the
        others take its points over. `devices`: what workers that join compute on, in turn; none: the processor."""
        self._job, self._orders, self._liveness = job, orders, liveness
        self.loads, self.shards = loads, shards or {}
        """By worker: its order to load; of a resumed job, the arrays that follow this order."""
        self.resting_at_start: ActiveWorkers | None = None
        """Who begins without points, at rest."""
        self.loaded: dict[int, ShardLoaded] = {}
        """By worker that has its points: what it said of them."""
        self.roster = Roster()
        self.redistribution = Redistribution(self.roster, rows, keys)
        self.incidents: list[Incident] = []
        self.wanted = 0
        """Workers that were asked for before training began."""
        self._scaling, self._replace_lost_workers, self._devices = scaling, replace_lost_workers, devices
        self._detached_accounts: set[int] = set()
        """Accounts of lost workers, still to be subtracted, as the store numbered them."""
        self._last_views: dict[int, WorkerView] = {}
        """Workers that were lost or called back from rest, as they were seen last: the next of this number goes on from
        there."""
        self._recounting = False
        """All points are to be counted again."""
        self._to_visit: set[int] | None = None
        """In the round after a change: who has points to visit anew."""
        self._lost_at_rest: set[int] = set()
        """Lost while they rested: the job does not wait for them and does not replace them."""
        self._recalled_and_ready: dict[int, ShardLoaded] = {}
        """Called back and ready, while others that were called back with them are not."""

    def begin_with(self, plan: ActiveWorkers | None) -> None:
        """Some workers begin without points, at rest; called before the job starts."""
        self.resting_at_start = plan
        self._job.resting = {worker: WorkerView(worker, 0) for worker in plan.resting} if plan is not None else {}

    @property
    def changing(self) -> bool:
        return bool(self.redistribution.phase)

    @property
    def steady(self) -> bool:
        """Workers are not about to change, and the job is not recovering from that."""
        return not self.redistribution.phase and self._to_visit is None

    @property
    def _ending(self) -> bool:
        return self._job.phase != "training" or self._job.verdict is not None

    # -- loading -------------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        arrays = self._arrays()  # made once: the driver packs the same arrays once for all
        for worker, load in self.loads.items():
            if worker not in self._job.resting:
                self._job.send(worker, load, arrays + self.shards.get(worker, ()))
                self._liveness.expect(worker, now)

    def _arrays(self) -> tuple[Array, ...]:
        """What a worker needs besides its points: θ, the form of the statistics, the scaling."""
        store = self._job.store
        if next(iter(self.loads.values())).forms:
            return self._scaling
        parameter = pytree.without(store.parameter, self._job.algorithm.placement.unsent)
        return (*pytree.flatten(parameter), *pytree.flatten(store.statistics), *self._scaling)

    def has_loaded(self, worker: int, body: ShardLoaded) -> None:
        self.loaded[worker] = body
        self._job.store.admit(worker, body.address)
        self.roster.unhire(worker)
        self._check_library(worker, body.library)

    def _check_library(self, worker: int, library: str) -> None:
        """Libraries that compute gradients must be the same everywhere: versions differ in more than rounding."""
        for other, loaded in self.loaded.items():
            if loaded.library and library and loaded.library != library:
                raise UsageError(
                    f"Worker {worker} has {library}, but worker {other} has {loaded.library}; install the same "
                    "version on all hosts."
                )

    def all_loaded(self) -> bool:
        return len(self.loaded) >= len(self.loads) - len(self._job.resting) - len(self._lost_at_rest)

    def begin(self) -> None:
        """Training begins: the view gets its workers, and the `evidence` of their data: numbers in the data for each
        number that is learned in θ."""
        view = self._job.view
        if self.resting_at_start is not None and self._job.resting:
            self.incidents.append(Incident("rest", -1, self.resting_at_start.reason, 0.0, 0.0))
        for each in sorted(self.loaded):
            points = self.loaded[each].points
            if each not in view.workers:
                view.workers[each] = WorkerView(each, points, unseen=points)
            view.workers[each].room = self.loaded[each].room
        self.redistribution.rows = self.redistribution.rows or view.points
        theta, auxiliary = self._job.store.parameter, self._job.algorithm.learning.auxiliary
        sizes = zip(pytree.names(theta), pytree.flatten(theta), strict=True)
        size = max(sum(array.size for name, array in sizes if name not in auxiliary), 1)
        columns = max(each.columns for each in self.loaded.values())
        view.evidence = self.redistribution.rows * columns / size
        view.in_batches = self._job.algorithm.kernels.in_batches

    # -- coming and going ----------------------------------------------------------------------------------

    def knows(self, worker: int) -> bool:
        present = self.loads if self._job.phase == "loading" else self._job.view.workers
        return (
            worker in present
            or worker in self.roster.hired
            or worker in self._job.resting
            or worker in self._recalled_and_ready
        )

    def lose(self, worker: int, why: str, fault: bool, silent: bool, redone: int, now: float) -> Next | FlegelError:
        """Nothing that the worker has not committed counts, and what it committed is subtracted. `redone`: visits of
        its report that do not count. The error, where the job cannot go on."""
        job, roster = self._job, self.roster
        place, hired = job.place, worker in roster.hired or self._recalled_and_ready.pop(worker, None) is not None
        job.out.append(EvictWorker(worker, why))
        self._liveness.forget(worker)
        self.redistribution.forget(worker)
        if job.resting.pop(worker, None) is not None:  # it held no points, so it is not replaced
            job.out.append(Note(f"worker {worker} {why} while it rested"))
            self._lost_at_rest.add(worker)
            return Next.TRY_TO_BEGIN if job.phase == "loading" else Next.NOTHING
        if too_often := roster.lose(worker, fault, silent):
            return WorkerLost(f"Worker {worker} {why} in {place}{too_often}.", why)
        if hired and not fault:
            job.out.append(Note(f"worker {worker} {why} before it was of use"))
        seen = job.view.workers.pop(worker, None)
        if seen is not None:
            self._last_views[worker] = seen
            self.incidents.append(Incident("lost", worker, why, now - job.began, redone=redone, unvisited=seen.points))
            self._detached_accounts.add(job.store.detach(worker))
            self.redistribution.orphans = True
        self.loaded.pop(worker, None)
        loading = job.phase == "loading"
        if self._replace_lost_workers and (fault or not hired):
            job.out += roster.hire(worker, now, replacing=True)
            job.out.append(SetTimer(now + job.timeouts.hire, Timer("hire")))
        elif loading:
            self.loads.pop(worker, None)
            self.redistribution.orphans = True
        if seen is not None or (loading and self.redistribution.orphans):
            self._call_back(now, urgent=True)
        if not (job.view.workers or roster.hired or (loading and len(self.loads) > len(self._lost_at_rest))):
            return WorkerLost(f"Worker {worker} {why} in {place}, and no worker is left.", why)
        if loading:
            return Next.TRY_TO_BEGIN
        disturbs = seen is not None or self.redistribution.orphans or self.redistribution.phase or self._admit_arrived()
        return Next.BRING_TO_REST if disturbs else Next.NOTHING

    def joined(self, worker: int, now: float) -> None:
        """A hired worker is up: it loads what the lost one should have, or gets ready to be given points."""
        job = self._job
        if worker not in self.roster.hired:
            job.out.append(EvictWorker(worker, "is not wanted any more", gently=True))
            return
        self._liveness.expect(worker, now)
        arrays = self._arrays()
        load = self.loads.get(worker) or self._load_of_new(worker)
        if job.phase != "loading":
            load = msgspec.structs.replace(load, empty=True, kept=None, alone=False)
        elif worker in self.roster.recalled:
            load = msgspec.structs.replace(load, empty=True)
        elif load.kept is not None:
            arrays += self.shards[worker]
        job.send(worker, load, arrays)

    def _load_of_new(self, worker: int) -> LoadShard:
        """That of the first worker, but for the device: one of those that are for all, or the processor."""
        device = self._devices[worker % len(self._devices)] if self._devices else "cpu"
        return msgspec.structs.replace(next(iter(self.loads.values())), index=worker, device=device)

    def welcome(self, worker: int, body: ShardLoaded, now: float) -> Next:
        """A hired worker is ready for points."""
        job, recalled = self._job, worker in self.roster.recalled
        self.roster.unhire(worker)
        if self._ending:
            job.out.append(EvictWorker(worker, "came too late", gently=True))
            return Next.NOTHING
        if recalled:
            self._recalled_and_ready[worker] = body
            return Next.BRING_TO_REST if self._admit_arrived() else Next.NOTHING
        self._admit(worker, body)
        if not any(i.worker == worker and i.resumed is None for i in self.incidents):
            self.incidents.append(Incident("joined", worker, "was hired", now - job.began))
        return Next.BRING_TO_REST

    def _admit(self, worker: int, body: ShardLoaded) -> None:
        self.loaded[worker] = body
        self._job.store.admit(worker, body.address)
        seen = self._job.view.workers[worker] = newcomer(self._job.view, worker, self._last_views.pop(worker, None))
        seen.room = body.room
        self.roster.newcomers.add(worker)

    # -- resting -------------------------------------------------------------------------------------------

    def rest(self, workers: Collection[int], why: str, now: float) -> Next:
        """Begin to send these workers to rest: they give their points to the remaining ones."""
        resting = set(workers) & set(self.roster.staying(self._job.view))
        if self._ending or self.changing or not resting or not set(self.roster.staying(self._job.view)) - resting:
            return Next.NOTHING
        self.roster.leaving |= resting
        self.roster.to_rest |= resting
        self.incidents.append(Incident("rest", -1, why, now - self._job.began))
        return Next.BRING_TO_REST

    def recall(self, why: str, now: float) -> None:
        """Call all resting workers back. Training goes on until all of them are ready."""
        if self._job.resting and not self._ending:
            self.incidents.append(Incident("recall", -1, why, now - self._job.began))
            self._call_back(now, urgent=False)

    def _call_back(self, now: float, urgent: bool) -> None:
        resting, self._job.resting = self._job.resting, {}
        self._last_views.update(resting)
        self.roster.recall(resting, now, urgent)
        for worker in resting:
            self.joined(worker, now)

    def _admit_arrived(self) -> bool:
        """Who was called back gets points when all are ready, or at once where points change owner anyway."""
        if not self._recalled_and_ready or (self.roster.recalled and not self.changing):
            return False
        for worker, body in self._recalled_and_ready.items():
            self._admit(worker, body)
        self._recalled_and_ready.clear()
        return True

    # -- more or fewer workers, as somebody wants ----------------------------------------------------------

    def scale(self, workers: int, now: float) -> Next:
        """Have `workers` workers from now on: hire the missing ones, or let the last ones go."""
        job, roster, rows = self._job, self.roster, self.redistribution.rows
        have = sorted({*roster.staying(job.view), *roster.hired, *job.resting, *self._recalled_and_ready})
        if job.phase == "loading":
            self.wanted = workers
        elif self._ending:
            job.out.append(Note(f"the job is about to end; it keeps its {counted(len(have), 'worker')}"))
        elif not 1 <= workers <= max(rows or workers, 1):
            job.out.append(
                Note(
                    f"{counted(workers, 'worker')} cannot share {counted(rows, 'point')}; it keeps its "
                    f"{counted(len(have), 'worker')}"
                )
            )
        elif workers > len(have):
            free = (n for n in itertools.count() if n not in have and n not in job.view.workers)
            for number in itertools.islice(free, workers - len(have)):
                job.out += roster.hire(number, now, replacing=False)
        else:
            return self.leave(tuple(have[workers:]), now)
        return Next.NOTHING

    def leave(self, workers: tuple[int, ...], now: float) -> Next:
        """Begin to let these workers go: they give their points to the remaining ones and end."""
        job, roster = self._job, self.roster
        waiting = {*roster.hired, *job.resting, *self._recalled_and_ready}
        present = {*roster.staying(job.view), *waiting}
        if self._ending or not present - set(workers):
            job.out.append(Note(f"workers {sorted(workers)} cannot leave in {job.place}"))
            return Next.NOTHING
        for worker in sorted(present & set(workers)):
            if worker in waiting:
                hired = worker in roster.hired and worker not in roster.recalled
                roster.unhire(worker)
                job.resting.pop(worker, None)
                self._recalled_and_ready.pop(worker, None)
                self._liveness.forget(worker)
                job.out.append(EvictWorker(worker, "is not wanted any more", gently=True))
                if not hired:
                    at = now - job.began
                    self.incidents.append(Incident("left", worker, "was asked to leave", at, at))
            else:
                roster.leaving.add(worker)
                self.incidents.append(Incident("left", worker, "was asked to leave", now - job.began))
        if not roster.staying(job.view):
            self._call_back(now, urgent=True)
        return Next.BRING_TO_REST if roster.leaving or self.changing or self._admit_arrived() else Next.NOTHING

    def exclude(self, workers: Mapping[int, str], now: float) -> Next:
        """Begin to let these workers go with their points, for these reasons: what they contributed is subtracted."""
        for worker, why in sorted(workers.items()):
            self.roster.excluded.add(worker)
            self.incidents.append(Incident("excluded", worker, f"is excluded: {why}", now - self._job.began))
            self._detached_accounts.add(self._job.store.detach(worker))
        self.redistribution.orphans = True  # all are asked for their points, these as well
        return Next.BRING_TO_REST

    def recount(self, why: str, now: float) -> None:
        """The statistics are wrong, or θ goes back: all points count as unvisited; the change that follows says so."""
        self._recounting = True
        self.incidents.append(Incident("recount", -1, why, now - self._job.began))

    # -- the change ----------------------------------------------------------------------------------------

    def begin_change(self) -> None:
        """Workers change as soon as everybody rests; what was under way is begun anew."""
        self.redistribution.begin()
        self._to_visit = None
        if not self.roster.staying(self._job.view) and not self.roster.hired:
            self.roster.leaving.clear()
            self.roster.to_rest.clear()

    def stop_waiting(self, now: float) -> Next:
        """Replacements have had their time; those that are not here come later."""
        self.roster.stop_waiting(now, self._job.timeouts.hire)
        return self.step(now)

    def answer(
        self, worker: int, body: PointsListed | PointsGivenUp | PointsAssigned, arrays: tuple[Array, ...]
    ) -> None:
        """What a worker did with its points."""
        self._job.out += self.redistribution.answer(worker, body, arrays, self._job.view, self._job.store)

    def step(self, now: float) -> Next:
        """The next step of the change, once no worker trains and every answer has arrived."""
        job, points = self._job, self.redistribution
        if not points.phase or job.view.training() or points.busy(job.view):
            return Next.NOTHING
        if points.phase != "quieting":
            return self._advance(now)
        lingering = tuple(w for w in job.view.workers if w in self._orders.lingering)
        if lingering:  # what they did since their report is to be committed too
            job.view.round += 1
            self._orders.train(TrainWorkers(lingering, dict.fromkeys(lingering, 0)), now)
            return Next.NOTHING
        return Next.FOLD_WITHOUT_UPDATE

    def subtract_lost(self) -> set[int]:
        """Accounts of the lost are subtracted; returns who shared one, and begins again."""
        again: set[int] = set()
        for number in sorted(self._detached_accounts):
            again |= set(self._job.store.forget(number)) & set(self._job.view.workers)
        self._detached_accounts.clear()
        again |= self.roster.excluded  # what they reported meanwhile does not count either
        if self._recounting:
            self._recounting, again = False, set(self._job.view.workers)
            self._job.store.clear_statistics()
        return again

    def accounts_closed(self, again: set[int], now: float) -> Next:
        """All other reports count; those who begin again are told so."""
        for worker in sorted(again):
            seen = self._job.view.workers[worker]
            seen.unseen, seen.halted = seen.points, 0
            self.redistribution.unvisited.add(worker)
            self.incidents[-1].unvisited += seen.points
            self._job.send(worker, ResetPoints())
        return self._advance(now)

    def _advance(self, now: float) -> Next:
        view = self._job.view
        self._job.out += self.redistribution.advance(view)
        for worker in view.workers:
            self._liveness.asked_at[worker] = now
        return Next.NOTHING if self.changing else Next.TELL_CHANGED

    def resume(self, now: float) -> Next:
        """One round under the old θ, until what is unvisited has been visited: θ is never made from statistics that
        lack the contributions of some points."""
        job, roster, view = self._job, self.roster, self._job.view
        for worker in sorted(roster.leaving):
            seen = view.workers.pop(worker, None)
            job.store.retire(worker)
            self._liveness.forget(worker)
            if seen is not None and worker in roster.to_rest:
                job.resting[worker] = seen
                self._orders.forget(worker)
                self.loaded.pop(worker, None)
                job.send(worker, ReleaseJob())
            else:
                job.out.append(EvictWorker(worker, "leaves", gently=True))
        for worker in sorted(roster.excluded):
            view.workers.pop(worker, None)
            self._liveness.forget(worker)
            self._orders.forget(worker)
            self.loaded.pop(worker, None)
            job.out.append(EvictWorker(worker, "is excluded", gently=True))
        roster.leaving.clear()
        roster.excluded.clear()
        roster.to_rest.clear()
        roster.newcomers.clear()
        for incident in [i for i in self.incidents if i.resumed is None]:
            incident.resumed = now - job.began
            if incident.kind in ("joined", "rest", "recall") or not job.reason:
                job.reason = f"worker {incident.worker} {incident.why}" if incident.worker >= 0 else incident.why
        view.round += 1
        unvisited = self.redistribution.unvisited
        if job.iteration == 0:
            unvisited.clear()
            return Next.START_MODEL
        self._to_visit = {w for w in unvisited if w in view.workers}
        unvisited.clear()
        points = {w.id: w.unseen if w.id in self._to_visit else w.points for w in view.workers.values()}
        self._orders.train(TrainWorkers(tuple(view.workers), points), now)
        return Next.NOTHING

    def catch_up(self, worker: int, exhausted: bool, now: float) -> bool:
        """A report of the round after a change. That round ends when what is unvisited has been visited, or somebody's
        whole shard; True when everybody has reported."""
        assert self._to_visit is not None
        waited = bool(self._to_visit)
        self._to_visit.discard(worker)
        if not self._to_visit and (waited or exhausted):
            self._orders.stop_all(now)
        if self._job.view.training():
            return False
        self._to_visit = None
        self.roster.passed()
        return True

    # -- deadlines -----------------------------------------------------------------------------------------

    def overdue(self, worker: int, waited: float) -> str:
        """What to say of a worker that loads, or hands points over, for too long; empty where all is well."""
        if waited <= self._job.timeouts.load:
            return ""
        if self._job.phase == "loading" and worker not in self.loaded:
            return f"Worker {worker} did not load its shard within {waited:.0f} s."
        if worker in self._job.view.workers and self.redistribution.owes(worker):
            return f"Worker {worker} did not hand over or take over its points within {waited:.0f} s."
        return ""
