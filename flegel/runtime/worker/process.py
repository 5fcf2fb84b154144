"""A worker process: this I/O thread owns the socket and the machine, a second thread trains.

It learns everything from one line on standard input (where to connect, who it is), and ends when that pipe closes:
a worker cannot outlive the process that started it. The I/O thread sleeps in `select` nearly always, so that the
trainer never waits for the GIL.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from functools import lru_cache, partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from flegel.errors import DecodeError, FlegelError
from flegel.machine.worker import worker as machine
from flegel.machine.worker.point_store import PointStore
from flegel.messages import (
    Answer,
    CheckpointPart,
    Hello,
    LoadShard,
    MeasureMoments,
    Report,
    ShardLoaded,
    States,
    WorkerBeat,
)
from flegel.runtime import clock
from flegel.runtime.processes.parent_death import die_with_parent
from flegel.runtime.transport import job_sockets, zmq_frames
from flegel.runtime.transport.codec import PackedArrays, Sequencer, decode
from flegel.runtime.transport.curve import private_bytes
from flegel.runtime.transport.poller import Poller
from flegel.runtime.transport.shared_buffers import BufferWriter
from flegel.runtime.worker import current_hook
from flegel.runtime.worker.mover import Mover
from flegel.runtime.worker.trainer import Trainer

BEAT = 1.0
CONTACT = 60.0  # seconds until a worker that reached nobody ends


class WorkerConfig(msgspec.Struct, forbid_unknown_fields=True):
    """What a worker is told on its standard input."""

    address: str
    token: str
    worker: int
    incarnation: int
    keys: job_sockets.JobKeys | None = None
    """For a coordinator on any host; without them it is the parent of this process."""


class WorkerProcess:
    """The thin shell around the worker machine."""

    def __init__(self, birth: WorkerConfig) -> None:
        self._birth = birth
        self._doors = job_sockets.enter(birth.keys)
        self._contact: ConnectionMonitor | None = None
        own = identity(birth.worker, birth.incarnation)
        self._socket = self._doors.to_coordinator(birth.address, own, self._watch_over)
        self._voice = Sequencer(birth.token, 0, birth.worker, birth.incarnation)
        self._heard = -1
        self._seat: BufferWriter | None = None
        self._machine = machine.Worker()
        self._trainer = Trainer()
        self._mover = Mover(self._doors, self._trainer, birth.address, birth.worker, birth.incarnation)
        self._collected: SimpleQueue[tuple[str, States | CheckpointPart, tuple[Any, ...]]] = SimpleQueue()
        self._timer: tuple[float, int] | None = None
        self._beat_at = clock.now()
        self._alive = True

    def _watch_over(self, line: zmq.Socket[bytes]) -> None:
        """From before the first event: a connection that was made unseen could not be seen to break."""
        if self._birth.keys is not None:
            self._contact = ConnectionMonitor(line)

    def run(self) -> None:
        self._say(Hello(os.getpid(), socket.gethostname()))
        parent = sys.stdin.fileno()
        bell = self._trainer.wakeup
        sleeper = Poller(self._socket, (bell, parent))
        while self._alive:
            now = clock.now()
            due = min(self._beat_at, self._timer[0] if self._timer else float("inf"))
            pipes = sleeper.wait(due - now)
            if parent in pipes and not os.read(parent, 4096):
                break
            if bell in pipes:
                os.read(bell, 4096)
                self._take_results()
            self._receive()
            self._tick(clock.now())
        self._mover.quit()
        self._trainer.quit()
        if self._contact is not None:
            self._contact.close()
        self._socket.close()
        self._doors.close()
        if self._trainer.busy:  # the compiler's own end would trip over a thread that is still compiling
            os._exit(0)

    def _tick(self, now: float) -> None:
        if self._timer and now >= self._timer[0]:
            tag = self._timer[1]
            self._timer = None
            self._do(self._machine.handle(machine.OwnTimer(tag), now))
        if now >= self._beat_at:
            self._beat_at = now + BEAT
            self._say(WorkerBeat(self._trainer.visits, current_hook.current()))
            if self._contact is not None and (why := self._contact.lost(now)):
                print(f"flegel worker {self._birth.worker}: {why}; it ends.", file=sys.stderr)
                self._alive = False

    def _take_results(self) -> None:
        while not self._trainer.results.empty():
            self._do(self._machine.handle(self._trainer.results.get(), clock.now()))
        while not self._collected.empty():
            job, answer, arrays = self._collected.get()
            if job == self._voice.job:
                self._say(answer, arrays)
        while not self._mover.answers.empty():
            job, body = self._mover.answers.get()
            if job == self._voice.job:
                self._say(body)

    def _receive(self) -> None:
        while True:
            try:
                parts = zmq_frames.receive(self._socket)
            except zmq.Again:
                return
            try:
                envelope, arrays = decode(parts, self._seat.rooms if self._seat else ())
            except DecodeError as error:
                print(f"flegel worker {self._birth.worker}: dropped a message: {error}", file=sys.stderr)
                continue
            mine = (envelope.worker, envelope.incarnation) == (self._birth.worker, self._birth.incarnation)
            new_job = isinstance(envelope.body, LoadShard | MeasureMoments) and envelope.job.startswith(
                self._birth.token
            )
            if not mine or envelope.sequence <= self._heard or not (new_job or envelope.job == self._voice.job):
                continue
            self._heard = envelope.sequence
            if new_job:
                self._voice.job, self._voice.epoch = envelope.job, envelope.epoch
                self._take_seat(envelope.body)
            self._arrays = arrays
            self._do(self._machine.handle(machine.OrderReceived(envelope.body, arrays), clock.now()))  # type: ignore[arg-type]

    def _do(self, commands: list[machine.Command]) -> None:
        for command in commands:
            match command:
                case machine.BeginLoad():
                    self._trainer.order(command, self._arrays)
                case machine.BeginTrain() | machine.BeginMoments() | machine.ReassignPoints():
                    self._trainer.order(command)
                case machine.DropShard():
                    self._seat = None
                    self._mover.post(self._voice.job, command)
                    self._trainer.order(command)
                case machine.BeginMove(order):
                    self._mover.post(self._voice.job, order)
                case machine.ApplyOwnership(settle):
                    self._trainer.order(command)
                    if settle.closed:
                        self._mover.post(self._voice.job, settle)
                case machine.RaiseFlag():
                    self._trainer.halt()
                case machine.SendReply(body, with_changes, arrays):
                    self._say(body, self._changes() if with_changes else arrays)
                case machine.SendState():
                    holdings = self._trainer.holdings
                    assert holdings is not None
                    self._trainer.afterwards(holdings, self._collect)
                case machine.CheckpointState(number):
                    holdings = self._trainer.holdings
                    assert holdings is not None
                    self._trainer.afterwards(holdings, partial(self._keep, number))
                case machine.SetOwnTimer(at, round_):
                    self._timer = (at, round_)
                case machine.Quit():
                    self._alive = False

    def _collect(self, holdings: PointStore) -> None:
        """In the trainer thread, which alone may look at holdings as a whole."""
        self._collected.put((self._voice.job, States(), holdings.collect()))
        self._trainer.ring()

    def _keep(self, number: int, _: PointStore) -> None:
        """In the trainer thread, between two rounds: a copy, which is sent while training goes on."""
        kept, arrays = self._trainer.keep(number)
        self._collected.put((self._voice.job, kept, arrays))
        self._trainer.ring()

    def _changes(self) -> tuple[Any, ...]:
        from flegel.core import pytree

        return tuple(pytree.flatten(self._trainer.aggregator))

    def _take_seat(self, order: object) -> None:
        self._seat = None
        if isinstance(order, LoadShard) and order.board is not None:
            with contextlib.suppress(OSError, DecodeError):  # then arrays travel
                self._seat = BufferWriter(order.board)

    def _say(self, body: Answer, arrays: tuple[Any, ...] = ()) -> None:
        parcel = PackedArrays(arrays)
        if self._seat is not None:
            if type(body) is Report:
                parcel = self._seat.put(parcel)
            elif type(body) is ShardLoaded:
                body = msgspec.structs.replace(body, board=True)
        try:
            zmq_frames.send(self._socket, self._voice.wrap(body, parcel))
        except zmq.Again:
            print(f"flegel worker {self._birth.worker}: the coordinator reads nothing; it ends.", file=sys.stderr)
            self._alive = False


class ConnectionMonitor:
    """Watches the one connection of a worker whose coordinator may be on another host.

    Messages are lost with a connection, so it is never made a second time: the worker ends, and comes back as a new
    one. That is also how it notices that its coordinator has died.
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_DISCONNECTED
        self._monitor = socket.get_monitor_socket(events)
        self._until = clock.now() + CONTACT
        self._made = False

    def lost(self, now: float) -> str:
        """Why there is no coordinator to work for; empty while there is."""
        while int(self._monitor.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            event = recv_monitor_message(self._monitor, zmq.NOBLOCK)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._made = True
            elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                return "the coordinator does not know its key (any more)"
            elif self._made:
                return "the connection to the coordinator broke"
        return "" if self._made or now < self._until else f"no coordinator answered within {CONTACT:.0f} s"

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)


@lru_cache(maxsize=1 << 14)
def identity(worker: int, incarnation: int) -> bytes:
    """The name under which a life of a worker dials. Asked twice for every message."""
    return f"{worker}.{incarnation}".encode()


def main() -> None:
    """Entry point of the process."""
    if len(sys.argv) < 2:
        die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    sys.setswitchinterval(0.0005)
    try:
        birth = msgspec.json.decode(_told(), type=WorkerConfig)
    except (FlegelError, msgspec.MsgspecError) as error:
        print(f"flegel worker: {error}", file=sys.stderr)
        sys.exit(2)
    os.dup2(sys.stderr.fileno(), 1)  # what hooks print must not mix with the parent's own output
    WorkerProcess(birth).run()


def _told() -> bytes:
    """The birth of this process: from a file that only its owner can read, or from standard input.

    Never from the command line, which everybody on this host can read.
    """
    if len(sys.argv) == 2:
        return private_bytes(Path(sys.argv[1]))
    return _first_line()


def _first_line() -> bytes:
    """One line, byte by byte, so that nothing after it is swallowed by a buffer."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit(1)
        line += byte
    return line


if __name__ == "__main__":
    main()
