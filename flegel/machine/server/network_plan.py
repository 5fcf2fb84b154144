"""What a job knows of the links of its servers, and what it makes of it: slices that should move, with reasons. Pure.

Receivers time what they get; here the times become a forecast, and after each fold a decision of
`flegel.plan.placement`. It never moves anything: `ServerCare` does, between two folds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from flegel.configuration.active import active
from flegel.plan.placement.published_loads import SCHEMES, decide_each_round
from flegel.plan.placement.replanning import JUDGED_TRIALS, PlacementDecision, decide, gain_in_hindsight
from flegel.plan.placement.slice_map import SliceMap
from flegel.plan.placement.slice_size import SliceCost, best_size, decide_cut
from flegel.plan.placement.throughput import ThroughputForecast, Transfer
from flegel.plan.placement.water_filling import LinkLoad, colocated, dedicated, water_filling

MAX_CREDIBLE_ROUND_SECONDS = 86_400.0
"""A transfer that claims to have taken longer, or whose time is no number, is dropped."""
REMEMBERED_DECISIONS = 20
"""Trials and reasons of placement decisions that are kept."""


class NetworkPlan:
    """One job. `hosts`: where its workers run; processes of one host share its link, and what they send each other does
    not count."""

    def __init__(
        self,
        sizes: Sequence[int],
        beside_workers: bool,
        hosts: Mapping[int, str],
        load: str = "network",
        parameter_bytes: float = 0.0,
        parameters: int = 0,
    ) -> None:
        """`sizes`: bytes of each slice. `beside_workers`: servers run on hosts of workers. `hosts`: by number of a
        process, where it runs. `load`: by water-filling where it pays (`network`), or a scheme of `published_loads` in
        every round. `parameters`, `parameter_bytes`: how many θ has, and the bytes of each."""
        self.sizes = tuple(sizes)
        self._parameters, self._parameter_bytes = parameters, parameter_bytes
        self._folds_for_another_size = 0
        """Folds in a row after which another size of slices would have paid."""
        self._scheme = SCHEMES.get(load)
        self.enabled = sum(sizes) >= active().placement.least_bytes
        self._beside, self._hosts = beside_workers, dict(hosts)
        self._numbers: dict[str, int] = {}
        """By host: its number as a node of the network, below 0."""
        self._arrived: list[Transfer] = []
        """Transfers that receivers have timed since the last fold."""
        self._forecast = ThroughputForecast()
        self._cost = SliceCost()
        self._folds = 0
        self._last_plan: tuple[tuple[int, ...], SliceMap] | None = None
        """The primaries of the slices in the last round and the map that was planned then; this round shows what
        the plan would have saved."""
        self._trials: list[float] = []
        """What the plans of the last rounds would have saved, each as a share of the round that followed it."""
        self.moves = 0
        self.reasons: list[str] = []

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
            if not (size > 0 and 0 <= began <= ended <= MAX_CREDIBLE_ROUND_SECONDS):
                continue
            one = Transfer(self._node(source), self._node(target), size, began, ended)
            if one.source != one.target:
                self._arrived.append(one)
                self._cost = self._cost.seen(size, ended - began)

    def after_fold(self, current: SliceMap, workers: int, replicas: int, busy: bool) -> PlacementDecision | None:
        """What was seen since the last fold, and what follows; None while nothing is known, or `busy` with a move."""
        self._folds += 1
        arrived, self._arrived = self._arrived, []
        if not self.enabled or not arrived:
            return None
        seconds = max(one.ended for one in arrived)
        if self._last_plan is not None and self._last_plan[0] == current.primary:
            # By the rates of this round alone, which the plan has not seen.
            links_this_round = self._links(current.servers, workers, ThroughputForecast().after_round(arrived, seconds))
            gain = gain_in_hindsight(links_this_round, current, self._last_plan[1])
            self._trials = [*self._trials, gain][-REMEMBERED_DECISIONS:]
        else:
            self._trials = []
        self._forecast = self._forecast.after_round(arrived, seconds)
        if busy:
            return None
        remaining = max(active().placement.first_remaining_rounds, self._folds)
        links = self._links(current.servers, workers, self._forecast)
        if self._scheme is not None:
            found = decide_each_round(current, links, replicas, self._scheme)
        else:
            found = decide(current, links, replicas, remaining, self._forecast.noise, self._trials)
        self._last_plan = current.primary, found.planned
        self.moves += found.moves
        self._note(found.reason)
        return found

    def shares(self, servers: Sequence[int], workers: int) -> dict[int, float] | None:
        """What each of these should carry; None while nothing is known."""
        if not self._forecast.rounds:
            return None
        return (self._scheme or water_filling)(self._links(servers, workers, self._forecast), sum(self.sizes)).carried

    def _links(self, servers: Sequence[int], workers: int, forecast: ThroughputForecast) -> dict[int, LinkLoad]:
        rates = self._rates(servers, forecast)
        return colocated(rates, sum(self.sizes)) if self._beside else dedicated(rates, workers)

    def _rates(self, servers: Sequence[int], forecast: ThroughputForecast) -> dict[int, float]:
        found = forecast.rates({self._node(server) for server in servers})
        return {server: found[self._node(server)] for server in servers}

    def forget(self, server: int) -> None:
        """It is lost; its successor may have another link."""
        self._forecast = self._forecast.without(self._node(server))

    def rate(self, server: int) -> float:
        """Bytes a second of its host's link; 0: not measured."""
        return self._rates([server], self._forecast)[server] if self._forecast.rounds else 0.0

    def matrix(self) -> tuple[tuple[str, str, float], ...]:
        """Sending and receiving host, bytes a second."""
        names = {number: host for host, number in self._numbers.items()}
        return tuple(
            (names.get(source, str(source)), names.get(target, str(target)), rate)
            for (source, target), rate in sorted(self._forecast.pairs.items())
        )

    def slice_cost(self, workers: int) -> float | None:
        """The fixed cost of a slice as fitted to the transfers, in parameters; None: not measured."""
        alpha = self._cost.alpha(max(workers, 1)) if self._parameter_bytes else None
        return None if alpha is None else alpha / self._parameter_bytes

    def best_slice(self, workers: int) -> int:
        """Bytes of θ in a slice that the fitted cost asks for, by Eq. 4; 0: not measured."""
        alpha = self.slice_cost(workers)
        size = 0 if alpha is None else best_size(self._parameters, alpha, max(workers, 1))
        return round(size * self._parameter_bytes)

    def another_size_pays(self, better: int, alpha: float, workers: int, replicas: int) -> bool:
        """Whether θ should be cut anew into slices of `better` parameters; several folds in a row have to say so."""
        if not self._forecast.rounds or not self.sizes:
            return False
        unit, total = self._parameter_bytes, self._parameters * self._parameter_bytes
        rate = min(min(side.values(), default=0.0) for side in (self._forecast.sent, self._forecast.received))
        if rate <= 0:
            return False
        remaining = max(active().placement.first_remaining_rounds, self._folds)
        size = total * max(self.sizes) / sum(self.sizes)  # probes are no slices in this sense
        found = decide_cut(total, size, better * unit, alpha * unit, workers, rate, remaining, replicas)
        self._folds_for_another_size = self._folds_for_another_size + 1 if found.wanted else 0
        if self._folds_for_another_size < JUDGED_TRIALS[0]:
            return False
        self._folds_for_another_size = 0
        self._note(found.reason)
        return True

    def cut_anew(self, sizes: Sequence[int]) -> None:
        """θ has other slices: plans for the former ones say nothing of them."""
        self.sizes, self._last_plan, self._trials = tuple(sizes), None, []

    def _note(self, reason: str) -> None:
        if not self.reasons or self.reasons[-1] != reason:
            self.reasons = [*self.reasons, reason][-REMEMBERED_DECISIONS:]
