"""The trainer thread of a worker: loads the shard, runs the kernel, notes how far it came. Owns no socket.

It sleeps on a queue of orders and wakes the I/O thread through a pipe. While the kernel runs, the GIL is released,
and the only thing the two threads shard is the stop flag, one byte. The flag also makes the trainer look up when a
point is to be cut out of its data: it does that and goes on.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np

from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.core.shard import TILE, make_shard
from flegel.core.stop_flag import new_flag
from flegel.datasets import Rows, scale
from flegel.errors import UsageError, own_traceback
from flegel.machine.worker.deadline_estimate import DeadlineEstimate
from flegel.machine.worker.point_store import PointStore
from flegel.machine.worker.reassignment import carry_out
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
    LoadShard,
    MeasureMoments,
    ShardLoaded,
    TransferOwnership,
    TreeLayout,
    WorkerFailed,
)
from flegel.plan.stragglers import parse_stragglers
from flegel.runtime import clock
from flegel.runtime.backends.protocol import ShardKernel
from flegel.runtime.backends.registry import choose
from flegel.runtime.job.class_source import instantiate
from flegel.runtime.transport import shared_memory
from flegel.runtime.worker import shared_points
from flegel.runtime.worker.current_hook import MODULE, inside
from flegel.runtime.worker.point_reassigner import PointReassigner
from flegel.runtime.worker.row_sources import open_ids, open_rows
from flegel.runtime.worker.straggler_injection import StragglerInjection

SIGN_OF_LIFE = 0.25  # seconds of training after which the number of visits is brought up to date


class InterruptRequested:
    """Wakes the trainer when it has nothing to train."""


@dataclass(frozen=True)
class AtRest:
    store: PointStore
    work: Callable[[PointStore], None]


class Trainer:
    """Call `load`, `train`, `forget` from the I/O thread; take results from `results` when the pipe is readable."""

    def __init__(self, device: str = "cpu") -> None:
        self._backend = choose(device)
        self.flag = new_flag()
        self.results: SimpleQueue[MomentsReady | ShardReady | TrainerDone | PointsReassigned | TrainerFailed] = (
            SimpleQueue()
        )
        self.wakeup, self._bell = os.pipe()
        self._orders: SimpleQueue[Any] = SimpleQueue()
        self.store: PointStore | None = None
        self._kernel: ShardKernel | None = None
        self._interruptions: SimpleQueue[tuple[PointStore, Callable[[PointStore], None]]] = SimpleQueue()
        self._halted = False
        """The flag is up because the round is over, not only because of an errand."""
        self.visits = 0
        """Grows while the kernel runs: the sign that it gets on."""
        self._pace = 0.0
        self._foresight = DeadlineEstimate(0)
        self._reassigner: PointReassigner | None = None
        self._injection: StragglerInjection | None = None
        self._surveyed: tuple[Any, Rows] | None = None
        self._overtime: tuple[int, float] | None = None
        """Visits and seconds whose changes are in the aggregator and were not reported."""
        self._thread = threading.Thread(target=self._loop, name="trainer", daemon=True)
        self._thread.start()

    def order(
        self, command: BeginMoments | BeginLoad | BeginTrain | ApplyOwnership | ReassignPoints | DropShard
    ) -> None:
        if isinstance(command, BeginTrain):
            self._halted = False
            self.flag[0] = 0
        self._orders.put(command)

    def halt(self) -> None:
        """The round is over: return from the kernel and report."""
        self._halted = True  # first, so that `_look_up` cannot take this signal for an errand's
        self.flag[0] = 1

    def interrupt(self, store: PointStore, work: Callable[[PointStore], None]) -> None:
        """Have something done to the store by the thread that owns them, now: it is called away from its kernel.

        Nothing is done where they have been forgotten meanwhile: the next job's store are others.
        """
        self._interruptions.put((store, work))
        self._orders.put(InterruptRequested())
        self.flag[0] = 1

    def at_rest(self, store: PointStore, work: Callable[[PointStore], None]) -> None:
        """As `interrupt`, but behind everything that was ordered before, above all behind a change of ownership."""
        self._orders.put(AtRest(store, work))

    def wake_io(self) -> None:
        """Wake the I/O thread."""
        with contextlib.suppress(OSError):
            os.write(self._bell, b"!")

    def quit(self) -> None:
        self.halt()
        self._orders.put(None)
        self._thread.join(timeout=1.0)

    @property
    def busy(self) -> bool:
        """The thread did not end when it was told to: it compiles, or a hook does not return."""
        return self._thread.is_alive()

    def statistics(self) -> tuple[Array, ...]:
        """The changes since the last report. For the I/O thread after `TrainerDone`, and for the trainer thread."""
        return self._kernel.statistics() if self._kernel is not None else ()

    @property
    def unreported(self) -> tuple[int, float]:
        """Visits and seconds whose changes are in the aggregator and were not reported. For the trainer thread."""
        return self._overtime or (0, 0.0)

    # -- in the trainer thread -----------------------------------------------------------------------------

    def _loop(self) -> None:
        while self._carry_out(self._orders.get()):
            pass  # what an order was about is not kept beyond it

    def _carry_out(self, command: Any) -> bool:
        """False: the thread is to end."""
        match command:
            case None:
                return False
            case InterruptRequested():
                self._doing = "moving points"
                self._guarded(-1, self._run_interruptions)
            case AtRest(store, work):
                self._doing = "moving points"
                self._guarded(-1, partial(self._run, store, work))
            case ApplyOwnership(settle):
                self._doing = "moving points"
                self._guarded(-1, partial(self._rebook, settle))
            case ReassignPoints():
                self._doing = "taking over points"
                self._guarded(-1, partial(self._reassign, command))
            case DropShard():
                self._forget()
            case BeginMoments(survey):
                self._doing = "loading"
                self._guarded(-1, partial(self._survey, survey))
            case BeginLoad(load, arrays):
                self._doing = "loading"
                self._guarded(-1, partial(self._load, load, arrays))
            case BeginTrain():
                self._doing = "updateDataPoint"
                with inside("updateDataPoint"):
                    self._guarded(command.round, partial(self._train, command))
        return True

    def _guarded(self, round_: int, work: Any) -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - a hook may raise anything; it must reach the user
            text = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
            usage = isinstance(error, UsageError)
            result = TrainerFailed(WorkerFailed(self._doing, round_, text, own_traceback(error), usage))
        if result is not None:
            self.results.put(result)
            self.wake_io()

    def _forget(self) -> None:
        """Give the memory of a job back now: to free a gigabyte takes tenths of a second, and the collector would
        come to it in the middle of the next job."""
        if self._kernel is not None:
            self._kernel.close()
        self.store = self._surveyed = self._reassigner = self._kernel = None
        if self._injection is not None:
            self._injection.close()
            self._injection = None
        gc.collect()

    def _look_up(self) -> None:
        """The flag is up: see to errands, and take it down unless the round is over."""
        self.flag[0] = 0
        if self._halted:
            self.flag[0] = 1
        self._run_interruptions()

    def _run_interruptions(self) -> None:
        while not self._interruptions.empty():
            self._run(*self._interruptions.get())

    def _run(self, store: PointStore, work: Callable[[PointStore], None]) -> None:
        if self.store is store and self._kernel is not None:
            self._kernel.fetch_states(store.shards)
            work(store)
            self._kernel.put_states(store.shards)

    def _rebook(self, settle: TransferOwnership) -> None:
        if self.store is not None:
            self._run(self.store, lambda store: store.settle(settle.given, settle.taken))

    def _survey(self, survey: MeasureMoments) -> MomentsReady:
        rows = open_rows(survey.source, survey.index, survey.count, survey.seed)
        self._surveyed = ((survey.source, survey.index, survey.count, survey.seed), rows)
        return MomentsReady(tuple(np.asarray(m) for m in scale.moments(rows.features)))

    def _reassign(self, command: ReassignPoints) -> PointsReassigned:
        assert self.store is not None and self._reassigner is not None and self._kernel is not None
        self._kernel.fetch_states(self.store.shards)
        done = carry_out(self.store, command.order, command.arrays, self._reassigner)
        self._kernel.put_states(self.store.shards)
        return done

    def _rows(self, load: LoadShard, scaling: tuple[Array, ...], ids: Array | None) -> Rows:
        """The rows of a shard: those that were just surveyed, or read now; scaled where that was asked for."""
        if load.empty:
            rows = open_ids(load.source, np.zeros(1, np.int64))  # one row, to show what rows look like
        elif self._surveyed is not None and self._surveyed[0] == (load.source, load.index, load.count, load.seed):
            rows = self._surveyed[1]
        else:
            moved = load.kept is not None and load.kept.version and load.source.get("kind") == "dataset"
            if moved and ids is not None:
                rows = open_ids(load.source, ids)
            else:
                rows = open_rows(load.source, load.index, load.count, load.seed, ids)
        self._surveyed = None
        return rows._replace(features=scale.apply(rows.features, scale.Scaling(*scaling))) if scaling else rows

    def _load(self, load: LoadShard, arrays: tuple[Array, ...]) -> ShardReady:
        began = clock.now()
        with inside(MODULE):
            algorithm = instantiate(load.algorithm)
        kept, wanted, pending = load.kept, None, list[Array]()
        if kept is not None:
            behind = 3 + (max(len(load.statistics.fields), 1) if kept.visits else 0)
            arrays, (old_state, halted, wanted, *pending) = arrays[:-behind], arrays[-behind:]
        scaling = arrays[-2:] if load.scaled else ()
        features, labels, ids = self._rows(load, scaling, wanted)
        points = len(features.indptr) - 1 if hasattr(features, "indptr") else len(features)
        columns = features.columns if hasattr(features, "columns") else features.shape[1]
        rng = np.random.default_rng([load.seed, load.index])
        self._doing = "initState"
        with inside("initState"):
            state = algorithm.initState(points, columns, rng) if kept is None else np.array(old_state)
        self._doing = "loading"
        layout = self._backend.layout(algorithm, load.interpret)
        lend = load.lend and shared_points.wanted()
        empty = shared_memory.empty if lend else np.empty
        shard = make_shard(features, labels if algorithm.supervised else None, state, layout, ids, empty)
        if lend:
            shared_points.make_shareable(shard)
        split = max(len(load.parameter.fields), 1)
        parameter = build(load.parameter, arrays[:split], algorithm)
        empty_statistics = build(load.statistics, arrays[split : len(arrays) - len(scaling)], algorithm)
        self._kernel = kernel = self._backend.build(algorithm, shard, parameter, empty_statistics, load.interpret)
        self.store, self.visits = PointStore(shard, owned=not load.empty), 0
        self._reassigner = PointReassigner(load, algorithm, layout, scaling, columns)
        self._overtime, self._foresight = None, DeadlineEstimate(load.count - 1)
        if kept is not None:
            self.store.resume(kept.runs, halted, kept.version)
            if kept.visits:
                self._overtime = (kept.visits, kept.compute)
                kernel.clear_statistics()
                kernel.add_statistics(pending)
        self._injection = None
        if load.straggler:
            workers = max(load.count, load.index + 1)
            stragglers = parse_stragglers(load.straggler, workers, load.seed)
            self._injection = StragglerInjection(stragglers, load.index, workers, load.elapsed)
        return ShardReady(
            ShardLoaded(self.store.schedule.owned, columns, kernel.kind, kernel.note, clock.now() - began)
        )

    def _train(self, order: BeginTrain) -> TrainerDone:
        store, kernel = self.store, self._kernel
        assert store is not None and kernel is not None
        schedule, shards = store.schedule, store.shards
        began = clock.now()
        if order.arrays:
            kernel.set_parameter(order.arrays)
            schedule.begin()
        if not order.keep:
            kernel.clear_statistics()
        left, visits, exhausted = min(order.points, schedule.active), 0, False
        least = TILE if shards[0].layout == "tiles" else 1
        injection = self._injection if self._injection is not None and self._injection.look(began).injected else None
        if left > 0 and self._halted:  # the signal overtook the order: one step all the same, or short rounds never end
            run = schedule.next(least)
            if run is not None:
                shard = shards[run.shard]
                reached = kernel.run(shard, run.start, run.end, order.round, new_flag())
                schedule.advance(run, reached)
                left -= reached - run.start
                visits += reached - run.start
                self.visits += reached - run.start
        while left > 0 and not self._halted:
            if injection:
                injection.pay(0, 0.0, self.flag)
            if self.flag[0]:
                self._look_up()
                continue
            # Points done so far are the sign of life that beats carry, also in a pass of an hour.
            most = min(left, max(int(self._pace * SIGN_OF_LIFE), least, kernel.least_points))
            if order.until is not None and visits:
                fit = self._foresight.fitting(order.until - clock.now(), least)
                if fit == 0:
                    break
                most = min(most, fit or most)
            run = schedule.next(most)
            if run is None:
                exhausted = True
                break
            entered = clock.now()
            end = injection.slice(run.start, run.end - run.start, run.end, least) if injection else run.end
            shard = shards[run.shard]
            reached = kernel.run(shard, run.start, end, order.round, self.flag)
            schedule.advance(run, reached)
            left -= reached - run.start
            visits += reached - run.start
            self.visits += reached - run.start
            if reached - run.start == most:
                self._pace = max(most / max(clock.now() - entered, 1e-9), self._pace / 2)
            if injection:
                injection.pay(reached - run.start, clock.now() - entered, self.flag)
            self._foresight.add(reached - run.start, clock.now() - entered, away=injection is not None)
        ended = clock.now()
        self._overtime = None if order.arrays else (visits, ended - began)
        return TrainerDone(
            visits=visits,
            exhausted=exhausted or left <= 0,
            unseen=schedule.unseen,
            halted=store.halted,
            compute=ended - began,
            began=began,
            ended=ended,
        )


def build(form: TreeLayout, arrays: tuple[Array, ...], algorithm: Any) -> Tree:
    """Arrays in the tuple class that the algorithm's own module defines under that name, or in a plain one."""
    import sys
    from collections import namedtuple

    if not form.fields:
        return arrays[0]
    own = getattr(sys.modules[type(algorithm).__module__], form.name, None)
    if isinstance(own, type) and getattr(own, "_fields", None) == form.fields:
        return own(*arrays)
    return namedtuple(form.name, form.fields)(*arrays)  # type: ignore[misc]


def form_of(value: Tree) -> TreeLayout:
    return TreeLayout(type(value).__name__, pytree.names(value)) if pytree.is_bundle(value) else TreeLayout("array", ())
