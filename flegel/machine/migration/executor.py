"""Carries out what the two ends of a migration command, through one small port. Owns no socket, thread or clock.

The mover thread of a real worker and every simulated worker use this class; their `MigrationPort` says how windows
travel, when the points may be touched, and how large windows are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np

from flegel.core.pytree import Array
from flegel.core.shard import Shard
from flegel.machine.migration import endpoints
from flegel.machine.migration.endpoints import MigrationSource, MigrationTarget
from flegel.machine.worker.point_store import OutgoingWindow, PointStore
from flegel.machine.worker.visit_schedule import Transfer
from flegel.messages import (
    Answer,
    MoveReady,
    MoveRefused,
    MoveSent,
    ReceivePoints,
    SendPoints,
    Window,
    WindowArrived,
    WindowReceived,
)


class MigrationPort(Protocol):
    """What a migration needs of the worker around it."""

    @property
    def now(self) -> float: ...

    def new_source(self, order: SendPoints) -> MigrationSource:
        """The sending end, with sizes of windows that fit the link."""

    def prepare(self, store: PointStore, order: ReceivePoints) -> str:
        """Make room for the points that will come; otherwise say why there is none."""

    def address(self) -> str:
        """Where other workers reach this one."""

    def tell(self, body: Answer) -> None:
        """Send to the coordinator."""

    def ship(self, order: SendPoints, window: OutgoingWindow, full: bool) -> None:
        """Send a window to the target; `full`: with everything, even where the target should have a copy."""

    def soon(self, work: Callable[[PointStore], None]) -> None:
        """Call `work` with the points as soon as possible; training may be interrupted for it."""

    def at_rest(self, work: Callable[[PointStore], None]) -> None:
        """Call `work` with the points after every change of ownership that was ordered before."""

    def resume(self, work: Callable[[], None]) -> None:
        """From inside `soon`: call `work` where this executor runs, unless the job has ended."""


@dataclass
class OutboundMove:
    """A move that this worker sends."""

    order: SendPoints
    source: MigrationSource
    windows: dict[int, OutgoingWindow] = field(default_factory=dict)
    """Windows without an answer."""


@dataclass
class InboundMove:
    """A move that this worker receives."""

    source: int
    target: MigrationTarget


class MigrationExecutor:
    """Carries out the moves of one worker in one job."""

    def __init__(self, store: PointStore, port: MigrationPort) -> None:
        self.store = store
        self.sending: dict[int, OutboundMove] = {}
        """By number: moves in which this worker gives points."""
        self._inbound_moves: dict[int, InboundMove] = {}
        self._port = port

    # -- orders of the coordinator -------------------------------------------------------------------------

    def begin(self, order: ReceivePoints | SendPoints) -> None:
        """Begin a move: as source, windows are cut and sent; as target, room is prepared, or the move is refused with a
        reason."""
        if isinstance(order, SendPoints):
            if order.move not in self.sending:
                source = self._port.new_source(order)
                self.sending[order.move] = OutboundMove(order, source)
                self._execute(source.start())
            return
        why = self._port.prepare(self.store, order)
        if why:
            self._port.tell(MoveRefused(order.move, why))
            return
        self._inbound_moves[order.move] = InboundMove(order.source, MigrationTarget(order.move))
        self._port.tell(MoveReady(order.move, self._port.address()))

    def close(self, moves: Iterable[int]) -> None:
        """The coordinator ended these moves."""
        for move in moves:
            if move in self.sending:
                self._execute(self.sending.pop(move).source.close())
            if move in self._inbound_moves:
                self._execute(self._inbound_moves.pop(move).target.close())

    # -- time ----------------------------------------------------------------------------------------------

    def tick(self, move: int) -> None:
        """Send again what has been without an answer for too long."""
        if move in self.sending:
            self._execute(self.sending[move].source.tick(self._port.now))

    def due(self) -> float | None:
        """When to call `tick` next."""
        return min((due for out in self.sending.values() if (due := out.source.due()) is not None), default=None)

    # -- what the ends command -----------------------------------------------------------------------------

    def _execute(self, commands: list[endpoints.Command]) -> None:
        """Carry out commands of the two state machines. Windows are cut and dropped between visits, not during one."""
        for command in commands:
            match command:
                case endpoints.CutWindow(transfer, points):
                    self._port.soon(partial(self._cut, transfer, points, self.sending[transfer[0]].order.target))
                case endpoints.SendWindow((move, number), full):
                    out = self.sending[move]
                    self._port.ship(out.order, out.windows[number], full)
                case endpoints.ReportSent(move, windows):
                    self._port.tell(MoveSent(move, windows))
                case endpoints.ReleaseWindows(move):
                    self._release(move)
                case endpoints.DropWindows(move):
                    self._port.at_rest(partial(PointStore.drop, move=move))

    def _release(self, move: int) -> None:
        self._port.at_rest(partial(PointStore.free, move=move))

    def _cut(self, transfer: Transfer, points: int, target: int, store: PointStore) -> None:
        """May run in the thread that owns the points."""
        if transfer[0] in self.sending:
            window = store.cut(transfer, points, target)
            self._port.resume(partial(self._was_cut, transfer, window))

    def _was_cut(self, transfer: Transfer, window: OutgoingWindow | None) -> None:
        """The trainer has locked a window for this move (None: there was nothing more to give), so that it can be
        sent."""
        move, number = transfer
        out = self.sending.get(move)
        if out is None:  # closed meanwhile; its windows were released before this one was locked
            if window is not None:
                self._release(move)
            return
        if window is not None:
            out.windows[number] = window
        self._execute(out.source.was_cut(number, window.part.points if window else 0, self._port.now))

    # -- what other workers send ---------------------------------------------------------------------------

    def acknowledged(self, received: WindowReceived) -> None:
        """The target answered a window."""
        out = self.sending.get(received.move)
        if out is not None:
            if not received.lacking:
                out.windows.pop(received.number, None)
            self._execute(out.source.answered(received.number, received.lacking, self._port.now))

    def expects(self, move: int, source: int) -> bool:
        """Windows of this move may come from there."""
        inbound = self._inbound_moves.get(move)
        return inbound is not None and inbound.source == source

    def arrived(
        self,
        source: int,
        window: Window,
        arrays: tuple[Array, ...],
        size: int,
        reply: Callable[[WindowReceived], None],
        shared: Shard | None = None,
        visible: bool = True,
    ) -> None:
        """A window of `size` bytes came. `shared`: the shard of the source that it refers to; not `visible`: it refers
        to memory that this worker cannot open, so the source has to send it in full."""
        if not self.expects(window.move, source):
            return
        usable = self.store.usable(window) and visible
        for command in self._inbound_moves[window.move].target.came(window.number, usable):
            match command:
                case endpoints.StoreWindow():
                    stored = self.store.lay_aside(window, arrays, source, shared)
                    halted = int(np.count_nonzero(stored.halted))
                    told = WindowArrived(window.move, window.number, window.points, window.passes, halted, size)
                    self._port.tell(told)
                case endpoints.AnswerSource((move, number), lacking):
                    reply(WindowReceived(move, number, lacking))
