"""Coordinator and worker machines together on a virtual clock, training real points at any speed. Nothing sleeps.

A virtual worker of speed v visits v points a second: when it is stopped, its kernel is run over as many points as the
time that passed allows. Messages take a random while, and some arrive twice; the fence has to notice.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from flegel.algorithm import Algorithm, Sample
from flegel.core import pytree
from flegel.core.shard import Shard, make_shard
from flegel.core.stop_flag import new_flag
from flegel.job import AlgorithmRef, Criteria, SyncSpec
from flegel.machine.coordinator import events
from flegel.machine.coordinator.coordinator import Coordinator
from flegel.machine.fencing import Fence
from flegel.machine.worker import worker as hand
from flegel.messages import Envelope, LoadShard, ShardLoaded, TreeLayout
from flegel.params.local import LocalStore
from flegel.runtime.backends.numba.compiler import build_kernel
from flegel.sync import make_policy


class VirtualWorker:
    """A worker machine whose trainer is a speed."""

    def __init__(self, world: World, number: int, share: Shard, kernel: Any, speed: float) -> None:
        self.world, self.number, self.share, self.kernel, self.speed = world, number, share, kernel, speed
        self.machine = hand.Worker()
        self.aggregator = pytree.copy(world.zero)
        self.cursor = self.visits = self.sequence = 0
        self.work: tuple[hand.BeginTrain, float] | None = None

    def handle(self, event: Any) -> None:
        for command in self.machine.handle(event, self.world.now):
            self.execute(command)

    def execute(self, command: hand.Command) -> None:
        match command:
            case hand.BeginLoad():
                loaded = ShardLoaded(self.share.points, self.share.columns, "virtual", "", 0.0)
                self.world.later(0.1, lambda: self.handle(hand.ShardReady(loaded)))
            case hand.BeginTrain():
                self.work = (command, self.world.now)
                self.world.later(command.points / self.speed, lambda: self.finish(command))
            case hand.RaiseFlag():
                if self.work:
                    order = self.work[0]
                    self.world.later(1e-5, lambda: self.finish(order))
            case hand.SetOwnTimer(at, round_):
                self.world.later(at - self.world.now, lambda: self.handle(hand.OwnTimer(round_)))
            case hand.SendReply(body, with_changes):
                arrays = tuple(a.copy() for a in pytree.flatten(self.aggregator)) if with_changes else ()
                self.world.to_coordinator(self, body, arrays)

    def finish(self, order: hand.BeginTrain) -> None:
        """Do now what could be done since the order came."""
        if self.work is None or self.work[0] is not order:
            return
        began, self.work = self.work[1], None
        whole = min(order.points, self.share.points)
        left = visits = min(round(self.speed * (self.world.now - began)), whole)
        parameter = pytree.unflatten(self.world.parameter, order.arrays)
        pytree.clear(self.aggregator)
        while left > 0:
            end = min(self.cursor + left, self.share.points)
            reached = self.kernel(self.share, parameter, self.aggregator, self.cursor, end, order.round, new_flag())
            left -= reached - self.cursor
            self.cursor = reached % self.share.points
        visits -= left
        self.visits += visits
        unseen = max(self.share.points - self.visits, 0)
        spent = self.world.now - began
        self.handle(hand.TrainerDone(visits, visits >= whole, unseen, 0, spent, began, self.world.now))


class World:
    """One job. `run` returns when the coordinator is done."""

    def __init__(
        self,
        algorithm: Algorithm,
        rows: np.ndarray,
        speeds: list[float],
        sync: SyncSpec,
        criteria: Criteria,
        seed: int = 0,
        store: type[LocalStore] = LocalStore,
    ) -> None:
        """`store`: one that puts its folds off has a method `answer`, and is asked for it a while later."""
        self.now, self.rng = 0.0, np.random.default_rng(seed)
        self.algorithm, self.rows = algorithm, rows
        sample = Sample(rows, None, len(rows), rows.shape[1])
        self.parameter = pytree.as_float64(algorithm.initParameter(sample, np.random.default_rng(seed)))
        self.zero = pytree.zeros_like(algorithm.initAggregator(sample, pytree.present(self.parameter)))
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._arrives: dict[Any, float] = {}
        self.workers = [self._worker(i, ids, speed) for i, (ids, speed) in enumerate(self._parts(speeds))]
        form = TreeLayout("array", ())
        loads = {
            w.number: LoadShard(AlgorithmRef("x", {}), {}, w.number, len(speeds), seed, form, form)
            for w in self.workers
        }
        self.machine = Coordinator(
            algorithm=algorithm,
            policy=make_policy(sync),
            criteria=criteria,
            store=store(algorithm, self.parameter, self.zero),
            loads=loads,
            debug=True,
        )
        self.fence = Fence("job")
        for w in self.workers:
            self.fence.admit(w.number, 0)
        self.done: events.Done | None = None
        self._answering = False

    def _parts(self, speeds: list[float]) -> list[tuple[np.ndarray, float]]:
        order = self.rng.permutation(len(self.rows))
        return list(zip(np.array_split(order, len(speeds)), speeds, strict=True))

    def _worker(self, number: int, ids: np.ndarray, speed: float) -> VirtualWorker:
        rows = np.ascontiguousarray(self.rows[ids])
        state = self.algorithm.initState(len(ids), rows.shape[1], np.random.default_rng(number))
        share = make_shard(rows, None, state, self.algorithm.layout, ids)
        kernel = build_kernel(self.algorithm, share, self.parameter, self.zero).kernel
        return VirtualWorker(self, number, share, kernel, speed)

    # -- time and messages ---------------------------------------------------------------------------------

    def later(self, delay: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._order), what))

    def _deliver(self, channel: Any, what: Callable[[], None]) -> None:
        """In order per channel, after a random while; now and then twice."""
        at = max(self.now + float(self.rng.exponential(1e-3)), self._arrives.get(channel, 0.0))
        self._arrives[channel] = at
        self.later(at - self.now, what)
        if self.rng.random() < 0.1:
            self.later(at - self.now + float(self.rng.exponential(5e-3)), what)

    def to_coordinator(self, worker: VirtualWorker, body: Any, arrays: tuple[np.ndarray, ...]) -> None:
        envelope = Envelope("job", 0, worker.number, 0, worker.sequence, body)
        worker.sequence += 1

        def arrive() -> None:
            if self.fence.refuse(envelope) is None:
                self._execute(self.machine.handle(events.FromWorker(worker.number, body, arrays), self.now))

        self._deliver(("up", worker.number), arrive)

    def _answer_fold(self) -> None:
        self._answering = False
        self._execute(self.machine.handle(self.machine.store.answer(), self.now))  # type: ignore[attr-defined]

    def _execute(self, commands: list[events.Command]) -> None:
        if getattr(self.machine.store, "asked", None) is not None and not self._answering:
            self._answering = True
            self.later(2e-3, self._answer_fold)
        for command in commands:
            match command:
                case events.Send(worker, body, arrays):
                    self._deliver(
                        ("down", worker),
                        lambda w=worker, b=body, a=arrays: self.workers[w].handle(hand.OrderReceived(b, a)),
                    )
                case events.SetTimer(at, timer):
                    self.later(max(at - self.now, 0.0), lambda t=timer: self._timer(t))
                case events.Done():
                    self.done = command

    def _timer(self, timer: events.Timer) -> None:
        if timer.name != "watch":  # virtual workers do not beat
            self._execute(self.machine.handle(timer, self.now))

    def run(self) -> World:
        self._execute(self.machine.start(self.now))
        while self.done is None:
            self.now, _, what = heapq.heappop(self._events)
            what()
        assert self.done.error is None
        return self

    # -- what to check -------------------------------------------------------------------------------------

    def objectives(self) -> list[float]:
        return [row.objective for row in self.machine.trace if row.objective is not None]
