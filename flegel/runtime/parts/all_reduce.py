"""θ kept by every worker, and reports merged among workers (`--topology allreduce`)."""

from __future__ import annotations

from typing import Any

from flegel.errors import UsageError
from flegel.params.ledger import sums_alone
from flegel.params.protocol import ParameterStore
from flegel.params.replicated import ReplicatedStore
from flegel.runtime.job.part import Part
from flegel.wording import option


class AllReduce(Part):
    """Workers hold copies of θ; the coordinator's store asks them to merge."""

    def check(self) -> None:
        if why := self._against():
            raise UsageError(f"{why}; use {option('topology', 'coordinator')}.")

    def _against(self) -> str:
        """Why workers cannot merge the reports of this job among themselves; empty where they can."""
        request = self.request
        if request.job.attribute:
            return f"{option('attribute')} asks for the gain of each report, which an all-reduce cannot tell"
        if str(request.job.servers) != "0":
            return f"{option('servers')} keeps θ on servers and {option('topology', 'allreduce')} on workers"
        if not sums_alone(request.algorithm):
            name = type(request.algorithm).__name__
            return f"aggregate of {name} merges reports its own way, which an all-reduce cannot"
        return ""

    def load_options(self, worker: int) -> dict[str, Any]:
        return {"replicated": True}

    def store(self) -> ParameterStore:
        prepared = self.running.prepared
        return ReplicatedStore(self.request.algorithm, prepared.parameter, prepared.zero)
