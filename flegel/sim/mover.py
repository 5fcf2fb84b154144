"""Migration on virtual time: the same machines, windows that take as long as the link says. No socket, no thread.

Points really move: the arrays of a window are copied into the target's holdings, as in a real job.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from flegel.core.pytree import Array
from flegel.core.shard import TILE
from flegel.machine.migration import endpoints
from flegel.machine.migration.endpoints import MigrationSource, MigrationTarget
from flegel.machine.worker.point_store import OutgoingWindow, PointStore
from flegel.messages import Answer, MoveReady, MoveSent, ReceivePoints, SendPoints, Window, WindowArrived

WINDOW_PART = 32  # a window is at most this part of the share


class Clock(Protocol):
    """Virtual time."""

    now: float

    def at(self, when: float, what: Callable[..., None], *args: object) -> None: ...


class SimMover:
    """Of one simulated worker."""

    def __init__(self, id: int, holdings: PointStore, clock: Clock, latency: float, bandwidth: float) -> None:
        self.id, self.holdings = id, holdings
        self.peers: dict[int, SimMover] = {}
        self.answer: Callable[[Answer], None] = lambda body: None
        self.errand: Callable[[Callable[[], None]], None] = lambda work: work()
        self._clock, self._latency, self._bandwidth = clock, latency, bandwidth
        self._free_at = 0.0
        self._giving: dict[int, tuple[MigrationSource, int, dict[int, OutgoingWindow]]] = {}
        self._taking: dict[int, MigrationTarget] = {}

    def order(self, order: ReceivePoints | SendPoints) -> None:
        match order:
            case ReceivePoints(move=move, points=points):
                self.holdings.prepare(move, points)
                self._taking[move] = MigrationTarget(move)
                self.answer(MoveReady(move, str(self.id)))
            case SendPoints(move=move, target=target, points=points):
                window = max(self.holdings.shares[0].points // WINDOW_PART // TILE * TILE, TILE)
                machine = MigrationSource(move, points, window)
                self._giving[move] = (machine, target, {})
                self._do(machine.start())

    def close(self, moves: tuple[int, ...]) -> None:
        for move in moves:
            if move in self._giving:
                self._do(self._giving.pop(move)[0].close())
            if move in self._taking:
                self._do(self._taking.pop(move).close())

    def _do(self, commands: list[endpoints.Command]) -> None:
        for command in commands:
            match command:
                case endpoints.CutWindow(transfer, points):
                    self.errand(lambda t=transfer, p=points: self._cut(t, p))  # type: ignore[misc]
                case endpoints.SendWindow(transfer, full):
                    self._ship(transfer, full)
                case endpoints.ReportSent(move, windows):
                    self.answer(MoveSent(move, windows))
                case endpoints.ReleaseWindows(move):
                    self.errand(lambda m=move: self.holdings.free(m))  # type: ignore[misc]
                case endpoints.DropWindows(move):
                    self.errand(lambda m=move: self.holdings.drop(m))  # type: ignore[misc]

    def _cut(self, transfer: tuple[int, int], points: int) -> None:
        move, number = transfer
        if move not in self._giving:
            return
        machine, target, windows = self._giving[move]
        window = self.holdings.cut(transfer, points, target)
        if window is not None:
            windows[number] = window
        self._do(machine.was_cut(number, window.part.points if window else 0, self._clock.now))

    def _ship(self, transfer: tuple[int, int], full: bool) -> None:
        _, target, windows = self._giving[transfer[0]]
        body, arrays = windows[transfer[1]].frames(full)
        size = sum(a.nbytes for a in arrays)
        self._free_at = max(self._free_at, self._clock.now) + size / self._bandwidth
        peer, me = self.peers[target], self.id
        self._clock.at(self._free_at + self._latency, lambda: peer.came(me, body, tuple(arrays), size))

    def came(self, source: int, window: Window, arrays: tuple[Array, ...], size: int) -> None:
        taking = self._taking.get(window.move)
        if taking is None:
            return
        for command in taking.came(window.number, self.holdings.usable(window)):
            match command:
                case endpoints.StoreWindow():
                    halted = int(self.holdings.lay_aside(window, arrays, source).halted.sum())
                    self.answer(WindowArrived(window.move, window.number, window.points, window.passes, halted, size))
                case endpoints.AnswerSource((move, number), lacking):
                    back = self.peers[source]
                    self._clock.at(
                        self._clock.now + self._latency,
                        lambda b=back, m=move, n=number, k=lacking: b.answered(m, n, k),  # type: ignore[misc]
                    )

    def answered(self, move: int, number: int, lacking: bool) -> None:
        if move in self._giving:
            machine, _, windows = self._giving[move]
            if not lacking:
                windows.pop(number, None)
            self._do(machine.answered(number, lacking, self._clock.now))
