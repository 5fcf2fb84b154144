"""The mover thread of a worker: sends and receives points on sockets of its own while the trainer trains.

It carries out what the two machines of `machine/migration/endpoints.py` say. The trainer notices only that a few
points are
locked and, at a barrier, that some have come or gone. The thread starts with the first migration and sleeps in
`select`; copies and sends release the GIL. Bounded memory: at most `credits` windows are on their way in a move, and a
target that has no room refuses before anything is sent. To a worker of the same host points and states are lent
(`runtime/worker/shared_points.py`).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np
import zmq

from flegel.core.pytree import Array
from flegel.core.shard import TILE, Shard
from flegel.errors import DecodeError, own_traceback
from flegel.machine.migration import endpoints
from flegel.machine.migration.endpoints import MigrationSource, MigrationTarget
from flegel.machine.migration.window_codec import bytes_per_point, bytes_per_state
from flegel.machine.worker.point_store import OutgoingWindow, PointStore
from flegel.machine.worker.worker import DropShard, TrainerFailed
from flegel.messages import (
    Answer,
    MoveReady,
    MoveRefused,
    MoveSent,
    ReceivePoints,
    SendPoints,
    TransferOwnership,
    Window,
    WindowArrived,
    WindowReceived,
    WorkerFailed,
)
from flegel.runtime import clock
from flegel.runtime.processes import malloc_settings
from flegel.runtime.transport import shared_memory, zmq_frames
from flegel.runtime.transport.codec import PackedArrays, Sequencer, decode
from flegel.runtime.transport.job_sockets import JobSockets, same_host
from flegel.runtime.transport.peer_links import Links
from flegel.runtime.transport.poller import wait_any
from flegel.runtime.worker import shared_points
from flegel.runtime.worker.shared_points import PointSharing
from flegel.runtime.worker.trainer import Trainer

WINDOW_BYTES = 8 << 20  # large enough that the answer's way does not matter, small enough that little is locked
FIRST_BYTES = 256 << 10  # while nothing is known of the link
WINDOW_PART = 16  # a window that travels is at most this part of the share
LENT_PART = 1  # one that is lent is under way for a moment only
SPARE = 0.5  # of the free memory may be used for what arrives


class _Outbound:
    """A move that this worker gives."""

    def __init__(self, machine: MigrationSource, target: int, address: str, neighbour: bool) -> None:
        self.machine, self.target, self.address, self.neighbour = machine, target, address, neighbour
        self.windows: dict[int, OutgoingWindow] = {}


class _Inbound:
    """A move that this worker takes."""

    def __init__(self, machine: MigrationTarget, source: int) -> None:
        self.machine, self.source = machine, source


class Mover:
    """`post` orders from the I/O thread; take what the coordinator should hear from `answers`."""

    def __init__(self, doors: JobSockets, trainer: Trainer, near: str, worker: int, incarnation: int) -> None:
        self._doors, self._trainer, self._near = doors, trainer, near
        self._worker, self._incarnation = worker, incarnation
        self.answers: SimpleQueue[tuple[str, Answer]] = SimpleQueue()
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._wakeup, self._bell = -1, -1
        self._thread: threading.Thread | None = None
        self._job = ""
        self._holdings: PointStore | None = None
        self._giving: dict[int, _Outbound] = {}
        self._links = Links(doors.dial)
        self._taking: dict[int, _Inbound] = {}
        self._lender = PointSharing()
        self._harbour: zmq.Socket[bytes] | None = None
        self._address = ""
        self._voice = Sequencer("", 0, worker, incarnation)

    def post(self, job: str, order: ReceivePoints | SendPoints | TransferOwnership | DropShard) -> None:
        if self._thread is None:
            if not isinstance(order, (ReceivePoints, SendPoints)):
                return
            self._wakeup, self._bell = os.pipe()
            self._thread = threading.Thread(target=self._loop, name="mover", daemon=True)
            self._thread.start()
        self._put((job, order))

    def quit(self) -> None:
        if self._thread is not None:
            self._put(None)
            self._thread.join(timeout=2.0)

    def _put(self, item: Any) -> None:
        self._inbox.put(item)
        os.write(self._bell, b"!")

    # -- in the mover thread -------------------------------------------------------------------------------

    def _loop(self) -> None:
        malloc_settings.keep_buffers(2 * WINDOW_BYTES, 2 * endpoints.CREDITS * WINDOW_BYTES)
        try:
            while self._step():
                pass
        except Exception as error:  # noqa: BLE001 - a thread that ends in silence would leave the job waiting
            failed = WorkerFailed("moving points", -1, f"{type(error).__name__}: {error}", own_traceback(error))
            self._trainer.results.put(TrainerFailed(failed))
            self._trainer.ring()

    def _step(self) -> bool:
        """Sleep, then do what has come up; False where the thread should end."""
        links = self._links.sockets()
        sockets = [self._harbour, *links] if self._harbour is not None else links
        if wait_any(sockets, self._wakeup, self._sleep()):
            os.read(self._wakeup, 4096)
        while not self._inbox.empty():
            item = self._inbox.get()
            if item is None:
                self._reset()
                return False
            self._take_item(item)
        for link in sockets:
            self._receive(link)
        now = clock.now()
        for out in list(self._giving.values()):
            self._do(out.machine.tick(now))
        return True

    def _sleep(self) -> float:
        dues = [due for out in self._giving.values() if (due := out.machine.due()) is not None]
        return max(min(dues) - clock.now(), 0.0) if dues else 3600.0

    def _take_item(self, item: Any) -> None:
        match item:
            case (str() as job, DropShard()):
                if job == self._job:
                    self._reset()
            case (str() as job, ReceivePoints() as order):
                self._enter(job)
                self._open_taking(order)
            case (str() as job, SendPoints() as order):
                self._enter(job)
                self._open_giving(order)
            case (str() as job, TransferOwnership(closed=closed)) if job == self._job:
                for move in closed:
                    self._close(move)
            case ("cut", str() as job, int() as move, int() as number, window) if job == self._job:
                self._was_cut(move, number, window)

    def _enter(self, job: str) -> None:
        if job != self._job:
            self._reset()
            self._job = self._voice.job = job
            self._holdings = self._trainer.holdings

    def _reset(self) -> None:
        self._links.close()
        self._giving.clear()
        self._taking.clear()
        self._job, self._holdings, self._lender = "", None, PointSharing()
        if self._harbour is not None:
            self._harbour.close(linger=0)
            self._harbour = None

    def _tell(self, body: Answer) -> None:
        self.answers.put((self._job, body))
        self._trainer.ring()

    # -- opening and closing -------------------------------------------------------------------------------

    def _open_taking(self, order: ReceivePoints) -> None:
        holdings = self._holdings
        if holdings is None:
            return
        needed = order.points * bytes_per_point(holdings.shares[0])
        free = shared_memory.free()
        if needed > SPARE * free:
            why = f"{order.points} points need {needed / 1e6:.0f} MB, and {free / 1e6:.0f} MB are free"
            self._tell(MoveRefused(order.move, why))
            return
        holdings.prepare(order.move, order.points, shared_memory.room)
        self._taking[order.move] = _Inbound(MigrationTarget(order.move), order.source)
        if self._harbour is None:
            self._harbour, self._address = self._doors.harbour(self._near)
        self._tell(MoveReady(order.move, self._address))

    def _open_giving(self, order: SendPoints) -> None:
        holdings = self._holdings
        if holdings is None or order.move in self._giving:
            return
        link = self._links.use(order.address)
        native = holdings.shares[0]
        near = same_host(order.address, self._near) and shared_points.wanted()
        each = bytes_per_state(native) if near else bytes_per_point(native)
        largest = min(WINDOW_BYTES / each, native.points / (LENT_PART if near else WINDOW_PART))
        window = max(int(largest) // TILE * TILE, TILE)
        first = window if near else link.fitting or max(int(FIRST_BYTES / each) // TILE * TILE, TILE)
        travels = each if order.address.startswith("tcp:") and not near else 0.0
        machine = MigrationSource(order.move, order.points, window, first, each=travels, depth=link.depth)
        self._giving[order.move] = _Outbound(machine, order.target, order.address, near)
        self._do(machine.start())

    def _close(self, move: int) -> None:
        if move in self._giving:
            out = self._giving.pop(move)
            self._links[out.address].fitting = 0 if out.neighbour else out.machine.size
            used = {other.address for other in self._giving.values()}
            self._links.hang_up(used, "" if out.machine.phase == "sent" else out.address)
            self._do(out.machine.close())
        if move in self._taking:
            self._do(self._taking.pop(move).machine.close())

    # -- what the machines want ----------------------------------------------------------------------------

    def _do(self, commands: list[endpoints.Command]) -> None:
        for command in commands:
            match command:
                case endpoints.CutWindow(transfer, points):
                    self._ask_cut(transfer, points)
                case endpoints.SendWindow(transfer, full):
                    self._ship(transfer, full)
                case endpoints.ReportSent(move, windows):
                    self._tell(MoveSent(move, windows))
                case endpoints.ReleaseWindows(move):
                    self._later(lambda holdings, move=move: holdings.free(move))  # type: ignore[misc]
                case endpoints.DropWindows(move):
                    self._later(lambda holdings, move=move: holdings.drop(move))  # type: ignore[misc]

    def _ask_cut(self, transfer: tuple[int, int], points: int) -> None:
        job, (move, number), peer = self._job, transfer, self._giving[transfer[0]].target

        def work(holdings: PointStore) -> None:
            self._put(("cut", job, move, number, holdings.cut(transfer, points, peer)))

        if self._holdings is not None:
            self._trainer.errand(self._holdings, work)

    def _later(self, work: Callable[[PointStore], None]) -> None:
        """Behind the change of ownership that the same order brought."""
        if self._holdings is not None:
            self._trainer.afterwards(self._holdings, work)

    def _was_cut(self, move: int, number: int, window: OutgoingWindow | None) -> None:
        out = self._giving.get(move)
        if out is None:  # called off meanwhile; `Free` was said before this window was locked
            if window is not None:
                self._later(lambda holdings: holdings.free(move))
            return
        if window is not None:
            out.windows[number] = window
        self._do(out.machine.was_cut(number, window.part.points if window else 0, clock.now()))

    def _ship(self, transfer: tuple[int, int], full: bool) -> None:
        out = self._giving[transfer[0]]
        window = out.windows[transfer[1]]
        lent = self._lender.offer(window.whole, window.start) if out.neighbour and not full else None
        body, arrays = window.frames(full, lent)
        parts = [zmq_frames.lasting(part) for part in self._voice.wrap(body, PackedArrays(arrays))]
        zmq_frames.send(self._links[out.address].socket, parts)

    # -- what comes in -------------------------------------------------------------------------------------

    def _receive(self, link: zmq.Socket[bytes]) -> None:
        harbour = link is self._harbour
        while not link.closed and zmq_frames.waiting(link):
            sender, parts = zmq_frames.receive_from(link) if harbour else (b"", zmq_frames.receive(link))
            try:
                envelope, arrays = decode(parts)
                if envelope.job != self._job:
                    continue
                match envelope.body:
                    case Window() as body if harbour:
                        self._came(envelope.worker, body, arrays, sum(len(p) for p in parts), sender)
                    case WindowReceived(move=move, number=number, lacking=lacking) if move in self._giving:
                        out = self._giving[move]
                        if not lacking:
                            out.windows.pop(number, None)
                        self._do(out.machine.answered(number, lacking, clock.now()))
            except DecodeError as error:
                print(f"flegel worker {self._worker}: dropped a window: {error}", file=sys.stderr)

    def _came(self, worker: int, window: Window, arrays: tuple[Array, ...], size: int, sender: bytes) -> None:
        inbound, holdings = self._taking.get(window.move), self._holdings
        if inbound is None or inbound.source != worker or holdings is None:
            return
        lent, states, seen = self._borrow(window, holdings)
        usable = holdings.usable(window) and seen
        arrays = (*states, *arrays)
        for command in inbound.machine.came(window.number, usable):
            match command:
                case endpoints.StoreWindow():
                    halted = int(np.count_nonzero(holdings.lay_aside(window, arrays, worker, lent).halted))
                    told = WindowArrived(window.move, window.number, window.points, window.passes, halted, size)
                    self._tell(told)
                case endpoints.AnswerSource((move, number), lacking):
                    assert self._harbour is not None
                    zmq_frames.send(self._harbour, self._voice.wrap(WindowReceived(move, number, lacking)), sender)

    def _borrow(self, window: Window, holdings: PointStore) -> tuple[Shard | None, tuple[Array, ...], bool]:
        """The share that a window was lent from, where this worker has no copy; its states; False where it was lent and
        cannot be seen from here."""
        native = holdings.shares[0]
        if window.lent is None:
            return None, (), True
        try:
            states = self._lender.states(window.lent, window.points, native)
            return None if window.copied else self._lender.borrow(window.lent, native), states, True
        except (OSError, DecodeError):
            return None, (), False
