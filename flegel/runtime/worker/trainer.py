"""The trainer thread of a worker: loads the shard, runs the kernel, counts how far it came. Owns no socket.

It sleeps on a queue of orders and wakes the I/O thread through a pipe. While the kernel runs the GIL is released, and
the two threads share only the stop flag, one byte. The flag is also raised to interrupt the kernel when a window of
points has to be cut: the trainer does that and goes on.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from flegel.algorithm import Algorithm, visit_hook
from flegel.configuration.active import active, adopt
from flegel.configuration.compiled import check_compiled
from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.core.shard import TILE, Shard
from flegel.core.stop_flag import new_flag
from flegel.datasets import Rows
from flegel.datasets.rows import scale
from flegel.declarations.optional import hook_named
from flegel.errors import OutOfReach, UsageError, own_traceback
from flegel.loading.class_source import instantiate
from flegel.loading.code_gate import Consent
from flegel.machine.worker.deadline_estimate import DeadlineEstimate
from flegel.machine.worker.growing_part import GrowingPart, Part, PartAmongOthers, in_use
from flegel.machine.worker.local_updates import LocalUpdates
from flegel.machine.worker.point_store import PointStore
from flegel.machine.worker.reassignment import carry_out
from flegel.machine.worker.replica import Replica
from flegel.machine.worker.visit_schedule import VisitRun, VisitSchedule
from flegel.machine.worker.worker import (
    ApplyOwnership,
    BeginLoad,
    BeginMoments,
    BeginTrain,
    DropShard,
    MomentsReady,
    PointsReassigned,
    ReassignPoints,
    ShardReady,
    TrainerDone,
    TrainerFailed,
)
from flegel.messages import (
    CLASS_MODULE_CODE,
    AuditPoints,
    CheckpointPart,
    GiveUpPoints,
    LoadShard,
    MeasureMoments,
    PointsAudited,
    Reduced,
    ReduceReports,
    ResetPoints,
    ShardLoaded,
    TransferOwnership,
    WorkerFailed,
)
from flegel.params.tree_layout import build
from flegel.plan.stragglers import parse_stragglers
from flegel.runtime import clock
from flegel.runtime.backends.protocol import ShardKernel
from flegel.runtime.backends.registry import choose
from flegel.runtime.system.processors import threads_of_team
from flegel.runtime.transport import shared_memory
from flegel.runtime.worker.current_hook import EnteredHook, HookRecord
from flegel.runtime.worker.exchange import PieceExchange
from flegel.runtime.worker.point_reassigner import PointReassigner
from flegel.runtime.worker.row_sources import open_keys, open_rows
from flegel.runtime.worker.rows_in_place import OpenArray
from flegel.runtime.worker.shard_loading import ResumedArrays, load_shard, part_of_worker
from flegel.runtime.worker.straggler_injection import StragglerInjection

if TYPE_CHECKING:
    from flegel.machine.audit.shard_audit import ShardAudit


UNPIPED_END_SECONDS = 0.05
"""So long the end of the thread is awaited where there is no pipe to be closed after it: it may compile, and a job that
was interrupted has 0.2 s."""


class InterruptRequested:
    """Wakes the trainer when it has nothing to train."""


@dataclass(frozen=True)
class AtRest:
    """Work on the points between two rounds."""

    store: PointStore
    work: Callable[[PointStore], None]
    states: bool


@dataclass(frozen=True)
class BeginFold:
    """Fold this worker's report with those of all other workers, and make the new θ."""

    job: str
    order: ReduceReports
    copy: Replica
    report: Sequence[Array] | None
    answer: Callable[[Reduced, tuple[Array, ...]], None]


class Trainer:
    """Give it orders from the I/O thread; take results from `results` when the pipe `wakeup` is readable."""

    def __init__(
        self,
        open_array: OpenArray = shared_memory.open_shared,
        same_process: bool = False,
        exchange: PieceExchange | None = None,
        piped: bool = True,
    ) -> None:
        """`open_array`: how arrays that others describe are opened. `same_process`: others live in this process, too.
        `exchange`: for folds with other workers. `piped`: whoever takes results sleeps until the pipe is readable; else
        it waits for the queue."""
        self._open_array, self._same_process, self._exchange = open_array, same_process, exchange
        self._algorithm: Algorithm | None = None
        self._in_batches, self._visits = False, "updateDataPoint"
        self._hooks: HookRecord | None = None
        self.flag = new_flag()
        self.results: SimpleQueue[MomentsReady | ShardReady | TrainerDone | PointsReassigned | TrainerFailed] = (
            SimpleQueue()
        )
        self.wakeup, self._wakeup_writer = os.pipe() if piped else (-1, -1)
        self._orders: SimpleQueue[Any] = SimpleQueue()
        self.store: PointStore | None = None
        self._kernel: ShardKernel | None = None
        self._interruptions: SimpleQueue[tuple[PointStore, Callable[[PointStore], None]]] = SimpleQueue()
        self._hook_stopped = False
        """The flag is up because the round is over, not only to interrupt the kernel."""
        self.visits = 0
        """Grows while the kernel runs; heartbeats report it as progress."""
        self._speed = 0.0
        self._deadline = DeadlineEstimate(0)
        self._reassigner: PointReassigner | None = None
        self._audit: ShardAudit | None = None
        self._injection: StragglerInjection | None = None
        self._measured_rows: tuple[Any, Rows] | None = None
        self._unreported_work = (0, 0.0)
        self._stopped_at: tuple[VisitRun, int] | None = None
        """The last call of the kernel: what it was given, and where it stopped."""
        self._local_updates: LocalUpdates | None = None  # of a worker that is alone
        self._growing_part: Part | None = None  # in the beginning
        self._thread = threading.Thread(target=self._loop, name="trainer", daemon=True)
        self._thread.start()

    def order(
        self, command: BeginMoments | BeginLoad | BeginTrain | BeginFold | ApplyOwnership | ReassignPoints | DropShard
    ) -> None:
        if isinstance(command, BeginTrain):
            self._hook_stopped = False
            self.flag[0] = 0
        self._orders.put(command)

    def halt(self) -> None:
        """The round is over: return from the kernel and report."""
        self._hook_stopped = True  # first, so that `_serve_interruptions` cannot take this signal for an interruption
        self.flag[0] = 1

    def interrupt(self, store: PointStore, work: Callable[[PointStore], None]) -> None:
        """Call `work` in the trainer thread as soon as possible: the kernel is interrupted for it.

        Nothing is done where the points were dropped meanwhile: the next job has another store.
        """
        self._interruptions.put((store, work))
        self._orders.put(InterruptRequested())
        self.flag[0] = 1

    def at_rest(self, store: PointStore, work: Callable[[PointStore], None], states: bool = True) -> None:
        """Call `work` in the trainer thread after everything that was ordered before, such as a change of ownership."""
        self._orders.put(AtRest(store, work, states))

    def wake_io(self) -> None:
        """Wake the I/O thread."""
        if self._wakeup_writer < 0:
            return
        with contextlib.suppress(OSError):
            os.write(self._wakeup_writer, b"!")

    def quit(self) -> None:
        """End the thread; its pipe is closed where it is not in the middle of something."""
        self.halt()
        self._orders.put(None)
        self._thread.join(timeout=1.0 if self.wakeup >= 0 else UNPIPED_END_SECONDS)
        if not self.busy and self.wakeup >= 0:
            for pipe in (self.wakeup, self._wakeup_writer):
                os.close(pipe)
            self.wakeup = self._wakeup_writer = -1

    @property
    def hook(self) -> str:
        """The hook that the trainer thread is in; empty where the engine is at work."""
        return self._hooks.current() if self._hooks is not None else ""

    @property
    def busy(self) -> bool:
        """The thread did not end when it was told to: it compiles, or a hook does not return."""
        return self._thread.is_alive()

    def statistics(self) -> tuple[Array, ...]:
        """The changes since the last report. For the I/O thread after `TrainerDone`, and for the trainer thread."""
        return self._kernel.statistics() if self._kernel is not None else ()

    @property
    def unreported(self) -> tuple[int, float]:
        """Visits and seconds whose changes are in the statistics and were not reported. For the trainer thread."""
        return self._unreported_work

    def audit(
        self, store: PointStore, order: AuditPoints, theta: tuple[Array, ...], reported: tuple[float, ...]
    ) -> tuple[PointsAudited, tuple[Array, ...]]:
        """Answer an audit: count this worker's points, and compute some or all contributions again. `reported`: the
        checksum of everything that this worker reported. For the trainer thread, at rest."""
        assert self._audit is not None, "a worker that is audited was told so when it loaded"
        began = clock.now()
        found = self._audit.answer(store, order, theta, active().audit.points_checked_at_end)
        body = PointsAudited(
            order.number, found.points, found.id_checksum, reported, found.visit_error, clock.now() - began
        )
        return body, found.statistics

    # -- in the trainer thread -----------------------------------------------------------------------------

    def _loop(self) -> None:
        self._hooks = HookRecord()
        while self._carry_out(self._orders.get()):
            pass  # no local variable: it would keep the order's arrays alive while the thread waits

    def _carry_out(self, command: Any) -> bool:
        """Execute one order. False: the thread is to end."""
        match command:
            case None:
                return False
            case InterruptRequested():
                self._doing = "moving points"
                self._guarded(-1, self._run_interruptions)
            case AtRest(store, work, states):
                self._doing = "moving points"
                self._guarded(-1, partial(self._run, store, work, states))
            case ApplyOwnership(settle):
                self._doing = "moving points"
                self._guarded(-1, partial(self._transfer, settle))
            case ReassignPoints():
                self._doing = "taking over points"
                self._guarded(-1, partial(self._reassign, command))
            case DropShard():
                self._drop()
            case BeginMoments(survey):
                self._doing = "loading"
                self._guarded(-1, partial(self._measure, survey))
            case BeginLoad(load, arrays):
                self._doing = "loading"
                self._guarded(-1, partial(self._load, load, arrays))
            case BeginTrain():
                self._doing = self._visits
                with EnteredHook(self._visits):
                    self._guarded(command.round, partial(self._train, command))
            case BeginFold():
                self._doing = "merging reports"
                self._guarded(command.order.round, partial(self._fold, command))
        return True

    def _guarded(self, round_: int, work: Any) -> None:
        """Call `work` and put its result into `results`; an error of any kind becomes `TrainerFailed`, with the user's
        own traceback. `round_`: for the message; -1 outside a round."""
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - a hook may raise anything; it must reach the user
            text = str(error) if isinstance(error, UsageError | OutOfReach) else f"{type(error).__name__}: {error}"
            usage = isinstance(error, UsageError)
            where = error.where if isinstance(error, OutOfReach) else self._doing
            result = TrainerFailed(WorkerFailed(where, round_, text, own_traceback(error), usage))
        if result is not None:
            self.results.put(result)
            self.wake_io()

    def _set_doing(self, what: str) -> None:
        self._doing = what

    def _drop(self) -> None:
        """Give the memory of a job back now: to free a gigabyte takes tenths of a second, and the collector would
        come to it in the middle of the next job."""
        if self._kernel is not None:
            self._kernel.close()
        self.store = self._measured_rows = self._reassigner = self._kernel = self._audit = None
        self._algorithm = self._local_updates = self._growing_part = None
        if self._exchange is not None:
            self._exchange.close()
        if self._injection is not None:
            self._injection.close()
            self._injection = None
        if not self._same_process:
            gc.collect()

    def _serve_interruptions(self) -> None:
        """The flag is up: do what the kernel was interrupted for, and lower the flag unless the round is over."""
        self.flag[0] = 0
        if self._hook_stopped:
            self.flag[0] = 1
        self._run_interruptions()

    def _run_interruptions(self) -> None:
        while not self._interruptions.empty():
            self._run(*self._interruptions.get(), states=False)  # a window that is cut fetches its own

    def _run(self, store: PointStore, work: Callable[[PointStore], None], states: bool = True) -> None:
        """`states`: the work reads those of the points, which may be on a device. It never writes them."""
        if self.store is not store or self._kernel is None:
            return
        if states:
            self._kernel.fetch_states(store.shards)
        work(store)

    def _transfer(self, settle: TransferOwnership) -> None:
        """States of points that came are written; those of all others stay where they are."""
        if self.store is None or self._kernel is None:
            return
        self.store.settle(settle.given, settle.taken)
        for shard, start, end in self.store.take_written():
            self._kernel.put_states([shard], start, end)

    def _measure(self, order: MeasureMoments) -> MomentsReady:
        rows = open_rows(order.source, order.index, order.count, order.seed, open_array=self._open_array)
        self._measured_rows = ((order.source, order.index, order.count, order.seed), rows)
        return MomentsReady(tuple(np.asarray(m) for m in scale.moments(rows.features)))

    def _reassign(self, command: ReassignPoints) -> PointsReassigned:
        """Carry out an order about points that change owner, with the kernel's states fetched before and put back after
        where they are concerned."""
        assert self.store is not None and self._reassigner is not None and self._kernel is not None
        self._local_updates = self._growing_part = (
            None  # what it has reported is no longer what its points have contributed
        )
        order, states = command.order, isinstance(command.order, GiveUpPoints | ResetPoints)
        if states:  # those of points that come are brought with them
            self._kernel.fetch_states(self.store.shards)
        done = carry_out(self.store, order, command.arrays, self._reassigner)
        if isinstance(order, ResetPoints):
            self._kernel.put_states(self.store.shards)
        self.store.take_written()
        return done

    def _load(self, load: LoadShard, arrays: tuple[Array, ...]) -> ShardReady:
        """Make the algorithm, the shard, its kernel and all that belongs to one job; earlier ones are replaced."""
        began = clock.now()
        adopt(load.settings)
        check_compiled()
        if self._kernel is not None:
            self._kernel.close()
        with EnteredHook(CLASS_MODULE_CODE):
            algorithm = self._algorithm = instantiate(load.algorithm, Consent.SUBMITTED)
        self._in_batches, self._visits, resumed = algorithm.kernels.in_batches, visit_hook(type(algorithm)), None
        if load.kept is not None:
            # States, votes, ids; then the statistics that were not reported.
            behind = 3 + (max(len(load.statistics.fields), 1) if load.kept.visits else 0)
            states, halted, ids, *unreported = arrays[-behind:]
            arrays, resumed = arrays[:-behind], ResumedArrays(states, halted, ids, tuple(unreported))
        scaling = arrays[-2:] if load.scaled else ()
        backend = choose(
            load.device,
            algorithm.kernels.backend,
            threads_of_team(load.threads),
            load.fixed_blocks,
            load.expensive,
            load.point_seconds,
        )
        measured, self._measured_rows = self._measured_rows, None
        shard = load_shard(
            load,
            algorithm,
            lambda columns: backend.layout(algorithm, columns, load.interpret),
            scaling,
            resumed,
            measured,
            self._open_array,
            self._set_doing,
            self._same_process,
        )
        split, keys = max(len(load.parameter.fields), 1), open_keys(load.source, self._open_array)
        parameter = build(load.parameter, arrays[:split], algorithm)
        empty = build(load.statistics, arrays[split : len(arrays) - len(scaling)], algorithm)
        self._kernel = kernel = backend.build(algorithm, shard, parameter, empty, load.interpret)
        self.store, self.visits = PointStore(shard, owned=not load.empty, keys=keys), 0
        self.store.fetch = lambda part, start, end: kernel.fetch_states([part], start, end)
        self._reassigner = PointReassigner(
            load, algorithm, shard.layout, scaling, shard.columns, self._open_array, keys
        )
        if load.audit:
            self._audit = self._audit_of(load, algorithm, shard, parameter, empty)
        self._unreported_work, self._deadline = (0, 0.0), DeadlineEstimate(load.count - 1)
        self._local_updates = LocalUpdates(parameter, empty, self._call_hook) if load.alone else None
        self._growing_part = part_of_worker(load, algorithm, shard, parameter, empty, self._call_hook)
        if load.kept is not None and resumed is not None:
            self._resume(load.kept, kernel, self.store, resumed)
        self._injection = None
        if load.straggler:
            workers = max(load.count, load.index + 1)
            stragglers = parse_stragglers(load.straggler, workers, load.seed)
            self._injection = StragglerInjection(stragglers, load.index, workers, load.elapsed)
        address = self._exchange.listen() if load.replicated and self._exchange is not None else ""
        found = (self.store.schedule.owned, shard.columns, kernel.kind, kernel.note, clock.now() - began)
        return ShardReady(ShardLoaded(*found, library=kernel.library, address=address, room=kernel.room))

    def _audit_of(
        self, load: LoadShard, algorithm: Algorithm, shard: Shard, parameter: Tree, empty: Tree
    ) -> ShardAudit:
        """What answers audits of these points; states of points that are counted again come from a generator of their
        own."""
        from flegel.machine.audit.recount import Recount  # a job without audits does without their modules
        from flegel.machine.audit.shard_audit import ShardAudit

        assert self._kernel is not None
        columns, seeds = shard.columns, [load.seed, load.index, load.count, 1]

        def fresh_states(points: int) -> Array:
            return algorithm.initState(points, columns, np.random.default_rng(seeds))

        return ShardAudit(Recount(algorithm, self._kernel, parameter, empty, fresh_states), shard.ids)

    def _resume(
        self, checkpoint: CheckpointPart, kernel: ShardKernel, store: PointStore, arrays: ResumedArrays
    ) -> None:
        """Votes, passes and unreported changes of a checkpoint; its states came with the shard."""
        store.resume(checkpoint.runs, arrays.halted, checkpoint.version)
        kernel.put_states(store.shards)
        if checkpoint.visits:
            self._unreported_work = (checkpoint.visits, checkpoint.compute)
            kernel.clear_statistics()
            kernel.add_statistics(arrays.statistics)

    def _train(self, order: BeginTrain) -> TrainerDone:
        """Visit points until the order's number is reached, none is left, or the coordinator's signal stops it."""
        store, kernel, local = self.store, self._kernel, self._local_updates
        assert store is not None and kernel is not None
        schedule, began, batched = store.schedule, clock.now(), active().training.batched_call_multiple
        before, self._stopped_at = (kernel.abandoned, schedule.caught_up), None
        if order.arrays:
            self._begin_under(order, kernel, schedule)
        if not order.keep:
            kernel.clear_statistics()
        points, exhausted = min(order.points, schedule.active), False
        least = TILE if store.shards[0].layout == "tiles" else batched if self._in_batches else 1
        injection = self._injection if self._injection is not None and self._injection.look(began).injected else None
        visits, grid = 0, kernel.grid if order.until is None and local is None else 1
        if points > 0 and self._hook_stopped:
            visits = self._smallest_step(kernel, store, least, order.round)
        while visits < points and not self._hook_stopped:
            if injection:
                injection.pay(0, 0.0, self.flag)
            if self.flag[0]:
                visits += self._finish_key(kernel, store, order.round)
                self._serve_interruptions()
                continue
            first = max(least, kernel.least_points, grid)
            most = self._step_size(order, points - visits, visits, first, least, kernel.overhead)
            most = most if local is None else local.limit(most, self._speed, kernel.least_points, least)
            part = in_use(self._growing_part, local, schedule)
            if part is None and self._growing_part is not None:  # the first pass ends: then the objective is known
                left = schedule.unseen
                points = min(points, visits + left) if left else points
                self._growing_part = self._growing_part if left else None
            run = None if not most else part.next(most) if part is not None else schedule.next(most, grid)
            if run is None:
                exhausted = most > 0
                break
            entered = clock.now()
            sliced = injection if order.until is None or not self._in_batches else None
            end = sliced.slice(run.start, run.end - run.start, run.end, least) if sliced else run.end
            done = self._step(kernel, store, run, end, order.round, self.flag, part)
            visits += done
            if done == run.end - run.start > most // 2 and (took := clock.now() - entered) > 0:
                self._speed = max(done / took, self._speed / 2)
            if injection:
                injection.pay(done, clock.now() - entered, self.flag)
            self._deadline.add(done, clock.now() - entered, away=injection is not None)
            enough = done == most and visits < points
            if local is not None and local.useful and (enough if part is None else part.update_due(enough)):
                self._update_parameter(kernel, local, part)
        visits += self._finish_key(kernel, store, order.round)
        for sums in (local, self._growing_part):
            if isinstance(sums, LocalUpdates | PartAmongOthers):
                sums.reported(kernel.statistics())
        ended = clock.now()
        self._unreported_work = (0, 0.0) if order.arrays else (visits, ended - began)
        exhausted = exhausted or visits >= points
        votes = store.votes(counted_anew=kernel.kind != "torch")
        call = kernel.overhead if self._in_batches else 0.0
        rare = kernel.abandoned - before[0], schedule.end_order() - before[1]
        updates = local is not None and local.useful
        return TrainerDone(visits, exhausted, schedule.unseen, votes, ended - began, began, ended, call, *rare, updates)

    def _begin_under(self, order: BeginTrain, kernel: ShardKernel, schedule: VisitSchedule) -> None:
        """A new θ came with the order."""
        local, part = self._local_updates, self._growing_part
        kernel.set_parameter(order.arrays if local is None else local.begin(order.arrays))
        schedule.begin(order.cursor)
        if isinstance(part, PartAmongOthers):
            part.begin(order.arrays, in_order=not order.cursor)

    def _smallest_step(self, kernel: ShardKernel, store: PointStore, least: int, round_: int) -> int:
        """The signal came before the order. One step is made all the same: else short rounds would make no progress."""
        part = in_use(self._growing_part, self._local_updates, store.schedule)
        run = part.next(least) if part is not None else store.schedule.next(least)
        return 0 if run is None else self._step(kernel, store, run, run.end, round_, new_flag(), part)

    def _finish_key(self, kernel: ShardKernel, store: PointStore, round_: int) -> int:
        """Where rows of one key stay together, a round does not end among them: the rest of the last one is visited
        whatever the signal says."""
        if self._stopped_at is None or (rest := store.schedule.rest_of_key(*self._stopped_at)) is None:
            return 0
        return self._step(kernel, store, rest, rest.end, round_, new_flag())

    def _fold(self, command: BeginFold) -> None:
        """Add the reports of all workers to this worker's copy of the statistics; nothing where the fold is dropped
        meanwhile."""
        assert self._exchange is not None and self._algorithm is not None
        algorithm, order = self._algorithm, command.order
        total = self._exchange.fold(command.job, order, command.copy, command.report)
        if total is not None:
            answer, arrays = command.copy.finish(algorithm, order, total, self._exchange.worker, self._call_hook)
            command.answer(answer, arrays)

    def _update_parameter(self, kernel: ShardKernel, local: LocalUpdates, part: Part | None) -> None:
        """θ of the coming calls, from everything that this lone worker has counted."""
        began = clock.now()
        if theta := local.update(kernel.statistics()):
            kernel.set_parameter(theta)
        local.took(clock.now() - began + kernel.overhead)
        alone = part if isinstance(part, GrowingPart) else None
        if alone is not None and alone.complete and local.useful and (theta := alone.follow(local)):
            kernel.set_parameter(theta)
        self._doing = self._visits

    def _call_hook(self, hook: str, *args: Any) -> Any:
        """A hook that makes θ; what it raises reaches the user from here."""
        self._doing = hook
        with EnteredHook(hook):
            return hook_named(self._algorithm, hook)(*(pytree.presented(a) for a in args))

    def _step(
        self,
        kernel: ShardKernel,
        store: PointStore,
        run: VisitRun,
        end: int,
        round_: int,
        flag: Array,
        part: Part | None = None,
    ) -> int:
        """Call the kernel once; returns how many points it trained."""
        reached = kernel.run(store.shards[run.shard], run.start, end, round_, flag)
        store.schedule.advance(run, reached, first_pass=part is not None)
        self._stopped_at = (run, reached)
        if part is not None:
            part.advance(run, reached)
        done = reached - run.start
        self.visits += done
        return done

    def _step_size(
        self, order: BeginTrain, points_left: int, visits: int, first: int, least: int, overhead: float
    ) -> int:
        """Points of the next call, so that heartbeats report progress four times a second even in a pass of an hour;
        0: the worker's own clock would end the round before the call returns."""
        most = min(points_left, max(int(self._speed * active().training.visits_shown_every_seconds), first))
        if order.until is not None and (visits or self._in_batches):
            seconds_left, deadline = order.until - clock.now(), self._deadline
            fitting = (
                deadline.batch(seconds_left, least, not visits, overhead)
                if self._in_batches
                else deadline.fitting(seconds_left, least)
            )
            most = most if fitting is None else min(most, fitting)
        return most
