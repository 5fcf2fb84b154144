"""A worker on virtual time: the real worker machine, a trainer that is a speed. No process, no thread.

Where points do not move, nothing can reach a worker between the flag and its report, so both are worked out in one
step, each at its own time. That saves a third of the events.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flegel.core import pytree
from flegel.core.pytree import Array
from flegel.machine.migration.window_codec import put_states
from flegel.machine.worker import worker as machine
from flegel.machine.worker.point_store import PointStore
from flegel.messages import CheckpointPart, LoadShard, ShardLoaded
from flegel.sim.coordinator_cost import Costs
from flegel.sim.event_queue import EventQueue
from flegel.sim.mover import SimMover
from flegel.sim.trainer import KernelLearner, Learner, Pace


class SimWorker:
    """Told orders, it calls `answer(id, body, arrays, when)` when it has something to say."""

    def __init__(
        self, id: int, pace: Pace, learner: Learner, events: EventQueue, costs: Costs, template: Any, holds: bool
    ) -> None:
        self.id, self.pace, self.learner = id, pace, learner
        self._events, self._costs, self._template = events, costs, template
        self._machine = machine.Worker()
        self._cursor = self.visits = 0
        share = getattr(learner, "share", None)
        self.holdings = PointStore(share) if holds and share is not None else None
        self.mover: SimMover | None = None
        if self.holdings is not None:
            self.mover = SimMover(id, self.holdings, events, costs.message, costs.bandwidth)
            self.mover.answer = lambda body: self.answer(self.id, body, (), events.now)
            self.mover.errand = self._errand
        self._errands: list[Callable[[], None]] = []
        self._arrays: tuple[Array, ...] = ()
        self._running: tuple[machine.BeginTrain, float, int, float] | None = None
        """Order, when it began, points, and when all of them will be done unless it is stopped."""
        self._bell: float | None = None
        """When to look next whether all points are done: most rounds are stopped long before, so that one entry in the
        calendar serves many rounds."""
        self._overtime = (0, 0.0)
        self._began: float | None = None
        self.answer: Callable[[int, Any, tuple[Array, ...], float], None] = lambda worker, body, arrays, when: None

    def order(self, body: Any, arrays: tuple[Array, ...]) -> None:
        if type(body) is LoadShard:
            self._arrays = arrays
        self._feed(machine.OrderReceived(body, arrays), self._events.now)

    def _feed(self, event: Any, now: float) -> None:
        for command in self._machine.handle(event, now):
            kind = type(command)
            if kind is machine.BeginTrain:
                self._begin(command, now)  # type: ignore[arg-type]
            elif kind is machine.RaiseFlag:
                self._halt(now)
            elif kind is machine.SendReply:
                changes = self.learner.changes() if command.with_changes else ()  # type: ignore[union-attr]
                self.answer(self.id, command.body, changes, now)  # type: ignore[union-attr]
            else:
                self._do(command, now)

    def _do(self, command: machine.Command, now: float) -> None:
        """What is rare."""
        match command:
            case machine.BeginLoad(load):
                self._load(load)
                loaded = ShardLoaded(self.learner.points, self.learner.columns, "simulated", "", 0.0)
                self._feed(machine.ShardReady(loaded), now)
            case machine.CheckpointState(number):
                self._errand(lambda: self._keep(number))
            case machine.SetOwnTimer(at, round_):
                self._events.at(at, self._feed, machine.OwnTimer(round_), at)
            case machine.BeginMove(order) if self.mover is not None:
                self.mover.order(order)
            case machine.ApplyOwnership(settle) if self.mover is not None and self.holdings is not None:
                self.holdings.settle(settle.given, settle.taken)
                self.mover.close(settle.closed)
            case _:
                pass

    def _load(self, load: LoadShard) -> None:
        """A resumed job: states, votes and passes as they were."""
        if load.kept is None or self.holdings is None:
            return
        behind = 3 + (len(self.learner.changes()) if load.kept.visits else 0)
        state, halted, _, *pending = self._arrays[-behind:]
        share = self.holdings.shares[0]
        put_states(share, np.arange(share.points), state)
        self.holdings.resume(load.kept.runs, halted, load.kept.version)
        self.visits = self.holdings.agenda.traversed
        if pending:
            assert isinstance(self.learner, KernelLearner)
            self.learner.add(tuple(pending))

    def _keep(self, number: int) -> None:
        assert self.holdings is not None, "a worker that only counts has nothing to keep"
        state, halted, ids = self.holdings.keep()
        visits, compute = self._overtime
        pending = self.learner.changes() if visits else ()
        kept = CheckpointPart(number, self.holdings.agenda.runs(), visits, compute, self.holdings.version)
        self.answer(self.id, kept, (state, halted, ids, *pending), self._events.now)

    # -- the trainer ---------------------------------------------------------------------------------------

    @property
    def _points(self) -> int:
        """Points that can be trained now."""
        return self.holdings.agenda.active if self.holdings is not None else self.learner.points

    def _errand(self, work: Callable[[], None]) -> None:
        """The trainer looks up between rounds only."""
        if self._running is None:
            work()
        else:
            self._errands.append(work)

    def _begin(self, order: machine.BeginTrain, now: float) -> None:
        if order.arrays:
            self._arrays = order.arrays
            if self.holdings is not None:
                self.holdings.agenda.begin()
        if not order.keep:
            self.learner.clear()
        began = now + self._costs.react
        if self._began is None:
            self._began = began
        points = min(order.points, self._points)
        full = began + self.pace.seconds_for(points, began - self._began)
        self._running = (order, began, points, full)
        if self._bell is None or self._bell > full:
            self._bell = full
            self._events.at(full, self._look, full)
        if order.until is not None:
            few, took = self.pace.in_time(order.until - began, began - self._began, points)
            if few < points:
                self._events.at(began + took, self._finish, order, few, began + took)

    def _look(self, when: float) -> None:
        """Perhaps all points are done."""
        if self._bell != when:
            return
        self._bell = None
        if self._running is None:
            return
        order, _, points, full = self._running
        if full <= when:
            self._finish(order, points, full)
        else:
            self._bell = full
            self._events.at(full, self._look, full)

    def _halt(self, now: float) -> None:
        """The flag is up: the kernel obeys after the point at hand."""
        if self._running is None:
            return
        order, began, most, _ = self._running
        assert self._began is not None
        elapsed = max(0.0, now + self._costs.react - began)
        points, took = self.pace.points_in(elapsed, began - self._began, most)
        if points < most:
            if self.holdings is None:
                self._finish(order, points, began + took)
            else:
                self._events.at(began + took, self._finish, order, points, began + took)

    def _finish(self, order: machine.BeginTrain, points: int, ended: float) -> None:
        if self._running is None or self._running[0] is not order:
            return
        began, asked = self._running[1], min(order.points, self._points)
        self._running = None
        assert self._began is not None
        self.pace.did(points, began - self._began)
        self._train(points, order.round)
        self._overtime = (0, 0.0) if order.arrays else (points, ended - began)
        self.visits += points
        unseen = max(self.learner.points - self.visits, 0) if self.holdings is None else self.holdings.agenda.unseen
        if self._errands:
            errands, self._errands = self._errands, []
            for work in errands:
                work()
        done = machine.TrainerDone(points, points >= asked, unseen, 0, ended - began, began, ended)
        if self._costs.wake and self.holdings is not None:
            self._events.at(ended + self._costs.wake, self._feed, done, ended + self._costs.wake)
        else:
            self._feed(done, ended + self._costs.wake)

    def _train(self, points: int, iteration: int) -> None:
        if self.holdings is None:
            left, size = points, self.learner.points
            parameter = pytree.unflatten(self._template, self._arrays)
            while left > 0:
                end = min(self._cursor + left, size)
                self.learner.train(parameter, self._cursor, end, iteration)
                left -= end - self._cursor
                self._cursor = end if end < size else 0
            return
        left, agenda = points, self.holdings.agenda
        parameter = pytree.unflatten(self._template, self._arrays)
        while left > 0:
            run = agenda.next(left)
            if run is None:
                return
            self.learner.train(parameter, run.start, run.end, iteration, self.holdings.shares[run.share])
            agenda.advance(run, run.end)
            left -= run.end - run.start
