"""Back to the best θ when a job diverges: who may try again, from where, and under which model. Pure.

After every commit at which all points count, the best objective and its θ are remembered. When the job diverges, that θ
is taken, all points are counted again under it, and training goes on: statistics of many different θ, which staleness
leaves behind, are often the cause. If it diverges again, `bsp` takes over, whose statistics all come from one θ. If
that diverges as well, the method itself does, and the job ends with the best θ instead of the last.
"""

from __future__ import annotations

from flegel.configuration.active import active
from flegel.core import pytree
from flegel.core.pytree import Tree
from flegel.machine.coordinator.state import JobState
from flegel.params.hooks import call_hook
from flegel.sync.bsp import BSP


class StepBack:
    """The best θ of a job."""

    def __init__(self) -> None:
        self.tries = 0
        self.best_objective: float | None = None
        """The best objective over all points."""
        self._best_parameter: Tree | None = None
        self._parameter_before_commit: Tree | None = None

    def begin(self, job: JobState) -> None:
        """Training begins with this θ."""
        self._parameter_before_commit = job.store.parameter

    def rebased(self, job: JobState) -> None:
        """The objective is one over other points from now on: the best θ before that is not comparable."""
        self.best_objective = self._best_parameter = None
        self._parameter_before_commit = job.store.parameter

    def note(self, job: JobState) -> None:
        """θ is new. Kept is the one before: where statistics hold the loss of each point at its last visit, the
        objective is that of the θ which was visited with. A store makes θ anew each time, so no copy is needed."""
        value, before = job.objective, self._parameter_before_commit
        self._parameter_before_commit = job.store.parameter
        better = value is not None and (
            self.best_objective is None
            or (value > self.best_objective if job.algorithm.learning.maximize else value < self.best_objective)
        )
        if better and before is not None:
            self.best_objective, self._best_parameter = value, before

    def possible(self, job: JobState) -> bool:
        """The job has diverged, and there is a θ to go back to."""
        diverged = job.verdict is not None and job.verdict.outcome == "diverged"
        return diverged and self._best_parameter is not None and self.tries < active().termination.divergence_retries

    def take(self, job: JobState) -> str:
        """Go back; returns why, in a sentence without its end."""
        assert job.verdict is not None
        self.tries += 1
        why = f"went back to θ of objective {self.best_objective:.6g}, {job.verdict.reason}"
        best = call_hook(job.algorithm, job.place, "steppedBack", self._best_parameter)
        job.store.set_parameter(pytree.as_typed(best, job.store.parameter))
        if self.tries == active().termination.divergence_retries and not isinstance(job.policy, BSP):
            why += f"; {job.policy.name} is replaced by bsp"
            job.policy = BSP()
        return why

    def settle(self, job: JobState) -> None:
        """The job is over: where it diverged, the best θ is its result."""
        if job.verdict is not None and job.verdict.outcome == "diverged" and self._best_parameter is not None:
            job.store.set_parameter(self._best_parameter)
            job.objective = self.best_objective
