"""Runs a coordinator machine over real workers: messages and timers in, commands out. Holds no policy.

The loop sleeps until a message or the next timer. A message that the fence refuses never reaches the machine.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Protocol

from flegel.errors import WorkerLost
from flegel.machine.events import (
    Command,
    Commit,
    Died,
    Done,
    Event,
    FromWorker,
    Note,
    Save,
    SavePart,
    Send,
    SetTimer,
    Suspend,
    Timer,
)
from flegel.machine.fence import Fence
from flegel.messages import Hello, Order
from flegel.runtime import clock, frames
from flegel.runtime.local import LocalCluster
from flegel.runtime.wire import EMPTY, Parcel
from flegel.tree import Array

LOOK_AROUND = 0.1  # seconds between two looks at the processes and the display


class Machine(Protocol):
    """What can be driven: a coordinator, or the survey before it."""

    notes: list[str]

    def start(self, now: float) -> list[Command]: ...

    def handle(self, event: Event, now: float) -> list[Command]: ...


class Keeper(Protocol):
    """Takes what belongs into checkpoints, and returns at once."""

    def take(self, command: Save | SavePart | Commit) -> None: ...


def drive(
    machine: Machine,
    cluster: LocalCluster,
    watch: Callable[[], None] | None = None,
    last: bool = True,
    *,
    keeper: Keeper | None = None,
    suspended: Callable[[], str] = lambda: "",
    shift: float = 0.0,
) -> None:
    """Until the machine is done; raises what made it fail. `watch` is called now and then, for displays.

    Unless this is the `last` machine of a job, the workers keep what they have read. `suspended` says why the job
    should stop, if it should. The machine's clock is this one's plus `shift`: a resumed job's goes on where it stood.
    """
    Drive(machine, cluster, watch, keeper, suspended, shift).run(last)


class Drive:
    """One job on its way."""

    def __init__(
        self,
        machine: Machine,
        cluster: LocalCluster,
        watch: Callable[[], None] | None,
        keeper: Keeper | None = None,
        suspended: Callable[[], str] = lambda: "",
        shift: float = 0.0,
    ) -> None:
        self._machine, self._cluster, self._watch = machine, cluster, watch
        self._keeper, self._suspended, self._told = keeper, suspended, False
        self._shift = shift
        self._timers: list[tuple[float, int, Timer]] = []
        self._count = itertools.count()
        self._fence = Fence(cluster.new_job())
        for worker, incarnation in cluster.incarnations().items():
            self._fence.admit(worker, incarnation)
        self._done: Done | None = None
        self._arrays: tuple[Array, ...] = ()
        self._parcel = EMPTY

    def _now(self) -> float:
        return clock.now() + self._shift

    def run(self, last: bool = True) -> None:
        over = False
        try:
            self._execute(self._machine.start(self._now()))
            look_at = self._now()
            while self._done is None:
                now = self._now()
                if now >= look_at:
                    look_at = now + LOOK_AROUND
                    self._look_around(now)
                self._fire(now)
                if self._done is not None:
                    break
                due = min(look_at, self._timers[0][0] if self._timers else look_at)
                for envelope, arrays in self._cluster.receive(due - self._now()):
                    body = envelope.body
                    if self._fence.refuse(envelope) is None and not isinstance(body, Hello):
                        event = FromWorker(envelope.worker, body, arrays)  # type: ignore[arg-type]
                        self._execute(self._machine.handle(event, self._now()))
            over = self._done is not None and self._done.error is None
        finally:
            if last or not over:
                self._cluster.end_job()
        if self._done.error is not None:
            raise self._done.error
        if self._watch:
            self._watch()

    def _look_around(self, now: float) -> None:
        for worker, why in self._cluster.deaths():
            self._execute(self._machine.handle(Died(worker, why), now))
        if not self._told and (why := self._suspended()):
            self._told = True
            self._execute(self._machine.handle(Suspend(why), now))
        if self._watch:
            self._watch()

    def _fire(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now and self._done is None:
            timer = heapq.heappop(self._timers)[2]
            self._execute(self._machine.handle(timer, self._now()))

    def _execute(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Send(worker, body, arrays):
                    if arrays is not self._arrays:  # θ goes to everybody: made ready once
                        self._arrays, self._parcel = arrays, Parcel(arrays).broadcast(frames.shared)
                    self._send(worker, body)
                case SetTimer(at, timer):
                    heapq.heappush(self._timers, (at, next(self._count), timer))
                case Note(text):
                    self._machine.notes.append(text)
                case Save() | SavePart() | Commit():
                    assert self._keeper is not None, "only a job with checkpoints keeps anything"
                    self._keeper.take(command)
                case Done():
                    self._done = command

    def _send(self, worker: int, body: Order) -> None:
        try:
            self._cluster.send(worker, body, self._parcel)
        except WorkerLost as lost:
            self._execute(self._machine.handle(Died(worker, lost.why), self._now()))
