"""What every worker of a real job does with its trainer, wherever its messages go: half of the executor's port."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from flegel.core.pytree import Array
from flegel.machine.worker import worker as machine
from flegel.machine.worker.point_store import PointStore
from flegel.messages import Answer, AuditPoints, LoadShard, MeasureMoments, ReassignmentOrder
from flegel.runtime.worker.trainer import Trainer


class TrainerPort:
    """The calls of a worker's executor that concern its trainer (`flegel.machine.worker.executor.WorkerPort`).

    Subclasses say how messages travel: `send`, and `post` for the trainer thread.
    """

    _trainer: Trainer

    def measure(self, order: MeasureMoments) -> None:
        self._trainer.order(machine.BeginMoments(order))

    def load(self, order: LoadShard, arrays: tuple[Array, ...]) -> None:
        self._trainer.order(machine.BeginLoad(order, arrays))

    def train(self, order: machine.BeginTrain, now: float) -> None:
        self._trainer.order(order)

    def halt(self, now: float) -> None:
        self._trainer.halt()

    def reassign(self, order: ReassignmentOrder, arrays: tuple[Array, ...]) -> None:
        self._trainer.order(machine.ReassignPoints(order, arrays))

    def at_rest(self, work: Callable[[PointStore], None]) -> None:
        store = self._trainer.store
        assert store is not None
        self._trainer.at_rest(store, work)

    def audit(self, order: AuditPoints, arrays: tuple[Array, ...], reported: tuple[float, ...]) -> None:
        store = self._trainer.store
        assert store is not None
        work = partial(self._trainer.audit, order=order, theta=arrays, reported=reported)
        self._trainer.at_rest(store, lambda points: self.post(*work(points)), states=False)  # counted on fresh ones

    def statistics(self) -> tuple[Array, ...]:
        return self._trainer.statistics()

    def unreported(self) -> tuple[int, float]:
        return self._trainer.unreported

    def post(self, body: Answer, arrays: tuple[Array, ...]) -> None:
        """Send it; called in the trainer thread."""
        raise NotImplementedError
