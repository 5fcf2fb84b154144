"""How the θ of one job is cut: from its start, and anew when servers or the cost of a slice have changed. Pure.

`ServerCare` asks after each fold; the sizes come from `plan/placement/slice_size.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from flegel.configuration.active import active
from flegel.core.sharding import Cuts, Partition
from flegel.machine.server.network_plan import NetworkPlan
from flegel.plan.placement.slice_size import SliceRule


class Cutting:
    """One job. `make`: from a number of slices and how they are divided to the cut of this θ."""

    def __init__(self, rule: SliceRule, make: Callable[[int, Partition | None], Cuts]) -> None:
        self._rule, self._make = rule, make

    def cut(self, servers: int, workers: int, alpha: float | None = None) -> Cuts:
        """`alpha`: the fixed cost of a slice, in parameters; by default that of a job that has measured nothing."""
        cost = active().placement.first_slice_cost if alpha is None else alpha
        wanted = self._rule.count(cost, servers, workers)
        return self._make(wanted, partial(self._rule.sizes, servers=servers))

    def anew(self, now: Cuts, servers: int, workers: int, replicas: int, network: NetworkPlan | None) -> Cuts:
        """The cut to go on with: another one where servers have too few slices, or where it makes rounds shorter."""
        alpha = None if network is None else network.slice_cost(workers)
        if now.count < active().placement.fewest_slices_each_server * servers:
            found = self.cut(servers, workers, alpha)
            return found if found.count > now.count else now
        if network is None or alpha is None:
            return now
        size = self._rule.size(alpha, servers, workers)
        return self.cut(servers, workers, alpha) if network.another_size_pays(size, alpha, workers, replicas) else now
