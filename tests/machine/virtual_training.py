"""K-means on simulated workers of given speeds, for tests of the coordinator. The machines are those of a real job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from flegel.algorithm import Sample
from flegel.algorithms.kmeans import KMeans
from flegel.core import pytree
from flegel.core.shard import make_shard
from flegel.core.stop_flag import new_flag
from flegel.job import AlgorithmRef, Criteria, SyncSpec
from flegel.machine.coordinator.coordinator import Coordinator
from flegel.machine.coordinator.events import Timeouts, Timer
from flegel.messages import LoadShard, TreeLayout
from flegel.params.local import LocalStore
from flegel.runtime.backends.numba.kernels import build_kernel
from flegel.sim.network import Network, NetworkSpec
from flegel.sim.simulation import Simulation
from flegel.sim.trainer import KernelLearner, Pace
from flegel.sync import make_policy

NO_TIMEOUTS = Timeouts(load=np.inf, silence=np.inf, report=np.inf)
FOLD_SECONDS = 2e-3  # what a store that puts its folds off takes for one


class DeferringSimulation(Simulation):
    """Asks a store that puts its folds off (it has `asked` and `answer`) for its answer a while later."""

    _asked = False

    def _timer(self, timer: Timer) -> None:
        super()._timer(timer)
        self._ask_later()

    def _taken(self, worker: int, body: Any, arrays: tuple[np.ndarray, ...], now: float) -> None:
        super()._taken(worker, body, arrays, now)
        self._ask_later()

    def _ask_later(self) -> None:
        if getattr(self.job.store, "asked", None) is not None and not self._asked:
            self._asked = True
            self.events.at(self.events.now + FOLD_SECONDS, self._answer_fold)

    def _answer_fold(self) -> None:
        self._asked = False
        answer = self.job.store.answer()  # type: ignore[attr-defined]
        self.execute(self.job.handle(answer, self.events.now), self.events.now)
        self._ask_later()


@dataclass
class Trained:
    """A job that has ended."""

    rows: np.ndarray
    machine: Coordinator
    simulation: Simulation
    learners: dict[int, KernelLearner]


def train(
    start: np.ndarray,
    rows: np.ndarray,
    speeds: list[float],
    sync: SyncSpec,
    criteria: Criteria,
    store_type: type[LocalStore] = LocalStore,
) -> Trained:
    """K-means on virtual time; a message takes 1 ms on average, at random. `store_type` may put its folds off."""
    algorithm, rng = KMeans(k=len(start), init=start), np.random.default_rng(0)
    sample = Sample(rows, None, len(rows), rows.shape[1])
    theta = pytree.as_doubles(algorithm.initParameter(sample, rng))
    zero = pytree.zeros_like(algorithm.initAggregator(sample, pytree.present(theta)))
    learners = {}
    for worker, ids in enumerate(np.array_split(rng.permutation(len(rows)), len(speeds))):
        own = np.ascontiguousarray(rows[ids])
        shard = make_shard(own, None, algorithm.initState(len(ids), own.shape[1], rng), algorithm.kernels.layout, ids)
        kernel = build_kernel(algorithm, shard, theta, zero).kernel
        learners[worker] = KernelLearner(algorithm, kernel, shard, zero, new_flag())
    form, count = TreeLayout("array", ()), len(speeds)
    loads = {w: LoadShard(AlgorithmRef("x", {}), {}, w, count, 0, form, form) for w in learners}
    store = store_type(algorithm, theta, zero)
    job = Coordinator(algorithm, make_policy(sync), criteria, store, loads, timeouts=NO_TIMEOUTS, debug=True)
    network = Network(NetworkSpec(latency=0.0, jitter=1e-3), count)
    simulation = DeferringSimulation(job, {w: Pace(v) for w, v in enumerate(speeds)}, dict(learners), network=network)
    return Trained(rows, simulation.run(), simulation, learners)
