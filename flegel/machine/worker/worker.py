"""A worker as a state machine: orders in, commands to its trainer and answers out.

Life cycle:   idle → loading → ready ⇄ training → (idle) → gone
A worker that was told to linger reports and goes on: training → overtime → turning → training; what it does in
overtime is part of its next report.
It keeps the time account (computing, responding, waiting) from the times that its events carry. It never touches
a socket, a thread or an array of data.
"""

from __future__ import annotations

import msgspec

from flegel.core.pytree import Array
from flegel.messages import (
    Answer,
    AssignPoints,
    AuditPoints,
    Exit,
    FetchStates,
    GiveUpPoints,
    ListPoints,
    LoadShard,
    MeasureMoments,
    MomentsMeasured,
    Order,
    PointsSummary,
    ReassignmentOrder,
    ReceivePoints,
    ReleaseJob,
    Report,
    ResetPoints,
    SendPoints,
    ShardLoaded,
    Stop,
    TakeCheckpoint,
    Train,
    TransferOwnership,
    WorkerFailed,
)

# -- events ------------------------------------------------------------------------------------------------


class OrderReceived(msgspec.Struct, frozen=True):
    body: Order
    arrays: tuple[Array, ...] = ()


class ShardReady(msgspec.Struct, frozen=True):
    loaded: ShardLoaded


class MomentsReady(msgspec.Struct, frozen=True):
    moments: tuple[Array, ...]


class TrainerDone(msgspec.Struct, frozen=True):
    """The kernel returned."""

    visits: int
    order_done: bool
    """All points that the order asked for were visited."""
    unseen: int
    halted: int
    compute: float
    """Seconds of computing."""
    began: float
    ended: float
    call_overhead: float = 0.0
    """Seconds that each call of a library takes besides its visits; 0 where that is not known."""
    abandoned: int = 0
    """Visits that were abandoned, because a point was too expensive."""
    caught_up: int = 0
    """Of the visits, those of points that were more than one pass behind others of this worker."""
    local_updates: bool = False
    """The trainer makes θ anew by itself between barriers."""


class PointsReassigned(msgspec.Struct, frozen=True):
    """The points were reassigned as ordered."""

    body: PointsSummary | None
    arrays: tuple[Array, ...] = ()


class TrainerFailed(msgspec.Struct, frozen=True):
    """Loading or a hook raised."""

    failed: WorkerFailed


class OwnTimer(msgspec.Struct, frozen=True):
    round: int


# -- commands ----------------------------------------------------------------------------------------------


class BeginMoments(msgspec.Struct, frozen=True):
    survey: MeasureMoments


class BeginLoad(msgspec.Struct, frozen=True):
    load: LoadShard
    arrays: tuple[Array, ...] = ()


class BeginTrain(msgspec.Struct, frozen=True):
    """No arrays: go on under the θ of before. `keep`: what is in the aggregator belongs to the coming report.
    `until`: when the worker's own clock ends the round; what will take longer is not begun. `cursor`: as in `Train`."""

    round: int
    points: int
    arrays: tuple[Array, ...]
    keep: bool = False
    until: float | None = None
    cursor: str = ""


class RaiseFlag(msgspec.Struct, frozen=True):
    pass


class SendReply(msgspec.Struct, frozen=True):
    """Send it; `with_changes` attaches the aggregator."""

    body: Answer
    with_changes: bool = False
    arrays: tuple[Array, ...] = ()


class SendState(msgspec.Struct, frozen=True):
    pass


class CheckpointState(msgspec.Struct, frozen=True):
    """Copy what is held for a checkpoint, behind everything that was ordered before, and send it."""

    number: int


class CountAgain(msgspec.Struct, frozen=True):
    """Compare statistics and points, after everything that was ordered before, and answer."""

    order: AuditPoints
    arrays: tuple[Array, ...]


class SetOwnTimer(msgspec.Struct, frozen=True):
    at: float
    round: int


class BeginMove(msgspec.Struct, frozen=True):
    """Begin to take or to give points."""

    order: ReceivePoints | SendPoints


class ApplyOwnership(msgspec.Struct, frozen=True):
    """Ownership of windows changes before the next point is trained."""

    settle: TransferOwnership


class ReassignPoints(msgspec.Struct, frozen=True):
    """Count, reset, give up or take over points while nothing trains."""

    order: ReassignmentOrder
    arrays: tuple[Array, ...]


class DropShard(msgspec.Struct, frozen=True):
    """Drop the shard."""


class Quit(msgspec.Struct, frozen=True):
    pass


Command = (
    BeginMoments
    | BeginLoad
    | BeginTrain
    | RaiseFlag
    | SendReply
    | SendState
    | CheckpointState
    | CountAgain
    | SetOwnTimer
    | BeginMove
    | ApplyOwnership
    | ReassignPoints
    | DropShard
    | Quit
)


class Worker:
    """Feed it events; carry out what it returns."""

    def __init__(self) -> None:
        self.phase = "idle"
        self.round = -1
        self._train_order_at = 0.0
        """When the order to train came: with `_stop_at`, it tells how long the worker took to respond."""
        self._stop_at: float | None = None
        """When it was told to stop, or its own clock did."""
        self._reported_at: float | None = None
        self._waited_seconds = 0.0
        """Before this round, since the last report, without overtime."""
        self._may_train_overtime = False
        self._points = 0
        """Points that it holds."""
        self.extra_visits = 0
        """Visits already in the change, of which the next report will tell."""
        self._extra_compute = 0.0
        self._extra_abandoned = self._extra_caught_up = 0
        """Seconds of computing of these."""
        self._orders_in_overtime: list[
            tuple[Train | Stop | FetchStates | AuditPoints | ReassignmentOrder, tuple[Array, ...], float]
        ] = []
        """Orders that came in overtime."""
        self._reassignments_under_way = 0
        """Given to the trainer, which has not answered."""
        self._results_of_ended_jobs = 0
        """Results that the trainer still owes to jobs that are over."""

    def handle(
        self,
        event: OrderReceived | MomentsReady | ShardReady | TrainerDone | PointsReassigned | TrainerFailed | OwnTimer,
        now: float,
    ) -> list[Command]:
        """What follows from an event. Results for a job that is over are counted and dropped."""
        match event:
            case OrderReceived(body, arrays):
                return self._order(body, arrays, now)
            case MomentsReady() | ShardReady() | TrainerDone() | PointsReassigned() | TrainerFailed() if (
                self._results_of_ended_jobs
            ):
                self._results_of_ended_jobs -= 1
            case PointsReassigned(body, arrays):
                self._reassignments_under_way -= 1
                return self._tended(body, arrays)
            case MomentsReady(moments) if self.phase == "loading":
                self.phase = "idle"
                return [SendReply(MomentsMeasured(), arrays=moments)]
            case ShardReady(loaded) if self.phase == "loading":
                self.phase = "ready"
                self._points = loaded.points
                return [SendReply(loaded)]
            case TrainerDone() if self.phase == "training":
                return self._report_round(event, now)
            case TrainerDone() if self.phase in ("overtime", "turning"):
                return self._end_overtime(event, now)
            case OwnTimer(round=wanted) if self.phase == "training" and wanted == self.round:
                return self._raise(now)
            case TrainerFailed(failed):
                self.phase = "idle"
                return [SendReply(failed)]
        return []

    def _order(self, body: Order, arrays: tuple[Array, ...], now: float) -> list[Command]:
        """An order of the coordinator; one that does not fit the phase is late or doubled, and ignored."""
        match body:
            case Train() if self.phase == "ready" and body.round > self.round:
                return self._begin(body, arrays, now)
            case Stop(round=wanted) if self.phase == "training" and wanted == self.round:
                return self._raise(now)
            case MeasureMoments() if self.phase in ("idle", "ready"):
                self.phase = "loading"
                return [BeginMoments(body)]
            case LoadShard() if self.phase in ("idle", "ready"):
                self.phase, self.round, self._reported_at = "loading", -1, None
                self.extra_visits, self._extra_compute, self._orders_in_overtime = 0, 0.0, []
                self._extra_abandoned = self._extra_caught_up = 0
                if body.kept is not None:  # overtime of a former life belongs to the coming report
                    self.extra_visits, self._extra_compute = body.kept.visits, body.kept.compute
                return [BeginLoad(body, arrays)]
            case Stop() if self.phase == "turning":
                self._orders_in_overtime.append((body, arrays, now))
            case (
                Train() | FetchStates() | AuditPoints() | ListPoints() | ResetPoints() | GiveUpPoints() | AssignPoints()
            ) if self.phase in ("overtime", "turning"):
                self._orders_in_overtime.append((body, arrays, now))
                raised, self.phase = self.phase == "turning", "turning"
                return [] if raised else [RaiseFlag()]
            case FetchStates() if self.phase == "ready":
                return [SendState()]
            case TakeCheckpoint(number=number) if self.phase in ("ready", "overtime", "turning"):
                return [CheckpointState(number)]
            case AuditPoints() if self.phase == "ready":
                return [CountAgain(body, arrays)]
            case ListPoints() | ResetPoints() | GiveUpPoints() | AssignPoints() if self.phase == "ready":
                return self._tend(body, arrays)
            case ReceivePoints() | SendPoints() if self.phase in ("ready", "training"):
                return [BeginMove(body)]
            case TransferOwnership() if self.phase in ("ready", "training"):
                return [ApplyOwnership(body)]
            case ReleaseJob():
                busy = self.phase in ("loading", "training", "overtime", "turning")
                self._results_of_ended_jobs += busy + self._reassignments_under_way
                self._reassignments_under_way, self._orders_in_overtime = 0, []
                self.phase, self.round, self._reported_at = "idle", -1, None
                return [RaiseFlag(), DropShard()] if busy else [DropShard()]
            case Exit():
                self.phase = "gone"
                return [RaiseFlag(), Quit()]
        return []  # late or doubled: the coordinator has moved on

    def _begin(self, body: Train, arrays: tuple[Array, ...], now: float) -> list[Command]:
        """Begin a round as ordered; the time since the last report counts as waiting, less what was trained
        meanwhile."""
        self.phase, self.round, self._may_train_overtime = "training", body.round, body.linger
        self._train_order_at, self._stop_at = now, None
        idle = now - self._reported_at if self._reported_at is not None else 0.0
        self._waited_seconds = max(0.0, idle - self._extra_compute)
        until = None if body.seconds is None else now + body.seconds
        begin = BeginTrain(body.round, body.points, arrays, self.extra_visits > 0, until, body.cursor)
        return [begin] if until is None else [begin, SetOwnTimer(until, body.round)]

    def _raise(self, now: float) -> list[Command]:
        if self._stop_at is not None:
            return []
        self._stop_at = now
        return [RaiseFlag()]

    def _report_round(self, trained: TrainerDone, now: float) -> list[Command]:
        """Report the round. Where points are left and the coordinator allows it, train on them meanwhile (overtime)."""
        self.phase = "ready"
        self._reported_at = now
        visits, compute = trained.visits + self.extra_visits, trained.compute + self._extra_compute
        self.extra_visits, self._extra_compute = 0, 0.0
        # The time to respond begins when it was told to stop, or by itself at the end of its order.
        asked_at = self._stop_at if self._stop_at is not None and not trained.order_done else trained.ended
        report = Report(
            round=self.round,
            visits=visits,
            exhausted=trained.order_done,
            unseen=trained.unseen,
            halted=trained.halted,
            compute=compute,
            respond=max(0.0, trained.began - self._train_order_at) + max(0.0, now - asked_at),
            wait=self._waited_seconds,
            call=trained.call_overhead,
            abandoned=trained.abandoned + self._extra_abandoned,
            caught_up=trained.caught_up + self._extra_caught_up,
            local_updates=trained.local_updates,
        )
        self._extra_abandoned = self._extra_caught_up = 0
        points_left = self._points - trained.visits
        if not (self._may_train_overtime and trained.order_done and points_left > 0):
            return [SendReply(report, with_changes=True)]
        self.phase = "overtime"  # points of this shard that θ has not seen yet
        return [SendReply(report, with_changes=True), BeginTrain(self.round, points_left, arrays=())]

    def _end_overtime(self, trained: TrainerDone, now: float) -> list[Command]:
        """Overtime is over, because a new order came or because all points are done."""
        self.extra_visits, self._extra_compute = trained.visits, trained.compute
        self._extra_abandoned += trained.abandoned
        self._extra_caught_up += trained.caught_up
        self.phase = "ready"
        waiting, self._orders_in_overtime = self._orders_in_overtime, []
        commands: list[Command] = []
        for body, arrays, came_at in waiting:
            commands += self._order(body, arrays, now)
            if isinstance(body, Train):
                self._train_order_at = came_at
        return commands

    def _tend(self, body: ReassignmentOrder, arrays: tuple[Array, ...]) -> list[Command]:
        self._reassignments_under_way += 1
        if isinstance(body, ResetPoints):  # what overtime brought is part of what is dropped
            self.extra_visits, self._extra_compute = 0, 0.0
        return [ReassignPoints(body, arrays)]

    def _tended(self, body: PointsSummary | None, arrays: tuple[Array, ...]) -> list[Command]:
        if body is None:
            return []
        self._points = body.points
        body.pass_sum -= self.extra_visits  # the next report will tell of these
        return [SendReply(body, arrays=arrays)]  # type: ignore[arg-type]
