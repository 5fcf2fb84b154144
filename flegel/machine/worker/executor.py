"""Carries out what the worker machine commands, through one small port. It reads no clock and owns no thread or socket.

There is one executor for every worker: the process of a real job, the worker on virtual time, the worker of a fault
simulation and those of the tests differ in their `WorkerPort` only. The executor owns the worker machine, and builds
the answers that need the points: states, checkpoint parts, results of a reassignment.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np

from flegel.core.pytree import Array
from flegel.core.shard import Shard
from flegel.machine.worker import worker as machine
from flegel.machine.worker.checksums import checksum
from flegel.machine.worker.point_store import PointStore
from flegel.machine.worker.replica import FoldPort, ReplicaControl
from flegel.messages import (
    Answer,
    AuditPoints,
    CheckpointPart,
    LoadShard,
    MeasureMoments,
    Order,
    ReassignmentOrder,
    ReceivePoints,
    ResetPoints,
    SendPoints,
    States,
    TransferOwnership,
)

Event = (
    machine.OrderReceived
    | machine.MomentsReady
    | machine.ShardReady
    | machine.TrainerDone
    | machine.PointsReassigned
    | machine.TrainerFailed
    | machine.OwnTimer
)


class WorkerPort(Protocol):
    """What a worker consists of besides its machine: a trainer, a timer, ways to the coordinator and to other workers.

    `now` is the time of the event that led to the call. Results come back as events, through `WorkerExecutor.handle`.
    """

    def measure(self, order: MeasureMoments) -> None:
        """Sum up the columns; answer with `MomentsReady`."""

    def load(self, order: LoadShard, arrays: tuple[Array, ...]) -> None:
        """Load the shard; answer with `ShardReady`."""

    def train(self, order: machine.BeginTrain, now: float) -> None:
        """Train until all points are done or `halt` is called; answer with `TrainerDone`."""

    def halt(self, now: float) -> None:
        """Raise the stop flag."""

    def reassign(self, order: ReassignmentOrder, arrays: tuple[Array, ...]) -> None:
        """Run `reassignment.carry_out` while nothing trains; answer with its result."""

    def at_rest(self, work: Callable[[PointStore], None]) -> None:
        """Call `work` with the points between two rounds, after everything that was ordered before."""

    def audit(self, order: AuditPoints, arrays: tuple[Array, ...], reported: tuple[float, ...]) -> None:
        """Compare statistics and points at rest, and send `PointsAudited`; `reported` is the checksum of all
        reports."""

    def move(self, order: ReceivePoints | SendPoints) -> None:
        """Begin a migration (`MigrationExecutor.begin`)."""

    def transfer(self, order: TransferOwnership) -> None:
        """Settle the windows before the next point is trained, and close the moves that are over."""

    def statistics(self) -> tuple[Array, ...]:
        """The changes since the last report."""

    def unreported(self) -> tuple[int, float]:
        """Visits and seconds of training whose changes are in `statistics` and belong to the next report."""

    def send(self, body: Answer, arrays: tuple[Array, ...], now: float) -> None:
        """Send to the coordinator."""

    def post(self, body: Answer, arrays: tuple[Array, ...]) -> None:
        """Send to the coordinator from inside `at_rest`, which may be another thread."""

    def set_timer(self, at: float, round_: int) -> None:
        """Feed `OwnTimer(round_)` at that time."""

    def drop(self) -> None:
        """The job is over: free the shard."""

    def quit(self) -> None:
        """End the worker."""


class WorkerExecutor:
    """Feed it events with `handle`; it calls the port."""

    __slots__ = ("_folds", "_port", "_replicas", "_reported", "machine")

    def __init__(self, port: WorkerPort, folds: FoldPort | None = None) -> None:
        """`folds`: for jobs whose workers merge reports themselves."""
        self.machine = machine.Worker()
        self._port, self._folds = port, folds
        self._replicas: ReplicaControl | None = None
        self._reported: Array | None = None
        """The checksum of all reports of this job, where it is audited."""

    def order(self, body: Order, arrays: tuple[Array, ...], now: float) -> None:
        """An order of the coordinator came."""
        if self._replicas is not None:
            taken = self._replicas.order(body, arrays)
            if taken is None:
                return
            arrays = taken
        self.handle(machine.OrderReceived(body, arrays), now)

    def handle(self, event: Event, now: float) -> None:
        """The three commands of every round are compared first: a simulation handles millions of them."""
        port = self._port
        for command in self.machine.handle(event, now):
            if type(command) is machine.BeginTrain:
                port.train(command, now)
            elif type(command) is machine.RaiseFlag:
                port.halt(now)
            elif type(command) is machine.SendReply:
                if not command.with_changes:
                    port.send(command.body, command.arrays, now)
                    continue
                changes = port.statistics()
                if self._replicas is not None:
                    self._replicas.reports.add(changes)  # the coordinator hears the figures alone
                    port.send(command.body, (), now)
                else:
                    port.send(command.body, changes, now)
                if self._reported is not None:  # after the report has left, so that no barrier waits for a checksum
                    self._reported = self._reported + checksum(changes)
            else:
                self._execute(command)

    def _execute(self, command: machine.Command) -> None:
        """Carry out a command that neither replies nor raises the flag, by the port of this worker."""
        port = self._port
        match command:
            case machine.BeginMoments(order):
                port.measure(order)
            case machine.BeginLoad(load, arrays):
                self._reported = np.zeros((1, 2)) if load.audit else None
                self._replicas = None
                if load.replicated and self._folds is not None:
                    self._replicas = ReplicaControl(load.parameter.fields, self._folds)
                port.load(load, arrays)
            case machine.CountAgain(audit, arrays):
                reported = self._reported if self._reported is not None else np.zeros(0)
                port.audit(audit, arrays, tuple(reported.reshape(-1).tolist()))
            case machine.SendState():
                port.at_rest(lambda store: port.post(States(), store.collect()))
            case machine.CheckpointState(number):
                port.at_rest(partial(self._checkpoint, number))
            case machine.ReassignPoints(tending, arrays):
                if isinstance(tending, ResetPoints) and self._replicas is not None:
                    self._replicas.reports.clear()
                if isinstance(tending, ResetPoints) and self._reported is not None:
                    self._reported = np.zeros((1, 2))  # what was reported has been subtracted
                port.reassign(tending, arrays)
            case machine.BeginMove(move):
                port.move(move)
            case machine.ApplyOwnership(transfer):
                port.transfer(transfer)
            case machine.SetOwnTimer(at, round_):
                port.set_timer(at, round_)
            case machine.DropShard():
                self._replicas = None
                port.drop()
            case machine.Quit():
                port.quit()

    def _checkpoint(self, number: int, store: PointStore) -> None:
        """Copies of what is held. The numbers of the points are sent only where they changed since the last part."""
        state, halted, ids = store.keep()
        visits, compute = self._port.unreported()
        pending = tuple(a.copy() for a in self._port.statistics()) if visits else ()
        known, store.known_version = store.known_version == store.version, store.version
        part = CheckpointPart(number, store.schedule.runs(), visits, compute, store.version)
        self._port.post(part, (state, halted, ids[:0] if known else ids, *pending))


def visit(store: PointStore, points: int, train: Callable[[Shard, int, int], int]) -> int:
    """Train so many points in the order of the schedule; `train` returns where it stopped. Points that were trained."""
    left, schedule = points, store.schedule
    while left > 0 and (run := schedule.next(left)) is not None:
        reached = train(store.shards[run.shard], run.start, run.end)
        schedule.advance(run, reached)
        left -= reached - run.start
    return points - left
