"""What the link of each node can carry, from the transfers of the rounds themselves. Pure.

003, Eq. 6 and 8: s(i,j) = size / (end - start), the start being the arrival of a short message that precedes the data,
and S(i) = sum over j of s(i,j). Two corrections. A library may have read data ahead of its receiver: a wait of less
than 10 ms says nothing about the link, so such data counts as spread over the whole round. And rates that were not
measured at the same moment add up to more than the link has: S(i) is the largest total that was carried at one time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean, median
from typing import TypeVar

from flegel.configuration.active import active

Key = TypeVar("Key")


@dataclass(frozen=True)
class Transfer:
    """Data from one node to another, timed by the receiver in seconds since the start of the round."""

    source: int
    target: int
    size: float
    began: float
    ended: float


@dataclass(frozen=True)
class ThroughputForecast:
    """Rates by pair of nodes, and by node what it sends and receives; `after_round` returns the next forecast."""

    pairs: Mapping[tuple[int, int], float] = field(default_factory=dict)
    sent: Mapping[int, float] = field(default_factory=dict)
    received: Mapping[int, float] = field(default_factory=dict)
    rounds: int = 0
    noise: float = field(default_factory=lambda: active().placement.first_noise)
    """How much the rate of a node differs from one round to the next, as a share of it, in the mean."""

    def after_round(self, transfers: Iterable[Transfer], seconds: float) -> ThroughputForecast:
        """`seconds`: from the start of the round to the end of its last transfer."""
        seen = [_waited_for(transfer, seconds) for transfer in transfers if transfer.size > 0]
        if not seen or seconds <= 0:
            return self
        by_pair: dict[tuple[int, int], list[Transfer]] = defaultdict(list)
        by_source: dict[int, list[Transfer]] = defaultdict(list)
        by_target: dict[int, list[Transfer]] = defaultdict(list)
        for transfer in seen:
            by_pair[transfer.source, transfer.target].append(transfer)
            by_source[transfer.source].append(transfer)
            by_target[transfer.target].append(transfer)
        sent = {node: largest_total(some) for node, some in by_source.items()}
        received = {node: largest_total(some) for node, some in by_target.items()}
        newest = active().placement.newest_weight
        changes = [*_changes(self.sent, sent), *_changes(self.received, received)]
        return ThroughputForecast(
            _blended(self.pairs, {pair: largest_total(some) for pair, some in by_pair.items()}),
            _blended(self.sent, sent),
            _blended(self.received, received),
            self.rounds + 1,
            newest * fmean(changes) + (1 - newest) * self.noise if changes else self.noise,
        )

    def without(self, node: int) -> ThroughputForecast:
        """A node that was lost is forgotten."""
        return replace(
            self,
            pairs={pair: rate for pair, rate in self.pairs.items() if node not in pair},
            sent={other: rate for other, rate in self.sent.items() if other != node},
            received={other: rate for other, rate in self.received.items() if other != node},
        )

    def rates(self, nodes: Iterable[int]) -> dict[int, float]:
        """S(i) of each node: the slower direction. A node that was not measured yet has the median of the others."""
        found = {}
        for node in nodes:
            known = [side[node] for side in (self.sent, self.received) if node in side]
            found[node] = min(known) if known else 0.0
        usual = median([rate for rate in found.values() if rate] or [1.0])
        return {node: rate or usual for node, rate in found.items()}


def largest_total(transfers: Sequence[Transfer]) -> float:
    """The rate of all these together at or above which a tenth of their bytes was carried."""
    changes: dict[float, float] = defaultdict(float)
    for transfer in transfers:
        rate = transfer.size / (transfer.ended - transfer.began)
        changes[transfer.began] += rate
        changes[transfer.ended] -= rate
    times = sorted(changes)
    levels: list[tuple[float, float]] = []
    rate = 0.0
    for start, end in pairwise(times):
        rate += changes[start]
        levels.append((rate, rate * (end - start)))
    wanted = active().placement.peak_share * sum(transfer.size for transfer in transfers)
    for rate, size in sorted(levels, reverse=True):
        wanted -= size
        if wanted <= 0:
            return rate
    return levels[0][0]  # rounding alone leads here: one level


def trains(slices: Sequence[Transfer]) -> list[Transfer]:
    """Slices of one connection that followed each other without a pause, as one transfer each: fewer to report, and
    longer than the delays of a thread that has to be woken."""
    gap = active().placement.shortest_measured_wait_seconds / 2
    found: list[Transfer] = []
    for one in slices:
        last = found[-1] if found else None
        if last and (last.source, last.target) == (one.source, one.target) and one.began - last.ended <= gap:
            found[-1] = replace(last, size=last.size + one.size, ended=one.ended)
        else:
            found.append(one)
    return found


def _waited_for(transfer: Transfer, seconds: float) -> Transfer:
    if transfer.ended - transfer.began >= active().placement.shortest_measured_wait_seconds:
        return transfer
    return replace(transfer, began=0.0, ended=max(seconds, active().placement.shortest_measured_wait_seconds))


def _changes(old: Mapping[int, float], new: Mapping[int, float]) -> list[float]:
    """Relative changes of the rates that did not jump."""
    jump = active().placement.changed_link
    ratios = (rate / old[node] for node, rate in new.items() if node in old)
    return [abs(ratio - 1) for ratio in ratios if 1 / jump < ratio < jump]


def _blended(old: Mapping[Key, float], new: Mapping[Key, float]) -> dict[Key, float]:
    """Rates of links: new measurements averaged with old ones, or in their place where a link has clearly changed."""
    rules = active().placement
    jump, newest = rules.changed_link, rules.newest_weight
    found = dict(old)
    for key, rate in new.items():
        before = found.get(key)
        if before is None or not 1 / jump < rate / before < jump:
            found[key] = rate
        else:
            found[key] = newest * rate + (1 - newest) * before
    return found
