"""Points that move to faster workers (`balance` of a synchronization model): how they move, by the options of a job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flegel.configuration.active import active
from flegel.machine.balance.balance_control import BalanceControl
from flegel.machine.balance.part import BalancePart
from flegel.machine.coordinator.part import CoordinatorPart
from flegel.plan.balance.planner import Balance
from flegel.runtime.job.part import Part
from flegel.sync import balance_mode, matching


class BalancedPoints(Part):
    """Rows lie where other workers of the host can read them, and the coordinator moves them."""

    def load_options(self, worker: int) -> dict[str, Any]:
        return {"lend": balance_mode(self.request.job.sync, self.request.workers) != "off"}

    def machine(self) -> CoordinatorPart:
        """Of networks nothing is kept of a point between its visits, so lost passes need not be made up: rows move
        until shares are as speeds are."""
        request, algorithm = self.request, self.request.algorithm
        if request.balance is not None:
            return request.balance
        crowded = self.running.cluster.crowded(request.workers)
        mode, criteria = balance_mode(request.job.sync, request.workers), request.job.criteria
        criteria = criteria.resolved(algorithm.learning.tolerance)
        if algorithm.kernels.backend:
            # Gradient methods keep nothing of a point between its visits: rows should be visited equally often over a
            # job, not over a pass. A perceptron, 12,000 rows, speeds 1 : 2 : 3, 10 s: 11 and 15 moves of 19,000 rows
            # with the usual rules, 3 moves of 3,000 and 7,000 rows with these.
            rules = replace(active().balance_sparing, epsilon=1.0)
            plan = Balance(rules, rules)
            return BalancePart(BalanceControl(mode, criteria, plan=plan, crowded=crowded, past=False))
        return BalancePart(BalanceControl(mode, criteria, crowded=crowded, matching=matching(request.job.sync)))
