"""A worker as a state machine: orders in, commands to its trainer and answers out.

Life cycle:   idle → loading → ready ⇄ training → (idle) → gone
It keeps the time account (computing, responding, waiting) from the times that its events carry. It never touches
a socket, a thread or an array of data.
"""

from __future__ import annotations

from dataclasses import dataclass

from flegel.messages import Answer, Exit, Failed, Fetch, Load, Loaded, Order, Release, Report, Stop, Train
from flegel.tree import Array

# -- events ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ordered:
    body: Order
    arrays: tuple[Array, ...] = ()


@dataclass(frozen=True)
class ShareReady:
    loaded: Loaded


@dataclass(frozen=True)
class TrainerDone:
    """The kernel returned."""

    visits: int
    exhausted: bool
    unseen: int
    halted: int
    compute: float
    began: float
    ended: float


@dataclass(frozen=True)
class Broke:
    """Loading or a hook raised."""

    failed: Failed


@dataclass(frozen=True)
class OwnTimer:
    round: int


# -- commands ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BeginLoad:
    load: Load


@dataclass(frozen=True)
class BeginTrain:
    round: int
    points: int
    arrays: tuple[Array, ...]


@dataclass(frozen=True)
class RaiseFlag:
    pass


@dataclass(frozen=True)
class Reply:
    """Send it; `with_changes` attaches the aggregator, `with_state` the hidden state."""

    body: Answer
    with_changes: bool = False


@dataclass(frozen=True)
class SendState:
    pass


@dataclass(frozen=True)
class SetOwnTimer:
    at: float
    round: int


@dataclass(frozen=True)
class Forget:
    """Drop the share."""


@dataclass(frozen=True)
class Quit:
    pass


Command = BeginLoad | BeginTrain | RaiseFlag | Reply | SendState | SetOwnTimer | Forget | Quit


class Worker:
    """Feed it events; carry out what it returns."""

    def __init__(self) -> None:
        self.phase = "idle"
        self.round = -1
        self._told_at = 0.0
        self._stop_at: float | None = None
        self._reported_at: float | None = None
        self._wait = 0.0
        self._stray = 0
        """Results that the trainer still owes to jobs that are over."""

    def handle(self, event: Ordered | ShareReady | TrainerDone | Broke | OwnTimer, now: float) -> list[Command]:
        match event:
            case Ordered(body, arrays):
                return self._order(body, arrays, now)
            case ShareReady() | TrainerDone() | Broke() if self._stray:
                self._stray -= 1
            case ShareReady(loaded) if self.phase == "loading":
                self.phase = "ready"
                return [Reply(loaded)]
            case TrainerDone() if self.phase == "training":
                return self._commit(event, now)
            case OwnTimer(round=wanted) if self.phase == "training" and wanted == self.round:
                return self._raise(now)
            case Broke(failed):
                self.phase = "idle"
                return [Reply(failed)]
        return []

    def _order(self, body: Order, arrays: tuple[Array, ...], now: float) -> list[Command]:
        match body:
            case Load() if self.phase in ("idle", "ready"):
                self.phase, self.round, self._reported_at = "loading", -1, None
                return [BeginLoad(body)]
            case Train() if self.phase == "ready" and body.round > self.round:
                return self._begin(body, arrays, now)
            case Stop(round=wanted) if self.phase == "training" and wanted == self.round:
                return self._raise(now)
            case Fetch() if self.phase == "ready":
                return [SendState()]
            case Release():
                busy = self.phase in ("loading", "training")
                self._stray += busy
                self.phase, self.round, self._reported_at = "idle", -1, None
                return [RaiseFlag(), Forget()] if busy else [Forget()]
            case Exit():
                self.phase = "gone"
                return [RaiseFlag(), Quit()]
        return []  # late or doubled: the coordinator has moved on

    def _begin(self, body: Train, arrays: tuple[Array, ...], now: float) -> list[Command]:
        self.phase, self.round = "training", body.round
        self._told_at, self._stop_at = now, None
        self._wait = now - self._reported_at if self._reported_at is not None else 0.0
        commands: list[Command] = [BeginTrain(body.round, body.points, arrays)]
        if body.seconds is not None:
            commands.append(SetOwnTimer(now + body.seconds, body.round))
        return commands

    def _raise(self, now: float) -> list[Command]:
        if self._stop_at is not None:
            return []
        self._stop_at = now
        return [RaiseFlag()]

    def _commit(self, done: TrainerDone, now: float) -> list[Command]:
        self.phase = "ready"
        self._reported_at = now
        asked = self._stop_at if self._stop_at is not None and not done.exhausted else done.ended
        report = Report(
            round=self.round,
            visits=done.visits,
            exhausted=done.exhausted,
            unseen=done.unseen,
            halted=done.halted,
            compute=done.compute,
            respond=max(0.0, done.began - self._told_at) + max(0.0, now - asked),
            wait=self._wait,
        )
        return [Reply(report, with_changes=True)]
