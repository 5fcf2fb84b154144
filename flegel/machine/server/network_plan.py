"""What a job knows of the links of its servers, and what it makes of it: slices that should move, with reasons. Pure.

Receivers time what they get; here the times become a forecast, and after each fold a decision of
`flegel.plan.placement`. It never moves anything: `ServerCare` does, between two folds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from flegel.machine.server.assignment import Assignment
from flegel.plan.placement.replanning import PlacementDecision, decide
from flegel.plan.placement.slice_size import SliceCost, best_size
from flegel.plan.placement.throughput import ThroughputForecast, Transfer
from flegel.plan.placement.water_filling import LinkLoad, colocated, dedicated, water_filling

LEAST_BYTES = 1_000_000
"""θ and statistics below that are no load for any network: nothing is measured and nothing moves."""
FIRST_ROUNDS = 5
"""A job is taken to have as many rounds left as it has done, and at least so many."""
REMEMBERED = 20
"""Decisions."""


class PlacementSnapshot(msgspec.Struct, frozen=True):
    """The servers as the plan sees them."""

    loads: dict[int, int]
    """Bytes that each server holds as primary."""
    rates: dict[int, float]
    """Bytes a second of each server's link, as forecast."""
    pairs: tuple[tuple[int, int, float], ...]
    """Sender, receiver, bytes a second: the measured matrix."""
    reasons: tuple[str, ...]
    """Of the last decisions, each once in a row."""
    moves: int
    """Plans that moved slices."""
    slice_cost: float
    """Bytes that a link carries in the time that a slice costs besides its size."""
    best_slice: int
    """Bytes, by the formula."""


class NetworkPlan:
    """One job. `hosts`: where its workers run; processes of one host share its link, and what they send each other does
    not count."""

    def __init__(self, sizes: Sequence[int], beside_workers: bool, hosts: Mapping[int, str]) -> None:
        self.sizes = tuple(sizes)
        self.enabled = sum(sizes) >= LEAST_BYTES
        self._beside, self._hosts = beside_workers, dict(hosts)
        self._numbers: dict[str, int] = {}
        self._arrived: list[Transfer] = []
        self._forecast = ThroughputForecast()
        self._cost = SliceCost()
        self._folds = 0
        self._moves = 0
        self._reasons: list[str] = []

    def runs_on(self, server: int, host: str) -> None:
        """A server has started."""
        self._hosts[server] = host

    def _node(self, process: int) -> int:
        """The host of a process as a number below 0; a process whose host is not known is a node of its own."""
        host = self._hosts.get(process)
        return process if host is None else self._numbers.setdefault(host, -1 - len(self._numbers))

    def seen(self, transfers: Iterable[tuple[int, int, int, float, float]]) -> None:
        """Sender, receiver, bytes, and when it began and ended on the receiver's clock since the round began there."""
        for source, target, size, began, ended in transfers:
            one = Transfer(self._node(source), self._node(target), size, began, ended)
            if one.source != one.target:
                self._arrived.append(one)
                self._cost = self._cost.seen(size, ended - began)

    def after_fold(self, current: Assignment, workers: int, replicas: int, busy: bool) -> PlacementDecision | None:
        """What was seen since the last fold, and what follows; None while nothing is known, or `busy` with a move."""
        self._folds += 1
        arrived, self._arrived = self._arrived, []
        if not self.enabled or not arrived:
            return None
        self._forecast = self._forecast.after_round(arrived, max(one.ended for one in arrived))
        if busy:
            return None
        found_map = current.as_map(self.sizes)
        found = decide(
            found_map, self._links(found_map.servers, workers), replicas, max(FIRST_ROUNDS, self._folds),
            self._forecast.noise,
        )  # fmt: skip
        self._moves += found.moves
        if not self._reasons or self._reasons[-1] != found.reason:
            self._reasons = [*self._reasons, found.reason][-REMEMBERED:]
        return found

    def shares(self, servers: Sequence[int], workers: int) -> dict[int, float] | None:
        """What each of these should carry; None while nothing is known."""
        if not self._forecast.rounds:
            return None
        return water_filling(self._links(servers, workers), sum(self.sizes)).carried

    def _links(self, servers: Sequence[int], workers: int) -> dict[int, LinkLoad]:
        rates = self._rates(servers)
        return colocated(rates, sum(self.sizes)) if self._beside else dedicated(rates, workers)

    def _rates(self, servers: Sequence[int]) -> dict[int, float]:
        found = self._forecast.rates({self._node(server) for server in servers})
        return {server: found[self._node(server)] for server in servers}

    def forget(self, server: int) -> None:
        """It is lost; its successor may have another link."""
        self._forecast = self._forecast.without(self._node(server))

    def snapshot(self, current: Assignment) -> PlacementSnapshot:
        pairs = sorted(self._forecast.pairs.items())
        loads = current.as_map(self.sizes).loads()
        servers = len(loads)
        alpha = self._cost.alpha(1)
        return PlacementSnapshot(
            loads, self._rates(sorted(loads)) if self._forecast.rounds else {},
            tuple((source, target, rate) for (source, target), rate in pairs), tuple(self._reasons), self._moves,
            alpha, best_size(sum(self.sizes), alpha, servers, servers),
        )  # fmt: skip
