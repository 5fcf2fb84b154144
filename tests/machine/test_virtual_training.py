"""Real k-means under bsp and fsp on workers of unequal speed, on virtual time: the conservation laws hold."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from virtual_training import Trained, train

from flegel.job import Criteria, SyncSpec

SEEDS = range(20)


def clouds(seed: int, rows: int = 900, columns: int = 3, centres: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Rows around separate centres, and a start that is near enough for one optimum."""
    rng = np.random.default_rng(seed)
    means = rng.permuted(np.linspace(-8, 8, centres * columns)).reshape(centres, columns)
    points = means[rng.integers(centres, size=rows)] + rng.normal(scale=0.7, size=(rows, columns))
    return points, means + rng.normal(scale=0.5, size=means.shape)


@cache
def trained(seed: int, sync: str) -> Trained:
    rows, start = clouds(seed)
    rng = np.random.default_rng([seed, 99])
    speeds = [float(s) for s in rng.uniform(1e3, 2e4, size=int(rng.integers(2, 6)))]
    spec = SyncSpec(sync, float(rng.uniform(0.003, 0.05)) if sync == "fsp" else None)
    return train(start, rows, speeds, spec, Criteria(tolerance=1e-13, max_iterations=3000))


@pytest.mark.parametrize("sync", ["bsp", "fsp"])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_objective_never_gets_worse(seed: int, sync: str) -> None:
    values = [row.objective for row in trained(seed, sync).machine.trace if row.objective is not None]
    assert len(values) >= 2
    for before, after in pairwise(values):
        assert after <= before * (1 + 1e-12)


@pytest.mark.parametrize("sync", ["bsp", "fsp"])
@pytest.mark.parametrize("seed", SEEDS)
def test_statistics_are_those_of_a_recomputation_from_scratch(seed: int, sync: str) -> None:
    world = trained(seed, sync)
    total, origin = world.machine.store.statistics, world.machine.parameter.origin
    sums, counts = np.zeros_like(total.sums), np.zeros_like(total.counts)
    for learner in world.learners.values():
        assigned = learner.shard.state_rows()[:, 0]
        rows = world.rows[learner.shard.ids]
        np.add.at(counts, assigned, 1)
        np.add.at(sums, assigned, rows - origin)
    np.testing.assert_array_equal(total.counts, counts)
    np.testing.assert_allclose(total.sums, sums, rtol=1e-10, atol=1e-10 * np.abs(sums).max())


@pytest.mark.parametrize("sync", ["bsp", "fsp"])
@pytest.mark.parametrize("seed", SEEDS)
def test_every_point_has_one_owner(seed: int, sync: str) -> None:
    world = trained(seed, sync)
    owned = np.concatenate([learner.shard.ids for learner in world.learners.values()])
    np.testing.assert_array_equal(np.sort(owned), np.arange(len(world.rows)))
    assert sum(w.visits for w in world.machine.view.workers.values()) == sum(
        w.visits for w in world.simulation.workers.values()
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_flexible_barriers_reach_the_same_optimum_as_bsp(seed: int) -> None:
    strict, flexible = trained(seed, "bsp").machine, trained(seed, "fsp").machine
    assert strict.verdict is not None and strict.verdict.converged
    assert flexible.verdict is not None and flexible.verdict.converged
    assert flexible.state.objective == pytest.approx(strict.state.objective, rel=1e-9)
    np.testing.assert_allclose(flexible.parameter.centroids, strict.parameter.centroids, rtol=1e-6, atol=1e-6)


def test_nobody_waits_for_a_straggler_under_flexible_barriers() -> None:
    def waiting(sync: str) -> float:
        rows, start = clouds(0)
        speeds, spec = [2e4, 2e4, 2e3], SyncSpec(sync, 0.05 if sync == "fsp" else None)
        world = train(start, rows, speeds, spec, Criteria(max_iterations=30, tolerance=0))
        workers = world.machine.view.workers.values()
        return sum(w.wait for w in workers) / sum(w.wait + w.compute + w.respond for w in workers)

    assert waiting("bsp") > 0.5, "two fast workers wait for one that is ten times slower"
    assert waiting("fsp") < waiting("bsp") / 2
