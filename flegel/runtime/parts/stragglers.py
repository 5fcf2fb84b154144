"""Workers made slow on purpose (`--straggler`), to see what a synchronization model makes of them."""

from __future__ import annotations

from typing import Any

from flegel.plan.stragglers import parse_stragglers
from flegel.runtime.job.part import Part
from flegel.runtime.job.warm_clusters import Kind


class SlowWorkers(Part):
    """Workers are told how slow to be."""

    def check(self) -> None:
        parse_stragglers(self.request.job.straggler, self.request.workers)

    def workers_in(self) -> Kind:
        return "processes"

    def load_options(self, worker: int) -> dict[str, Any]:
        return {"straggler": self.request.job.straggler}
