"""Several sites and their bucket under faults, from one seed: killed, frozen and joining groups, groups that converge
or reach a limit, a store that lies, and somebody who damages objects.

After a while all faults end, and what is alive must synchronize again. The same seed gives the same course.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from bench.sites.bucket import DAMAGE, BucketFaults, SimulatedBucket
from bench.sites.laws import LIAR, BrokenLaw, SiteLaws
from bench.sites.site import LastCommit, SimulatedSite
from flegel.machine.group.events import Hinted
from flegel.machine.group.group import GroupSettings
from flegel.machine.group.quorum import ALL_GROUPS, Quorum
from flegel.machine.group.records import MEMBERS, Contribution, MemberBeat, contribution_key, digest_of, encode

LIES = ("absent", "digest", "numbers", "shape")
QUIET_FROM = 30.0  # seconds of virtual time; the store and the sites behave from then on
END = 55.0
ENDED_BY = 200.0  # where groups end: a stalled one after four times the silence limit, a lonely one after twenty
SILENCE = 5.0
LAST_REST = 40.0  # seconds after which groups come to rest, with a quorum
LONGEST_WAIT = 100.0  # twenty times the silence limit: for a quorum, after the others have ended for want of one
SLOW_ROUND = 4.0  # seconds of a round beside its commits: beats and turns
CALLS_IN_TURN = 8.4  # latencies of a round's store calls: six follow each other, 1.4 latencies each on average


@dataclass(frozen=True)
class SiteScenario:
    """What happens in a seed."""

    exchange: str
    groups: int
    every: int
    faults: BucketFaults
    kills: tuple[tuple[int, float, float], ...]
    """Group, when, and when it comes back (never where that is after the end)."""
    freezes: tuple[tuple[int, float, float], ...]
    joins: tuple[float, ...]
    """When each group starts."""
    periods: tuple[float, ...]
    damages: tuple[tuple[float, str], ...] = ()
    """When, and how (`bucket.DAMAGE`)."""
    lasts: tuple[LastCommit, ...] = ()
    """Where training ends in each group; none: it never does."""
    least_groups: int = 1
    quorum: Quorum = ALL_GROUPS
    grace: float | None = None
    fragments: int = 1
    """Parts of θ, one of which is exchanged in a round."""
    outer: str = "mean"
    wire: str = "full"
    """How changes of θ are written."""
    lie: str = ""
    """What a group that takes part only to lie does (`LIES`); none: there is no such group."""


def draw_damaged(seed: int) -> SiteScenario:
    """The same, and somebody damages objects."""
    rng = np.random.default_rng([seed, 3])
    times = sorted(float(at) for at in QUIET_FROM * rng.random(int(rng.integers(1, 12))))
    kinds = [str(kind) for kind in rng.choice(DAMAGE, len(times))]
    return replace(draw_scenario(seed), damages=tuple(zip(times, kinds, strict=True)))


def draw_ending(seed: int) -> SiteScenario:
    """Statistics are exchanged, objects are damaged in half of the seeds, and every group ends."""
    rng = np.random.default_rng([seed, 4])
    base = draw_damaged(seed) if seed % 2 else draw_scenario(seed)
    lasts = tuple(LastCommit(int(rng.integers(1, 60)), bool(rng.random() < 0.3)) for _ in range(base.groups))
    return replace(base, exchange="statistics", lasts=lasts)


def draw_quorum(seed: int) -> SiteScenario:
    """A quorum of groups of very unequal speed ends rounds; in a third of the seeds each objects are damaged, or groups
    end; in half of them somebody lies."""
    rng = np.random.default_rng([seed, 6])
    base = (draw_scenario, draw_damaged, draw_ending)[seed % 3](seed)
    quorum = Quorum(count=int(rng.integers(1, base.groups + 1)))
    if rng.random() < 0.3:
        quorum = Quorum(share=float(rng.choice([0.3, 0.5, 0.6, 1.0])))
    grace = (None, None, 0.0, 0.5, 3.0)[int(rng.integers(5))]
    periods = tuple(float(v) for v in rng.choice([0.1, 0.3, 1.0, 2.5], base.groups))
    lie = str(rng.choice(LIES)) if rng.random() < 0.5 else ""
    lasts = tuple(
        replace(last, commits=min(last.commits, int(LAST_REST / period) + 1))
        for last, period in zip(base.lasts, periods, strict=False)
    )
    return replace(base, quorum=quorum, grace=grace, periods=periods, lie=lie, lasts=lasts, least_groups=base.groups)


def draw_fragments(seed: int) -> SiteScenario:
    """θ is exchanged in two to four parts; with a quorum and liars in half of the seeds, with damage in a quarter, and
    groups end in a quarter."""
    rng = np.random.default_rng([seed, 7])
    base = (draw_quorum if seed % 2 else draw_damaged if seed % 4 else draw_scenario)(seed)
    lasts = base.lasts
    if seed % 4 == 0 and rng.random() < 0.5:
        lasts = tuple(LastCommit(int(rng.integers(1, 60)), bool(rng.random() < 0.3)) for _ in range(base.groups))
    outer = str(rng.choice(["mean", "visits", "nesterov"]))
    return replace(base, exchange="parameters", fragments=int(rng.integers(2, 5)), outer=outer, lasts=lasts)


def draw_rounded(seed: int) -> SiteScenario:
    """The same, and changes of θ are written in few bytes, so results are, too."""
    return replace(draw_fragments(seed), wire=str(np.random.default_rng([seed, 8]).choice(["int8", "int4"])))


def draw_scenario(seed: int) -> SiteScenario:
    rng = np.random.default_rng(seed)
    groups = int(rng.integers(2, 5))
    bad = float(rng.random())
    away = tuple((begin, begin + float(rng.random()) * 8.0) for begin in QUIET_FROM * 0.7 * rng.random(rng.integers(3)))
    faults = BucketFaults(
        latency=float(rng.choice([0.01, 0.05, 0.4])),
        fails=0.15 * bad * float(rng.random()),
        lost_answers=0.2 * bad * float(rng.random()),
        late_effects=0.1 * bad * float(rng.random()),
        stale=float(rng.choice([0.0, 0.5, 3.0])),
        away=away,
    )
    times = 2.0 + 20.0 * rng.random((4, 2))
    kills = tuple(
        (int(rng.integers(groups)), float(at), float(at + (1e9 if rng.random() < 0.3 else 8.0 * more / 20.0)))
        for at, more in times[: rng.integers(3)]
    )
    freezes = tuple(
        (int(rng.integers(groups)), float(at), float(at + more / 2)) for at, more in times[rng.integers(4) :]
    )
    joins = tuple(float(v) for v in np.where(rng.random(groups) < 0.6, 0.0, 15.0 * rng.random(groups)))
    return SiteScenario(
        "parameters" if seed % 2 else "statistics", groups, int(rng.integers(1, 5)), faults, kills, freezes, joins,
        tuple(float(v) for v in rng.choice([0.1, 0.3, 1.0], groups)),
    )  # fmt: skip


class SiteWorld:
    """One seed on virtual time."""

    def __init__(self, seed: int, scenario: SiteScenario | None = None) -> None:
        self.scenario = scenario or draw_scenario(seed)
        scenario = self.scenario
        strict = scenario.quorum.count if not scenario.lasts and not scenario.damages else 0
        self.laws = SiteLaws(scenario.exchange, strict, scenario.fragments, scenario.groups, scenario.outer)
        self.laws.has_quorum = scenario.quorum.given
        self._queue: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = itertools.count()
        rng = np.random.default_rng([seed, 1])
        self._hints = np.random.default_rng([seed, 2]) if seed % 3 == 0 else None
        """Of the fate of direct messages, in a third of the seeds."""
        self.bucket = SimulatedBucket(self.scenario.faults, rng, self.at, self.laws.written, self.laws.lost)
        chosen = np.random.default_rng([seed, 5])
        for at, kind in self.scenario.damages:
            self.at(at, lambda now, k=kind: self.bucket.damage(k, chosen, now))  # type: ignore[misc]
        if scenario.lie:
            self.at(0.5, lambda now: self._lie(1, now))
        self.sites: dict[int, SimulatedSite] = {}
        self._lives = itertools.count(1)
        for index, at in enumerate(self.scenario.joins):
            self.at(at, lambda now, i=index: self._start(i, now))  # type: ignore[misc]
        for index, at, back in self.scenario.kills:
            self.at(at, lambda now, i=index: self._kill(i))  # type: ignore[misc]
            self.at(back, lambda now, i=index: self._start(i, now))  # type: ignore[misc]
        for index, at, until in self.scenario.freezes:
            self.at(at, lambda now, i=index, u=until: self._freeze(i, u))  # type: ignore[misc]
        self.at(QUIET_FROM, lambda now: self._behave())

    def _lie(self, number: int, now: float) -> None:
        """A beat that tells of a contribution to the round which is probably open."""
        round_ = max(self.laws.results, default=0) + 1
        key, groups = contribution_key(round_, LIAR, 1), self.scenario.groups
        said = Contribution(LIAR, 1, round_, 1, 1e9, 10, settled=True)
        content = encode(said, [np.full(groups * self.scenario.fragments + (self.scenario.lie == "shape"), np.nan)])
        digest = digest_of(b"something else" if self.scenario.lie == "digest" else content)
        if self.scenario.lie != "absent":
            self.bucket.write(key, content, now)
        beat = MemberBeat(LIAR, 1, number, "training", round_, key, digest, round_, 1e9)
        self.bucket.write(MEMBERS + LIAR, encode(beat), now)
        if now < QUIET_FROM:
            self.at(now + 0.5, lambda t: self._lie(number + 1, t))

    def at(self, when: float, what: Callable[[float], None]) -> None:
        heapq.heappush(self._queue, (when, next(self._count), what))

    def _behave(self) -> None:
        self.bucket.behave()

    def _start(self, index: int, now: float) -> None:
        before = self.sites.get(index)
        if before is not None and before.alive:
            return
        settings = GroupSettings(
            name=f"g{index}", life=next(self._lives), exchange=self.scenario.exchange, silence=SILENCE, poll=0.05,
            fragments=self.scenario.fragments, outer=self.scenario.outer,
            least_groups=self.scenario.least_groups, quorum=self.scenario.quorum, grace=self.scenario.grace,
        )  # fmt: skip
        hint = self._hint if self._hints is not None else None
        site = SimulatedSite(
            settings, index, self.scenario.groups, self.scenario.every, now, self.bucket.call, self.laws.told,
            hint=hint, wire=self.scenario.wire, at=self.at,
            last=self.scenario.lasts[index] if self.scenario.lasts else None,
        )  # fmt: skip
        self.sites[index] = site
        self.at(now + self.scenario.periods[index], lambda t: self._commit(site, t))

    def _hint(self, sender: SimulatedSite, content: bytes, now: float) -> None:
        """A direct message may be lost, late, or there twice, and also comes from one that has died since."""
        assert self._hints is not None
        for index in sorted(self.sites):
            copies = int(self._hints.choice([0, 1, 2], p=[0.3, 0.6, 0.1])) if index != sender.index else 0
            for _ in range(copies):
                late = float(self._hints.choice([0.01, 0.3, 6.0], p=[0.7, 0.2, 0.1]))
                self.at(now + late, lambda t, i=index: self._heard(i, content, t))  # type: ignore[misc]

    def _heard(self, index: int, content: bytes, now: float) -> None:
        site = self.sites[index]
        if site.alive and site.frozen_until <= now:
            site.handle(Hinted(content), now)

    def _commit(self, site: SimulatedSite, now: float) -> None:
        if site.alive and not site.ended:
            if site.frozen_until <= now:
                site.commit(now)
            self.at(now + self.scenario.periods[site.index], lambda t: self._commit(site, t))

    def _kill(self, index: int) -> None:
        if index in self.sites:
            self.sites[index].alive = False

    def _freeze(self, index: int, until: float) -> None:
        if index in self.sites:
            self.sites[index].frozen_until = min(until, QUIET_FROM)

    def run_until(self, end: float) -> None:
        """All that happens before."""
        while self._queue and self._queue[0][0] <= end:
            now, _, what = heapq.heappop(self._queue)
            what(now)

    def run(self) -> SiteWorld:
        """To the end; raises `BrokenLaw`."""
        at_quiet: int | None = None
        if self.scenario.lasts:
            self.run_until(ENDED_BY + (LONGEST_WAIT if self.scenario.quorum.given else 0.0))
            self.laws.endings([site for site in self.sites.values() if site.alive])
            return self
        while self._queue and self._queue[0][0] <= END:
            now, _, what = heapq.heappop(self._queue)
            if at_quiet is None and now >= QUIET_FROM + 2.0 * SILENCE:
                at_quiet = max(self.laws.results, default=0)
            what(now)
        self._check_progress(at_quiet or 0)
        self.laws.at_the_end({f"g{i}": i for i in range(self.scenario.groups)}, self.scenario.exchange)
        return self

    def _check_progress(self, before: int) -> None:
        alive = [site for site in self.sites.values() if site.alive]
        rounds = [site.machine.round for site in alive]
        made = max(self.laws.results, default=0) - before
        commits = self.scenario.every * max(self.scenario.periods)
        store = CALLS_IN_TURN * self.scenario.faults.latency
        least = int((END - QUIET_FROM - 2.0 * SILENCE) / (commits + SLOW_ROUND + store))
        quorum = self.scenario.quorum
        known = self.scenario.groups + bool(self.scenario.lie)
        if len(alive) < quorum.needed(known, self.scenario.least_groups, 0) and quorum.given:
            return
        if self.scenario.damages and any(site.machine.stalled for site in alive):
            return  # an object that nobody knows any more: it says so, and ends when it rests
        if alive and (made < least or max(rounds) - min(rounds) > (made if quorum.given else 2)):
            raise BrokenLaw(f"on it goes: {made} rounds in the quiet time, groups are in rounds {rounds}")
        newest = max(self.laws.results, default=0)
        first = before + 1 if quorum.given else newest  # a quorum does not need everybody in every round
        recent = [entry for r in range(first, newest + 1) for entry in self.laws.results.get(r, ())]
        before_them = {entry.key for r in range(first) for entry in self.laws.results.get(r, ())}
        # A contribution that was late is new, too, though it was made for an earlier round.
        missing = {site.settings.name for site in alive} - {e.group for e in recent if e.key not in before_them}
        # A slow one that has just contributed is in one of the next rounds.
        new = [site.machine.pending_since for site in alive if site.settings.name in missing]
        if missing and not all(since is not None and END - since <= SLOW_ROUND + commits for since in new):
            raise BrokenLaw(f"on it goes: {sorted(missing)} is alive and in no round since {first}")
