"""GMM: kernel and hooks agree, EM is scikit-learn's EM, F is exact and never falls, nothing ends in NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from passes import by_kernel, by_points, data_file, random_stretches, sample_of, start

from flegel.algorithm import Sample
from flegel.algorithms.gmm import GMM
from flegel.algorithms.gmm.gmm import start_passes, trial_rows
from flegel.algorithms.seeding import coverage, covered, holds, in_deviations, unseen_weight
from flegel.configuration.active import active
from flegel.core import pytree
from flegel.core.stop_flag import new_flag
from flegel.errors import UsageError

BOTH = pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-5), (np.float64, 1e-10)])
SHAPES = pytest.mark.parametrize("covariance", ["diagonal", "full"])


def clouds(points: int, columns: int, seed: int = 0, dtype: Any = np.float64) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(4, columns)) * 3
    mixing = np.eye(columns) + 0.3 * rng.normal(size=(columns, columns))
    noise = rng.normal(size=(points, columns)) * rng.uniform(0.5, 2, columns) @ mixing
    return (centres[rng.integers(4, size=points)] + noise).astype(dtype)


@BOTH
@SHAPES
@pytest.mark.parametrize(("points", "columns", "k"), [(300, 6, 5), (130, 1, 2), (64, 3, 7), (100, 11, 1)])
def test_kernel_does_what_the_hooks_say(
    dtype: Any, tolerance: float, covariance: str, points: int, columns: int, k: int
) -> None:
    rows = clouds(points, columns, dtype=dtype)
    algorithm = GMM(k=k, covariance=covariance)
    share, parameter, statistics = start(algorithm, rows)
    state, plain = algorithm.initState(points, columns, np.random.default_rng(0)), pytree.copy(statistics)
    for _ in range(3):
        by_points(algorithm, rows, state, parameter, plain)
        by_kernel(algorithm, share, parameter, statistics)
        np.testing.assert_allclose(share.state_rows(), state, atol=10 * tolerance)
        for kernels, points_ in zip(statistics, plain, strict=True):
            np.testing.assert_allclose(kernels, points_, atol=tolerance * max(1.0, np.abs(points_).max()))
        parameter = algorithm.updateParameter(plain, parameter)


@SHAPES
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_full_batch_passes_are_scikit_learns(covariance: str, dtype: Any) -> None:
    from sklearn.mixture import GaussianMixture

    rows = clouds(3000, 5, dtype=dtype)
    algorithm = GMM(k=4, covariance=covariance, init="first", regularization=0)
    share, parameter, statistics = start(algorithm, rows)
    matrices = algorithm.covariance_matrices(parameter)
    precisions = np.linalg.inv(matrices) if covariance == "full" else 1 / np.einsum("jtt->jt", matrices)
    peer = GaussianMixture(
        4, covariance_type={"diagonal": "diag", "full": "full"}[covariance], tol=0, max_iter=10, reg_covar=0,
        weights_init=parameter.weights, means_init=parameter.means, precisions_init=precisions,
    )  # fmt: skip
    with pytest.warns(Warning):
        peer.fit(rows.astype(np.float64))
    for _ in range(10):
        by_kernel(algorithm, share, parameter, statistics)
        parameter = algorithm.updateParameter(statistics, parameter)
    close = 1e-4 if dtype is np.float32 else 1e-8
    np.testing.assert_allclose(parameter.means, peer.means_, rtol=close, atol=close)
    by_kernel(algorithm, share, parameter, statistics)
    score = peer.score(rows.astype(np.float64)) * len(rows)
    assert algorithm.objective(statistics, parameter) == pytest.approx(score, rel=1e-6)
    assert algorithm.evaluate(rows, None, parameter).objective == pytest.approx(score, rel=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_f_never_falls_whatever_part_is_visited(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype = rng.choice([np.float32, np.float64])
    slack = 1e-7 if dtype is np.float32 else 1e-12
    rows = clouds(700, 4, seed, dtype)
    algorithm = GMM(k=int(rng.integers(1, 9)), covariance=rng.choice(["diagonal", "full"]), regularization=1e-3)
    share, parameter, statistics = start(algorithm, rows, seed)
    by_kernel(algorithm, share, parameter, statistics)
    parameter = algorithm.updateParameter(statistics, parameter)
    before = algorithm.objective(statistics, parameter)
    for first, end in random_stretches(len(rows), rng, 30):
        by_kernel(algorithm, share, parameter, statistics, first, end)
        visited = algorithm.objective(statistics, parameter)
        parameter = algorithm.updateParameter(statistics, parameter)
        after = algorithm.objective(statistics, parameter)
        assert visited >= before - slack * abs(before)
        assert after >= visited - slack * abs(visited)
        before = after


@SHAPES
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float64, 1e-10)])
def test_accumulated_statistics_equal_recomputed_ones(covariance: str, dtype: Any, tolerance: float) -> None:
    rows = clouds(900, 5, dtype=dtype)
    algorithm = GMM(k=3, covariance=covariance)
    share, parameter, statistics = start(algorithm, rows)
    for first, end in random_stretches(len(rows), np.random.default_rng(1), 50):
        by_kernel(algorithm, share, parameter, statistics, first, end)
        parameter = algorithm.updateParameter(statistics, parameter)
    by_kernel(algorithm, share, parameter, statistics)
    state = share.state_rows().astype(np.float64)
    y = (rows.astype(np.float64) - parameter.origin) / parameter.unit
    t, u = np.tril_indices(5) if covariance == "full" else (np.arange(5), np.arange(5))
    expected = [state[:, :3].sum(axis=0), state[:, :3].T @ y, state[:, :3].T @ (y[:, t] * y[:, u])]
    for found, wanted in zip(statistics, expected, strict=False):
        np.testing.assert_allclose(found, wanted, atol=tolerance * np.abs(wanted).max())
    assert statistics.entropy[0] == pytest.approx(state[:, 3].sum(), rel=tolerance, abs=tolerance)
    assert statistics.counts.sum() == pytest.approx(900, rel=1e-6)


@SHAPES
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
    ids=["duplicates", "one point", "k = n > d", "constant column", "outlier", "tiny", "huge", "far mean"],
)
def test_degenerate_data_end_in_finite_numbers(rows: np.ndarray, k: int, dtype: Any, covariance: str) -> None:
    algorithm = GMM(k=k, covariance=covariance)
    rows = rows.astype(dtype)
    share, parameter, statistics = start(algorithm, rows)
    for _ in range(6):
        by_kernel(algorithm, share, parameter, statistics)
        parameter = algorithm.updateParameter(statistics, parameter)
        assert pytree.is_finite(parameter)
        assert np.isfinite(algorithm.objective(statistics, parameter))
    assert np.isfinite(share.state_rows()).all()
    np.testing.assert_allclose(share.state_rows()[:, :k].sum(axis=1), 1.0, rtol=1e-5)
    assert np.isfinite(algorithm.evaluate(rows, None, parameter).objective)
    assert algorithm.predict(rows, parameter).shape == (len(rows),)


def test_without_regularization_duplicates_still_end_in_finite_numbers() -> None:
    algorithm = GMM(k=2, regularization=0)
    share, parameter, statistics = start(algorithm, np.repeat([[0.0, 1.0], [5.0, 1.0]], 40, axis=0))
    for _ in range(10):
        by_kernel(algorithm, share, parameter, statistics)
        parameter = algorithm.updateParameter(statistics, parameter)
    assert pytree.is_finite(parameter)
    np.testing.assert_allclose(np.sort(parameter.means[:, 0]), [0.0, 5.0], atol=1e-6)


def test_a_component_without_points_keeps_its_place_with_weight_zero() -> None:
    rows = clouds(300, 2)
    algorithm = GMM(k=2, init=np.array([[0.0, 0.0], [1e6, 1e6]]))
    share, parameter, statistics = start(algorithm, rows)
    for _ in range(3):
        by_kernel(algorithm, share, parameter, statistics)
        parameter = algorithm.updateParameter(statistics, parameter)
    assert parameter.weights[1] == 0
    np.testing.assert_allclose(parameter.means[1], 1e6)
    assert "1 of 2 components" in algorithm.warnings(statistics, parameter)[0]


@pytest.mark.slow
def test_flag_and_stretches_inside_a_tile() -> None:
    algorithm = GMM(k=3)
    share, parameter, statistics = start(algorithm, clouds(1000, 3))
    flag = new_flag()
    flag[0] = 1
    kernel = algorithm.kernel(share)
    assert kernel is not None
    assert kernel(share, parameter, statistics, 64, 1000, 0, flag) == 64
    assert statistics.counts.sum() == 0
    by_kernel(algorithm, share, parameter, statistics, 0, 70)
    by_kernel(algorithm, share, parameter, statistics, 70, 75)
    assert statistics.counts.sum() == pytest.approx(75)
    assert (share.state_rows()[75:] == 0).all()


def test_wrong_requests_are_named() -> None:
    rows = clouds(10, 2)
    with pytest.raises(UsageError, match="covariance"):
        GMM(covariance="cubic")
    with pytest.raises(UsageError, match="k=11"):
        GMM(k=11).validate(sample_of(rows))
    with pytest.raises(UsageError, match="columns"):
        algorithm = GMM(k=2)
        algorithm.predict(rows[:, :1], algorithm.initParameter(sample_of(rows), np.random.default_rng(0)))


@pytest.mark.data
def test_on_skin_it_follows_scikit_learn() -> None:
    import gzip

    from sklearn.mixture import GaussianMixture

    with gzip.open(data_file("skin", "Skin_NonSkin.txt.gz"), "rt") as lines:
        rows = np.loadtxt(lines, max_rows=245_057)[::100, :3]
    algorithm = GMM(k=3, covariance="full", init=rows[[0, 700, 2000]], regularization=0)
    share, parameter, statistics = start(algorithm, rows)
    peer = GaussianMixture(
        3, tol=0, max_iter=15, reg_covar=0, weights_init=parameter.weights, means_init=parameter.means,
        precisions_init=np.linalg.inv(algorithm.covariance_matrices(parameter)),
    )  # fmt: skip
    with pytest.warns(Warning):
        peer.fit(rows)
    for _ in range(15):
        by_kernel(algorithm, share, parameter, statistics)
        parameter = algorithm.updateParameter(statistics, parameter)
    assert algorithm.evaluate(rows, None, parameter).objective == pytest.approx(peer.score(rows) * len(rows), rel=1e-6)


def test_a_start_finds_the_values_of_a_column_among_heavy_tails() -> None:
    """Components that hold one value each have by far the largest likelihood. In units of the middle of each column
    tails are all that k-means sees; in deviations it finds the values."""
    for seed in range(3):
        rng = np.random.default_rng(100 + seed)
        rows = rng.standard_t(2.0, size=(3000, 6))
        rows[:, 0] = rng.integers(2, size=3000)
        sample = Sample(rows, None, len(rows), 6)
        found = GMM(k=2, covariance="full").initParameter(sample, np.random.default_rng(seed))
        assert np.sort(found.means[:, 0]) == pytest.approx([0.0, 1.0], abs=1e-3)


@pytest.mark.parametrize("scale", [1.0, 1e150, 1e-150])
def test_deviations_are_those_of_all_numbers_whatever_their_size(scale: float) -> None:
    rows = np.random.default_rng(0).normal(size=(100, 3)) * [1.0, 100.0, 0.0] * scale
    assert in_deviations(rows).std(axis=0) == pytest.approx([1.0, 1.0, 0.0])


def test_costly_starts_have_fewer_rows_and_passes() -> None:
    rules = active().starts
    costly = rules.gmm_costly_pass
    assert start_passes(4, costly - 1, 1.0) == rules.gmm_trial_passes
    assert start_passes(4, costly, 1.0) == 2 and start_passes(1, costly, 1.0) == 4
    assert start_passes(4, costly, 1000.0) == rules.gmm_trial_passes, "of many rows it is nothing"
    assert trial_rows(64, 64 * 32, 100_000) == 200 * 64
    assert trial_rows(64, 64 * 528, 100_000) == rules.gmm_fewest_trial_rows
    assert trial_rows(256, 256 * 128, 100_000) == 64 * 256
    assert trial_rows(256, 256 * 128, 5_000) == 5_000


def test_a_sum_of_shares_that_is_rounded_down_counts_as_all_points() -> None:
    """A start that was trained on every point was kept for ever, without figures, where shares added up to less."""
    about, seen = coverage(600.0, 600.0, trained=True), float(np.nextafter(600.0, 0.0))
    assert not holds(about, seen) and unseen_weight(about, seen) == 0.0 and covered(about, seen)[2] == 1.0
    assert holds(about, 599.0) and unseen_weight(about, 599.0) > 0.0 and covered(about, 599.0)[2] == 0.0
