"""Simulated jobs for tests: real k-means or a job that only counts, on virtual time."""

from __future__ import annotations

from typing import Any

import numpy as np

from flegel import Learning
from flegel.algorithm import Algorithm, Sample
from flegel.algorithms.kmeans import KMeans
from flegel.core import pytree
from flegel.core.shard import make_shard
from flegel.core.stop_flag import new_flag
from flegel.job import AlgorithmRef, Criteria, SyncSpec
from flegel.machine.coordinator.coordinator import Coordinator
from flegel.machine.coordinator.events import Timeouts
from flegel.messages import LoadShard, TreeLayout
from flegel.params.local import LocalStore
from flegel.plan.stragglers import parse_stragglers
from flegel.runtime.backends.numba.kernels import build_kernel
from flegel.sim.simulation import Costs, simulate
from flegel.sim.trainer import Counter, KernelLearner, Pace
from flegel.sync import make_policy

FOR_EVER = Timeouts(load=float("inf"), silence=float("inf"), report=float("inf"))


def clouds(rows: int, columns: int = 5, centres: int = 6, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    means = rng.normal(scale=1.2, size=(centres, columns))
    return means[rng.integers(centres, size=rows)] + rng.normal(size=(rows, columns))


def coordinator(
    algorithm: Algorithm, zero: Any, theta: Any, workers: int, sync: SyncSpec, criteria: Criteria
) -> Coordinator:
    form = TreeLayout("array", ())
    loads = {w: LoadShard(AlgorithmRef("x", {}), {}, w, workers, 0, form, form) for w in range(workers)}
    return Coordinator(
        algorithm, make_policy(sync), criteria, LocalStore(algorithm, theta, zero), loads, timeouts=FOR_EVER, debug=True
    )


def paces(workers: int, rate: float, straggler: str = "", rates: list[float] | None = None) -> dict[int, Pace]:
    slow = parse_stragglers(straggler, workers)
    each = rates or [rate] * workers
    return {w: Pace(each[w], slow, w, workers) for w in range(workers)}


def kmeans(
    sync: SyncSpec | str,
    *,
    workers: int = 4,
    rows: int = 4000,
    rate: float = 100_000.0,
    straggler: str = "",
    rates: list[float] | None = None,
    criteria: Criteria | None = None,
    seed: int = 0,
    costs: Costs | None = None,
    k: int = 5,
) -> Coordinator:
    """K-means, trained for real, on workers that do `rate` points a second."""
    spec = SyncSpec(sync) if isinstance(sync, str) else sync
    data = clouds(rows, seed=seed)
    rng = np.random.default_rng(seed)
    algorithm = KMeans(k=k, init="random")
    sample = Sample(data, None, rows, data.shape[1])
    theta = pytree.as_doubles(algorithm.initParameter(sample, rng))
    zero = pytree.zeros_like(algorithm.initAggregator(sample, theta))
    learners = {}
    for w in range(workers):
        part = data[rows * w // workers : rows * (w + 1) // workers]
        state = algorithm.initState(len(part), part.shape[1], rng)
        share = make_shard(part, None, state, algorithm.kernels.layout)
        kernel = build_kernel(algorithm, share, theta, zero).kernel
        learners[w] = KernelLearner(algorithm, kernel, share, zero, new_flag())
    job = coordinator(algorithm, zero, theta, workers, spec, criteria or Criteria(max_iterations=400, tolerance=1e-6))
    job.learners = learners  # type: ignore[attr-defined]
    return simulate(job, paces(workers, rate, straggler, rates), dict(learners), costs)


class Decay(Algorithm):
    """No data: each visit wins a share of what is left to win, less the longer the interval was."""

    def __init__(self, total: float, blunting: float = 0.5) -> None:
        super().__init__()
        self.total, self.blunting = total, blunting

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        done = aggregator[0] - oldParameter[1]
        share = done / self.total
        left = oldParameter[0] * np.exp(-share * (1 - self.blunting * min(share, 1.0)))
        return np.array([left, aggregator[0]])

    def objective(self, aggregator: Any, parameter: Any) -> float:
        return float(parameter[0])


def counting(
    sync: SyncSpec | str,
    *,
    workers: int,
    points: int = 1000,
    rate: float = 10_000.0,
    straggler: str = "",
    rates: list[float] | None = None,
    criteria: Criteria | None = None,
    costs: Costs | None = None,
    blunting: float = 0.5,
) -> Coordinator:
    """A job without data, for very many workers."""
    spec = SyncSpec(sync) if isinstance(sync, str) else sync
    algorithm = Decay(float(points * workers), blunting)
    algorithm.learning = Learning(averaged=True)  # type: ignore[misc]
    job = coordinator(
        algorithm, np.zeros(1), np.array([1.0, 0.0]), workers, spec,
        criteria or Criteria(max_iterations=2000, target=1e-3, tolerance=0),
    )  # fmt: skip
    learners = {w: Counter(points) for w in range(workers)}
    return simulate(job, paces(workers, rate, straggler, rates), dict(learners), costs)
