"""The mover thread of a worker: sends and receives points on sockets of its own while the trainer trains.

It is the port of a `MigrationExecutor`. The trainer notices only that a few points are locked and, at a barrier, that
some have come or gone. The thread starts with the first migration and sleeps in `select`; copies and sends release the
GIL. Bounded memory: at most `credits` windows are on their way in a move, and a target that has no room refuses before
anything is sent. Workers of the same host read each other's points and states in shared memory
(`runtime/worker/shared_points.py`).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

import zmq

from flegel.configuration.active import active, adopt
from flegel.core.pytree import Array
from flegel.core.shard import TILE, Shard
from flegel.datasets.rows import memory
from flegel.errors import DecodeError, own_traceback
from flegel.machine.migration.endpoints import MigrationSource
from flegel.machine.migration.executor import MigrationExecutor
from flegel.machine.worker.point_store import OutgoingWindow, PointStore
from flegel.machine.worker.window_codec import bytes_per_point, bytes_per_state
from flegel.machine.worker.worker import DropShard, TrainerFailed
from flegel.messages import (
    Answer,
    ReceivePoints,
    SendPoints,
    TransferOwnership,
    Window,
    WindowReceived,
    WorkerFailed,
)
from flegel.runtime import clock
from flegel.runtime.system import malloc_settings
from flegel.runtime.transport import shared_memory, zmq_frames
from flegel.runtime.transport.codec import PackedArrays, Sequencer, decode
from flegel.runtime.transport.job_sockets import JobSockets, same_host
from flegel.runtime.transport.peer_links import Links
from flegel.runtime.transport.poller import wait_any
from flegel.runtime.worker import shared_points
from flegel.runtime.worker.shared_points import PointSharing
from flegel.runtime.worker.trainer import Trainer

_log = logging.getLogger(__name__)

IDLE_SECONDS = 3600.0
"""Between two turns of a thread that waits for nothing but orders."""


class JobOrder(NamedTuple):
    """An order of the coordinator, and the job that it belongs to."""

    job: str
    order: ReceivePoints | SendPoints | TransferOwnership | DropShard


class DeferredWork(NamedTuple):
    """Work that the trainer thread hands back to the mover thread, for the executor that asked for it."""

    executor: MigrationExecutor | None
    work: Callable[[], None]


class Mover:
    """Sends and receives the windows of migrations for one worker, in a thread of its own. The I/O thread gives it
    orders with `post` and takes from `answers` what the coordinator should hear."""

    def __init__(
        self,
        sockets: JobSockets,
        trainer: Trainer,
        coordinator_address: str,
        worker: int,
        incarnation: int,
        same_process: bool = False,
    ) -> None:
        """`same_process`: all workers are in this process."""
        self._sockets, self._trainer, self._coordinator_address = sockets, trainer, coordinator_address
        self._worker, self._incarnation = worker, incarnation
        self.answers: SimpleQueue[tuple[str, Answer]] = SimpleQueue()
        self._inbox: SimpleQueue[JobOrder | DeferredWork | None] = SimpleQueue()
        """What the mover thread is to do next; None: end."""
        self._wakeup, self._wakeup_writer = -1, -1
        self._thread: threading.Thread | None = None
        self._job = ""
        self.settings: Mapping[str, float] = {}
        """Tuned numbers of the present job that differ from the defaults."""
        self._executor: MigrationExecutor | None = None
        self._links = Links(sockets.dial)
        self._place_of = shared_memory.place_here if same_process else shared_memory.place_of
        self._sharing = PointSharing(self._place_of)
        self._listener: zmq.Socket[bytes] | None = None
        self._address = ""
        self._sequencer = Sequencer("", 0, worker, incarnation)

    def post(self, job: str, order: ReceivePoints | SendPoints | TransferOwnership | DropShard) -> None:
        """Give the mover thread an order; the thread starts with the first order to send or receive points."""
        if self._thread is None:
            if not isinstance(order, (ReceivePoints, SendPoints)):
                return
            self._wakeup, self._wakeup_writer = os.pipe()
            self._thread = threading.Thread(target=self._loop, name="mover", daemon=True)
            self._thread.start()
        self._put(JobOrder(job, order))

    def quit(self) -> None:
        """End the thread, and close its pipe where it has ended."""
        if self._thread is not None:
            self._put(None)
            self._thread.join(timeout=2.0)
            if not self._thread.is_alive():
                os.close(self._wakeup)
                os.close(self._wakeup_writer)
                self._thread = None

    def _put(self, item: JobOrder | DeferredWork | None) -> None:
        self._inbox.put(item)
        os.write(self._wakeup_writer, b"!")

    # -- in the mover thread -------------------------------------------------------------------------------

    def _loop(self) -> None:
        """The mover thread: steps until one says that it should end; an error goes to the coordinator as a failure of
        this worker."""
        adopt(self.settings)
        two_windows = 2 * active().moves.max_window_bytes
        malloc_settings.keep_buffers(two_windows, two_windows * active().moves.windows_under_way)
        try:
            while self._step():
                pass
        except Exception as error:  # noqa: BLE001 - a thread that ends in silence would leave the job waiting
            failed = WorkerFailed("moving points", -1, f"{type(error).__name__}: {error}", own_traceback(error))
            self._trainer.results.put(TrainerFailed(failed))
            self._trainer.wake_io()

    def _step(self) -> bool:
        """Sleep, then do what has come up; False where the thread should end."""
        links = self._links.sockets()
        sockets = [self._listener, *links] if self._listener is not None else links
        if wait_any(sockets, self._wakeup, self._sleep()):
            os.read(self._wakeup, 4096)
        while not self._inbox.empty():
            item = self._inbox.get()
            if item is None:
                self._reset()
                return False
            self._take_work(item)
        for link in sockets:
            self._receive(link)
        if self._executor is not None:
            for move in list(self._executor.sending):
                self._executor.tick(move)
        return True

    def _sleep(self) -> float:
        due = self._executor.due() if self._executor is not None else None
        return max(due - clock.now(), 0.0) if due is not None else IDLE_SECONDS

    def _take_work(self, item: JobOrder | DeferredWork) -> None:
        """Do what an order of the I/O thread, or work that the trainer handed back, asks for. Orders of a job that is
        over, and work of a former executor, are dropped."""
        match item:
            case JobOrder(job, DropShard()):
                if job == self._job:
                    self._reset()
            case JobOrder(job, (ReceivePoints() | SendPoints()) as order):
                self._switch_to(job)
                if self._executor is not None:
                    self._executor.begin(order)
            case JobOrder(job, TransferOwnership(closed=ended_moves)) if job == self._job:
                for move in ended_moves:
                    self._end_move(move)
            case DeferredWork(executor, work) if executor is not None and executor is self._executor:
                work()

    def _switch_to(self, job: str) -> None:
        """Begin to move points of this job; nothing of the job before is kept."""
        if job != self._job:
            self._reset()
            adopt(self.settings)
            self._job = self._sequencer.job = job
            store = self._trainer.store
            self._executor = MigrationExecutor(store, self) if store is not None else None

    def _reset(self) -> None:
        self._links.close()
        self._job, self._executor, self._sharing = "", None, PointSharing(self._place_of)
        if self._listener is not None:
            self._listener.close(linger=0)
            self._listener = None

    def _end_move(self, move: int) -> None:
        """Keep what is known of the link, and close it where no other move uses it."""
        executor = self._executor
        if executor is None:
            return
        out = executor.sending.get(move)
        if out is not None:
            address = out.order.address
            self._links[address].fitting = 0 if self._shares_memory(address) else out.source.size
            used = {other.order.address for number, other in executor.sending.items() if number != move}
            self._links.hang_up(used, "" if out.source.phase == "sent" else address)
        executor.close((move,))

    # -- the port of the executor --------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return clock.now()

    def tell(self, body: Answer) -> None:
        self.answers.put((self._job, body))
        self._trainer.wake_io()

    def address(self) -> str:
        if self._listener is None:
            self._listener, self._address = self._sockets.listen(self._coordinator_address)
        return self._address

    def prepare(self, store: PointStore, order: ReceivePoints) -> str:
        native = store.shards[0]
        beyond_memory = memory.in_scratch_file(native.features)
        needed = order.points * (bytes_per_state if beyond_memory else bytes_per_point)(native)
        free = shared_memory.free()
        if needed > active().moves.usable_free_memory_share * free:
            return f"{order.points} points need {needed / 1e6:.0f} MB, and {free / 1e6:.0f} MB are free"
        store.prepare(order.move, order.points, memory.scratch if beyond_memory else shared_memory.room)
        return ""

    def new_source(self, order: SendPoints) -> MigrationSource:
        """The sending end of a move: its largest window by bytes and by share of the shard, its first window by what is
        known of the link."""
        assert self._executor is not None
        link = self._links.use(order.address)
        native = self._executor.store.shards[0]
        near = self._shares_memory(order.address)
        each = bytes_per_state(native) if near else bytes_per_point(native)
        rules = active().moves
        fewest = rules.fewest_shared_windows_per_shard if near else rules.fewest_sent_windows_per_shard
        largest = min(rules.max_window_bytes / each, native.points / fewest)
        window = max(int(largest) // TILE * TILE, TILE)
        first = window if near else link.fitting or max(int(rules.first_window_bytes / each) // TILE * TILE, TILE)
        travels = each if order.address.startswith("tcp:") and not near else 0.0
        return MigrationSource(order.move, order.points, window, first, each=travels, send_buffer=link.send_buffer)

    def _shares_memory(self, address: str) -> bool:
        """The worker at this address can read the memory of this one."""
        return same_host(address, self._coordinator_address) and shared_points.wanted()

    def ship(self, order: SendPoints, window: OutgoingWindow, full: bool) -> None:
        shared = None
        if not full and self._shares_memory(order.address):
            shared = self._sharing.offer(window.whole, window.start)
        body, arrays = window.frames(full, shared)
        parts = [zmq_frames.lasting(part) for part in self._sequencer.wrap(body, PackedArrays(arrays))]
        zmq_frames.send(self._links[order.address].socket, parts)

    def soon(self, work: Callable[[PointStore], None]) -> None:
        if self._executor is not None:
            self._trainer.interrupt(self._executor.store, work)

    def at_rest(self, work: Callable[[PointStore], None]) -> None:
        if self._executor is not None:
            self._trainer.at_rest(self._executor.store, work, states=False)

    def resume(self, work: Callable[[], None]) -> None:
        """Have the mover thread do `work`. Called by the trainer thread, while the mover may have begun with another
        job: then the work is dropped."""
        self._put(DeferredWork(self._executor, work))

    # -- what comes in -------------------------------------------------------------------------------------

    def _receive(self, link: zmq.Socket[bytes]) -> None:
        """Hand on all messages that wait at a socket: windows at the listening one, answers at all others. Messages of
        other jobs are dropped."""
        listener = link is self._listener
        while not link.closed and zmq_frames.waiting(link):
            sender, parts = zmq_frames.receive_from(link) if listener else (b"", zmq_frames.receive(link))
            try:
                envelope, arrays = decode(parts)
                if envelope.job != self._job or self._executor is None:
                    continue
                match envelope.body:
                    case Window() as body if listener:
                        size = sum(len(p) for p in parts)
                        self._arrived(self._executor, envelope.worker, body, arrays, size, sender)
                    case WindowReceived() as body:
                        self._executor.acknowledged(body)
            except DecodeError as error:
                _log.warning("dropped a window: %s", error)

    def _arrived(
        self,
        executor: MigrationExecutor,
        worker: int,
        window: Window,
        arrays: tuple[Array, ...],
        size: int,
        sender: bytes,
    ) -> None:
        """Pass a window on to the executor, with the points and states that it refers to in shared memory. `size`: its
        bytes; `sender`: the socket's name for the peer, for the reply."""
        if executor.expects(window.move, worker):
            shared, states, visible = self._open_shared(window, executor.store)
            reply = partial(self._reply, sender)
            executor.arrived(worker, window, (*states, *arrays), size, reply, shared, visible)

    def _reply(self, sender: bytes, received: WindowReceived) -> None:
        assert self._listener is not None
        zmq_frames.send(self._listener, self._sequencer.wrap(received), sender)

    def _open_shared(self, window: Window, store: PointStore) -> tuple[Shard | None, tuple[Array, ...], bool]:
        """What a window refers to in memory of its sender (`lent`): the shard of its points, None where this worker has
        a copy of them (`copied`); their states; and whether that could be opened from here. Nothing is opened where all
        of the window comes in frames."""
        if window.lent is None:
            return None, (), True
        loaded = store.shards[0]  # tells the types and the layout that a borrowed shard must have
        try:
            states = self._sharing.states(window.lent, window.points, loaded)
            return None if window.copied else self._sharing.borrow(window.lent, loaded), states, True
        except (OSError, DecodeError):
            return None, (), False
