"""What a user's callback is: three methods that a job calls. Does nothing itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flegel.job import Job
    from flegel.machine.coordinator.observation import JobSnapshot
    from flegel.results.result import Result


class Callback:
    """Override what you need. Each callback has a thread of its own: it may be slow, and never delays a barrier."""

    def before_training(self, job: Job) -> None:
        """Once, before workers load. `job.algorithm` has the algorithm's name and hyper-parameters."""

    def after_barrier(self, snapshot: JobSnapshot) -> bool | str | None:
        """After every barrier, in order. True, or a reason as text, ends the job with what there is as its result."""
        return None

    def after_training(self, result: Result | None) -> None:
        """Once, after the last barrier; None where the job failed."""
