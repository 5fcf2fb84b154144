"""Coordinator and workers on a virtual clock: the same machines as in a real job, no process, no socket, no sleep.

`simulate` takes a coordinator and the simulated workers, and runs events in the order of their virtual times until
the job is over. The same input gives the same job, to the last bit.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from flegel import tree
from flegel.errors import ProtocolError
from flegel.machine import worker as machine
from flegel.machine.coordinator import Coordinator
from flegel.machine.events import Command, Commit, Done, FromWorker, Note, Save, SavePart, Send, SetTimer
from flegel.machine.holdings import Holdings
from flegel.machine.parcels import put_states
from flegel.messages import Kept, Load, Loaded
from flegel.sim.mover import SimMover
from flegel.sim.trainer import Learner, Pace
from flegel.tree import Array


@dataclass
class Costs:
    """Seconds that things take besides training."""

    message: float = 0.0003
    """One way between coordinator and a worker."""
    react: float = 0.00005
    """From a raised flag or an order to the kernel's obedience."""
    merge: float = 0.0
    """Folding in one report; the coordinator does one at a time."""
    bandwidth: float = 1e9
    """Bytes a second that a worker can send to others."""


class Events:
    """Things to do at virtual times."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (max(when, self.now), next(self._count), what))

    def step(self) -> bool:
        if not self._heap:
            return False
        self.now, _, what = heapq.heappop(self._heap)
        what()
        return True


class SimWorker:
    """The worker machine with a trainer on virtual time."""

    def __init__(self, id: int, pace: Pace, learner: Learner, events: Events, costs: Costs) -> None:
        self.id, self.pace, self.learner = id, pace, learner
        self._events, self._costs = events, costs
        self._machine = machine.Worker()
        self._cursor = self.visits = 0
        share = getattr(learner, "share", None)
        self.holdings = Holdings(share) if share is not None else None
        self.mover: SimMover | None = None
        if self.holdings is not None:
            self.mover = SimMover(id, self.holdings, events, costs.message, costs.bandwidth)
            self.mover.answer = lambda body: self.answer(self.id, body, ())
            self.mover.errand = self._errand
        self._errands: list[Callable[[], None]] = []
        self._arrays: tuple[Array, ...] = ()
        self._running: tuple[machine.BeginTrain, float] | None = None
        self._overtime = (0, 0.0)
        self._began: float | None = None
        self.answer: Callable[[int, Any, tuple[Array, ...]], None] = lambda worker, body, arrays: None
        self.template: Any = None

    def order(self, body: Any, arrays: tuple[Array, ...]) -> None:
        if isinstance(body, Load):
            self._arrays = arrays
        self._feed(machine.Ordered(body, arrays))

    def _feed(self, event: Any) -> None:
        for command in self._machine.handle(event, self._events.now):
            self._do(command)

    def _do(self, command: machine.Command) -> None:
        match command:
            case machine.BeginLoad(load):
                self._load(load)
                self._feed(machine.ShareReady(Loaded(self.learner.points, self.learner.columns, "simulated", "", 0.0)))
            case machine.BeginTrain():
                self._begin(command)
            case machine.KeepState(number):
                self._errand(lambda: self._keep(number))
            case machine.RaiseFlag():
                self._halt()
            case machine.Reply(body, with_changes):
                self.answer(self.id, body, self.learner.changes() if with_changes else ())
            case machine.SetOwnTimer(at, round_):
                self._events.at(at, lambda: self._feed(machine.OwnTimer(round_)))
            case machine.Move(order) if self.mover is not None:
                self.mover.order(order)
            case machine.Rebook(settle) if self.mover is not None and self.holdings is not None:
                self.holdings.settle(settle.given, settle.taken)
                self.mover.close(settle.closed)
            case _:
                pass

    def _load(self, load: Load) -> None:
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
            self.learner.add(tuple(pending))

    def _keep(self, number: int) -> None:
        assert self.holdings is not None, "a worker that only counts has nothing to keep"
        state, halted, ids = self.holdings.keep()
        visits, compute = self._overtime
        pending = self.learner.changes() if visits else ()
        kept = Kept(number, self.holdings.agenda.runs(), visits, compute, self.holdings.version)
        self.answer(self.id, kept, (state, halted, ids, *pending))

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

    def _begin(self, order: machine.BeginTrain) -> None:
        if order.arrays:
            self._arrays = order.arrays
            if self.holdings is not None:
                self.holdings.agenda.begin()
        if not order.keep:
            self.learner.clear()
        began = self._events.now + self._costs.react
        self._began = began if self._began is None else self._began
        self._running = (order, began)
        points = min(order.points, self._points)
        whole = self.pace.seconds_for(points, began - self._began)
        self._events.at(began + whole, lambda: self._finish(order, points, began + whole))

    def _halt(self) -> None:
        if self._running is None:
            return
        order, began = self._running
        assert self._began is not None
        elapsed = max(0.0, self._events.now + self._costs.react - began)
        most = min(order.points, self._points)
        points, took = self.pace.points_in(elapsed, began - self._began, most)
        if points < most:
            self._events.at(began + took, lambda: self._finish(order, points, began + took))

    def _finish(self, order: machine.BeginTrain, points: int, ended: float) -> None:
        if self._running is None or self._running[0] is not order:
            return
        began = self._running[1]
        self._running = None
        assert self._began is not None
        self.pace.did(points, began - self._began)
        asked = min(order.points, self._points)
        self._train(points, order.round)
        self._overtime = (0, 0.0) if order.arrays else (points, ended - began)
        self.visits += points
        exhausted = points >= asked
        unseen = max(self.learner.points - self.visits, 0)
        if self.holdings is not None:
            unseen = self.holdings.agenda.unseen
        errands, self._errands = self._errands, []
        for work in errands:
            work()
        self._feed(machine.TrainerDone(points, exhausted, unseen, 0, ended - began, began, ended))

    def _train(self, points: int, iteration: int) -> None:
        parameter = tree.unflatten(self.template, self._arrays)
        left, size = points, self.learner.points
        while left > 0:
            if self.holdings is not None:
                run = self.holdings.agenda.next(left)
                if run is None:
                    return
                self.learner.train(parameter, run.start, run.end, iteration, self.holdings.shares[run.share])
                self.holdings.agenda.advance(run, run.end)
                left -= run.end - run.start
                continue
            end = min(self._cursor + left, size)
            self.learner.train(parameter, self._cursor, end, iteration)
            left -= end - self._cursor
            self._cursor = end % size


def simulate(
    job: Coordinator,
    paces: dict[int, Pace],
    learners: dict[int, Learner],
    costs: Costs | None = None,
    limit: int = 10_000_000,
    save: Callable[[Save | SavePart | Commit], None] = lambda command: None,
    now: float = 0.0,
) -> Coordinator:
    """Run the job to its end on virtual time; raises what made it fail. `save` gets what belongs into a checkpoint."""
    costs = costs or Costs()
    events = Events()
    events.now = now
    done: list[Done] = []
    free_at = [0.0]
    workers = {id: SimWorker(id, paces[id], learners[id], events, costs) for id in paces}

    def execute(commands: list[Command]) -> None:
        for command in list(commands):
            match command:
                case Send(worker, body, arrays):
                    to = workers[worker]
                    events.at(events.now + costs.message, lambda t=to, b=body, a=arrays: t.order(b, a))  # type: ignore[misc]
                case SetTimer(at, timer):
                    events.at(at, lambda t=timer: execute(job.handle(t, events.now)))  # type: ignore[misc]
                case Note(text):
                    job.notes.append(text)
                case Save() | SavePart() | Commit():
                    save(command)
                case Done():
                    done.append(command)

    def answered(worker: int, body: Any, arrays: tuple[Array, ...]) -> None:
        free_at[0] = max(free_at[0], events.now + costs.message) + costs.merge
        events.at(free_at[0], lambda: execute(job.handle(FromWorker(worker, body, arrays), events.now)))

    for each in workers.values():
        each.answer, each.template = answered, job.parameter
        if each.mover is not None:
            each.mover.peers = {w.id: w.mover for w in workers.values() if w.mover is not None}
    execute(job.start(now))
    for _ in range(limit):
        if done or not events.step():
            break
    if not done:
        raise ProtocolError(f"The simulated job did not end; it stands in {job.phase}, round {job.view.round}.")
    if done[0].error is not None:
        raise done[0].error
    return job
