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
from flegel.errors import WorkerLost, in_words
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
    release_rows: bool = True,
    *,
    ports: Ports | None = None,
    shift: float = 0.0,
) -> None:
    """Run a state machine on a cluster until it is done; raises the error that made it fail.

    `watch` is called ten times a second and at milestones, for observers. `release_rows`: workers forget the rows they
    have read when the machine is done; False where another machine of the same job follows. `ports`: of the job's
    parts. The machine's clock is this one's plus `shift`: the clock of a resumed job continues where it stood.
    """
    JobDriver(machine, cluster, watch, ports, shift).run(release_rows)


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
    """The loop of one job: feeds its state machine with events and carries out its commands."""

    def __init__(
        self,
        machine: Machine,
        cluster: Cluster,
        watch: Callable[[], None] | None,
        ports: Ports | None = None,
        shift: float = 0.0,
    ) -> None:
        """`watch`: called when observers may look. `ports`: of the parts of the job. `shift`: seconds that a resumed
        job has trained before."""
        self._ports = ports or Ports()
        self._machine, self._cluster, self._show_observers = machine, cluster, watch
        self._seconds_before_resume = shift
        self._timers: list[tuple[float, int, Timer]] = []
        """A heap: when, a number that keeps timers of the same time in order, the timer."""
        self._timer_order = itertools.count()
        self._fence = Fence(cluster.new_job())
        for worker, incarnation in cluster.incarnations().items():
            self._fence.admit(worker, incarnation)
        self._awaiting_hello: set[int] = set()
        """Workers whose process was started and has not said `Hello`."""
        self._unreachable: dict[int, tuple[float, str]] = {}
        """Workers that no message could be sent to: since when, and why."""
        self._prepare_spare_at: float | None = None
        """When the cluster is to start a spare process, after a worker joined."""
        self._queued_events: deque[Event] = deque()
        """Events that commands caused; the machine hears them after the present event."""
        self._end_of_job: Done | None = None
        self._last_arrays: tuple[Array, ...] = ()
        self._packed_arrays = EMPTY
        """The arrays that were sent last, and how they are packed: the same θ goes to many workers."""
        self._collector = GarbageCollection()
        self._signals = DeferredSignals()
        self._look_at = self._paused_at = self._now()
        """When to look around next; when the machine last had a pause for postponed work."""
        self._pause_at = math.inf
        """When a pause begins, if no message arrives before."""
        self.stale = 0
        """Messages of former incarnations of workers that were refused."""

    def _now(self) -> float:
        return clock.now() + self._seconds_before_resume

    def run(self, release_rows: bool = True) -> None:
        """Run the loop until the machine is done, with signals deferred while the engine is at work."""
        with by_one_thread(), self._signals:
            self._run(release_rows)
        if self._show_observers:
            self._show_observers()

    def _run(self, release_rows: bool) -> None:
        """The loop: deliver signals, deaths, timers and messages to the coordinator, and carry out what it commands,
        until it is done."""
        over = False
        try:
            self._execute(self._machine.start(self._now()))
            self._follow_up()
            woken = True
            while self._end_of_job is None:
                self._signals.deliver()
                now = self._now()
                if woken or now >= self._look_at:  # not after each message: it is a look at every process
                    self._report_deaths(now)
                if now >= self._look_at:
                    self._look_at = now + active().liveness.driver_check_seconds
                    self._look_around(now)
                if now >= self._pause_at:
                    self._use_pause(now)
                self._fire_timers(now)
                for arrivals in self._ports.arrivals:
                    for news in arrivals():
                        self._deliver(news)
                if self._end_of_job is not None:
                    break
                woken = not self._receive()
            over = self._end_of_job is not None and self._end_of_job.error is None
        finally:
            self._collector.work()
            if release_rows or not over:
                self._cluster.end_job()
        if self._end_of_job.error is not None:
            raise self._end_of_job.error

    def _due(self) -> float:
        """When there is something to do besides listening."""
        return min(self._look_at, self._pause_at, self._timers[0][0] if self._timers else self._look_at)

    def _receive(self) -> int:
        """Wait for messages and deliver them; returns how many there were. 0: something else ended the wait.

        Messages that are left when something else is due come later: workers that are quicker than their coordinator
        never pause.
        """
        messages = 0
        for envelope, arrays in self._cluster.receive(self._due() - self._now()):
            if not messages:
                self._collector.rest()
            messages += 1
            self._take_message(envelope, arrays)
            if self._end_of_job is not None or self._now() >= self._due():
                break
        if messages:
            self._pause_at = self._now() + active().liveness.quiet_seconds
        return messages

    def _use_pause(self, now: float) -> None:
        """No message has come for a moment: time for postponed work of the machine, and for garbage collection."""
        self._pause_at, self._paused_at = math.inf, now
        self._machine.rest()
        self._collector.work()

    def _take_message(self, envelope: Envelope, arrays: tuple[Array, ...]) -> None:
        """Deliver one message to the machine: a `Hello` admits the worker that was waited for; messages of former
        incarnations are refused and their sender is told to end."""
        body = envelope.body
        if type(body) is Hello:
            if self._cluster.accept_hello(envelope) and envelope.worker in self._awaiting_hello:
                self._admit(envelope.worker)
                self._follow_up()
        elif self._fence.refuse(envelope) is None:
            self._deliver(FromWorker(envelope.worker, body, arrays))  # type: ignore[arg-type]
        elif envelope.incarnation != self._fence.speaker(envelope.worker) and envelope.job == self._fence.job:
            self.stale += 1
            self._cluster.dismiss(envelope)

    def _deliver(self, event: Event) -> None:
        """Tell the machine of an event and carry out its commands; events that these cause come after it, never in the
        middle."""
        if self._end_of_job is None and (commands := self._machine_answer(event)):
            self._execute(commands)
        if self._queued_events:
            self._follow_up()

    def _machine_answer(self, event: Event) -> list[Command]:
        """The commands of the machine for an event. It calls hooks of the user, which may take for ever: Ctrl-C does
        not wait for them."""
        signals = self._signals
        try:
            signals.open = True
            if signals.pending_signals:
                signals.deliver()
            return self._machine.handle(event, clock.now() + self._seconds_before_resume)
        finally:
            signals.open = False

    def _follow_up(self) -> None:
        while self._queued_events and self._end_of_job is None:
            self._execute(self._machine_answer(self._queued_events.popleft()))

    def _report_deaths(self, now: float) -> None:
        """Tell the machine of processes that have ended, and of workers that were unreachable for
        `liveness.disconnected_seconds`."""
        for worker, why, fault in self._cluster.deaths():
            self._fence.expel(worker)
            self._cluster.evict(worker)
            self._unreachable.pop(worker, None)
            self._deliver(WorkerDied(worker, why, fault))
        for worker, (since, why) in list(self._unreachable.items()):
            if now - since > active().liveness.disconnected_seconds:
                del self._unreachable[worker]
                self._deliver(WorkerDied(worker, why))

    def _look_around(self, now: float) -> None:
        """What is done ten times a second and not after each message: requests of the cluster, questions of parts,
        observers."""
        if now - self._paused_at > active().liveness.longest_deferral_seconds:
            self._use_pause(now)
        for request in self._cluster.take_requests():
            self._deliver(request)
        for ask in self._ports.asks:
            for event in ask():
                self._deliver(event)
        if self._prepare_spare_at is not None and now >= self._prepare_spare_at:
            self._prepare_spare_at = None
            self._cluster.prepare_spare()
        if self._show_observers:
            try:
                self._signals.open = True  # it is the user's, as hooks are
                self._show_observers()
            finally:
                self._signals.open = False

    def _fire_timers(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now and self._end_of_job is None:
            self._deliver(heapq.heappop(self._timers)[2])

    def _execute(self, commands: list[Command]) -> None:
        """Carry out commands. Sending comes first, because most commands are messages; θ for many workers is packed
        once."""
        send = self._cluster.send
        for command in commands:
            if type(command) is Send:
                if command.arrays is not self._last_arrays:  # θ goes to everybody: made ready once
                    self._last_arrays, self._packed_arrays = (
                        command.arrays,
                        PackedArrays(command.arrays).broadcast(zmq_frames.shared),
                    )
                try:
                    send(command.worker, command.body, self._packed_arrays)
                except WorkerLost as lost:
                    self._note_unreachable(command.worker, lost)
                continue
            match command:
                case SetTimer(at, timer):
                    heapq.heappush(self._timers, (at, next(self._timer_order), timer))
                case StartWorker(worker):
                    self._start_worker(worker)
                case EvictWorker(worker, why, gently):
                    self._awaiting_hello.discard(worker)
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
                    self._end_of_job = command
                case PartCommand():
                    self._ports.commands[type(command)](command)

    def _start_worker(self, worker: int) -> None:
        """Have the cluster start a process for this worker. It joins at once, or when its `Hello` arrives; where it
        cannot be started, the machine hears that it died."""
        self._awaiting_hello.add(worker)
        try:
            if self._cluster.start_worker(worker):
                self._admit(worker)
        except (WorkerLost, OSError) as error:
            self._awaiting_hello.discard(worker)
            self._queued_events.append(WorkerDied(worker, f"could not be started ({in_words(error)})"))

    def _admit(self, worker: int) -> None:
        self._awaiting_hello.discard(worker)
        _log.info("worker %d joins", worker, extra={"worker": worker})
        self._fence.admit(worker, self._cluster.incarnations()[worker])
        self._prepare_spare_at = self._now() + active().liveness.spare_start_delay_seconds
        self._queued_events.append(WorkerJoined(worker))

    def _note_unreachable(self, worker: int, lost: WorkerLost) -> None:
        if self._fence.speaker(worker) is not None:  # soon its death will be noticed, and its cause
            self._unreachable.setdefault(worker, (self._now(), lost.why))
