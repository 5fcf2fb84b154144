"""Points that are too expensive to wait for (`--expensive abandon|retry`): workers leave their visits."""

from __future__ import annotations

from typing import Any

from flegel.declarations.kernels import KernelHooks
from flegel.declarations.optional import defines
from flegel.errors import UsageError
from flegel.runtime.job.part import Part
from flegel.wording import option


class ExpensivePoints(Part):
    """Workers are told when to leave the visit of a point; the result says how many were left."""

    def check(self) -> None:
        """Refuse algorithms whose points are not visited one by one by hooks."""
        job, algorithm = self.request.job, self.request.algorithm
        shown, name = option("expensive", job.expensive), type(algorithm).__name__
        if algorithm.kernels.backend or job.device or job.gpus:
            raise UsageError(f"{shown} works on processors, where points are visited one by one; omit it.")
        if defines(algorithm, KernelHooks.kernel):
            raise UsageError(f"{shown} is for hooks; {name} visits points in a kernel of its own, so omit it.")
        if job.threads:
            raise UsageError(f"{shown} needs workers of one thread each; omit {option('threads')}.")

    def load_options(self, worker: int) -> dict[str, Any]:
        return {"expensive": self.request.job.expensive, "point_seconds": self.request.job.hook_timeout}
