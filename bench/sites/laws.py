"""What must hold whatever sites and store do. Told of every write, and of all that sites offer and apply. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.sites.site import SimulatedSite
from flegel.machine.group.events import Offered, Synchronized
from flegel.machine.group.records import CURRENT, Contribution, Current, Entry, RoundResult, decode, result_key

EXACT = 1e-9


class BrokenLaw(Exception):
    """A law that did not hold, and where."""


class SiteLaws:
    """
    one result       a round has one result, whoever wrote it how often; one that was damaged before anybody who is
                     there applied it may be made anew
    once each        no group is twice in a result, and what it sent was for that round, or its last before it ended
    the same         everybody who applies a round applies the same entries
    the books        statistics are the group's own and those that the result names, nothing else
    nothing lost     what a life contributed in all is what it did until its last contribution that counted
    forward          `current` never goes back, unless it was damaged
    the same end     groups that end with one result have the same statistics and θ
    no hang          every group that comes to rest ends
    """

    def __init__(self) -> None:
        self.results: dict[int, tuple[Entry, ...]] = {}
        self._contents: dict[str, np.ndarray] = {}  # type: ignore[type-arg]
        self._offers: dict[tuple[str, int, int], int] = {}
        self._counted: dict[tuple[str, int], int] = {}
        self._current = 0
        self._lost: set[str] = set()
        self._by: dict[int, list[SimulatedSite]] = {}
        """Who has applied a round."""

    def lost(self, key: str) -> None:
        """Somebody damaged or deleted it."""
        self._lost.add(key)
        if key == CURRENT:
            self._current = 0

    def written(self, key: str, content: bytes | None, now: float) -> None:
        if content is None:
            return
        if key == CURRENT:
            newest = decode(content, Current)[0].round
            if newest < self._current:
                raise BrokenLaw(f"forward: current went from {self._current} to {newest} at {now:.2f} s")
            self._current = newest
        elif key.endswith("/result"):
            self._result(decode(content, RoundResult)[0], now)
        elif key.startswith("rounds/"):
            self._contents[key] = decode(content, Contribution)[1][0]

    def _result(self, result: RoundResult, now: float) -> None:
        known = self.results.get(result.round)
        if known is not None:
            if known != result.entries and result_key(result.round) in self._lost and not self._is_known(result.round):
                self.results[result.round] = result.entries
            elif known != result.entries:
                raise BrokenLaw(f"one result: round {result.round} has a second one at {now:.2f} s")
            return
        self.results[result.round] = result.entries
        names = [entry.group for entry in result.entries]
        if len(set(names)) < len(names):
            raise BrokenLaw(f"once each: {names} in round {result.round}")
        for entry in result.entries:
            if entry.round > result.round or f"rounds/{entry.round}/" not in entry.key:
                raise BrokenLaw(f"once each: {entry.key} in round {result.round}")

    def _is_known(self, round_: int) -> bool:
        return any(site.alive and not site.ended for site in self._by.get(round_, ()))

    def told(self, site: SimulatedSite, what: Offered | Synchronized, now: float) -> None:
        if isinstance(what, Offered):
            self._offers[(*site.life, what.round)] = site.commits
        else:
            self._applied(site, what, now)

    def _applied(self, site: SimulatedSite, applied: Synchronized, now: float) -> None:
        entries = self.results.get(applied.round)
        self._by.setdefault(applied.round, []).append(site)
        where = f"{site.settings.name} applied round {applied.round} at {now:.2f} s"
        if entries is None or tuple(e.group for e in entries) != applied.groups:
            raise BrokenLaw(f"the same: {where} with {applied.groups}")
        if site.settings.exchange != "statistics":
            return
        wanted = np.zeros_like(site.store.parameter)
        wanted[site.index] = site.commits
        for entry in entries:
            if entry.group != site.settings.name:
                wanted = wanted + self._contents[entry.key]
        if not np.array_equal(wanted, site.store.statistics.steps):
            raise BrokenLaw(f"the books: {where}; {site.store.statistics.steps} is not {wanted}")

    def endings(self, sites: Sequence[SimulatedSite]) -> None:
        """Of sites that come to rest, when all the time there is has passed."""
        late = [site.settings.name for site in sites if not site.ended]
        if late:
            raise BrokenLaw(f"no hang: {late} did not end")
        ends: dict[int, SimulatedSite] = {}
        for site in sites:
            if not site.exchange.agreed:
                continue
            other = ends.setdefault(site.applied, site)
            if not np.array_equal(other.store.statistics.steps, site.store.statistics.steps):
                raise BrokenLaw(
                    f"the same end: {other.settings.name} and {site.settings.name} end with round {site.applied} and "
                    f"{other.store.statistics.steps}, {site.store.statistics.steps}"
                )

    def at_the_end(self, sites: dict[str, int], exchange: str) -> None:
        """`sites`: component of each group. Only what θ holds can be counted over rounds."""
        if exchange != "parameters":
            return
        done: dict[tuple[str, int], float] = {}
        for round_ in sorted(self.results):
            for entry in self.results[round_]:
                life = (entry.group, entry.life)
                own = float(self._contents[entry.key][sites[entry.group]])
                done[life] = done.get(life, 0.0) + own
                wanted = self._offers[(*life, round_)]
                if abs(done[life] - wanted) > EXACT * max(wanted, 1):
                    raise BrokenLaw(
                        f"nothing lost: {entry.group} had done {wanted} until round {round_}, and {done[life]} counted"
                    )
