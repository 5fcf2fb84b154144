"""Sites that train their own rows for real, on virtual time: state machines of groups, links of given speed, a bucket.

A site visits all of its rows, commits, and exchanges as its options say; how long that takes follows from its rows, its
speed and its link, not from this machine. Outages stop a site. Nothing sleeps, and the same seed gives the same course.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from bench.sites.bucket import BucketFaults, SimulatedBucket
from bench.sites.site import StoreCall, VirtualSite
from flegel.algorithm import Algorithm
from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.core.shard import make_shard
from flegel.core.stop_flag import new_flag
from flegel.datasets import open_data
from flegel.declarations.accepts import RowHooks
from flegel.declarations.kernels import KernelHooks
from flegel.declarations.optional import hook
from flegel.job import Criteria, Job
from flegel.machine.coordinator.events import TraceRow
from flegel.machine.coordinator.state import JobState
from flegel.machine.group.events import Answered, Offered, PutObject, StoreCommand, Synchronized
from flegel.machine.group.exchange import GroupExchange, additive_fields, exchange_of
from flegel.machine.group.group import Group, GroupSettings
from flegel.machine.group.quorum import ALL_GROUPS, Quorum
from flegel.machine.group.records import digest_of
from flegel.machine.group.schedule import Every
from flegel.params.local import LocalStore
from flegel.params.protocol import Fold
from flegel.runtime.backends.registry import choose
from flegel.runtime.job.prepared_job import PreparedJob
from flegel.runtime.job.request import Request, check_data
from flegel.sim.trainer import BackendLearner, KernelLearner
from flegel.sync.policy import View, WorkerView

SMALL_OBJECT_BYTES = 4096  # what is smaller shares a link with a large object instead of waiting behind it
Rows = tuple[Array, "Array | None"]


@dataclass(frozen=True)
class Place:
    """A site: what it has, how fast it is, and how it is connected."""

    rows: Rows
    speed: float
    """Rows a second."""
    bandwidth: float
    """Bytes a second, in each direction."""
    latency: float
    """Seconds of a round trip to the bucket."""
    outages: tuple[tuple[float, float], ...] = ()
    """From, to: the site does nothing, and what it did since its last contribution stays."""


@dataclass(frozen=True)
class Agreement:
    """How sites exchange."""

    every: int = 1
    quorum: Quorum = ALL_GROUPS
    wire: str = "full"
    fragments: int = 1
    outer: str = "mean"
    waits: bool = False
    """A site does not train between its contribution and the result."""
    silence: float = 30.0
    commit_rows: int = 0
    """Rows between two commits; 0: all of a site's."""


class LinkedBucket(SimulatedBucket):
    """A bucket that is never wrong, behind a link of each site; counts bytes. Only the newest content is kept."""

    def __init__(self, at: Callable[[float, Callable[[float], None]], None]) -> None:
        super().__init__(BucketFaults(0.0), np.random.default_rng(0), at, lambda key, content, now: None)
        self._later = at
        self.bytes_of_rounds: dict[str, int] = {}
        """By site: contributions and results, sent and received."""

    def write(self, key: str, content: bytes | None, now: float) -> None:
        self._history[key] = [(now, content)]

    def link(self, name: str, place: Place) -> StoreCall:
        """Calls of one site. Large objects follow each other in each direction."""
        free = {"up": 0.0, "down": 0.0}
        self.bytes_of_rounds[name] = 0

        def arrives(way: str, key: str, size: int, now: float) -> float:
            if key.startswith("rounds/"):
                self.bytes_of_rounds[name] += size
            takes = size / place.bandwidth
            if size < SMALL_OBJECT_BYTES:
                return now + takes + place.latency / 2
            free[way] = max(free[way], now) + takes
            return free[way] + place.latency / 2

        def call(command: StoreCommand, now: float, answer: Callable[[Answered, float], None]) -> None:
            self.calls += 1
            key = getattr(command, "key", "")
            size = len(command.content) if isinstance(command, PutObject) else 0

            def happen(then: float) -> None:
                done = self._do(command, then)
                self._later(arrives("down", key, len(done.content), then), lambda t: answer(done, t))

            self._later(arrives("up", key, size, now), happen)

        return call


class TrainingSite(VirtualSite):
    """A site that trains its rows by the algorithm's own kernel."""

    def __init__(
        self, settings: GroupSettings, agreement: Agreement, plan: PreparedJob, learner: Any, place: Place, **ports: Any
    ) -> None:
        self.place, self._learner, self._waits = place, learner, agreement.waits
        algorithm, theta = plan.algorithm, pytree.unflatten(plan.parameter, [*map(np.array, _fields(plan.parameter))])
        self.store = LocalStore(algorithm, theta, plan.zero)
        kept = settings.exchange == "statistics"
        base = [] if kept else additive_fields(algorithm, theta)
        sent = pytree.flatten(plan.zero) if kept else base
        points = learner.points
        view = View(workers={0: WorkerView(0, points)})
        super().__init__(
            settings,
            JobState(algorithm, cast("Any", None), Criteria(), self.store, phase="training", view=view),
            GroupExchange(
                algorithm, Every(commits=agreement.every), settings.silence, base, wire=agreement.wire,
                fragments=agreement.fragments,
            ),
            Group(settings, [a.shape for a in sent], base, 0.0),
            **ports,
        )  # fmt: skip
        self.visits = 0
        self._row = 0
        self._commit_rows = min(agreement.commit_rows or points, points)

    @property
    def commit_seconds(self) -> float:
        return float(self._commit_rows / self.place.speed)

    def stopped_until(self, now: float) -> float:
        return next((end for begin, end in self.place.outages if begin <= now < end), now)

    @property
    def waits(self) -> bool:
        return self._waits and self.exchange.awaits_result

    def commit(self, now: float) -> None:
        """The next rows of the site were visited."""
        end = min(self._row + self._commit_rows, self._learner.points)
        self._learner.clear()
        self._learner.train(self.store.parameter, self._row, end, self.job.iteration)
        change = pytree.unflatten(self.store.statistics, list(self._learner.changes()))
        folded = self.store.fold(Fold(self.job.iteration, (0,), (change,), "a commit"))
        self.job.objective = folded.objective
        self.job.iteration += 1
        visits, self._row = end - self._row, end % self._learner.points
        self.visits += visits
        self.job.trace = [TraceRow(now, self.job.iteration, None, None, None, visits, 0.0, "")]
        self.exchange.at_commit(self.job, now)
        self._flush(now)


def _fields(tree: Tree) -> list[Array]:
    return pytree.flatten(tree)


def prepared(algorithm: Algorithm, rows: Rows, seed: int) -> PreparedJob:
    """θ(0) and empty statistics, by the rows of all sites."""
    request = Request(algorithm, open_data(rows[0] if rows[1] is None else rows), Job(workers=1, seed=seed))
    check_data(request)
    return PreparedJob(request, None)


def learner_of(plan: PreparedJob, rows: Rows, kernel: Any, seed: int) -> Any:
    """Trains these rows from scratch."""
    algorithm, (features, labels) = plan.algorithm, rows
    state = algorithm.initState(len(features), features.shape[1], np.random.default_rng(seed))
    own = algorithm.accepts.kept_labels(labels)
    layout = hook(algorithm, KernelHooks.layout_for)(features.shape[1])
    unit = hook(algorithm, RowHooks.unit_rows)()
    shard = make_shard(features, own, state, layout, np.arange(len(features)), unit=unit)
    if backend := algorithm.kernels.backend:
        made = cast("Any", choose("cpu", backend)).by_clock(lambda: 0.0)
        built = made.build(algorithm, shard, plan.parameter, plan.zero, interpret=False)
        return BackendLearner(algorithm, built, shard, new_flag())
    return KernelLearner(algorithm, kernel, replace(shard, state=shard.state.copy()), plan.zero, new_flag())


class BookAudit:
    """Looks at the books of a site after every result that it applies. What it holds of another site must be, bit for
    bit, something that this site offered, and its total must be the sum over all sites."""

    def __init__(self) -> None:
        self._offered: dict[str, set[str]] = {}
        self.looks = 0
        self.foreign = 0
        """Statistics in somebody's books that their site never offered."""
        self.largest_discrepancy = 0.0
        """Between a total and its parts, relative."""

    def told(self, site: TrainingSite, what: Offered | Synchronized) -> None:
        if isinstance(what, Offered):
            self._offered.setdefault(site.settings.name, set()).add(_digest(what.arrays))
            return
        self.looks += 1
        self.foreign += sum(_digest(arrays) not in self._offered.get(of, ()) for of, arrays in what.remote.items())
        self.largest_discrepancy = max(self.largest_discrepancy, site.store.discrepancy())


def _digest(arrays: Sequence[Array]) -> str:
    return digest_of(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays))


class TrainingWorld:
    """Several sites and their bucket."""

    def __init__(self, plan: PreparedJob, places: Sequence[Place], agreement: Agreement, seed: int = 0) -> None:
        self._queue: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = itertools.count()
        self.bucket = LinkedBucket(self.at)
        self.results: list[tuple[float, int]] = []
        """When the first site has applied a round, and its number."""
        self.audit = BookAudit()
        self._kernel = plan.compile().kernel
        self.sites: list[TrainingSite] = []
        for index, place in enumerate(places):
            settings = GroupSettings(
                name=f"g{index}", life=1, exchange=exchange_of(plan.algorithm), silence=agreement.silence,
                quorum=agreement.quorum, fragments=agreement.fragments, outer=agreement.outer, least_groups=len(places),
            )  # fmt: skip
            learner = learner_of(plan, place.rows, self._kernel, seed + index)
            call = self.bucket.link(settings.name, place)
            self.sites.append(
                TrainingSite(settings, agreement, plan, learner, place, call=call, told=self._told, at=self.at)
            )
        for site in self.sites:
            site.begin(0.0)
            self.at(site.commit_seconds, lambda t, s=site: self._commit(s, t))  # type: ignore[misc]

    def at(self, when: float, what: Callable[[float], None]) -> None:
        heapq.heappush(self._queue, (when, next(self._count), what))

    def _told(self, site: Any, what: Offered | Synchronized, now: float) -> None:
        if site.settings.exchange == "statistics":
            self.audit.told(site, what)
        if isinstance(what, Synchronized) and (not self.results or what.round > self.results[-1][1]):
            self.results.append((now, what.round))

    def _commit(self, site: TrainingSite, now: float) -> None:
        back = site.stopped_until(now)
        if back > now or site.waits:
            self.at(max(back, now + 0.05), lambda t: self._commit(site, t))
            return
        site.commit(now)
        self._go_on(site, now)

    def _go_on(self, site: TrainingSite, now: float) -> None:
        """A site that waits for a result goes on when that has come."""
        if site.waits:
            self.at(now + 0.05, lambda t: self._go_on(site, t))
        else:
            self.at(now + site.commit_seconds, lambda t: self._commit(site, t))

    def run_until(self, end: float) -> None:
        while self._queue and self._queue[0][0] <= end:
            now, _, what = heapq.heappop(self._queue)
            what(now)

    @property
    def parameter(self) -> Tree:
        """θ of the site that has applied the newest round."""
        return max(self.sites, key=lambda site: site.applied).store.parameter

    @property
    def common_parameter(self) -> Tree:
        """θ that all sites have in common after the newest round, where θ is exchanged: what no result has counted yet
        is not in it."""
        site = max(self.sites, key=lambda site: site.applied)
        theta, algorithm = site.store.parameter, site.job.algorithm
        names = pytree.names(theta)
        common = dict(zip([n for n in names if n in algorithm.placement.additive], site.machine.base, strict=True))
        fields = zip(names, pytree.flatten(theta), strict=True)
        return pytree.unflatten(theta, [common.get(name, field) for name, field in fields])

    @property
    def goodput(self) -> float:
        """Visits that results have counted, of all visits of all sites."""
        return self.counted_visits / max(sum(site.visits for site in self.sites), 1)

    @property
    def counted_visits(self) -> float:
        """That results hold; a visit counts when all fragments of θ have been exchanged."""
        return sum((site.exchange.goodput or 0.0) * site.visits for site in self.sites)

    @property
    def bytes_of_a_round(self) -> float:
        """Of one site, in the mean."""
        rounds = max(self.results[-1][1], 1) if self.results else 1
        return sum(self.bucket.bytes_of_rounds.values()) / len(self.sites) / rounds
