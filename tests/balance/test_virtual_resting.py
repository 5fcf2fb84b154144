"""One fast worker and seven slow ones on virtual time: who is of no use rests, and comes back when it is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flegel.algorithm import Sample
from flegel.algorithms.kmeans import KMeans
from flegel.core import pytree
from flegel.core.shard import make_shard
from flegel.core.stop_flag import new_flag
from flegel.job import AlgorithmRef, Criteria, SyncSpec
from flegel.machine.balance.balance_control import BalanceControl
from flegel.machine.balance.part import BalancePart
from flegel.machine.coordinator.coordinator import Coordinator
from flegel.machine.coordinator.events import Timeouts
from flegel.machine.resting.part import RestingPart
from flegel.machine.resting.resting_control import RestingControl
from flegel.messages import LoadShard, TreeLayout
from flegel.params.local import LocalStore
from flegel.plan.stragglers import parse_stragglers
from flegel.runtime.backends.numba.kernels import build_kernel
from flegel.sim.simulation import Costs, simulate
from flegel.sim.trainer import KernelLearner, Pace
from flegel.sync import make_policy

WORKERS, ROWS = 8, 8_000
FOR_EVER = Timeouts(load=float("inf"), silence=float("inf"), report=float("inf"))
DEAR = Costs(merge=4e-4, bandwidth=1e9)
"""Each report takes the coordinator 0.4 ms; the fast worker's pass over all rows takes 2 ms."""


def train(rest: bool, slow: float = 100.0, costs: Costs = DEAR, seconds: float = 0.3, when: str = "") -> Coordinator:
    """`slow`: how many times slower all others are than worker 0; `when`: of worker 0, from when on it is as slow."""
    rng = np.random.default_rng(0)
    data = rng.normal(scale=2.0, size=(8, 4))[rng.integers(8, size=ROWS)] + rng.normal(size=(ROWS, 4))
    algorithm = KMeans(k=8, init="random")
    sample = Sample(data, None, ROWS, 4)
    theta = pytree.as_doubles(algorithm.initParameter(sample, rng))
    zero = pytree.zeros_like(algorithm.initAggregator(sample, theta))
    learners: dict[int, Any] = {}
    kernel: Any = None
    for w in range(WORKERS):
        ids = np.arange(ROWS * w // WORKERS, ROWS * (w + 1) // WORKERS)
        shard = make_shard(data[ids], None, algorithm.initState(len(ids), 4, rng), algorithm.kernels.layout, ids)
        kernel = kernel or build_kernel(algorithm, shard, theta, zero).kernel
        learners[w] = KernelLearner(algorithm, kernel, shard, zero, new_flag())
    criteria, form = Criteria(max_seconds=seconds, tolerance=0), TreeLayout("array", ())
    job = Coordinator(
        algorithm, make_policy(SyncSpec("fsp")), criteria, LocalStore(algorithm, theta, zero),
        {w: LoadShard(AlgorithmRef("x", {}), {}, w, WORKERS, 0, form, form) for w in range(WORKERS)},
        timeouts=FOR_EVER, debug=True, rows=ROWS,
        parts=[*([RestingPart(RestingControl())] if rest else []), BalancePart(BalanceControl("async", criteria))],
    )  # fmt: skip
    stragglers = parse_stragglers(f"1-7:{slow:g}x" + (f",0:{when}" if when else ""), WORKERS)
    return simulate(job, {w: Pace(4e6, stragglers, w, WORKERS) for w in range(WORKERS)}, learners, costs)


def visits(job: Coordinator) -> int:
    return sum(row.visits for row in job.trace)


def kinds(job: Coordinator) -> list[str]:
    return [incident.kind for incident in job.membership.incidents]


@pytest.fixture(scope="module")
def jobs() -> dict[bool, Coordinator]:
    return {rest: train(rest) for rest in (False, True)}


def test_the_fast_worker_is_faster_alone(jobs: dict[bool, Coordinator]) -> None:
    rested = jobs[True]
    assert kinds(rested) == ["rest"] and "7 of 8 workers rest" in rested.membership.incidents[0].why
    assert list(rested.view.workers) == [0] and rested.view.workers[0].points == ROWS
    assert rested.membership.incidents[0].at < 0.15, "before half of the job is over"
    assert len(rested.trace) > 1.2 * len(jobs[False].trace) and visits(rested) > 1.2 * visits(jobs[False])
    final = {rest: next(r.objective for r in reversed(job.trace) if r.objective) for rest, job in jobs.items()}
    assert final[True] <= final[False] * (1 + 1e-3)


def test_the_books_are_right_after_everybody_has_handed_over(jobs: dict[bool, Coordinator]) -> None:
    job = jobs[True]
    assert job.store.discrepancy() < 1e-9 and job.state.points == ROWS
    assert float(pytree.flatten(job.store.statistics)[1].sum()) == pytest.approx(ROWS), "each point counts once"
    values = [r.objective for r in job.trace if r.objective is not None]
    assert (np.diff(values) <= 1e-9 * values[0]).all(), "the objective never rises"


@pytest.mark.parametrize(
    ("slow", "costs"),
    [
        pytest.param(8.0, DEAR, id="eight times slower is not slow enough to be sure"),
        pytest.param(12.0, Costs(), id="barriers are cheap, and together they are faster than the fast one"),
    ],
)
def test_workers_that_help_stay(slow: float, costs: Costs) -> None:
    assert kinds(train(True, slow, costs, seconds=0.1)) == []


def test_they_come_back_when_the_fast_worker_has_become_slow() -> None:
    job = train(True, seconds=0.7, when="100x@0.2s-9s")
    assert kinds(job)[:2] == ["rest", "recall"], job.membership.incidents
    assert len(job.view.workers) == WORKERS and job.state.points == ROWS and job.store.discrepancy() < 1e-9
