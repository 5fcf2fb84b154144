"""What the coordinator's own work costs: one thread takes in reports and sends orders, one after the other.

`CoordinatorCost` is the coordinator as it is. `TreeCost` is what it would be with heads of groups between it and the
workers, a design that the engine does not have: heads add up the reports of their group and pass θ on. Decides nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

BUSIEST = 0.95  # of the coordinator's time that heartbeats may take; beyond that the model is not valid


@dataclass(frozen=True)
class Costs:
    """Seconds that things take besides training."""

    message: float = 0.0003
    """One way between coordinator and a worker."""
    react: float = 0.00005
    """From a raised flag or an order to the kernel's obedience."""
    merge: float = 0.0
    """The coordinator takes in one report; it does one at a time."""
    bandwidth: float = 1e9
    """Bytes a second that a worker can send to others."""
    send: float = 0.0
    """The coordinator sends one order."""
    merge_byte: float = 0.0
    """For each byte of a report."""
    send_byte: float = 0.0
    """For each byte of an order."""
    update: float = 0.0
    """A new θ from the statistics."""
    beat: float = 0.0
    """The coordinator takes in a heartbeat; each worker sends one a second."""
    wake: float = 0.0
    """Own work of a worker on an order or a report: waking, decoding, sending."""
    tree: int = 0
    """Workers of a group whose head stands between them and the coordinator; 0: no groups (a what-if)."""
    shards: int = 1
    """Parts of θ and of the statistics on as many servers (a what-if): bytes are handled side by side."""


MEASURED = Costs(
    message=0.00008, react=0.00003, merge=50e-6, send=28e-6, merge_byte=0.8e-9, send_byte=0.3e-9,
    update=100e-6, beat=30e-6, wake=0.00012,
)  # fmt: skip
"""A real coordinator (docs/results/simulation.md)."""


class CoordinatorCost:
    """The coordinator's one thread: when it has taken in a message, when an order has left."""

    def __init__(self, costs: Costs, workers: int) -> None:
        self.costs = costs
        self.free = 0.0
        self.strain = 1.0 / (1.0 - min(costs.beat * workers, BUSIEST))
        """Heartbeats take a part of the time, so everything else takes so many times as long."""

    def idle_at(self, at: float) -> float:
        """When somebody who came at `at` is served."""
        return at if at > self.free else self.free

    def take(self, worker: int, size: int, at: float) -> float:
        """A report came at `at`: when is it taken in?"""
        c = self.costs
        start = at if at > self.free else self.free
        self.free = start + (c.merge + size * c.merge_byte / c.shards) * self.strain
        return self.free

    def work(self, seconds: float) -> None:
        """Something else to do, now."""
        self.free += seconds * self.strain

    def give(self, worker: int, size: int, arrays: object, at: float) -> float:
        """An order wanted at `at`: when does it leave?"""
        c = self.costs
        start = at if at > self.free else self.free
        self.free = start + (c.send + size * c.send_byte / c.shards) * self.strain
        return self.free


class TreeCost(CoordinatorCost):
    """Heads of groups. A broadcast costs the coordinator one order a group, and a barrier one report a group."""

    def __init__(self, costs: Costs, workers: int) -> None:
        groups = math.ceil(workers / costs.tree)
        super().__init__(costs, groups)
        self._heads = [CoordinatorCost(costs, costs.tree) for _ in range(groups)]
        self._sent: list[tuple[object, float]] = [(None, 0.0)] * groups
        self._due = [0] * groups

    def head(self, worker: int) -> int:
        return worker // self.costs.tree

    def give(self, worker: int, size: int, arrays: object, at: float) -> float:
        group = self.head(worker)
        self._due[group] += bool(size)
        what, left = self._sent[group]
        if what is not arrays or arrays is None:
            left = super().give(worker, size, arrays, at) + self.costs.message
            self._sent[group] = (arrays, left)
        return self._heads[group].give(worker, size, arrays, left)

    def take(self, worker: int, size: int, at: float) -> float:
        """The head adds it to what it has; the last of the group is passed on as one report of them all."""
        group = self.head(worker)
        merged = self._heads[group].take(worker, size, at)
        self._due[group] = max(self._due[group] - 1, 0)
        if self._due[group]:
            return merged + self.costs.message
        return super().take(worker, size, merged + self.costs.message)
