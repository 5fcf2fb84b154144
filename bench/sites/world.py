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
from bench.sites.laws import BrokenLaw, SiteLaws
from bench.sites.site import LastCommit, SimulatedSite
from flegel.machine.group.events import Hinted
from flegel.machine.group.group import GroupSettings

QUIET_FROM = 30.0  # seconds of virtual time; the store and the sites behave from then on
END = 55.0
ENDED_BY = 200.0  # where groups end: a stalled one after four times the silence limit, a lonely one after twenty
SILENCE = 5.0
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
        self.laws = SiteLaws()
        self._queue: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = itertools.count()
        rng = np.random.default_rng([seed, 1])
        self._hints = np.random.default_rng([seed, 2]) if seed % 3 == 0 else None
        """Of the fate of direct messages, in a third of the seeds."""
        self.bucket = SimulatedBucket(self.scenario.faults, rng, self.at, self.laws.written, self.laws.lost)
        chosen = np.random.default_rng([seed, 5])
        for at, kind in self.scenario.damages:
            self.at(at, lambda now, k=kind: self.bucket.damage(k, chosen, now))  # type: ignore[misc]
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
            least_groups=self.scenario.least_groups,
        )  # fmt: skip
        hint = self._hint if self._hints is not None else None
        site = SimulatedSite(
            settings, index, self.scenario.groups, self.scenario.every, now, self.bucket.call, self.laws.told,
            hint=hint, last=self.scenario.lasts[index] if self.scenario.lasts else None, at=self.at,
        )  # fmt: skip
        self.sites[index] = site
        self.at(now, lambda t: self._wake(site, t))
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

    def _wake(self, site: SimulatedSite, now: float) -> None:
        if site.alive and not (site.ended and site.machine.over):
            again = site.frozen_until if site.frozen_until > now else max(site.wake(now), now + 0.01)
            self.at(again, lambda t: self._wake(site, t))

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
            self.run_until(ENDED_BY)
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
        if alive and (made < least or max(rounds) - min(rounds) > 2):
            raise BrokenLaw(f"on it goes: {made} rounds in the quiet time, groups are in rounds {rounds}")
        last = self.laws.results.get(max(self.laws.results, default=0), ())
        missing = {site.settings.name for site in alive} - {entry.group for entry in last}
        if missing:
            raise BrokenLaw(f"on it goes: {sorted(missing)} is alive and not in the last round")
