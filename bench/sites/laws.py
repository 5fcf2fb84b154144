"""What must hold whatever sites and store do. Told of every write, and of all that sites offer and apply. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.sites.site import SimulatedSite
from flegel.machine.group.events import Offered, Synchronized
from flegel.machine.group.records import CURRENT, Contribution, Current, Entry, RoundResult, decode, result_key

LIAR = "liar"
"""A group that tells of contributions which it never wrote, or that are not what it says."""

EXACT = 1e-9


class BrokenLaw(Exception):
    """A law that did not hold, and where."""


class SiteLaws:
    """
    one result       a round has one result, whoever wrote it how often; one that was damaged before anybody who is
                     there applied it may be made anew; with a quorum any that was damaged, with other contributions
    once each        no group is twice in a result; a change of θ is in one result only
    the quorum       a round has at least so many contributions that are in no earlier result
    no lie           a contribution that is not what its group told is in no result
    the same         everybody who applies a round applies the same entries
    the books        statistics are the group's own and those that the result names, nothing else
    nothing lost     what a life contributed in all is what it did until its last contribution that counted, in each
                     fragment of θ
    one θ            everybody who applies a round has the same θ, in every fragment, unless objects were damaged
    forward          `current` never goes back, unless it was damaged
    the same end     groups that end with one result have the same statistics and θ
    no hang          every group that comes to rest ends
    """

    def __init__(self, exchange: str = "", quorum: int = 0, fragments: int = 1) -> None:
        """`quorum`: new contributions that every round must have; 0: any number."""
        self._exchange, self._quorum, self._fragments = exchange, quorum, fragments
        self._parameters: dict[int, tuple[str, np.ndarray]] = {}  # type: ignore[type-arg]
        """Who applied a round first, and θ that it had then."""
        self.has_quorum = False
        self._remade: dict[int, list[tuple[Entry, ...]]] = {}
        """Results that were damaged, and made anew with other contributions."""
        self._counted_keys: set[str] = set()
        self.results: dict[int, tuple[Entry, ...]] = {}
        self._contents: dict[str, np.ndarray] = {}  # type: ignore[type-arg]
        self._covers: dict[str, tuple[int, ...]] = {}
        """Fragments of θ that a contribution changes."""
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
        elif key.startswith("rounds/") and f"/{LIAR}." not in key:
            header, arrays = decode(content, Contribution)
            self._contents[key] = arrays[0]
            self._covers[key] = tuple(range(self._fragments)) if header.fragment < 0 else (header.fragment,)

    def _result(self, result: RoundResult, now: float) -> None:
        known = self.results.get(result.round)
        if known is not None:
            was_lost = result_key(result.round) in self._lost
            if known != result.entries and was_lost and (self.has_quorum or not self._is_known(result.round)):
                self._replace(result)
            elif known != result.entries:
                raise BrokenLaw(f"one result: round {result.round} has a second one at {now:.2f} s")
            return
        self.results[result.round] = result.entries
        names = [entry.group for entry in result.entries]
        if len(set(names)) < len(names):
            raise BrokenLaw(f"once each: {names} in round {result.round}")
        new = {entry.key for entry in result.entries} - self._counted_keys
        if self._exchange == "parameters" and len(new) < len(names):
            raise BrokenLaw(f"once each: a change in round {result.round} at {now:.2f} s was counted before")
        if len(new) < self._quorum:
            raise BrokenLaw(f"the quorum: round {result.round} has {len(new)} new contributions of {self._quorum}")
        if LIAR in names:
            raise BrokenLaw(f"no lie: {LIAR} is in round {result.round}")
        self._counted_keys |= new
        for entry in result.entries:
            if entry.round > result.round or f"rounds/{entry.round}/" not in entry.key:
                raise BrokenLaw(f"once each: {entry.key} in round {result.round}")

    def _replace(self, result: RoundResult) -> None:
        """A result that nobody who is there has applied was damaged and is made anew. A late put of somebody else, or a
        stale read, may do the same with a quorum: who applied one of them goes on with the next."""
        self._remade.setdefault(result.round, []).append(self.results[result.round])
        self._counted_keys -= {entry.key for entry in self.results[result.round] if entry.round == result.round}
        self._counted_keys |= {entry.key for entry in result.entries}
        self.results[result.round] = result.entries

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
        if applied.round in self._remade:
            return
        if entries is None or tuple(e.group for e in entries) != applied.groups:
            raise BrokenLaw(f"the same: {where} with {applied.groups}")
        if site.settings.exchange != "statistics":
            first, theta = self._parameters.setdefault(applied.round, (site.settings.name, site.machine.base[0]))
            if not self._lost and not np.array_equal(theta, site.machine.base[0]):
                raise BrokenLaw(f"one θ: {where}; {site.machine.base[0]} is not {theta} of {first}")
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
        if exchange != "parameters" or self._remade:
            return
        done: dict[tuple[str, int, int], float] = {}
        for round_ in sorted(self.results):
            for entry in self.results[round_]:
                own = self._contents[entry.key][sites[entry.group] :: len(sites)]
                wanted = self._offers[entry.group, entry.life, entry.round]
                for fragment, value in zip(self._covers[entry.key], own, strict=True):
                    life = (entry.group, entry.life, fragment)
                    done[life] = done.get(life, 0.0) + float(value)
                    if abs(done[life] - wanted) > EXACT * max(wanted, 1):
                        raise BrokenLaw(
                            f"nothing lost: {entry.group} had done {wanted} until round {round_}, and {done[life]} "
                            f"counted in fragment {fragment}"
                        )
