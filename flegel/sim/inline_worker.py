"""A worker in one thread: the part of the ports that simulated workers have in common. No process, no thread, no clock.

The executors of a real job carry out commands; this class keeps the points and postpones work on them while training
is under way. Subclasses say what time it is, how messages travel, and what training means.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from flegel.core.pytree import Array
from flegel.core.shard import Shard
from flegel.machine.migration.endpoints import MigrationSource
from flegel.machine.migration.executor import MigrationExecutor
from flegel.machine.worker import reassignment
from flegel.machine.worker import worker as machine
from flegel.machine.worker.executor import WorkerExecutor
from flegel.machine.worker.point_store import OutgoingWindow, PointStore
from flegel.messages import (
    Answer,
    AuditPoints,
    LoadShard,
    MeasureMoments,
    ReassignmentOrder,
    ReceivePoints,
    SendPoints,
    TransferOwnership,
    Window,
    WindowReceived,
)


class InlineWorker(ABC):
    """Implements `WorkerPort`, `MigrationPort` and `RowReader`."""

    def __init__(self) -> None:
        self.executor = WorkerExecutor(self)
        self.store: PointStore | None = None
        self.moves: MigrationExecutor | None = None
        self._postponed: list[Callable[[PointStore], None]] = []

    # -- what a subclass decides ---------------------------------------------------------------------------

    @property
    @abstractmethod
    def now(self) -> float:
        """By the worker's own clock."""

    @property
    @abstractmethod
    def training(self) -> bool:
        """A kernel is running."""

    @abstractmethod
    def load(self, order: LoadShard, arrays: tuple[Array, ...]) -> None: ...

    @abstractmethod
    def train(self, order: machine.BeginTrain, now: float) -> None: ...

    @abstractmethod
    def halt(self, now: float) -> None: ...

    @abstractmethod
    def statistics(self) -> tuple[Array, ...]: ...

    @abstractmethod
    def send(self, body: Answer, arrays: tuple[Array, ...], now: float) -> None: ...

    @abstractmethod
    def set_timer(self, at: float, round_: int) -> None: ...

    @abstractmethod
    def new_source(self, order: SendPoints) -> MigrationSource: ...

    @abstractmethod
    def address(self) -> str: ...

    @abstractmethod
    def ship(self, order: SendPoints, window: OutgoingWindow, full: bool) -> None: ...

    def unvisited(self, ids: Array) -> Shard:
        """Only where points can be reassigned."""
        raise TypeError(f"{type(self).__name__} cannot read rows, so its points cannot be reassigned.")

    def visited(self, ids: Array, states: Array) -> Shard:
        raise TypeError(f"{type(self).__name__} cannot read rows, so its points cannot be reassigned.")

    def fresh_states(self, points: int) -> Array:
        raise TypeError(f"{type(self).__name__} cannot read rows, so its points cannot be reassigned.")

    # -- points --------------------------------------------------------------------------------------------

    @property
    def points(self) -> PointStore:
        assert self.store is not None, "an order for points came before the shard was loaded"
        return self.store

    def hold(self, store: PointStore) -> None:
        """The points of this job."""
        self.store, self.moves = store, MigrationExecutor(store, self)

    def at_rest(self, work: Callable[[PointStore], None]) -> None:
        if self.training:
            self._postponed.append(work)
        else:
            work(self.points)

    def soon(self, work: Callable[[PointStore], None]) -> None:
        work(self.points)

    def resume(self, work: Callable[[], None]) -> None:
        work()

    def finish_postponed(self) -> None:
        """A round is over: do what had to wait for it."""
        if self._postponed:
            postponed, self._postponed = self._postponed, []
            for work in postponed:
                work(self.points)

    def reassign(self, order: ReassignmentOrder, arrays: tuple[Array, ...]) -> None:
        self.executor.handle(reassignment.carry_out(self.points, order, arrays, self), self.now)

    def prepare(self, store: PointStore, order: ReceivePoints) -> str:
        store.prepare(order.move, order.points)
        return ""

    def move(self, order: ReceivePoints | SendPoints) -> None:
        assert self.moves is not None
        self.moves.begin(order)

    def transfer(self, order: TransferOwnership) -> None:
        assert self.moves is not None
        self.points.settle(order.given, order.taken)
        self.moves.close(order.closed)

    # -- messages ------------------------------------------------------------------------------------------

    def tell(self, body: Answer) -> None:
        self.send(body, (), self.now)

    def post(self, body: Answer, arrays: tuple[Array, ...]) -> None:
        """Copies: a simulated network delivers the arrays of the sender."""
        self.send(body, tuple(a.copy() for a in arrays), self.now)

    def from_peer(
        self, source: int, body: Window | WindowReceived, arrays: tuple[Array, ...], size: int, reply: Any
    ) -> None:
        """Another worker sent a window, or the answer to one."""
        if self.moves is None:
            return
        if isinstance(body, Window):
            self.moves.arrived(source, body, arrays, size, reply)
        else:
            self.moves.acknowledged(body)

    # -- the rest ------------------------------------------------------------------------------------------

    def unreported(self) -> tuple[int, float]:
        return 0, 0.0

    def measure(self, order: MeasureMoments) -> None:
        raise TypeError("Simulated jobs are never scaled, so no moments are measured.")

    def audit(self, order: AuditPoints, arrays: tuple[Array, ...], reported: tuple[float, ...]) -> None:
        raise TypeError("Simulated jobs have no kernel of their own to count with, so they are not audited.")

    def drop(self) -> None:
        """The job is over: what waits for the end of a round is not done any more."""
        self._postponed.clear()

    def quit(self) -> None:
        self.drop()
