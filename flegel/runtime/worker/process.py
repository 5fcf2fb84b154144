"""A worker: its I/O thread owns the socket and the machine, a second thread trains.

As a process of its own it learns everything from one line on standard input (where to connect, who it is), and ends
when that pipe closes: a worker cannot outlive the process that started it. In a thread of the coordinator's process
(`runtime/processes/thread_cluster.py`) a pipe takes the place of standard input. The I/O thread sleeps in `select`
nearly always, so that the trainer never waits for the GIL.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol, get_args

import msgspec
import zmq

from flegel.configuration.active import active, adopt
from flegel.core.changed_rows import changed_rows
from flegel.core.own_pauses import Deadline
from flegel.core.pytree import Array
from flegel.errors import UNDECODABLE, DecodeError, FlegelError, ProtocolError, UsageError
from flegel.machine.worker import worker as machine
from flegel.machine.worker.executor import WorkerExecutor
from flegel.machine.worker.replica import Replica
from flegel.messages import (
    Answer,
    Hello,
    LoadShard,
    MeasureMoments,
    ReceivePoints,
    ReduceReports,
    Report,
    SendPoints,
    ShardLoaded,
    Train,
    TransferOwnership,
    WorkerBeat,
)
from flegel.params.parameter_changes import HeldParameter
from flegel.params.tree_layout import with_stand_ins
from flegel.runtime import clock, logs
from flegel.runtime.system.exit_codes import DISCONNECTED_EXIT_CODE
from flegel.runtime.system.parent_death import die_with_parent
from flegel.runtime.system.standard_streams import protect
from flegel.runtime.transport import job_sockets, zmq_frames
from flegel.runtime.transport.codec import PackedArrays, Sequencer, decode
from flegel.runtime.transport.curve import private_bytes
from flegel.runtime.transport.poller import Poller
from flegel.runtime.transport.shared_buffers import BufferWriter
from flegel.runtime.transport.shared_memory import open_shared
from flegel.runtime.transport.socket_events import next_event
from flegel.runtime.worker.exchange import PieceExchange
from flegel.runtime.worker.mover import Mover
from flegel.runtime.worker.trainer import BeginFold, Trainer
from flegel.runtime.worker.trainer_port import TrainerPort
from flegel.server_messages import ServeJob, ServerMap, ServerOrder
from flegel.wording import SPEAKS_TO, speak_to

_log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from flegel.runtime.server.shell import ServerShell
    from flegel.runtime.server.worker_side import ServedWorker

SERVER_ORDERS = get_args(ServerOrder)
ABOVE_ALL_FOLD_NUMBERS = 1 << 62  # no fold has a larger number
FIRST_CONTACT_SECONDS = 60.0  # seconds until a worker that reached nobody ends


class WorkerConfig(msgspec.Struct, forbid_unknown_fields=True):
    """What a worker is told on its standard input."""

    address: str
    token: str
    worker: int
    incarnation: int
    keys: job_sockets.JobKeys | None = None
    """For a coordinator on any host; without them it is the parent of this process."""


class CoordinatorProcess(Protocol):
    """What a worker needs of its coordinator where both live in one process."""

    @property
    def context(self) -> zmq.Context[Any]: ...

    def open_array(self, description: dict[str, Any]) -> Array: ...


class WorkerLoop(TrainerPort):
    """The thin shell around the worker machine: what its I/O thread does."""

    def __init__(self, config: WorkerConfig, coordinator_process: CoordinatorProcess | None = None) -> None:
        """`coordinator_process`: what the coordinator offers to workers in threads of its own process."""
        self._config = config
        self._sockets = job_sockets.JobSockets(
            config.keys, coordinator_process.context if coordinator_process else None
        )
        open_array = (
            coordinator_process.open_array if coordinator_process else partial(open_shared, dial=self._sockets.dial)
        )
        self._exchange = PieceExchange(self._sockets, config.address, config.worker, config.incarnation)
        self._trainer = Trainer(open_array, same_process=coordinator_process is not None, exchange=self._exchange)
        place = (config.address, config.worker, config.incarnation)
        self._mover = Mover(self._sockets, self._trainer, *place, same_process=coordinator_process is not None)
        self._posted_answers: SimpleQueue[tuple[str, Answer, tuple[Array, ...]]] = SimpleQueue()
        self._sequencer = Sequencer(config.token, 0, config.worker, config.incarnation)
        self._last_sequence = -1
        """The number of the last message that was taken in."""
        self._buffers: BufferWriter | None = None
        self._parameter = HeldParameter()
        self._poller: Poller | None = None
        self._server: ServerShell | None = None
        """This process is a parameter server in the present job."""
        self._server_client: ServedWorker | None = None
        """This worker's side of the parameter servers that hold θ in the present job; None where none do."""
        self._executor = WorkerExecutor(self, self)
        self._timer: tuple[float, int] | None = None
        """When this worker is to stop by its own clock, and the round in which."""
        self._beat_at = clock.now()
        self._in_job = False
        self._is_running, self._exit_code = True, 0
        self._connection: ConnectionMonitor | None = None
        own = identity(config.worker, config.incarnation)
        self._socket = self._sockets.to_coordinator(config.address, own, self._monitor)

    def _monitor(self, line: zmq.Socket[bytes]) -> None:
        """From before the first event: a connection that was made unseen could not be seen to break."""
        if self._config.keys is not None:
            self._connection = ConnectionMonitor(line)

    @property
    def stuck(self) -> bool:
        """After `run`: the trainer did not end when it was told to."""
        return self._trainer.busy

    def run(self, parent: int) -> int:
        """Run until the coordinator says so, or `parent`, the descriptor of a pipe, closes; returns the exit code."""
        try:
            self.send(Hello(os.getpid(), socket.gethostname()))
            self._listen(parent)
        finally:
            self._leave_servers()
            self._mover.quit()
            self.drop_fold(ABOVE_ALL_FOLD_NUMBERS)
            self._trainer.quit()
            self._exchange.close()
            if self._connection is not None:
                self._connection.close()
            self._socket.close()
            self._sockets.close()
        return self._exit_code

    def _listen(self, parent: int) -> None:
        """The loop of the process: messages, results of the trainer, timers; ends when the parent process is gone."""
        wakeup = self._trainer.wakeup
        poller = self._poller = Poller(self._socket, (wakeup, parent))
        try:
            while self._is_running:
                now = clock.now()
                due = min(self._beat_at, self._timer[0] if self._timer else float("inf"))
                pipes = poller.wait(due - now)
                if parent in pipes and not os.read(parent, 4096):
                    break
                if wakeup in pipes:
                    os.read(wakeup, 4096)
                    self._take_results()
                self._receive()
                if self._server is not None:
                    self._server.receive()
                if self._server_client is not None:
                    self._server_client.receive()
                self._tick(clock.now())
        finally:
            self._leave_servers()
            self._poller = None
            poller.close()

    def _tick(self, now: float) -> None:
        """What is due by time: the timer of the round, the heartbeat, requests to servers that were not answered in
        time, and the end where the coordinator is out of reach."""
        if self._timer and now >= self._timer[0]:
            tag = self._timer[1]
            self._timer = None
            self._executor.handle(machine.OwnTimer(tag), now)
        if now >= self._beat_at:
            self._beat_at = now + active().liveness.heartbeat_seconds
            if self._in_job:  # between jobs nobody reads them, and they would pile up
                self.send(WorkerBeat(self._trainer.visits, self._trainer.hook))
            if self._server_client is not None:
                self._server_client.retry(now)
            if self._connection is not None and (why := self._connection.lost(now)):
                _log.warning("%s; it ends.", why)
                self._is_running, self._exit_code = False, DISCONNECTED_EXIT_CODE

    def _take_results(self) -> None:
        """Pass results of the trainer to the machine, and send answers of trainer and mover; those of an earlier job
        are dropped."""
        while not self._trainer.results.empty():
            self._executor.handle(self._trainer.results.get(), clock.now())
        while not self._posted_answers.empty():
            job, answer, arrays = self._posted_answers.get()
            if job == self._sequencer.job:
                self.send(answer, arrays)
        while not self._mover.answers.empty():
            job, body = self._mover.answers.get()
            if job == self._sequencer.job:
                self.send(body)

    def _receive(self) -> None:
        """Take in all messages that are here. Dropped are those of other jobs, those to a former incarnation of this
        worker, and those with a sequence number that was seen before."""
        while True:
            try:
                parts = zmq_frames.receive(self._socket)
            except zmq.Again:
                return
            try:
                envelope, arrays = decode(parts, self._buffers.slots if self._buffers else ())
            except DecodeError as error:
                _log.warning("dropped a message: %s", error)
                continue
            mine = (envelope.worker, envelope.incarnation) == (self._config.worker, self._config.incarnation)
            new_job = isinstance(envelope.body, LoadShard | MeasureMoments | ServeJob) and envelope.job.startswith(
                self._config.token
            )
            if (
                not mine
                or envelope.sequence <= self._last_sequence
                or not (new_job or envelope.job == self._sequencer.job)
            ):
                continue
            self._last_sequence = envelope.sequence
            if isinstance(envelope.body, LoadShard) and envelope.body.forms:
                arrays = with_stand_ins(envelope.body, arrays)  # zeros of these forms for what was not sent
            elif type(envelope.body) is Train:  # θ, or the rows of it that changed since the version `since`
                try:
                    arrays = self._parameter.take(envelope.body.number, envelope.body.since, arrays)
                except ProtocolError as error:  # to train under a mixture would be worse than to be replaced
                    _log.error("%s; it ends.", str(error).rstrip("."))
                    self._is_running, self._exit_code = False, DISCONNECTED_EXIT_CODE
                    return
            if new_job:
                self._sequencer.job, self._sequencer.epoch = envelope.job, envelope.epoch
                self._in_job, self._beat_at = True, clock.now()
                self._adopt_settings(envelope.body)
                self._open_buffers(envelope.body)
                self._join_servers(envelope.body, arrays)
            if isinstance(envelope.body, SERVER_ORDERS):
                self._order_of_servers(envelope.body, arrays)  # type: ignore[arg-type]
            elif self._server_client is not None:
                self._server_client.order(envelope.body, arrays)  # type: ignore[arg-type]
            else:
                self._executor.order(envelope.body, arrays, clock.now())  # type: ignore[arg-type]

    def _adopt_settings(self, order: object) -> None:
        """For this thread, and for the mover's when it enters the job; the trainer takes them with its shard, and says
        so where it does not know one."""
        if isinstance(order, LoadShard | ServeJob):
            with contextlib.suppress(UsageError):
                adopt(order.settings)
                self._mover.settings = order.settings

    def _join_servers(self, order: object, arrays: tuple[Array, ...]) -> None:
        """A new job: this process serves θ, gets θ from servers, or has nothing to do with them."""
        self._leave_servers()
        poller, identity = self._poller, (self._sequencer.job, self._config.worker, self._config.incarnation)
        assert poller is not None
        if isinstance(order, ServeJob):
            from flegel.runtime.server.shell import ServerShell  # most workers have no servers

            self._server = ServerShell(order, self._sockets, poller, self._config.address, *identity, self.send)
        elif isinstance(order, LoadShard) and order.theta_on_servers:
            from flegel.runtime.server.links import ServerLinks
            from flegel.runtime.server.worker_side import ServedWorker

            links = ServerLinks(self._sockets, poller, *identity)
            self._server_client = ServedWorker(order, arrays, links, self._executor, self._send_now)

    def _leave_servers(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._server_client is not None:
            self._server_client.close()
        self._server = self._server_client = None

    def _order_of_servers(self, body: ServerOrder, arrays: tuple[Array, ...]) -> None:
        if self._server_client is not None and isinstance(body, ServerMap):
            self._server_client.use_map(body)
        elif self._server is not None and not isinstance(body, ServeJob):
            self._server.order(body, arrays)

    def _open_buffers(self, order: object) -> None:
        self._buffers = None
        if isinstance(order, LoadShard) and order.shared_buffers is not None:
            with contextlib.suppress(OSError, DecodeError):  # then arrays travel
                self._buffers = BufferWriter(order.shared_buffers)

    # -- the port of the executor: calls come from this thread, except those of `unreported` and `post` (the rest of it
    # is in `TrainerPort`)

    def move(self, order: ReceivePoints | SendPoints) -> None:
        self._mover.post(self._sequencer.job, order)

    def transfer(self, order: TransferOwnership) -> None:
        self._trainer.order(machine.ApplyOwnership(order))
        if order.closed:
            self._mover.post(self._sequencer.job, order)

    def set_timer(self, at: float, round_: int) -> None:
        self._timer = (at, round_)

    def reduce(self, order: ReduceReports, copy: Replica, report: Sequence[Array] | None) -> None:
        self._trainer.order(BeginFold(self._sequencer.job, order, copy, report, self.post))

    def drop_fold(self, fold: int) -> None:
        self._exchange.drop(fold)

    def drop(self) -> None:
        self._leave_servers()
        self.drop_fold(ABOVE_ALL_FOLD_NUMBERS)
        self._buffers, self._parameter, self._in_job = None, HeldParameter(), False
        self._mover.post(self._sequencer.job, machine.DropShard())
        self._trainer.order(machine.DropShard())

    def quit(self) -> None:
        self._is_running = False

    def post(self, body: Answer, arrays: tuple[Array, ...]) -> None:
        """From the trainer thread; the I/O thread sends it."""
        self._posted_answers.put((self._sequencer.job, body, arrays))
        self._trainer.wake_io()

    def send(self, body: Answer, arrays: tuple[Array, ...] = (), now: float = 0.0) -> None:
        if self._server_client is not None and type(body) is Report:
            self._server_client.report(body, arrays)
        else:
            self._send_now(body, arrays)

    def _send_now(self, body: Answer, arrays: tuple[Array, ...] = ()) -> None:
        """Send a message to the coordinator: a report with few changed rows sends only those, a report that fits goes
        into shared buffers. A coordinator that does not read any more ends this worker."""
        if type(body) is Report and (few := changed_rows(arrays)) is not None:
            body, arrays = msgspec.structs.replace(body, sparse=True), few.arrays()
        packed = PackedArrays(arrays)
        if self._buffers is not None:
            if type(body) is Report and arrays:
                packed = self._buffers.put(packed)
            elif type(body) is ShardLoaded:
                body = msgspec.structs.replace(body, shared_buffers=True)
        try:
            zmq_frames.send(self._socket, self._sequencer.wrap(body, packed))
        except zmq.Again:
            _log.warning("the coordinator does not read; it ends.")
            self._is_running, self._exit_code = False, DISCONNECTED_EXIT_CODE


class ConnectionMonitor:
    """Watches the one connection of a worker whose coordinator may be on another host.

    Messages are lost with a connection, so it is never made a second time: the worker ends, and comes back as a new
    one. That is also how it notices that its coordinator has died.
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_DISCONNECTED
        self._monitor = socket.get_monitor_socket(events)
        self._deadline = Deadline(FIRST_CONTACT_SECONDS, clock.now())
        self._connection_was_made = False

    def lost(self, now: float) -> str:
        """Why there is no coordinator to work for; empty while there is."""
        while (event := next_event(self._monitor)) is not None:
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._connection_was_made = True
            elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                return "the coordinator does not know its key (any more)"
            elif self._connection_was_made:
                return "the connection to the coordinator broke"
        return (
            ""
            if self._connection_was_made or not self._deadline.passed(now)
            else f"no coordinator answered within {FIRST_CONTACT_SECONDS:.0f} s"
        )

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)


@lru_cache(maxsize=1 << 14)  # more than a job has workers
def identity(worker: int, incarnation: int) -> bytes:
    """The name under which an incarnation of a worker dials. Asked twice for every message."""
    return f"{worker}.{incarnation}".encode()


def main() -> None:
    """Entry point of the process."""
    if len(sys.argv) < 2:
        die_with_parent()
    protect("stdout", "stderr")
    speak_to(os.environ.get(SPEAKS_TO, "command-line" if "FLEGEL_SLAVE" in os.environ else ""))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    sys.setswitchinterval(0.0005)
    try:
        config = msgspec.json.decode(_told(), type=WorkerConfig)
    except (FlegelError, *UNDECODABLE) as error:
        print(f"flegel worker: {error}", file=sys.stderr)
        sys.exit(2)
    os.dup2(sys.stderr.fileno(), 1)  # what hooks print must not mix with the parent's own output
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    alone = len(sys.argv) < 2 and "FLEGEL_SLAVE" not in os.environ
    logs.configure(
        f"flegel worker {config.worker}: " if alone else "",
        job=config.token,
        worker=str(config.worker),
        everything=True,
    )
    worker = WorkerLoop(config)
    code = worker.run(sys.stdin.fileno())
    if worker.stuck:  # the compiler's own end would trip over a thread that is still compiling
        os._exit(code)
    sys.exit(code)


def _told() -> bytes:
    """The config of this process: from a file that only its owner can read, or from standard input.

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
