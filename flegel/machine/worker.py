"""A worker as a state machine: orders in, commands to its trainer and answers out.

Life cycle:   idle → loading → ready ⇄ training → (idle) → gone
A worker that was told to linger reports and goes on: training → overtime → turning → training; what it does in
overtime is part of its next report.
It keeps the time account (computing, responding, waiting) from the times that its events carry. It never touches
a socket, a thread or an array of data.
"""

from __future__ import annotations

import msgspec

from flegel.messages import (
    Adopt,
    Answer,
    Census,
    Exit,
    Failed,
    Fetch,
    Give,
    Holding,
    Keep,
    Load,
    Loaded,
    Order,
    Part,
    Release,
    Report,
    Reset,
    Settle,
    Stop,
    Survey,
    Surveyed,
    Take,
    Tending,
    Train,
)
from flegel.tree import Array

# -- events ------------------------------------------------------------------------------------------------


class Ordered(msgspec.Struct, frozen=True):
    body: Order
    arrays: tuple[Array, ...] = ()


class ShareReady(msgspec.Struct, frozen=True):
    loaded: Loaded


class SurveyDone(msgspec.Struct, frozen=True):
    moments: tuple[Array, ...]


class TrainerDone(msgspec.Struct, frozen=True):
    """The kernel returned."""

    visits: int
    exhausted: bool
    unseen: int
    halted: int
    compute: float
    began: float
    ended: float


class Tended(msgspec.Struct, frozen=True):
    """The holdings are as was ordered."""

    body: Holding | None
    arrays: tuple[Array, ...] = ()


class Broke(msgspec.Struct, frozen=True):
    """Loading or a hook raised."""

    failed: Failed


class OwnTimer(msgspec.Struct, frozen=True):
    round: int


# -- commands ----------------------------------------------------------------------------------------------


class BeginSurvey(msgspec.Struct, frozen=True):
    survey: Survey


class BeginLoad(msgspec.Struct, frozen=True):
    load: Load


class BeginTrain(msgspec.Struct, frozen=True):
    """No arrays: go on under the θ of before. `keep`: what is in the aggregator belongs to the coming report.
    `until`: when the worker's own clock ends the round; what will take longer is not begun."""

    round: int
    points: int
    arrays: tuple[Array, ...]
    keep: bool = False
    until: float | None = None


class RaiseFlag(msgspec.Struct, frozen=True):
    pass


class Reply(msgspec.Struct, frozen=True):
    """Send it; `with_changes` attaches the aggregator."""

    body: Answer
    with_changes: bool = False
    arrays: tuple[Array, ...] = ()


class SendState(msgspec.Struct, frozen=True):
    pass


class KeepState(msgspec.Struct, frozen=True):
    """Copy what is held for a checkpoint, behind everything that was ordered before, and send it."""

    number: int


class SetOwnTimer(msgspec.Struct, frozen=True):
    at: float
    round: int


class Move(msgspec.Struct, frozen=True):
    """Begin to take or to give points."""

    order: Take | Give


class Rebook(msgspec.Struct, frozen=True):
    """Ownership of windows changes before the next point is trained."""

    settle: Settle


class Tend(msgspec.Struct, frozen=True):
    """Look after the holdings while nobody trains: count, begin again, give up or take over points."""

    order: Tending
    arrays: tuple[Array, ...]


class Forget(msgspec.Struct, frozen=True):
    """Drop the share."""


class Quit(msgspec.Struct, frozen=True):
    pass


Command = (
    BeginSurvey
    | BeginLoad
    | BeginTrain
    | RaiseFlag
    | Reply
    | SendState
    | KeepState
    | SetOwnTimer
    | Move
    | Rebook
    | Tend
    | Forget
    | Quit
)


class Worker:
    """Feed it events; carry out what it returns."""

    def __init__(self) -> None:
        self.phase = "idle"
        self.round = -1
        self._told_at = 0.0
        self._stop_at: float | None = None
        self._reported_at: float | None = None
        self._wait = 0.0
        self._linger = False
        self._points = 0
        self._extra_visits = 0
        self._extra_compute = 0.0
        self._next: list[tuple[Train | Stop | Fetch | Tending, tuple[Array, ...], float]] = []
        """Orders that came in overtime."""
        self._tending = 0
        self._stray = 0
        """Results that the trainer still owes to jobs that are over."""

    def handle(
        self, event: Ordered | SurveyDone | ShareReady | TrainerDone | Tended | Broke | OwnTimer, now: float
    ) -> list[Command]:
        match event:
            case Ordered(body, arrays):
                return self._order(body, arrays, now)
            case SurveyDone() | ShareReady() | TrainerDone() | Tended() | Broke() if self._stray:
                self._stray -= 1
            case Tended(body, arrays):
                self._tending -= 1
                return self._tended(body, arrays)
            case SurveyDone(moments) if self.phase == "loading":
                self.phase = "idle"
                return [Reply(Surveyed(), arrays=moments)]
            case ShareReady(loaded) if self.phase == "loading":
                self.phase = "ready"
                self._points = loaded.points
                return [Reply(loaded)]
            case TrainerDone() if self.phase == "training":
                return self._commit(event, now)
            case TrainerDone() if self.phase in ("overtime", "turning"):
                return self._end_overtime(event, now)
            case OwnTimer(round=wanted) if self.phase == "training" and wanted == self.round:
                return self._raise(now)
            case Broke(failed):
                self.phase = "idle"
                return [Reply(failed)]
        return []

    def _order(self, body: Order, arrays: tuple[Array, ...], now: float) -> list[Command]:
        match body:
            case Train() if self.phase == "ready" and body.round > self.round:
                return self._begin(body, arrays, now)
            case Stop(round=wanted) if self.phase == "training" and wanted == self.round:
                return self._raise(now)
            case Survey() if self.phase in ("idle", "ready"):
                self.phase = "loading"
                return [BeginSurvey(body)]
            case Load() if self.phase in ("idle", "ready"):
                self.phase, self.round, self._reported_at = "loading", -1, None
                self._extra_visits, self._extra_compute, self._next = 0, 0.0, []
                if body.kept is not None:  # overtime of a former life belongs to the coming report
                    self._extra_visits, self._extra_compute = body.kept.visits, body.kept.compute
                return [BeginLoad(body)]
            case Stop() if self.phase == "turning":
                self._next.append((body, arrays, now))
            case Train() | Fetch() | Census() | Reset() | Part() | Adopt() if self.phase in ("overtime", "turning"):
                self._next.append((body, arrays, now))
                raised, self.phase = self.phase == "turning", "turning"
                return [] if raised else [RaiseFlag()]
            case Fetch() if self.phase == "ready":
                return [SendState()]
            case Keep(number=number) if self.phase in ("ready", "overtime", "turning"):
                return [KeepState(number)]
            case Census() | Reset() | Part() | Adopt() if self.phase == "ready":
                return self._tend(body, arrays)
            case Take() | Give() if self.phase in ("ready", "training"):
                return [Move(body)]
            case Settle() if self.phase in ("ready", "training"):
                return [Rebook(body)]
            case Release():
                busy = self.phase in ("loading", "training", "overtime", "turning")
                self._stray += busy + self._tending
                self._tending, self._next = 0, []
                self.phase, self.round, self._reported_at = "idle", -1, None
                return [RaiseFlag(), Forget()] if busy else [Forget()]
            case Exit():
                self.phase = "gone"
                return [RaiseFlag(), Quit()]
        return []  # late or doubled: the coordinator has moved on

    def _begin(self, body: Train, arrays: tuple[Array, ...], now: float) -> list[Command]:
        self.phase, self.round, self._linger = "training", body.round, body.linger
        self._told_at, self._stop_at = now, None
        idle = now - self._reported_at if self._reported_at is not None else 0.0
        self._wait = max(0.0, idle - self._extra_compute)
        until = None if body.seconds is None else now + body.seconds
        begin = BeginTrain(body.round, body.points, arrays, self._extra_visits > 0, until)
        return [begin] if until is None else [begin, SetOwnTimer(until, body.round)]

    def _raise(self, now: float) -> list[Command]:
        if self._stop_at is not None:
            return []
        self._stop_at = now
        return [RaiseFlag()]

    def _commit(self, done: TrainerDone, now: float) -> list[Command]:
        self.phase = "ready"
        self._reported_at = now
        visits, compute = done.visits + self._extra_visits, done.compute + self._extra_compute
        self._extra_visits, self._extra_compute = 0, 0.0
        asked = self._stop_at if self._stop_at is not None and not done.exhausted else done.ended
        report = Report(
            round=self.round,
            visits=visits,
            exhausted=done.exhausted,
            unseen=done.unseen,
            halted=done.halted,
            compute=compute,
            respond=max(0.0, done.began - self._told_at) + max(0.0, now - asked),
            wait=self._wait,
        )
        left = self._points - done.visits
        if not (self._linger and done.exhausted and left > 0):
            return [Reply(report, with_changes=True)]
        self.phase = "overtime"  # points of this share that θ has not seen yet
        return [Reply(report, with_changes=True), BeginTrain(self.round, left, ())]

    def _end_overtime(self, done: TrainerDone, now: float) -> list[Command]:
        """Overtime is over, because a new order came or because all points are done."""
        self._extra_visits, self._extra_compute = done.visits, done.compute
        self.phase = "ready"
        waiting, self._next = self._next, []
        commands: list[Command] = []
        for body, arrays, came in waiting:
            commands += self._order(body, arrays, now)
            if isinstance(body, Train):
                self._told_at = came
        return commands

    def _tend(self, body: Tending, arrays: tuple[Array, ...]) -> list[Command]:
        self._tending += 1
        if isinstance(body, Reset):  # what overtime brought is part of what is dropped
            self._extra_visits, self._extra_compute = 0, 0.0
        return [Tend(body, arrays)]

    def _tended(self, body: Holding | None, arrays: tuple[Array, ...]) -> list[Command]:
        if body is None:
            return []
        self._points = body.points
        body.traversed -= self._extra_visits  # the next report will tell of these
        return [Reply(body, arrays=arrays)]  # type: ignore[arg-type]
