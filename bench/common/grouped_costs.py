"""What a coordinator would cost with heads of groups between it and the workers, which the engine does not have.

Heads add up the reports of their group and pass θ on. Models global barriers only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from flegel.sim.coordinator_cost import CoordinatorCost, Costs


@dataclass(frozen=True)
class GroupedCosts(Costs):
    """Costs of a coordinator with heads of groups."""

    group: int = 2
    """Workers of a group."""

    def thread(self, workers: int) -> CoordinatorCost:
        return TreeCost(self, workers)


class TreeCost(CoordinatorCost):
    """Heads of groups. A broadcast costs the coordinator one order a group, and a barrier one report a group."""

    in_order = False

    def __init__(self, costs: GroupedCosts, workers: int) -> None:
        groups = math.ceil(workers / costs.group)
        super().__init__(costs, groups)
        self.group = costs.group
        self._heads = [CoordinatorCost(costs, costs.group) for _ in range(groups)]
        self._sent: list[tuple[object, float]] = [(None, 0.0)] * groups
        self._due = [0] * groups

    def head(self, worker: int) -> int:
        return worker // self.group

    def send_done_at(self, worker: int, size: int, arrays: object, at: float) -> float:
        group = self.head(worker)
        self._due[group] += bool(size)
        what, left = self._sent[group]
        if what is not arrays or arrays is None:
            left = super().send_done_at(worker, size, arrays, at) + self.costs.message
            self._sent[group] = (arrays, left)
        return self._heads[group].send_done_at(worker, size, arrays, left)

    def taken_at(self, worker: int, size: int, at: float) -> float:
        """The head adds it to what it has; the last of the group is passed on as one report of them all."""
        group = self.head(worker)
        merged = self._heads[group].taken_at(worker, size, at)
        self._due[group] = max(self._due[group] - 1, 0)
        if self._due[group]:
            return merged + self.costs.message
        return super().taken_at(worker, size, merged + self.costs.message)
