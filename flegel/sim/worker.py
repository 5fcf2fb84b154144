"""A worker on virtual time: the real worker machine, a trainer that is a speed. No process, no thread.

A worker that trains real rows holds its points as in a real job: whatever the options of the job are, it may be told to
visit all of them anew or to go back. One that only counts visits has none; there nothing can reach a worker between the
flag and its report, so both are worked out in one step, each at its own time. That saves a third of the events.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flegel.core import pytree
from flegel.core.pytree import Array
from flegel.core.shard import TILE, Shard, make_shard, unpack_tiles
from flegel.machine.migration.endpoints import MigrationSource
from flegel.machine.worker import worker as machine
from flegel.machine.worker.executor import visit
from flegel.machine.worker.point_store import OutgoingWindow, PointStore
from flegel.machine.worker.window_codec import put_states
from flegel.messages import (
    Answer,
    LoadShard,
    Order,
    ReceivePoints,
    SendPoints,
    ShardLoaded,
    TransferOwnership,
    WindowReceived,
)
from flegel.sim.coordinator_cost import Costs
from flegel.sim.event_queue import EventQueue
from flegel.sim.inline_worker import InlineWorker
from flegel.sim.trainer import KernelLearner, Learner, Pace

FEWEST_WINDOWS_PER_SHARD = 32  # a window is at most this part of the shard


def _features(shard: Shard) -> Array:
    features = shard.features
    assert isinstance(features, np.ndarray), "simulated points are dense"
    return unpack_tiles(features, shard.points) if shard.layout == "tiles" else features


class SimWorker(InlineWorker):
    """Told orders, it calls `answer(id, body, arrays, when)` when it has something to say."""

    def __init__(self, id: int, pace: Pace, learner: Learner, events: EventQueue, costs: Costs, template: Any) -> None:
        """`pace`: how fast it is; `learner`: what its visits are worth."""
        super().__init__()
        self.id, self.pace, self.learner = id, pace, learner
        self._events, self._costs, self._template = events, costs, template
        self._cursor = self.visits = 0
        shard = getattr(learner, "shard", None)
        if shard is not None:
            self.hold(PointStore(shard))
        self.peers: dict[int, SimWorker] = {}
        self._link_free_at = 0.0
        self._theta: tuple[Array, ...] = ()
        self._running_order: tuple[machine.BeginTrain, float, int, float] | None = None
        """Order, when it began, points, and when all of them will be done unless it is stopped."""
        self._check_at: float | None = None
        """When to look next whether all points are done: most rounds are stopped long before, so that one event in the
        queue serves many rounds."""
        self._overtime = (0, 0.0)
        self._first_round_at: float | None = None
        """The course of its speed counts from then on."""
        self.answer: Callable[[int, Any, tuple[Array, ...], float], None] = lambda worker, body, arrays, when: None

    @property
    def now(self) -> float:
        return self._events.now

    def order(self, body: Order, arrays: tuple[Array, ...]) -> None:
        self.executor.order(body, arrays, self._events.now)

    # -- the ports -----------------------------------------------------------------------------------------

    def load(self, order: LoadShard, arrays: tuple[Array, ...]) -> None:
        """Load the shard: all its points, those of a checkpoint, or none for a worker that joins later."""
        if order.kept is not None and self.store is not None:
            self._resume(order, self.store, arrays)
        points = self.learner.points
        if order.empty and self.store is not None:
            self.hold(PointStore(self.store.shards[0].part(0, min(TILE, points)), owned=False))
            points = 0
        loaded = ShardLoaded(points, self.learner.columns, "simulated", "", 0.0)
        self.executor.handle(machine.ShardReady(loaded), self.now)

    def _resume(self, order: LoadShard, store: PointStore, arrays: tuple[Array, ...]) -> None:
        """States, votes and passes as they were when the job was suspended."""
        assert order.kept is not None
        # States, votes, ids; then the changes that were not reported.
        behind = 3 + (len(self.learner.changes()) if order.kept.visits else 0)
        state, halted, _, *pending = arrays[-behind:]
        shard = store.shards[0]
        put_states(shard, np.arange(shard.points), state)
        store.resume(order.kept.runs, halted, order.kept.version)
        self.visits = store.schedule.pass_sum
        if pending:
            assert isinstance(self.learner, KernelLearner)
            self.learner.add(tuple(pending))

    # -- points that are reassigned ------------------------------------------------------------------------

    def unvisited(self, ids: Array) -> Shard:
        return self._rows(ids, self.fresh_states(len(ids)))

    def visited(self, ids: Array, states: Array) -> Shard:
        return self._rows(ids, np.array(states))

    def fresh_states(self, points: int) -> Array:
        assert isinstance(self.learner, KernelLearner)
        return self.learner.algorithm.initState(points, self.learner.columns, np.random.default_rng(self.id))

    def _rows(self, ids: Array, states: Array) -> Shard:
        """Rows by their numbers, where the workers had them at first."""
        native = [peer.learner.shard for peer in self.peers.values() if isinstance(peer.learner, KernelLearner)]
        numbers = np.concatenate([shard.ids for shard in native])
        rows = np.concatenate([_features(shard) for shard in native])
        order = np.argsort(numbers)
        chosen = order[np.searchsorted(numbers, ids, sorter=order)]
        return make_shard(rows[chosen], None, states, native[0].layout, np.array(ids))

    # -- answers -------------------------------------------------------------------------------------------

    def statistics(self) -> tuple[Array, ...]:
        return self.learner.changes()

    def unreported(self) -> tuple[int, float]:
        return self._overtime

    def send(self, body: Answer, arrays: tuple[Array, ...], now: float) -> None:
        self.answer(self.id, body, arrays, now)

    def set_timer(self, at: float, round_: int) -> None:
        self._events.at(at, self.executor.handle, machine.OwnTimer(round_), at)

    # -- points that move ----------------------------------------------------------------------------------

    def soon(self, work: Callable[[PointStore], None]) -> None:
        """A simulated kernel runs to its end in one step, so windows are cut between rounds."""
        self.at_rest(work)

    def move(self, order: ReceivePoints | SendPoints) -> None:
        if self.moves is not None:
            self.moves.begin(order)

    def transfer(self, order: TransferOwnership) -> None:
        if self.moves is not None:
            super().transfer(order)

    def new_source(self, order: SendPoints) -> MigrationSource:
        window = max(self.points.shards[0].points // FEWEST_WINDOWS_PER_SHARD // TILE * TILE, TILE)
        return MigrationSource(order.move, order.points, window)

    def address(self) -> str:
        return str(self.id)

    def ship(self, order: SendPoints, window: OutgoingWindow, full: bool) -> None:
        body, arrays = window.frames(full)
        size = sum(a.nbytes for a in arrays)
        self._link_free_at = max(self._link_free_at, self.now) + size / self._costs.bandwidth
        peer = self.peers[order.target]
        arrives = self._link_free_at + self._costs.message
        self._events.at(arrives, peer.from_peer, self.id, body, tuple(arrays), size, self._window_received)

    def _window_received(self, received: WindowReceived) -> None:
        """The target replies."""
        self._events.at(self.now + self._costs.message, self.from_peer, self.id, received, (), 0, None)

    # -- the trainer ---------------------------------------------------------------------------------------

    @property
    def training(self) -> bool:
        return self._running_order is not None

    @property
    def _trainable(self) -> int:
        """Points that can be trained now."""
        return self.store.schedule.active if self.store is not None else self.learner.points

    def train(self, order: machine.BeginTrain, now: float) -> None:
        """Begin a round: compute when all its points would be done, and enter that time, or the deadline, into the
        queue."""
        if order.arrays:
            self._theta = order.arrays
            if self.store is not None:
                self.store.schedule.begin(order.cursor)
        if not order.keep:
            self.learner.clear()
        began = now + self._costs.react
        if self._first_round_at is None:
            self._first_round_at = began
        points = min(order.points, self._trainable)
        full = began + self.pace.seconds_for(points, began - self._first_round_at)
        self._running_order = (order, began, points, full)
        if self._check_at is None or self._check_at > full:
            self._check_at = full
            self._events.at(full, self._check, full)
        if order.until is not None:
            few, took = self.pace.in_time(order.until - began, began - self._first_round_at, points)
            if few < points:
                self._events.at(began + took, self._finish, order, few, began + took)

    def _check(self, when: float) -> None:
        """Look whether all points of the round are done by now; if not, look again when they will be."""
        if self._check_at != when:
            return
        self._check_at = None
        if self._running_order is None:
            return
        order, _, points, full = self._running_order
        if full <= when:
            self._finish(order, points, full)
        else:
            self._check_at = full
            self._events.at(full, self._check, full)

    def halt(self, now: float) -> None:
        """The flag is up: the kernel obeys after the point at hand."""
        if self._running_order is None:
            return
        order, began, most, _ = self._running_order
        assert self._first_round_at is not None
        elapsed = max(0.0, now + self._costs.react - began)
        points, took = self.pace.points_in(elapsed, began - self._first_round_at, most)
        if points < most:
            if self.store is None:
                self._finish(order, points, began + took)
            else:
                self._events.at(began + took, self._finish, order, points, began + took)

    def _finish(self, order: machine.BeginTrain, points: int, ended: float) -> None:
        """End the round after so many points: train on them, and hand the result to the worker's state machine."""
        if self._running_order is None or self._running_order[0] is not order:
            return
        began, asked = self._running_order[1], min(order.points, self._trainable)
        self._running_order = None
        assert self._first_round_at is not None
        self.pace.did(points, began - self._first_round_at)
        before = 0 if self.store is None else self.store.schedule.caught_up
        self._learn(points, order.round)
        caught_up = 0 if self.store is None else self.store.schedule.end_order() - before
        self._overtime = (0, 0.0) if order.arrays else (points, ended - began)
        self.visits += points
        unseen = max(self.learner.points - self.visits, 0) if self.store is None else self.store.schedule.unseen
        self.finish_postponed()
        done = machine.TrainerDone(
            points, points >= asked, unseen, 0, ended - began, began, ended, self.pace.call, caught_up=caught_up
        )
        if self._costs.wake and self.store is not None:
            self._events.at(ended + self._costs.wake, self.executor.handle, done, ended + self._costs.wake)
        else:
            self.executor.handle(done, ended + self._costs.wake)

    def _learn(self, points: int, iteration: int) -> None:
        """Really train on so many points, in the order in which a worker visits them."""
        parameter = pytree.unflatten(self._template, self._theta)
        if self.store is not None:

            def learn(shard: Shard, start: int, end: int) -> int:
                self.learner.train(parameter, start, end, iteration, shard)
                return end

            visit(self.store, points, learn)
            return
        left, size = points, self.learner.points
        while left > 0:
            end = min(self._cursor + left, size)
            self.learner.train(parameter, self._cursor, end, iteration)
            left -= end - self._cursor
            self._cursor = end if end < size else 0
