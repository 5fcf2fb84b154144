"""Runs a coordinator machine over real workers: messages and timers in, commands out. Holds no policy.

The loop sleeps until a message or the next timer. A message that the fence refuses never reaches the machine.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Protocol

from flegel.errors import WorkerLost
from flegel.machine.coordinator import (
    Command,
    Died,
    Done,
    FromWorker,
    Note,
    Send,
    SetTimer,
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

    def handle(self, event: FromWorker | Timer | Died, now: float) -> list[Command]: ...


def drive(machine: Machine, cluster: LocalCluster, watch: Callable[[], None] | None = None, last: bool = True) -> None:
    """Until the machine is done; raises what made it fail. `watch` is called now and then, for displays.

    Unless this is the `last` machine of a job, the workers keep what they have read.
    """
    Drive(machine, cluster, watch).run(last)


class Drive:
    """One job on its way."""

    def __init__(self, machine: Machine, cluster: LocalCluster, watch: Callable[[], None] | None) -> None:
        self._machine, self._cluster, self._watch = machine, cluster, watch
        self._timers: list[tuple[float, int, Timer]] = []
        self._count = itertools.count()
        self._fence = Fence(cluster.new_job())
        for worker, incarnation in cluster.incarnations().items():
            self._fence.admit(worker, incarnation)
        self._done: Done | None = None
        self._arrays: tuple[Array, ...] = ()
        self._parcel = EMPTY

    def run(self, last: bool = True) -> None:
        over = False
        try:
            self._execute(self._machine.start(clock.now()))
            look_at = clock.now()
            while self._done is None:
                now = clock.now()
                if now >= look_at:
                    look_at = now + LOOK_AROUND
                    self._look_around(now)
                self._fire(now)
                if self._done is not None:
                    break
                due = min(look_at, self._timers[0][0] if self._timers else look_at)
                for envelope, arrays in self._cluster.receive(due - clock.now()):
                    body = envelope.body
                    if self._fence.refuse(envelope) is None and not isinstance(body, Hello):
                        event = FromWorker(envelope.worker, body, arrays)  # type: ignore[arg-type]
                        self._execute(self._machine.handle(event, clock.now()))
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
        if self._watch:
            self._watch()

    def _fire(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now and self._done is None:
            timer = heapq.heappop(self._timers)[2]
            self._execute(self._machine.handle(timer, clock.now()))

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
                case Done():
                    self._done = command

    def _send(self, worker: int, body: Order) -> None:
        try:
            self._cluster.send(worker, body, self._parcel)
        except WorkerLost as lost:
            self._execute(self._machine.handle(Died(worker, lost.why), clock.now()))
