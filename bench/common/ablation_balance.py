"""Simulated jobs for the ablation of the balance rules: points that only count their visits, on virtual time.

Each point holds what is left to gain from it; a visit takes a fifth of that, less the longer θ has not been updated.
So points that are visited rarely hold the objective back, as in real training, without its chance (starting points,
local optima). Reads no clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from flegel.algorithm import Algorithm
from flegel.configuration.balance import BalanceSettings
from flegel.core.pytree import Array, Tree
from flegel.core.shard import Shard, make_shard
from flegel.declarations.learning import Learning
from flegel.job import AlgorithmRef, Criteria, SyncSpec
from flegel.machine.balance.balance_control import BalanceControl
from flegel.machine.balance.part import BalancePart
from flegel.machine.coordinator.coordinator import Coordinator
from flegel.machine.coordinator.events import Timeouts
from flegel.messages import LoadShard, TreeLayout
from flegel.params.local import LocalStore
from flegel.plan.balance.planner import Balance
from flegel.plan.stragglers import parse_stragglers
from flegel.sim.simulation import Costs, simulate
from flegel.sim.speeds import Course, Drift, Speeds, draw
from flegel.sim.trainer import Pace
from flegel.sync import make_policy

POINTS = 4096  # of a worker
RATE = 2e5  # points a second of a worker that is not slowed: a pass takes 20 ms
GAIN = 0.2  # share of what is left in a point that a visit takes
BLUNTING = 0.6  # of which is lost at the end of a round that lasts a pass


@dataclass(frozen=True)
class Scenario:
    """A cluster and a job on it."""

    name: str
    workers: int = 16
    slow: str = ""
    scatter: float = 0.03
    drift: Drift | None = None
    processors: int = 0
    """Processors that the workers share; 0: one for each."""
    mode: str = "async"
    bandwidth: float = 5e7
    target: float = 0.01
    """Share of the objective that is left; 0.01 takes about 25 passes."""

    @property
    def sparing(self) -> bool:
        return self.mode == "sync" or self.processors > 0


SCENARIOS = (
    Scenario("16, 4 of them 8× slower", slow="0-3:8x"),
    Scenario("16, 4 of them 8× slower, scatter 0.15", slow="0-3:8x", scatter=0.15),
    Scenario("16, 4 of them 8× slower, 1 MB/s", slow="0-3:8x", bandwidth=1e6),
    Scenario("16, 4 of them 8× slower, short job", slow="0-3:8x", scatter=0.15, target=0.2),
    Scenario("16, 4 of them 8× slower, sync", slow="0-3:8x", mode="sync"),
    Scenario("16, 4 of them with pauses", slow="0-3:10ms/1000"),
    Scenario("16, none slow, scatter 0.15", scatter=0.15),
    Scenario("16, speeds drift by 0.3", drift=Drift(0.3, 0.1)),
    Scenario("8 on 4 processors", workers=8, processors=4, target=0.002),
    Scenario("8 on 4 processors, 2 of them 8× slower", workers=8, processors=4, slow="0-1:8x", target=0.2),
    Scenario("4, 1 of them 8× slower, scatter 0.15", workers=4, slow="0:8x", scatter=0.15),
    Scenario("2, 1 of them 3× slower, scatter 0.15", workers=2, slow="0:3x", scatter=0.15),
)


@dataclass(frozen=True)
class Outcome:
    seconds: float
    """Until the target."""
    spread: float
    """Largest difference of passes between two workers at the end."""
    moves: int


class Remainder(Algorithm):
    """The statistics are the sum of what was gained; the objective is the share that is left."""

    learning = Learning(averaged=True)

    def __init__(self, points: int) -> None:
        super().__init__()
        self.points = points

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return aggregator.copy()

    def objective(self, aggregator: Any, parameter: Any) -> float:
        return float(1 - aggregator[0] / self.points)


class VisitLearner:
    """Takes its part of what is left in each point that is visited."""

    def __init__(self, shard: Shard) -> None:
        self.shard, self.points, self.columns = shard, shard.points, shard.columns
        self._gained = self._visits = 0.0

    def train(self, parameter: Tree, start: int, end: int, iteration: int, shard: Shard | None = None) -> None:
        left = (shard or self.shard).state[start:end]
        worth = max(1 - BLUNTING * self._visits / POINTS, 0.1)
        self._gained += GAIN * worth * float(left.sum(dtype=np.float64))
        left *= 1 - GAIN * worth
        self._visits += end - start

    def clear(self) -> None:
        self._gained = self._visits = 0.0

    def changes(self) -> tuple[Array, ...]:
        return (np.array((self._gained,)),)


def scattered(scatter: float, seed: int, worker: int) -> Iterator[tuple[float, float]]:
    """A speed that changes every 5 ms or so, about one that differs by 3 % from those of others."""
    rng = np.random.default_rng([seed, worker])
    usual, at = float(np.exp(rng.normal(0, 0.03))), 0.0
    while True:
        yield at, usual * float(np.exp(rng.normal(0, scatter)))
        at += 5e-3 * rng.uniform(0.5, 1.5)


def shared(workers: int, processors: int, seed: int, seconds: float = 20.0) -> dict[int, Course]:
    """Which workers have a processor, slice by slice of 4 ms: mostly those that had the least time until now."""
    rng, had, now = np.random.default_rng([seed, 7]), np.zeros(workers), 0.0
    steps: list[list[tuple[float, float]]] = [[] for _ in range(workers)]
    while now < seconds:
        running = set(np.argsort(had + rng.exponential(8e-3, workers))[:processors].tolist())
        length = 4e-3 * rng.uniform(0.5, 1.5)
        for w in range(workers):
            steps[w].append((now, float(w in running)))
            had[w] += length * (w in running)
        now += length
    return {w: Course(iter(s)) for w, s in enumerate(steps)}


def courses(scenario: Scenario, seed: int) -> dict[int, Course]:
    if scenario.processors:
        return shared(scenario.workers, scenario.processors, seed)
    if scenario.drift is not None:
        return draw(Speeds(drift=scenario.drift), scenario.workers, seed)[1]
    return {w: Course(scattered(scenario.scatter, seed, w)) for w in range(scenario.workers)}


def run_job(scenario: Scenario, seed: int, rules: tuple[BalanceSettings, BalanceSettings] | None) -> Outcome:
    """`rules`: the default ones and the sparing ones; None: points stay where they are."""
    count, criteria = scenario.workers, Criteria(target=scenario.target, tolerance=0, max_seconds=60.0)
    algorithm, zero, form = Remainder(POINTS * count), np.zeros(1), TreeLayout("array", ())
    balance = None
    if rules is not None:
        plan = Balance(rules[1] if scenario.sparing else rules[0], rules[1])
        balance = BalanceControl(scenario.mode, criteria, plan=plan, crowded=scenario.processors > 0)
    job = Coordinator(
        algorithm, make_policy(SyncSpec("fsp", balance=scenario.mode if rules else "off")), criteria,
        LocalStore(algorithm, np.zeros(1), zero),
        {w: LoadShard(AlgorithmRef("x", {}), {}, w, count, 0, form, form) for w in range(count)},
        timeouts=Timeouts(load=float("inf"), silence=float("inf"), report=float("inf")),
        parts=[] if balance is None else [BalancePart(balance)],
    )  # fmt: skip
    learners = {}
    for w in range(count):
        state = np.ones((POINTS, 1), np.float32)
        ids = np.arange(POINTS * w, POINTS * (w + 1))
        learners[w] = VisitLearner(make_shard(np.zeros((POINTS, 4), np.float32), None, state, "rows", ids))
    slow, changing = parse_stragglers(scenario.slow, count), courses(scenario, seed)
    simulate(
        job,
        {w: Pace(RATE, slow, w, count, changing.get(w)) for w in range(count)},
        dict(learners),
        Costs(bandwidth=scenario.bandwidth),
    )
    passes = [w.passes for w in job.view.workers.values()]
    spread, moves = max(passes) - min(passes), balance.migrations.count if balance else 0
    return Outcome(_reached([(r.seconds, r.objective) for r in job.trace], scenario.target), spread, moves)


def _reached(curve: list[tuple[float, float | None]], target: float) -> float:
    """When the target was reached, between two barriers in proportion to the logarithm of the objective."""
    known = [(s, f) for s, f in curve if f is not None and f > 0]
    for (before, high), (after, low) in pairwise(known):
        if low <= target < high:
            return before + (after - before) * float(np.log(high / target) / np.log(high / low))
    return curve[-1][0]
