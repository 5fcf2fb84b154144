"""Whole jobs on virtual time: the same machines and policies as in a real one, and k-means trained for real."""

from __future__ import annotations

import numpy as np
import pytest
from virtual_jobs import counting, kmeans

from flegel import Learning
from flegel.core.pytree import Tree
from flegel.core.shard import Shard, unpack_tiles
from flegel.job import Criteria, SyncSpec
from flegel.results.result import utilization, worker_rows
from flegel.sim.simulation import Costs
from flegel.sim.trainer import KernelLearner

SYNCHRONOUS = ["bsp", "bsp-mini", "fsp", "fsp-binary"]
EVERY = [*SYNCHRONOUS, "ssp", "asp", "psp"]


def objectives(job) -> list[float]:
    return [row.objective for row in job.trace if row.objective is not None]


@pytest.mark.parametrize("sync", SYNCHRONOUS)
@pytest.mark.parametrize("seed", range(20))
def test_the_objective_never_gets_worse_under_a_barrier(sync: str, seed: int) -> None:
    job = kmeans(sync, rows=1500, seed=seed, straggler="0:4x" if seed % 2 else "")
    values = np.array(objectives(job))
    assert (np.diff(values) <= 1e-9 * values[0]).all()
    assert values[-1] == pytest.approx(objective_of_the_points(job), rel=1e-9)


def objective_of_the_points(job) -> float:
    """F(Q, θ) of the clusters in which the points are, without statistics."""
    centroids, total = job.commits.final_parameter().centroids, 0.0
    for learner in job.learners.values():
        rows = unpack_tiles(learner.shard.features, learner.points)
        total += ((rows - centroids[learner.shard.state_rows()[:, 0].astype(int)]) ** 2).sum()
    return total


@pytest.mark.parametrize("sync", EVERY)
def test_every_model_ends_and_reaches_a_good_objective(sync: str) -> None:
    job = kmeans(sync, criteria=Criteria(tolerance=1e-7, max_iterations=5000))
    reference = kmeans("bsp", criteria=Criteria(tolerance=1e-9, max_iterations=500))
    assert job.verdict.converged
    assert job.trace[-1].objective <= reference.trace[-1].objective * 1.02


@pytest.mark.parametrize("sync", EVERY)
def test_statistics_are_those_of_a_recomputation(sync: str) -> None:
    job = kmeans(sync, straggler="0:3x", criteria=Criteria(max_iterations=250, tolerance=0))
    if sync != "psp":  # there, overtime after the last report is in the points but was never sent
        states = [learner.shard.state_rows()[:, 0] for learner in job.learners.values()]
        counts = np.bincount(np.concatenate(states), minlength=5)
        np.testing.assert_array_equal(job.store.statistics.counts, counts)
    assert job.store.discrepancy() < 1e-10


def test_fsp_reaches_the_optimum_of_bsp_from_the_same_start() -> None:
    for seed in (0, 1, 3):
        ends = [
            kmeans(s, seed=seed, k=3, criteria=Criteria(tolerance=1e-9, max_iterations=3000)).trace[-1].objective
            for s in ("bsp", "fsp")
        ]
        assert ends[1] == pytest.approx(ends[0], rel=1e-3)


def test_zero_staleness_is_bsp_to_the_last_bit() -> None:
    bsp = kmeans("bsp", straggler="1:3x")
    ssp = kmeans(SyncSpec("ssp", staleness=0, batches=1), straggler="1:3x")
    assert objectives(bsp) == objectives(ssp)
    assert ssp.commits.staleness.keys() == {0}


def test_staleness_is_bounded_under_ssp_and_not_under_asp() -> None:
    bounded = kmeans(SyncSpec("ssp", staleness=1), straggler="0:6x", criteria=Criteria(max_iterations=300, tolerance=0))
    free = kmeans("asp", straggler="0:6x", criteria=Criteria(max_iterations=300, tolerance=0))
    assert max(bounded.commits.staleness) <= 2 * 4
    assert max(free.commits.staleness) > max(bounded.commits.staleness)


def test_the_same_job_twice_is_the_same_to_the_last_bit() -> None:
    first, second = (kmeans("fsp", straggler="random1:5x~50ms") for _ in range(2))
    assert [vars(row) for row in first.trace] == [vars(row) for row in second.trace]


def test_workers_go_back_for_a_probe_where_no_points_move(monkeypatch: pytest.MonkeyPatch) -> None:
    began: dict[int, int] = {}
    trained = KernelLearner.train

    def train(self: KernelLearner, parameter: Tree, start: int, end: int, iteration: int, shard: Shard) -> None:
        if self.points == 1001:  # that of one worker
            began.setdefault(iteration, start)
        trained(self, parameter, start, end, iteration, shard)

    monkeypatch.setattr(KernelLearner, "train", train)
    job = kmeans(SyncSpec("fsp", probes="rollback"), rows=4001, rate=1000.0, criteria=Criteria(max_iterations=12))
    back = next(i for i, row in enumerate(job.trace) if row.reason == "back to where the stage began")
    assert began[back] == began[back - 2] < began[back - 1]


# -- stragglers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "straggler", ["0-1:8x", "0:32ms/1000", "0:8x@50ms-200ms", "moving1:8x~40ms", "random2:6x~30ms"]
)
def test_fsp_outruns_bsp_whatever_the_stragglers(straggler: str) -> None:
    target = kmeans("bsp", criteria=Criteria(tolerance=1e-9, max_iterations=200)).trace[-1].objective * 1.01
    seconds = {
        spec.name: kmeans(
            spec, straggler=straggler, criteria=Criteria(target=target, tolerance=0, max_seconds=300)
        ).state.seconds
        for spec in (SyncSpec("bsp"), SyncSpec("fsp", coordination="semi"))
    }
    assert seconds["fsp"] < 0.7 * seconds["bsp"]


def test_a_straggler_costs_bsp_its_whole_factor_and_fsp_little() -> None:
    plenty = Criteria(max_iterations=30, tolerance=0)
    slow, even = (kmeans("bsp", straggler=text, criteria=plenty).state.seconds for text in ("0:8x", ""))
    assert slow > 6 * even
    fixed = SyncSpec("fsp", 0.005)
    slow, even = (kmeans(fixed, straggler=text, criteria=plenty).state.seconds for text in ("0:8x", ""))
    assert slow < 1.3 * even


def test_own_clocks_save_a_fifth_of_the_synchronization_when_workers_respond_slowly() -> None:
    def cost(coordination: str) -> float:
        sync = SyncSpec("fsp", 0.05, coordination=coordination)
        job = kmeans(
            sync, workers=8, rows=64_000, rate=100_000, straggler="0-1:12ms/1000",
            criteria=Criteria(max_iterations=150, tolerance=0),
        )  # fmt: skip
        return sum(row.barrier_cost for row in job.trace[50:])

    assert cost("semi") < 0.8 * cost("centralized")


def test_the_adjuster_notices_stragglers_that_come_and_go() -> None:
    job = counting("fsp", workers=8, straggler="0-5:8x@1s-3s", criteria=Criteria(max_seconds=5, tolerance=0))
    told = [(row.seconds, row.reason) for row in job.trace if "speed changed" in row.reason]
    assert any(1 < t < 2 for t, _ in told) and any(3 < t < 4 for t, _ in told)


# -- sizes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", EVERY)
def test_one_worker_alone_is_served_by_every_model(sync: str) -> None:
    assert kmeans(sync, workers=1, rows=800).verdict.converged


@pytest.mark.parametrize("sync", ["fsp", "bsp", "psp"])
def test_a_thousand_workers(sync: str) -> None:
    job = counting(sync, workers=1000, straggler="0-99:4x", criteria=Criteria(max_iterations=12, tolerance=0))
    assert job.iteration >= 12 and sum(w.visits for w in job.view.workers.values()) > 0


def test_barriers_that_cost_nothing_are_survived() -> None:
    job = counting("fsp", workers=4, costs=Costs(0.0, 0.0), criteria=Criteria(target=0.05, tolerance=0))
    assert job.verdict.converged


def test_progress_that_stops_is_survived() -> None:
    job = counting("fsp", workers=4, blunting=1.0, criteria=Criteria(max_iterations=400, tolerance=0))
    assert job.iteration == 400


# -- prediction --------------------------------------------------------------------------------------------


def test_psp_keeps_unequal_workers_busy_where_bsp_cannot() -> None:
    rates, plenty = [30_000.0, 15_000.0, 10_000.0], Criteria(max_iterations=30, tolerance=0)
    use = {
        sync: utilization(worker_rows(counting(sync, workers=3, points=3000, rates=rates, criteria=plenty)))
        for sync in ("bsp", "psp")
    }
    assert use["bsp"] == pytest.approx(0.61, abs=0.07)
    assert use["psp"] >= 0.95


def test_psp_follows_a_change_of_speed_within_two_synchronizations() -> None:
    job = counting(
        "psp", workers=3, points=3000, rates=[30_000.0, 15_000.0, 10_000.0], straggler="0:3x@1s-",
        criteria=Criteria(max_iterations=40, tolerance=0),
    )  # fmt: skip
    after = [row.reason for row in job.trace if row.seconds > 1.0 and row.reason]
    assert any("0:2" in reason or "0:1" in reason for reason in after[:3]), after[:3]


def test_what_was_learned_while_waiting_is_merged() -> None:
    rates = [40_000.0, 10_000.0]
    job = kmeans("psp", workers=2, rates=rates, rows=2000, criteria=Criteria(max_iterations=20, tolerance=0))
    fast, slow = job.view.workers[0], job.view.workers[1]
    assert fast.passes > 3 * slow.passes, "four times the speed, and no time lost"


def test_reports_travel_while_their_workers_train_on_and_nothing_is_lost() -> None:
    jobs = {
        waiting: kmeans(
            SyncSpec("asp", waiting=waiting),
            costs=Costs(message=0.001),
            criteria=Criteria(max_iterations=150, tolerance=0),
        )
        for waiting in ("idle", "training")
    }
    use = {waiting: utilization(worker_rows(job)) for waiting, job in jobs.items()}
    assert use["idle"] < 0.8 and use["training"] > 0.95, use
    assert jobs["training"].store.discrepancy() < 1e-10


# -- divergence --------------------------------------------------------------------------------------------


def test_asynchronous_divergence_ends_the_job_and_says_so() -> None:
    from virtual_jobs import Counter, coordinator, paces

    from flegel.algorithm import Algorithm
    from flegel.sim.simulation import simulate

    class Runaway(Algorithm):
        """Each stale report makes it worse, faster and faster."""

        learning = Learning(averaged=True)

        def updateParameter(self, aggregator, oldParameter):
            with np.errstate(over="ignore"):
                return oldParameter * oldParameter * 2.0

        def objective(self, aggregator, parameter):
            return float(parameter[0])

    job = coordinator(
        Runaway(), np.zeros(1), np.array([3.0]), 2, SyncSpec("asp"), Criteria(max_iterations=1000, tolerance=0)
    )
    simulate(job, paces(2, 1000.0), {w: Counter(100) for w in range(2)})
    assert not job.verdict.converged and "diverged" in job.verdict.reason
    assert np.isfinite(job.parameter).all()
