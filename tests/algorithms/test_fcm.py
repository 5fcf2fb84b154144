"""FCM: kernel and hooks agree, a pass is the textbook's pass, the objective is exact and never rises."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from passes import by_kernel, by_points, random_stretches, sample_of, start

import flegel
from flegel.algorithms.fcm import FCM
from flegel.algorithms.fcm.fcm import FuzzyStart
from flegel.algorithms.seeding import prepared
from flegel.configuration.active import using
from flegel.core import pytree
from flegel.core.stop_flag import new_flag
from flegel.errors import UsageError

BOTH = pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float64, 1e-11)])
FUZZY = pytest.mark.parametrize("m", [2.0, 1.6, 3.0])


def clouds(points: int, columns: int, seed: int = 0, dtype: Any = np.float64) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(4, columns)) * 3
    return (centres[rng.integers(4, size=points)] + rng.normal(size=(points, columns))).astype(dtype)


def textbook(rows: np.ndarray, centroids: np.ndarray, m: float) -> tuple[np.ndarray, float]:
    """One pass as in the literature, in float64: new centroids, and the objective at the old ones."""
    squared = ((rows[:, None].astype(np.float64) - centroids) ** 2).sum(axis=2)
    u = 1.0 / ((squared[:, :, None] / squared[:, None, :]) ** (1.0 / (m - 1.0))).sum(axis=2)
    w = u**m
    return (w.T @ rows) / w.sum(axis=0)[:, None], float((w * squared).sum())


@BOTH
@FUZZY
@pytest.mark.parametrize(("points", "columns", "k"), [(300, 6, 5), (130, 1, 2), (64, 3, 7), (100, 11, 1)])
def test_kernel_does_what_the_hooks_say(
    dtype: Any, tolerance: float, m: float, points: int, columns: int, k: int
) -> None:
    rows = clouds(points, columns, dtype=dtype)
    algorithm = FCM(k=k, m=m, init="random")
    share, parameter, statistics = start(algorithm, rows)
    state, plain = algorithm.initState(points, columns, np.random.default_rng(0)), pytree.copy(statistics)
    for _ in range(3):
        by_points(algorithm, rows, state, parameter, plain)
        by_kernel(algorithm, share, parameter, statistics)
        np.testing.assert_allclose(share.state_rows(), state, atol=tolerance)
        for kernels, points_ in zip(statistics, plain, strict=True):
            np.testing.assert_allclose(kernels, points_, atol=tolerance * max(1.0, np.abs(points_).max()))
        parameter = algorithm.updateParameter(plain, parameter)


@FUZZY
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_full_batch_passes_are_the_textbooks(m: float, dtype: Any) -> None:
    rows = clouds(2000, 5, dtype=dtype)
    algorithm = FCM(k=4, m=m, init=clouds(4, 5, seed=9))
    share, parameter, statistics = start(algorithm, rows)
    centroids = parameter.centroids
    within = 5e-6 if dtype is np.float32 and m != 2.0 else 1e-6  # a power in float32 keeps fewer digits
    for _ in range(8):
        by_kernel(algorithm, share, parameter, statistics)
        expected, value = textbook(rows, centroids, m)
        assert algorithm.objective(statistics, parameter) == pytest.approx(value, rel=within)
        assert algorithm.evaluate(rows, None, parameter).objective == pytest.approx(value, rel=within)
        parameter, centroids = algorithm.updateParameter(statistics, parameter), expected
    close = 1e-5 if dtype is np.float32 else 1e-9
    np.testing.assert_allclose(parameter.centroids, centroids, rtol=close, atol=close)


@pytest.mark.parametrize("seed", range(20))
def test_the_objective_never_rises_whatever_part_is_visited(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype = rng.choice([np.float32, np.float64])
    slack = 1e-6 if dtype is np.float32 else 1e-12
    algorithm = FCM(k=int(rng.integers(1, 9)), m=float(rng.choice([2.0, 1.5, 2.5])))
    rows = clouds(700, 4, seed, dtype)
    share, parameter, statistics = start(algorithm, rows, seed)
    by_kernel(algorithm, share, parameter, statistics)
    parameter = algorithm.updateParameter(statistics, parameter)
    before = algorithm.objective(statistics, parameter)
    for first, end in random_stretches(len(rows), rng, 30):
        by_kernel(algorithm, share, parameter, statistics, first, end)
        visited = algorithm.objective(statistics, parameter)
        parameter = algorithm.updateParameter(statistics, parameter)
        after = algorithm.objective(statistics, parameter)
        assert visited <= before * (1 + slack)
        assert after <= visited * (1 + slack)
        before = after


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float64, 1e-10)])
def test_accumulated_statistics_equal_recomputed_ones(dtype: Any, tolerance: float) -> None:
    rows = clouds(900, 5, dtype=dtype)
    algorithm = FCM(k=3)
    share, parameter, statistics = start(algorithm, rows)
    for first, end in random_stretches(len(rows), np.random.default_rng(1), 50):
        by_kernel(algorithm, share, parameter, statistics, first, end)
        parameter = algorithm.updateParameter(statistics, parameter)
    by_kernel(algorithm, share, parameter, statistics)
    w = share.state_rows().astype(np.float64)[:, :3]
    y = (rows.astype(np.float64) - parameter.origin) / parameter.unit
    scratch = w.sum(axis=0), w.T @ y, w.T @ (y**2).sum(axis=1), np.array([900.0])
    for found, wanted in zip(statistics, scratch, strict=True):
        np.testing.assert_allclose(found, wanted, atol=tolerance * np.abs(wanted).max())


@FUZZY
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("rows", "k"),
    [
        (np.ones((100, 3)), 4),
        (np.array([[2.5, -1.0]]), 1),
        (np.arange(20.0)[:, None], 20),
        (np.c_[np.arange(70.0), np.zeros(70)], 3),
        (np.r_[np.zeros((60, 2)), [[1e6, 1e6]]], 3),
        (clouds(200, 3) * 1e-25, 4),
        (clouds(200, 3) * 1e17, 4),
        (clouds(200, 2) + 1e4, 5),
    ],
    ids=["duplicates", "one point", "k = n", "constant column", "outlier", "tiny", "huge", "far mean"],
)
def test_degenerate_data_end_in_finite_numbers(rows: np.ndarray, k: int, dtype: Any, m: float) -> None:
    algorithm = FCM(k=k, m=m)
    rows = rows.astype(dtype)
    share, parameter, statistics = start(algorithm, rows)
    for _ in range(5):
        by_kernel(algorithm, share, parameter, statistics)
        parameter = algorithm.updateParameter(statistics, parameter)
        assert pytree.is_finite(parameter)
        assert np.isfinite(algorithm.objective(statistics, parameter))
    assert np.isfinite(share.state_rows()).all()
    memberships, _ = algorithm.transform(rows, parameter)
    np.testing.assert_allclose(memberships.sum(axis=1), 1.0)
    np.testing.assert_allclose(share.state_rows()[:, :k] ** (1 / m) @ np.ones(k), 1.0, rtol=1e-4)


def test_a_point_on_a_centroid_belongs_to_it_alone() -> None:
    algorithm = FCM(k=2, init=np.array([[0.0], [4.0]]))
    share, parameter, statistics = start(algorithm, np.array([[0.0], [4.0], [2.0]]))
    by_kernel(algorithm, share, parameter, statistics)
    np.testing.assert_allclose(share.state_rows(), [[1, 0, 1], [0, 1, 1], [0.25, 0.25, 1]], atol=1e-12)


@pytest.mark.slow
def test_flag_and_stretches_inside_a_tile() -> None:
    algorithm = FCM(k=3)
    share, parameter, statistics = start(algorithm, clouds(1000, 3))
    flag = new_flag()
    flag[0] = 1
    kernel = algorithm.kernel(share)
    assert kernel is not None
    assert kernel(share, parameter, statistics, 64, 1000, 0, flag) == 64
    assert statistics.counts.sum() == 0
    by_kernel(algorithm, share, parameter, statistics, 0, 75)
    assert (share.state_rows()[:75].sum(axis=1) > 0).all()
    assert (share.state_rows()[75:] == 0).all()


def test_a_fuzzifier_of_one_is_refused() -> None:
    with pytest.raises(UsageError, match="m=1"):
        FCM(m=1.0)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("tight", [1.0, 0.01])
def test_a_job_that_begins_at_its_optimum_converges_in_either_precision(seed: int, dtype: Any, tight: float) -> None:
    """All rows are in the sample, so the start is the optimum; then the objective goes up and down by rounding, which
    is large beside it where clusters are tight: it is a difference of sums."""
    rng = np.random.default_rng(seed)
    rows = tight * rng.standard_normal((600, 4)) + rng.integers(0, 4, 600)[:, None] * 3.0
    found = flegel.run(FCM(k=4), rows.astype(dtype), workers=1, sync="bsp", seed=seed)
    assert found.outcome == "converged", found.reason
    assert not found.audit["problems"]


def test_a_far_row_is_among_those_that_starts_are_tried_on() -> None:
    """One row far from 60,000 others is worth a cluster of its own, and rows drawn evenly would miss it."""
    rows = np.random.default_rng(3).normal(size=(60_000, 2))
    rows[12_345] = 1e4
    sample = sample_of(rows, None)
    start = FCM(k=3).initParameter(sample, np.random.default_rng(0))
    assert np.abs(start.centroids - 1e4).max(axis=1).min() < 1.0


@pytest.mark.parametrize("m", [1.3, 2.0, 3.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_start_with_lengthened_steps_ends_where_it_would_without(m: float, weighted: bool) -> None:
    rng = np.random.default_rng(5)
    rows = 6.0 * rng.normal(size=(3, 2))[rng.integers(0, 3, 400)] + rng.normal(size=(400, 2))
    own = rng.random(400) + 0.5 if weighted else None
    begun, model = rows[rng.choice(400, 3, replace=False)], FCM(k=3, m=m)

    def after(passes: int, step: float) -> FuzzyStart:
        with using({"starts.fcm_start_step": step}):
            return model.alternated(prepared(rows), own, FuzzyStart(begun, np.inf, np.zeros(3)), passes, 0.0)

    assert after(300, 1.5).centres == pytest.approx(after(300, 1.0).centres, abs=1e-6)
    values = [after(passes, 1.5).value for passes in range(1, 12)]
    assert all(later <= earlier * (1.0 + 1e-12) for earlier, later in itertools.pairwise(values))
    end = after(300, 1.0).value
    assert values[-1] - end <= after(11, 1.0).value - end + 1e-9 * end


def test_a_trial_knows_its_objective_and_what_each_cluster_weighs() -> None:
    """By the product form for m = 2, beside the definition; a row on a centre belongs to it alone."""
    rng = np.random.default_rng(6)
    rows, own = rng.normal(size=(50, 3)), rng.random(50) + 0.5
    centres = np.concatenate([rows[:1], rng.normal(size=(3, 3))])
    trial = FCM(k=4).alternated(prepared(rows), own, FuzzyStart(centres, np.inf, np.zeros(4)), 1, 0.0)
    squared = np.maximum(((rows[:, None] - centres) ** 2).sum(axis=2), 1e-30)
    weights = ((1.0 / squared) / (1.0 / squared).sum(axis=1, keepdims=True)) ** 2 * own[:, None]
    assert trial.value == pytest.approx(float((weights * squared).sum()))
    assert trial.masses == pytest.approx(weights.sum(axis=0))


def test_a_start_on_equal_rows_is_finite() -> None:
    for row in (0.0, 7.0):
        start = FCM(k=3).initParameter(sample_of(np.full((20, 2), row), None), np.random.default_rng(0))
        assert np.isfinite(start.centroids).all() and np.isfinite(start.shares).all()
