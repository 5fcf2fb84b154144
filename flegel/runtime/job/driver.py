"""Runs a coordinator machine over real workers: messages and timers in, commands out. Holds no policy.

The loop sleeps until a message, the end of a process or the next timer. A message that the fence refuses never reaches
the machine, and a worker that speaks although it was expelled is told to end.
"""

from __future__ import annotations

import gc
import heapq
import itertools
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.errors import WorkerLost
from flegel.machine.coordinator.events import (
    Command,
    Done,
    Event,
    EvictWorker,
    FromWorker,
    Milestone,
    Note,
    PartCommand,
    Send,
    SetTimer,
    StartWorker,
    Timer,
    WorkerDied,
    WorkerJoined,
)
from flegel.machine.fencing import Fence
from flegel.messages import Envelope, Hello
from flegel.runtime import clock
from flegel.runtime.processes.blas_threads import by_one_thread
from flegel.runtime.processes.cluster_protocol import Cluster
from flegel.runtime.system.signals import DeferredSignals
from flegel.runtime.transport import zmq_frames
from flegel.runtime.transport.codec import EMPTY, PackedArrays

_log = logging.getLogger(__name__)


class Machine(Protocol):
    """What can be driven: a coordinator, or the `MomentsCollector` that runs before it."""

    notes: list[str]

    def start(self, now: float) -> list[Command]: ...

    def handle(self, event: Event, now: float) -> list[Command]: ...

    def rest(self) -> None:
        """No message is waiting: time for postponed work."""
        ...


@dataclass(frozen=True)
class Ports:
    """What parts of a job have to do with its loop; every call returns at once."""

    commands: Mapping[type, Callable[[Any], None]] = field(default_factory=dict)
    """Who carries out commands that only a part understands, by their class."""
    arrivals: Sequence[Callable[[], Iterable[Event]]] = ()
    """Asked for events whenever the loop wakes up."""
    asks: Sequence[Callable[[], Iterable[Event]]] = ()
    """Asked for events at each look around, ten times a second."""


def drive(
    machine: Machine,
    cluster: Cluster,
    watch: Callable[[], None] | None = None,
    last: bool = True,
    *,
    ports: Ports | None = None,
    shift: float = 0.0,
) -> None:
    """Until the machine is done; raises what made it fail. `watch` is called ten times a second and at
    milestones, for observers.

    Unless this is the `last` machine of a job, the workers keep what they have read. `ports`: of the job's parts. The
    machine's clock is this one's plus `shift`: a resumed job's goes on where it stood.
    """
    JobDriver(machine, cluster, watch, ports, shift).run(last)


class GarbageCollection:
    """Python's garbage collector, which rests while messages come.

    A barrier of a thousand workers makes some ten thousand objects that live until it is over. To look through them in
    the middle of it finds nothing, and everybody waits meanwhile.
    """

    def __init__(self) -> None:
        self._rests = False

    def rest(self) -> None:
        if not self._rests and gc.isenabled():
            self._rests = True
            gc.disable()

    def work(self) -> None:
        if self._rests:
            self._rests = False
            gc.enable()


class JobDriver:
    """One job on its way."""

    def __init__(
        self,
        machine: Machine,
        cluster: Cluster,
        watch: Callable[[], None] | None,
        ports: Ports | None = None,
        shift: float = 0.0,
    ) -> None:
        self._ports = ports or Ports()
        self._machine, self._cluster, self._watch = machine, cluster, watch
        self._shift = shift
        self._timers: list[tuple[float, int, Timer]] = []
        self._count = itertools.count()
        self._fence = Fence(cluster.new_job())
        for worker, incarnation in cluster.incarnations().items():
            self._fence.admit(worker, incarnation)
        self._hired: set[int] = set()
        self._unreachable: dict[int, tuple[float, str]] = {}
        self._spare_at: float | None = None
        self._next: deque[Event] = deque()
        self._done: Done | None = None
        self._arrays: tuple[Array, ...] = ()
        self._parcel = EMPTY
        self._collector = GarbageCollection()
        self._signals = DeferredSignals()
        self._look_at = self._rested_at = self._now()
        self._rest_at = math.inf
        self.stale = 0
        """Messages of former lives that were refused."""

    def _now(self) -> float:
        return clock.now() + self._shift

    def run(self, last: bool = True) -> None:
        with by_one_thread(), self._signals:
            self._run(last)
        if self._watch:
            self._watch()

    def _run(self, last: bool) -> None:
        """The loop: deliver signals, deaths, timers and messages to the coordinator, and carry out what it commands,
        until it is done."""
        over = False
        try:
            self._execute(self._machine.start(self._now()))
            self._follow_up()
            woken = True
            while self._done is None:
                self._signals.deliver()
                now = self._now()
                if woken or now >= self._look_at:  # not after each message: it is a look at every process
                    self._bury(now)
                if now >= self._look_at:
                    self._look_at = now + active().liveness.driver_check_seconds
                    self._look_around(now)
                if now >= self._rest_at:
                    self._rest(now)
                self._fire(now)
                for arrivals in self._ports.arrivals:
                    for news in arrivals():
                        self._tell(news)
                if self._done is not None:
                    break
                woken = not self._hear()
            over = self._done is not None and self._done.error is None
        finally:
            self._collector.work()
            if last or not over:
                self._cluster.end_job()
        if self._done.error is not None:
            raise self._done.error

    def _due(self) -> float:
        """When there is something to do besides listening."""
        return min(self._look_at, self._rest_at, self._timers[0][0] if self._timers else self._look_at)

    def _hear(self) -> int:
        """What has arrived, after waiting for it; how many messages. Without any, something else woke us.

        Not all of it where something else is due: workers that are quicker than their coordinator never pause.
        """
        messages = 0
        for envelope, arrays in self._cluster.receive(self._due() - self._now()):
            if not messages:
                self._collector.rest()
            messages += 1
            self._take(envelope, arrays)
            if self._done is not None or self._now() >= self._due():
                break
        if messages:
            self._rest_at = self._now() + active().liveness.quiet_seconds
        return messages

    def _rest(self, now: float) -> None:
        self._rest_at, self._rested_at = math.inf, now
        self._machine.rest()
        self._collector.work()

    def _take(self, envelope: Envelope, arrays: tuple[Array, ...]) -> None:
        body = envelope.body
        if type(body) is Hello:
            if self._cluster.accept_hello(envelope) and envelope.worker in self._hired:
                self._admit(envelope.worker)
                self._follow_up()
        elif self._fence.refuse(envelope) is None:
            self._tell(FromWorker(envelope.worker, body, arrays))  # type: ignore[arg-type]
        elif envelope.incarnation != self._fence.speaker(envelope.worker) and envelope.job == self._fence.job:
            self.stale += 1
            self._cluster.dismiss(envelope)

    def _tell(self, event: Event) -> None:
        """What follows from an event; what follows from that comes after it, never in the middle."""
        if self._done is None and (commands := self._ask(event)):
            self._execute(commands)
        if self._next:
            self._follow_up()

    def _ask(self, event: Event) -> list[Command]:
        """What the machine answers. Its hooks are the user's and may take for ever: Ctrl-C need not wait for them."""
        signals = self._signals
        try:
            signals.open = True
            if signals.came:
                signals.deliver()
            return self._machine.handle(event, clock.now() + self._shift)
        finally:
            signals.open = False

    def _follow_up(self) -> None:
        while self._next and self._done is None:
            self._execute(self._ask(self._next.popleft()))

    def _bury(self, now: float) -> None:
        for worker, why, fault in self._cluster.deaths():
            self._fence.expel(worker)
            self._cluster.evict(worker)
            self._unreachable.pop(worker, None)
            self._tell(WorkerDied(worker, why, fault))
        for worker, (since, why) in list(self._unreachable.items()):
            if now - since > active().liveness.disconnected_seconds:
                del self._unreachable[worker]
                self._tell(WorkerDied(worker, why))

    def _look_around(self, now: float) -> None:
        """What is done ten times a second and not after each message: requests of the cluster, questions of parts,
        observers."""
        if now - self._rested_at > active().liveness.longest_deferral_seconds:
            self._rest(now)
        for request in self._cluster.take_requests():
            self._tell(request)
        for ask in self._ports.asks:
            for event in ask():
                self._tell(event)
        if self._spare_at is not None and now >= self._spare_at:
            self._spare_at = None
            self._cluster.prepare_spare()
        if self._watch:
            try:
                self._signals.open = True  # it is the user's, as hooks are
                self._watch()
            finally:
                self._signals.open = False

    def _fire(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now and self._done is None:
            self._tell(heapq.heappop(self._timers)[2])

    def _execute(self, commands: list[Command]) -> None:
        """Carry out commands. Sending comes first, because most commands are messages; θ for many workers is packed
        once."""
        send = self._cluster.send
        for command in commands:
            if type(command) is Send:
                if command.arrays is not self._arrays:  # θ goes to everybody: made ready once
                    self._arrays, self._parcel = (
                        command.arrays,
                        PackedArrays(command.arrays).broadcast(zmq_frames.shared),
                    )
                try:
                    send(command.worker, command.body, self._parcel)
                except WorkerLost as lost:
                    self._unsent(command.worker, lost)
                continue
            match command:
                case SetTimer(at, timer):
                    heapq.heappush(self._timers, (at, next(self._count), timer))
                case StartWorker(worker):
                    self._hire(worker)
                case EvictWorker(worker, why, gently):
                    self._hired.discard(worker)
                    self._unreachable.pop(worker, None)
                    self._fence.expel(worker)
                    self._cluster.evict(worker, gently)
                    self._machine.notes.append(f"worker {worker} {why}")
                    _log.info("worker %d %s", worker, why, extra={"worker": worker})
                case Note(text):
                    self._machine.notes.append(text)
                    _log.info(text)
                case Milestone(what):
                    _log.info("milestone: %s", what)
                    self._look_at = -math.inf  # observers see it at once, and not at their next turn
                case Done():
                    self._done = command
                case PartCommand():
                    self._ports.commands[type(command)](command)

    def _hire(self, worker: int) -> None:
        self._hired.add(worker)
        try:
            if self._cluster.start_worker(worker):
                self._admit(worker)
        except (WorkerLost, OSError) as error:
            self._hired.discard(worker)
            self._next.append(WorkerDied(worker, f"could not be started ({error})"))

    def _admit(self, worker: int) -> None:
        self._hired.discard(worker)
        _log.info("worker %d joins", worker, extra={"worker": worker})
        self._fence.admit(worker, self._cluster.incarnations()[worker])
        self._spare_at = self._now() + active().liveness.spare_start_delay_seconds
        self._next.append(WorkerJoined(worker))

    def _unsent(self, worker: int, lost: WorkerLost) -> None:
        if self._fence.speaker(worker) is not None:  # soon its death will be noticed, and its cause
            self._unreachable.setdefault(worker, (self._now(), lost.why))
