"""What the coordinator's own work costs: one thread takes in reports and sends orders, one after the other.

Decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_HEARTBEAT_SHARE = 0.95  # of the coordinator's time that heartbeats may take; beyond that the model is not valid


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

    def thread(self, workers: int) -> CoordinatorCost:
        """The coordinator of so many workers, at these costs."""
        return CoordinatorCost(self, workers)


MEASURED = Costs(
    message=0.00008,
    react=0.00003,
    merge=50e-6,
    send=28e-6,
    merge_byte=0.8e-9,
    send_byte=0.3e-9,
    update=100e-6,
    beat=30e-6,
    wake=0.00012,
)
"""A real coordinator (docs/results/simulation.md)."""


class CoordinatorCost:
    """The coordinator's one thread: when it has taken in a message, when an order has left."""

    in_order = True
    """Reports are taken in in the order in which they come."""

    def __init__(self, costs: Costs, workers: int) -> None:
        self.costs = costs
        self.free_at = 0.0
        self.strain = 1.0 / (1.0 - min(costs.beat * workers, MAX_HEARTBEAT_SHARE))
        """Heartbeats take a part of the time, so everything else takes so many times as long."""

    def idle_at(self, at: float) -> float:
        """When somebody who came at `at` is served."""
        return at if at > self.free_at else self.free_at

    def taken_at(self, worker: int, size: int, at: float) -> float:
        """A report came at `at`: when is it taken in?"""
        c = self.costs
        start = at if at > self.free_at else self.free_at
        self.free_at = start + (c.merge + size * c.merge_byte) * self.strain
        return self.free_at

    def work(self, seconds: float) -> None:
        """Something else to do, now."""
        self.free_at += seconds * self.strain

    def send_done_at(self, worker: int, size: int, arrays: object, at: float) -> float:
        """An order wanted at `at`: when does it leave?"""
        c = self.costs
        start = at if at > self.free_at else self.free_at
        self.free_at = start + (c.send + size * c.send_byte) * self.strain
        return self.free_at
