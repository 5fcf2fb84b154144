"""Jobs with parameter servers on virtual time: every visit is in every slice, and more servers make barriers cheap."""

from __future__ import annotations

import numpy as np

from bench.common.served_simulation import ServedSimulation, VisitLearner, served_job, worker_numbers
from flegel.job import Criteria, SyncSpec
from flegel.sim.coordinator_cost import MEASURED
from flegel.sim.trainer import Pace


def barrier_cost(servers: int, sync: SyncSpec, workers: int = 40) -> float:
    numbers = list(worker_numbers(workers))
    job = served_job(sync, Criteria(max_iterations=3, tolerance=0.0), workers, servers)
    learners = {number: VisitLearner(512, servers) for number in numbers}
    ServedSimulation(job, {number: Pace(512.0) for number in numbers}, learners, MEASURED, 1_000_000).run()
    assert np.all(job.parameter == sum(row.visits for row in job.trace))
    return max(row.barrier_cost or 0.0 for row in job.trace[1:])


def test_more_servers_make_barriers_of_large_models_cheaper() -> None:
    costs = [barrier_cost(servers, SyncSpec("fsp", 0.5)) for servers in (1, 4, 16)]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] > 3 * costs[2]


def test_other_models_run_there_too() -> None:
    for sync in ("bsp", "ssp", "asp"):
        barrier_cost(4, SyncSpec(sync), workers=5)


def test_workers_have_numbers_that_no_server_has() -> None:
    numbers = list(worker_numbers(2000))
    assert len(set(numbers)) == 2000
    assert not set(numbers) & set(range(960, 1024))
