"""Ways to divide slices among servers, each with what it has measured itself: even, proportional, and water-filling.

`even` knows nothing of the network (MXNet, ps-lite). `proportional` divides by measured throughput (the Elastic of
003). `aware` is `flegel.plan.placement`: what a node has to transfer anyway is counted, and slices move when it pays.
`EngineScheme` asks what the coordinator of a job asks, so that slices also wait until later rounds confirm a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.common.slice_exchange import Exchange, RoundReport
from flegel.configuration.active import active
from flegel.machine.server.network_plan import NetworkPlan
from flegel.plan.placement.assignment import first_map, levelled
from flegel.plan.placement.replanning import decide
from flegel.plan.placement.slice_map import SliceMap, cut, difference
from flegel.plan.placement.slice_size import SliceCost
from flegel.plan.placement.throughput import ThroughputForecast, Transfer
from flegel.plan.placement.water_filling import colocated, dedicated, slowest

PROBE = 10_000
"""Parameters of a small slice (003, Section 5.2)."""
SCHEMES = ("even", "proportional", "aware")


@dataclass
class Scheme:
    """One scheme in a job of its own: map, forecast, reasons of its decisions, seconds of its rounds."""

    name: str
    total: int
    size: int
    nodes: Sequence[int]
    probes: bool = True
    rounds: int = 50
    """That a job of this kind has left, as far as it knows."""
    seconds: list[float] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    forecast: ThroughputForecast = field(default_factory=ThroughputForecast)
    cost: SliceCost = field(default_factory=SliceCost)
    planning: bool = True
    """Report transfers and decide; otherwise the map stays."""

    def __post_init__(self) -> None:
        slices = cut(self.total, self.size, len(self.nodes), PROBE if self.probes else 0)
        self.map: SliceMap = first_map(slices, self.nodes, replicas=0)
        self._next = self.map

    def round(self, exchange: Exchange) -> float:
        """One round under the plan of the last one; slices that move are copied in it."""
        copies = difference(self.map, self._next)
        self.map = self._next
        seconds, reports = exchange.round(self.map, copies, sensing=self.planning)
        self.seconds.append(seconds)
        if self.planning:
            self._plan(exchange, seconds, reports)
        return seconds

    def _plan(self, exchange: Exchange, seconds: float, reports: Sequence[RoundReport]) -> None:
        transfers: list[Transfer] = [one for report in reports for one in report.transfers]
        self.forecast = self.forecast.after_round(transfers, seconds)
        for size, took in (one for report in reports for one in report.slices):
            self.cost = self.cost.seen(size, took)
        rates = self.forecast.rates(self.nodes)
        beside = set(exchange.workers) == set(exchange.servers)
        links = colocated(rates, self.total) if beside else dedicated(rates, len(exchange.workers))
        if self.name == "aware":
            decision = decide(self.map, links, 0, self.rounds, self.forecast.noise)
            self._next = decision.chosen
            self.reasons.append(decision.reason)
        elif self.name == "proportional":
            alone = dedicated(rates, len(exchange.workers))
            planned = levelled(self.map, self.nodes, 0, rates)
            gain = 1 - slowest(alone, planned.loads()) / slowest(alone, self.map.loads())
            rules = active().placement
            least = max(rules.least_gain, rules.noise_multiple * self.forecast.noise)
            self._next = planned if gain > least else self.map


@dataclass
class EngineScheme(Scheme):
    """What a job does; the name is a value of `--server-load`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._engine = NetworkPlan(self.map.slices, True, {node: str(node) for node in self.nodes}, self.name)
        self._engine.enabled = True  # also where θ is small

    def _plan(self, exchange: Exchange, seconds: float, reports: Sequence[RoundReport]) -> None:
        transfers = [one for report in reports for one in report.transfers]
        self._engine.seen((one.source, one.target, int(one.size), one.began, one.ended) for one in transfers)
        found = self._engine.after_fold(self.map, len(exchange.workers), 0, busy=False)
        if found is not None:
            self._next = found.chosen
            self.reasons.append(found.reason)
