"""How much of θ each server should carry so that the slowest link finishes first: min max, exactly. Pure.

A server that carries m parameters transfers L = fixed + factor·m in a round, over a link of rate S (003, Eq. 7, 9, 10).
The iteration printed in the paper (Eq. 14) has a sign error and did not converge in 300 of 300 random cases; the
optimum has a closed form over the set of servers that carry anything, which is found by adding them in the order in
which the rising level reaches them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class LinkLoad:
    """Rate of a server's link in parameters a second; its traffic is fixed + factor·(what it carries)."""

    rate: float
    fixed: float
    factor: float

    def __post_init__(self) -> None:
        if not (self.rate > 0 and self.fixed >= 0 and self.factor >= 0):
            raise ValueError(f"a link needs a positive rate and no negative traffic: {self}")

    def seconds(self, carried: float) -> float:
        return (self.fixed + self.factor * carried) / self.rate


def colocated(rates: Mapping[int, float], total: float) -> dict[int, LinkLoad]:
    """A worker beside each server: L = M - m + (N - 1)m (003, Eq. 7)."""
    return {server: LinkLoad(rate, total, max(0, len(rates) - 2)) for server, rate in rates.items()}


def dedicated(rates: Mapping[int, float], workers: int) -> dict[int, LinkLoad]:
    """Servers on links of their own: every worker sends its part of θ and receives it: L = W·m in each direction."""
    return {server: LinkLoad(rate, 0.0, workers) for server, rate in rates.items()}


@dataclass(frozen=True)
class Load:
    """What each server carries, the seconds of the slowest link, and the servers that carry anything."""

    carried: dict[int, float]
    seconds: float
    active: tuple[int, ...]


def slowest(links: Mapping[int, LinkLoad], carried: Mapping[int, float]) -> float:
    """Seconds of a round under this load: those of the slowest link."""
    return max(link.seconds(carried.get(server, 0.0)) for server, link in links.items())


def water_filling(links: Mapping[int, LinkLoad], total: float) -> Load:
    """The load with the least maximum of seconds: m = max(0, (t·S - fixed)/factor) with the sum of m equal to total."""
    free = {server: link.rate for server, link in links.items() if not link.factor}
    if free:  # their traffic does not depend on their load
        sum_of_rates = sum(free.values())
        carried = {server: total * free.get(server, 0.0) / sum_of_rates for server in links}
        return Load(carried, slowest(links, carried), tuple(sorted(free)))
    order = sorted(links, key=lambda server: (links[server].seconds(0.0), server))
    room, slope, level = total, 0.0, 0.0
    active: list[int] = []
    for server in order:
        link = links[server]
        if active and level <= link.seconds(0.0):
            break
        active.append(server)
        room += link.fixed / link.factor
        slope += link.rate / link.factor
        level = room / slope
    chosen = {
        server: max(0.0, (level * links[server].rate - links[server].fixed) / links[server].factor) for server in active
    }
    carried = {server: chosen.get(server, 0.0) for server in links}
    return Load(carried, slowest(links, carried), tuple(sorted(active)))
