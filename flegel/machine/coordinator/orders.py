"""Orders to train and to stop, and what was ordered last. Decides nothing; the synchronization model does."""

from __future__ import annotations

from flegel.algorithm import visit_hook
from flegel.core import pytree
from flegel.core.changed_rows import ArraysOfStep
from flegel.core.pytree import Array
from flegel.machine.coordinator.events import Send
from flegel.machine.coordinator.liveness import Liveness
from flegel.machine.coordinator.state import JobState
from flegel.messages import Stop, Train
from flegel.sync.policy import TrainWorkers


class WorkerOrders:
    """Who trains in which round, since when."""

    def __init__(self, job: JobState, liveness: Liveness) -> None:
        self._job, self._liveness = job, liveness
        self.round_of: dict[int, int] = {}
        """The round of each worker's last order."""
        self.sent_at: dict[int, float] = {}
        self.before_last: dict[int, float] = {}
        """When each worker's order before the last one was sent."""
        self.lingering: set[int] = set()
        """Workers that go on training after they have reported."""

    def train(self, action: TrainWorkers, now: float) -> None:
        """Send θ and the number of visits to the workers. θ is left out where the store has published it already."""
        job = self._job
        version = job.store.train_version
        arrays: tuple[Array, ...] = ()
        if not job.store.publish(action.workers):
            unsent = job.algorithm.placement.unsent
            arrays = made = ArraysOfStep(pytree.flatten(pytree.without(job.store.parameter, unsent)))
            made.made = None if unsent else job.store.made
        out, workers = job.out, job.view.workers
        round_, points, seconds, linger = job.view.round, action.points, action.seconds, action.linger
        for worker in action.workers:
            seen = workers[worker]
            seen.phase, seen.stopping = "training", False
            visits = seen.points if points is None else points[worker]
            own = seconds.get(worker) if seconds else None
            body = Train(round_, visits, own, linger, version, cursor=action.cursor)
            out.append(Send(worker, body, arrays))
        self.round_of.update(dict.fromkeys(action.workers, round_))
        self.before_last.update((w, self.sent_at[w]) for w in action.workers if w in self.sent_at)
        self.sent_at.update(dict.fromkeys(action.workers, now))
        (self.lingering.update if linger else self.lingering.difference_update)(action.workers)
        self._liveness.expect_all(action.workers, now)

    def stop(self, workers: tuple[int, ...], now: float) -> None:
        for worker in workers:
            self._job.view.workers[worker].stopping = True
            self._liveness.asked_at[worker] = now
            self._job.send(worker, Stop(self.round_of[worker]))

    def stop_all(self, now: float) -> None:
        """Everybody who trains and has not been told to stop."""
        view = self._job.view
        self.stop(tuple(w for w in view.training() if not view.workers[w].stopping), now)

    def forget(self, worker: int) -> None:
        self.lingering.discard(worker)
        self.sent_at.pop(worker, None)
        self.before_last.pop(worker, None)

    def overdue(self, worker: int, waited: float) -> str:
        """What to say of a worker that was told to stop and has not reported for so long; empty where all is well."""
        seen = self._job.view.workers.get(worker)
        if seen is None or not seen.stopping or waited <= self._job.timeouts.report:
            return ""
        return (
            f"Worker {worker} did not commit within {waited:.0f} s of the barrier of round "
            f"{self.round_of[worker]}; does {visit_hook(type(self._job.algorithm))} return?"
        )
