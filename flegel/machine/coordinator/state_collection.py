"""The points' hidden states, fetched from every worker when training is over. Pure."""

from __future__ import annotations

from flegel.core.pytree import Array
from flegel.machine.coordinator.events import Milestone
from flegel.machine.coordinator.liveness import Liveness
from flegel.machine.coordinator.state import JobState
from flegel.messages import FetchStates


class StateCollection:
    """What has arrived so far."""

    def __init__(self, job: JobState, liveness: Liveness, wanted: bool) -> None:
        self._job, self._liveness = job, liveness
        self.wanted = wanted
        """Hidden states are fetched at the end."""
        self.states: dict[int, tuple[Array, Array]] = {}
        """By worker: states of its points, and their numbers."""

    def start(self, now: float) -> None:
        self._job.phase = "collecting"
        self._job.out.append(Milestone("collecting"))
        for worker in self._job.view.workers:
            self._liveness.expect(worker, now)
            self._job.send(worker, FetchStates())

    def took(self, worker: int, arrays: tuple[Array, ...]) -> bool:
        """A worker's states came; True when they are the last."""
        self.states[worker] = (arrays[0], arrays[1])
        return len(self.states) == len(self._job.view.workers)

    def forget(self, worker: int) -> None:
        self.states.pop(worker, None)

    def clear(self) -> None:
        """Training goes on: what came will be out of date."""
        self.states.clear()

    def overdue(self, worker: int, waited: float) -> str:
        """What to say of a worker that has not sent its states for so long; empty where all is well."""
        if self._job.phase != "collecting" or worker in self.states or waited <= self._job.timeouts.report:
            return ""
        return f"Worker {worker} did not send its state within {waited:.0f} s."
