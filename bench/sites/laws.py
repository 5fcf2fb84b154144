"""What must hold whatever sites and store do. Told of every write, and of all that sites offer and apply. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.sites.site import SimulatedSite
from flegel.configuration.active import active
from flegel.machine.group.events import Offered, Synchronized
from flegel.machine.group.outer_step import outer_step
from flegel.machine.group.records import (
    CURRENT,
    MEMBERS,
    Contribution,
    Current,
    Entry,
    MemberBeat,
    RoundResult,
    decode,
    digest_of,
    result_key,
)
from flegel.machine.group.wire import LEVELS, restored, shortened, unpacked

LIAR = "liar"
TOLD_AFTER = 2.5  # seconds after which everybody has read a beat: two beats, and the calls to a slow store
"""A group that tells of contributions which it never wrote, or that are not what it says."""

EXACT = 1e-9


class BrokenLaw(Exception):
    """A law that did not hold, and where."""


@dataclass(frozen=True)
class FragmentValue:
    """A fragment of θ with its velocity, and names of all contributions that are in it."""

    theta: np.ndarray  # type: ignore[type-arg]
    velocity: np.ndarray  # type: ignore[type-arg]
    changes: frozenset[str]


class SiteLaws:
    """
    one result       a round has one result, whoever wrote it how often; one that was damaged before anybody who is
                     there applied it may be made anew, and be written back by who was frozen for longer than a group
                     may be silent; with a quorum any that was damaged, with other contributions
    once each        no group is twice in a result; a change of θ is in one result only, unless that one was damaged:
                     who could not read it has begun again with a θ that does not hold the change
    once in θ        every value of θ in a result is a step from one that there was before, with the changes that the
                     result names; and none of them is in that one already
    the quorum       a round has at least so many contributions that are in no earlier result
    no lie           a contribution that is not what its group told is in no result
    the same         everybody who applies a round applies the same entries
    the books        statistics are the group's own and those that the result names, nothing else
    nothing lost     what a life contributed in all is what it did until its last contribution that counted, in each
                     fragment of θ; where changes are rounded, but for the rounding of the last one
    one θ            everybody who applies a round has the same θ, in every fragment, unless objects were damaged
    forward          `current` never goes back, unless it was damaged
    the same end     groups that end with one result have the same statistics and θ
    no hang          every group that comes to rest ends
    """

    def __init__(
        self, exchange: str = "", quorum: int = 0, fragments: int = 1, groups: int = 1, outer: str = "mean"
    ) -> None:
        """`quorum`: new contributions that every round must have; 0: any number. `groups`: numbers of a fragment."""
        self._exchange, self._quorum, self._fragments = exchange, quorum, fragments
        self._groups, self._outer = groups, outer
        zero = np.zeros(groups)
        self._values = [[FragmentValue(zero, zero, frozenset())] for _ in range(fragments)]
        """Of each fragment: all values that it ever had in a result, and that of θ(0)."""
        self._checked: set[str] = set()
        """Digests of results whose values of θ were checked."""
        self._parameters: dict[int, tuple[str, np.ndarray]] = {}  # type: ignore[type-arg]
        """Who applied a round first, and θ that it had then."""
        self.has_quorum = False
        self._remade: dict[int, list[tuple[Entry, ...]]] = {}
        """Results that were damaged, and made anew with other contributions."""
        self._counted_in: dict[str, set[int]] = {}
        """Rounds whose results count a contribution."""
        self.results: dict[int, tuple[Entry, ...]] = {}
        self._contents: dict[str, np.ndarray] = {}  # type: ignore[type-arg]
        self._covers: dict[str, tuple[int, ...]] = {}
        """Fragments of θ that a contribution changes."""
        self._visits: dict[str, float] = {}
        self._roundings: dict[str, float] = {}
        """Of each contribution: the largest error of a number, as a part of the largest one."""
        self._offers: dict[tuple[str, int, int], int] = {}
        self._counted: dict[tuple[str, int], int] = {}
        self._current = 0
        self._lost: set[str] = set()
        self._by: dict[int, list[SimulatedSite]] = {}
        """Who has applied a round."""
        self._told_rounds: dict[str, tuple[int, float]] = {}
        """The open round of each group, by its beat as it is in the bucket, and since when that says so; none where it
        was damaged."""

    def lost(self, key: str) -> None:
        """Somebody damaged or deleted it."""
        self._lost.add(key)
        self._told_rounds.pop(key.removeprefix(MEMBERS), None)
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
        elif key.startswith(MEMBERS):
            beat = decode(content, MemberBeat)[0]
            if self._told_rounds.get(beat.group, (0, 0.0))[0] != beat.round:
                self._told_rounds[beat.group] = beat.round, now
        elif key.endswith("/result"):
            result, parts = decode(content, RoundResult)
            arrays = restored(result.short, parts, [(self._groups,)] * len(result.fragments))
            self._result(result, now)
            if result.fields and digest_of(content) not in self._checked:
                self._checked.add(digest_of(content))
                self._steps(result, arrays, now)
        elif key.startswith("rounds/") and f"/{LIAR}." not in key:
            header, parts = decode(content, Contribution)
            self._covers[key] = tuple(range(self._fragments)) if header.fragment < 0 else (header.fragment,)
            shape = (self._groups * len(self._covers[key]),)
            arrays = parts if header.wire == "full" else unpacked(header.wire, parts, [shape])
            self._contents[key], self._visits[key] = arrays[0], header.visits
            self._roundings[key] = 0.5 / LEVELS[header.wire] if header.wire in LEVELS else 0.0

    def _result(self, result: RoundResult, now: float) -> None:
        known = self.results.get(result.round)
        if known is not None:
            was_lost = result_key(result.round) in self._lost
            written_back = result.round in self._remade  # by who was frozen meanwhile, and has applied the first one
            anew = written_back or (was_lost and (self.has_quorum or not self._is_known(result.round, now)))
            if known != result.entries and anew:
                self._replace(result)
            elif known != result.entries:
                raise BrokenLaw(f"one result: round {result.round} has a second one at {now:.2f} s")
            return
        self.results[result.round] = result.entries
        names = [entry.group for entry in result.entries]
        if len(set(names)) < len(names):
            raise BrokenLaw(f"once each: {names} in round {result.round}")
        new = {entry.key for entry in result.entries if not self._is_counted(entry.key)}
        if self._exchange == "parameters" and len(new) < len(names):
            raise BrokenLaw(f"once each: a change in round {result.round} at {now:.2f} s was counted before")
        if len(new) < self._quorum:
            raise BrokenLaw(f"the quorum: round {result.round} has {len(new)} new contributions of {self._quorum}")
        if LIAR in names:
            raise BrokenLaw(f"no lie: {LIAR} is in round {result.round}")
        for entry in result.entries:
            self._counted_in.setdefault(entry.key, set()).add(result.round)
            if entry.round > result.round or f"rounds/{entry.round}/" not in entry.key:
                raise BrokenLaw(f"once each: {entry.key} in round {result.round}")

    def _replace(self, result: RoundResult) -> None:
        """A result that nobody who is there has applied was damaged and is made anew. A late put of somebody else, or a
        stale read, may do the same with a quorum: who applied one of them goes on with the next."""
        self._remade.setdefault(result.round, []).append(self.results[result.round])
        for entry in self.results[result.round]:
            if entry.round == result.round:
                self._counted_in[entry.key].discard(result.round)
        for entry in result.entries:
            self._counted_in.setdefault(entry.key, set()).add(result.round)
        self.results[result.round] = result.entries

    def _is_counted(self, key: str) -> bool:
        """Whether an earlier result counts it. Where θ is exchanged and all of these were damaged, groups may go on
        from an older θ, without it: that they do is checked by `_steps`."""
        rounds = self._counted_in.get(key, set())
        if self._exchange == "parameters":
            rounds = {round_ for round_ in rounds if result_key(round_) not in self._lost}
        return bool(rounds)

    def _steps(self, result: RoundResult, arrays: Sequence[np.ndarray], now: float) -> None:  # type: ignore[type-arg]
        """Values of θ follow from those before, and hold no change twice."""
        count = len(result.fragments)
        for at, fragment in enumerate(result.fragments):
            theta, speed = arrays[at], arrays[count + at] if len(arrays) > count else np.zeros(self._groups)
            named = [entry.key for entry in result.entries if fragment in self._covers[entry.key]]
            changes = [(self._visits[key], [self._part(key, fragment)]) for key in named]
            known = self._values[fragment]
            fitting = [value for value in reversed(known) if self._is_step(value, changes, theta, speed)]
            where = f"fragment {fragment} of round {result.round} at {now:.2f} s"
            if not fitting:
                raise BrokenLaw(f"once in θ: {where} is no step from a θ that there was")
            before = next((value for value in fitting if not value.changes & set(named)), None)
            if before is None:
                raise BrokenLaw(f"once in θ: {where} holds one of {named} twice")
            known.append(FragmentValue(theta, speed, before.changes | set(named)))

    def _part(self, key: str, fragment: int) -> np.ndarray:  # type: ignore[type-arg]
        """What a contribution changes in a fragment."""
        if len(self._covers[key]) == 1:
            return self._contents[key]
        return self._contents[key][fragment * self._groups : (fragment + 1) * self._groups]

    def _is_step(
        self,
        before: FragmentValue,
        changes: Sequence[tuple[float, list[np.ndarray]]],  # type: ignore[type-arg]
        theta: np.ndarray,  # type: ignore[type-arg]
        speed: np.ndarray,  # type: ignore[type-arg]
    ) -> bool:
        new, after = outer_step(self._outer, [before.theta], [before.velocity], changes)
        pairs = [(new[0], before.theta, theta), *((speeds, before.velocity, speed) for speeds in after)]
        return all(np.array_equal(wanted, told) or self._is_short(wanted, since, told) for wanted, since, told in pairs)

    def _is_short(self, wanted: np.ndarray, since: np.ndarray, told: np.ndarray) -> bool:  # type: ignore[type-arg]
        """Whether these are the numbers of a result in few bytes."""
        parts = shortened(wanted, since, active().groups.largest_result_rounding)
        return bool(parts) and np.array_equal(restored((0,), parts, [wanted.shape])[0], told)

    def _is_known(self, round_: int, now: float) -> bool:
        """Whether somebody who is there has applied it and says so: who was frozen for longer than a group may be
        silent is not there, and nobody knows what a beat said that was damaged too, or says since a moment ago."""
        return any(
            site.alive
            and not site.ended
            and now - site.machine.last_event_at <= site.settings.silence
            and self._tells(site.settings.name, round_, now)
            for site in self._by.get(round_, ())
        )

    def _tells(self, group: str, round_: int, now: float) -> bool:
        told, since = self._told_rounds.get(group, (0, now))
        return told > round_ + 1 or (told > round_ and now - since >= TOLD_AFTER)

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
            if not site.exchange.agreed or (site.applied in self._remade and not site.exchange.together):
                continue  # it does not report that all ended with one model
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
        summed: set[str] = set()
        for round_ in sorted(self.results):
            for entry in self.results[round_]:
                if entry.key in summed:
                    continue  # the result that counted it was damaged; the other laws allow it in no other case
                summed.add(entry.key)
                own = self._contents[entry.key][sites[entry.group] :: len(sites)]
                wanted = self._offers[entry.group, entry.life, entry.round]
                for fragment, value in zip(self._covers[entry.key], own, strict=True):
                    life = (entry.group, entry.life, fragment)
                    done[life] = done.get(life, 0.0) + float(value)
                    rest = 1.01 * self._roundings[entry.key] * float(np.abs(self._contents[entry.key]).max())
                    if abs(done[life] - wanted) > EXACT * max(wanted, 1) + rest:
                        raise BrokenLaw(
                            f"nothing lost: {entry.group} had done {wanted} until round {round_}, and {done[life]} "
                            f"counted in fragment {fragment}"
                        )
