"""Gates of workers where reports are folded one by one: who is excluded does not depend on who reports first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from virtual_training import NO_TIMEOUTS

from flegel.algorithm import Sample
from flegel.algorithms.kmeans import KMeans
from flegel.core import pytree
from flegel.core.shard import make_shard
from flegel.core.stop_flag import new_flag
from flegel.job import AlgorithmRef, Criteria, SyncSpec
from flegel.machine.coordinator.coordinator import Coordinator
from flegel.machine.worker_gate import WorkerGate
from flegel.messages import LoadShard, TreeLayout
from flegel.params.gate import Gate
from flegel.params.gated import GatedStore
from flegel.runtime.backends.numba.kernels import build_kernel
from flegel.sim.network import Network, NetworkSpec
from flegel.sim.simulation import Simulation
from flegel.sim.trainer import KernelLearner, Pace
from flegel.sync import make_policy

WORKERS, POINTS, FAILURES = 4, 500, 3


class Failing:
    """What the part asks its store for: everybody fails who is named."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}

    def failed(self) -> dict[int, str]:
        return self.names


def judged(*rounds: tuple[int, ...], unseen: dict[int, int] | None = None, failing: int = 0) -> list[bool]:
    """After each fold of these workers' reports: is worker `failing`, which never passes, to leave?"""
    store: Any = Failing()
    views = {w: SimpleNamespace(unseen=(unseen or {}).get(w, 0)) for w in range(3)}
    out: list[dict[int, str]] = []
    membership = SimpleNamespace(
        roster=SimpleNamespace(staying=lambda view: list(view.workers)), exclude=lambda gone, now: out.append(gone)
    )
    state = SimpleNamespace(view=SimpleNamespace(workers=views))
    gate: Any = WorkerGate(store, FAILURES)
    gate.attach(SimpleNamespace(state=state, membership=membership, carry_out=lambda step, now: None))
    leaves = []
    for workers in rounds:
        store.names = {failing: "its score is low"} if failing in workers else {}
        leaves.append(gate.at_barrier(workers, None, None, 0.0))
    assert len(out) == sum(leaves)
    return leaves


def test_where_all_report_together_each_failure_counts() -> None:
    assert judged((0, 1, 2), (0, 1, 2), (0, 1, 2)) == [False, False, True]


def test_a_fast_worker_fails_once_while_others_are_silent() -> None:
    assert not any(judged(*[(0,)] * 20))
    assert not any(judged(*[(0,), (1,)] * 20)), "worker 2 has said nothing"
    assert judged(*[(0,), (0,), (1,), (2,)] * 3).index(True) == 8


def test_what_a_part_of_the_points_makes_is_no_failure() -> None:
    assert not any(judged(*[(0, 1, 2)] * 9, unseen={0: 1}))


def trained(seed: int, speeds: list[float], sync: str) -> tuple[set[int], str]:
    """Who is excluded, and how the job ends: four clusters, and worker 3 has measured on another scale."""
    rng = np.random.default_rng(0)
    rows = 8.0 * np.eye(4)[rng.integers(0, 4, WORKERS * POINTS)] + rng.normal(size=(WORKERS * POINTS, 4))
    checked = 8.0 * np.eye(4)[rng.integers(0, 4, 200)] + rng.normal(size=(200, 4))
    rows[3 * POINTS :] *= 5.0
    algorithm, rng = KMeans(k=4), np.random.default_rng(seed)
    sample = Sample(rows, None, POINTS, 4)
    theta = pytree.as_doubles(algorithm.initParameter(sample, rng))
    zero = pytree.zeros_like(algorithm.initAggregator(sample, pytree.present(theta)))
    learners = {}
    for worker, own in enumerate(np.split(rows, WORKERS)):
        ids = np.arange(worker * POINTS, (worker + 1) * POINTS)
        shard = make_shard(own, None, algorithm.initState(POINTS, 4, rng), algorithm.kernels.layout, ids)
        kernel = build_kernel(algorithm, shard, theta, zero).kernel
        learners[worker] = KernelLearner(algorithm, kernel, shard, zero, new_flag())
    form = TreeLayout("array", ())
    loads = {w: LoadShard(AlgorithmRef("x", {}), {}, w, WORKERS, 0, form, form) for w in learners}

    def score(theta: Any) -> float:
        return -float(((checked[:, None] - theta.centroids) ** 2).sum(axis=2).min(axis=1).sum())

    store = GatedStore(algorithm, theta, zero, lambda: Gate(-8000.0, FAILURES), score)
    policy, parts = make_policy(SyncSpec(sync)), (WorkerGate(store, FAILURES),)
    job = Coordinator(algorithm, policy, Criteria(max_iterations=200), store, loads, parts=parts, timeouts=NO_TIMEOUTS)
    network = Network(NetworkSpec(latency=0.0, jitter=1e-3), WORKERS)
    ended = Simulation(job, {w: Pace(v) for w, v in enumerate(speeds)}, dict(learners), network=network).run()
    assert ended.verdict is not None
    return {i.worker for i in ended.membership.incidents if i.kind == "excluded"}, ended.verdict.outcome


@pytest.mark.parametrize("sync", ["bsp", "ssp", "asp"])
@pytest.mark.parametrize("fast", [0, 2, 3])
def test_good_workers_stay_however_fast_they_report(sync: str, fast: int) -> None:
    """The scores of the start are below the gate until somebody has visited all of its points."""
    speeds = [1e6 if worker == fast else 1e5 for worker in range(WORKERS)]
    for seed in (0, 4):
        assert trained(seed, speeds, sync) == ({3}, "converged")
