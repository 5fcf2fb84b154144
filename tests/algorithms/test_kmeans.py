"""KMeans: kernel and hooks agree, statistics are conserved, the objective is exact and never rises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from local_training import sparse_of
from local_training import start as local_start
from passes import by_kernel, by_points, data_file, random_stretches, sample_of, start

import flegel
from flegel.algorithm import Sample
from flegel.algorithms import rows as rows_module
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.kmeans import sparse as sparse_module
from flegel.configuration.active import using
from flegel.core import pytree
from flegel.core.shard import DataPoint, Sparse, SparseRow, make_shard
from flegel.core.stop_flag import new_flag
from flegel.errors import UsageError

BOTH = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def blobs(points: int, columns: int, seed: int = 0, dtype: Any = np.float32, mean: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(6, columns)) * 1.5
    rows = centres[rng.integers(6, size=points)] + rng.normal(size=(points, columns)) + mean
    return rows.astype(dtype)


def distances(rows: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    return ((rows[:, None, :].astype(np.float64) - centroids) ** 2).sum(axis=2)


@BOTH
@pytest.mark.parametrize("k", [1, 3, 10, 23])
@pytest.mark.parametrize(("points", "columns"), [(1000, 7), (64, 1), (129, 28)])
def test_kernel_does_what_the_hooks_say(dtype: Any, k: int, points: int, columns: int) -> None:
    rows = blobs(points, columns, dtype=dtype)
    algorithm = KMeans(k=k, init="random")
    share, parameter, statistics = start(algorithm, rows)
    state = algorithm.initState(points, columns, np.random.default_rng(0))
    plain = pytree.copy(statistics)
    for _ in range(3):
        by_points(algorithm, rows, state, parameter, plain)
        by_kernel(algorithm, share, parameter, statistics)
        apart = np.flatnonzero(share.state_rows()[:, 0] != state[:, 0])
        both = distances(rows[apart], parameter.centroids)
        here, there = (np.take_along_axis(both, s[apart].astype(int), 1) for s in (state, share.state_rows()))
        np.testing.assert_allclose(here, there, rtol=1e-5)  # only ties, to the precision of the features
        chosen = share.state_rows()[:, 0].astype(int)  # whatever ties were given to, its statistics are exact
        about = rows.astype(np.float64) - parameter.origin
        members = chosen == np.arange(len(parameter.centroids))[:, None]
        np.testing.assert_array_equal(statistics.counts, members.sum(axis=1))
        np.testing.assert_allclose(
            statistics.sums, members @ about, rtol=1e-10, atol=1e-9 * max(np.abs(about).max(), 1)
        )
        parameter = algorithm.updateParameter(plain, parameter)


@BOTH
def test_a_full_batch_pass_is_lloyds_pass(dtype: Any) -> None:
    from sklearn.cluster import KMeans as Lloyd

    rows = blobs(5000, 9, dtype=dtype)
    algorithm = KMeans(k=6, init="first")
    share, parameter, statistics = start(algorithm, rows)
    for _ in range(12):
        by_kernel(algorithm, share, parameter, statistics)
        parameter = algorithm.updateParameter(statistics, parameter)
    peer = Lloyd(6, init=rows[:6], n_init=1, max_iter=12, tol=0, algorithm="lloyd").fit(rows)
    by_kernel(algorithm, share, parameter, statistics)
    assert algorithm.objective(statistics, parameter) == pytest.approx(peer.inertia_, rel=1e-6)
    np.testing.assert_allclose(parameter.centroids, peer.cluster_centers_, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(20))
def test_the_objective_never_rises_whatever_part_is_visited(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = blobs(1500, 5, seed=seed, dtype=rng.choice([np.float32, np.float64]), mean=float(rng.choice([0.0, 1e3])))
    algorithm = KMeans(k=int(rng.integers(1, 15)), init="random")
    share, parameter, statistics = start(algorithm, rows, seed)
    by_kernel(algorithm, share, parameter, statistics)
    parameter = algorithm.updateParameter(statistics, parameter)
    before = algorithm.objective(statistics, parameter)
    for first, end in random_stretches(len(rows), rng, 40):
        by_kernel(algorithm, share, parameter, statistics, first, end)
        after_visit = algorithm.objective(statistics, parameter)
        parameter = algorithm.updateParameter(statistics, parameter)
        after = algorithm.objective(statistics, parameter)
        assert after_visit <= before * (1 + 1e-12)
        assert after <= after_visit * (1 + 1e-12)
        before = after


@BOTH
@pytest.mark.parametrize("mean", [0.0, 1e4])
def test_accumulated_statistics_equal_recomputed_ones(dtype: Any, mean: float) -> None:
    rows = blobs(3000, 11, dtype=dtype, mean=mean)
    algorithm = KMeans(k=7)
    share, parameter, statistics = start(algorithm, rows)
    for first, end in random_stretches(len(rows), np.random.default_rng(3), 60):
        by_kernel(algorithm, share, parameter, statistics, first, end)
        parameter = algorithm.updateParameter(statistics, parameter)
    by_kernel(algorithm, share, parameter, statistics)
    labels = share.state_rows()[:, 0]
    shifted = rows.astype(np.float64) - parameter.origin
    np.testing.assert_array_equal(statistics.counts, np.bincount(labels, minlength=7))
    sums = np.stack([shifted[labels == j].sum(axis=0) for j in range(7)])
    np.testing.assert_allclose(statistics.sums, sums, rtol=1e-10, atol=1e-10 * np.abs(sums).max())
    squares = np.bincount(labels, (shifted**2).sum(axis=1), minlength=7)
    np.testing.assert_allclose(statistics.squares, squares, rtol=1e-12)
    exact = sum(distances(rows[labels == j], parameter.centroids[j : j + 1]).sum() for j in range(7))
    assert algorithm.objective(statistics, parameter) == pytest.approx(exact, rel=1e-11)


def test_a_large_mean_costs_float32_no_assignments() -> None:
    rows = blobs(2000, 8, mean=0.0)
    far = rows.astype(np.float64) + 4096.0
    near = (far.astype(np.float32) - np.float32(4096.0)).astype(np.float32)
    found = []
    for data, mean in ((near, 0.0), (far.astype(np.float32), 4096.0)):
        algorithm = KMeans(k=5, init=near[:5].astype(np.float64) + mean)
        share, parameter, statistics = start(algorithm, data)
        for _ in range(5):
            by_kernel(algorithm, share, parameter, statistics)
            parameter = algorithm.updateParameter(statistics, parameter)
        found.append((share.state_rows(), algorithm.objective(statistics, parameter)))
    assert (found[0][0] != found[1][0]).mean() < 0.001
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-6)


@BOTH
@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1.0, 1e12, 1e17])
def test_scale_does_not_matter(dtype: Any, scale: float) -> None:
    rows = (blobs(500, 4, dtype=np.float64) * scale).astype(dtype)
    algorithm = KMeans(k=6)
    share, parameter, statistics = start(algorithm, rows)
    by_kernel(algorithm, share, parameter, statistics)
    nearest = distances(rows / scale, parameter.centroids / scale)
    chosen = np.take_along_axis(nearest, share.state_rows().astype(int), 1)[:, 0]
    np.testing.assert_allclose(chosen, nearest.min(axis=1), rtol=1e-4, atol=1e-5)
    assert np.isfinite(algorithm.objective(statistics, algorithm.updateParameter(statistics, parameter)))


@BOTH
@pytest.mark.parametrize(
    ("rows", "k"),
    [
        (np.ones((100, 3)), 4),
        (np.array([[2.5, -1.0]]), 1),
        (np.arange(50.0)[:, None], 50),
        (np.c_[np.arange(70.0), np.zeros(70)], 3),
        (np.zeros((65, 1)), 2),
    ],
    ids=["duplicates", "one point", "k = n", "constant column", "all zero"],
)
def test_degenerate_data_end_in_finite_numbers(rows: np.ndarray, k: int, dtype: Any) -> None:
    algorithm = KMeans(k=k)
    share, parameter, statistics = start(algorithm, rows.astype(dtype))
    for _ in range(3):
        by_kernel(algorithm, share, parameter, statistics)
        parameter = algorithm.updateParameter(statistics, parameter)
    assert pytree.is_finite(parameter)
    assert algorithm.objective(statistics, parameter) >= 0.0
    assert statistics.counts.sum() == len(rows)
    assert len(algorithm.warnings(statistics, parameter)) == (1 if (statistics.counts == 0).any() else 0)


def test_an_empty_cluster_goes_to_a_far_row_once_all_were_visited() -> None:
    algorithm = KMeans(k=2, init=np.array([[0.0], [1000.0]]))
    rows = np.linspace(0, 1, 30)[:, None]
    share, parameter, statistics = start(algorithm, rows)
    by_kernel(algorithm, share, parameter, statistics, 0, 20)
    parameter = algorithm.updateParameter(statistics, parameter)
    assert parameter.centroids[1] == 1000.0  # its points may be among those that are still to come
    by_kernel(algorithm, share, parameter, statistics, 20, 30)
    before = algorithm.objective(statistics, parameter._replace(centroids=np.array([[0.5], [1000.0]])))
    parameter = algorithm.updateParameter(statistics, parameter)
    assert parameter.centroids[1] in rows
    assert algorithm.objective(statistics, parameter) == pytest.approx(before)
    waiting = algorithm.updateParameter(statistics, parameter)
    np.testing.assert_array_equal(waiting.centroids, parameter.centroids)
    for _ in range(10):
        by_kernel(algorithm, share, parameter, statistics)
        parameter = algorithm.updateParameter(statistics, parameter)
    np.testing.assert_array_equal(statistics.counts, [15, 15])
    assert algorithm.objective(statistics, parameter) == pytest.approx(2 * (7.5**2 / 3 - 1 / 12) * 30 / 29**2 / 2)
    assert not algorithm.warnings(statistics, parameter)


def test_clusters_stay_empty_where_rows_are_fewer_and_that_is_said() -> None:
    algorithm = KMeans(k=3)
    share, parameter, statistics = start(algorithm, np.repeat([[0.0], [1.0]], 40, axis=0))
    for _ in range(3):
        by_kernel(algorithm, share, parameter, statistics)
        parameter = algorithm.updateParameter(statistics, parameter)
    assert "1 of 3 clusters are empty" in algorithm.warnings(statistics, parameter)[0]
    assert algorithm.objective(statistics, parameter) == 0


def test_a_raised_flag_stops_the_kernel_before_the_next_tile() -> None:
    algorithm = KMeans(k=3)
    share, parameter, statistics = start(algorithm, blobs(1000, 3))
    flag = new_flag()
    flag[0] = 1
    kernel = algorithm.kernel(share)
    assert kernel is not None
    assert kernel(share, parameter, statistics, 128, 1000, 0, flag) == 128
    assert statistics.counts.sum() == 0


def test_stretches_may_begin_and_end_inside_a_tile() -> None:
    algorithm = KMeans(k=3)
    rows = blobs(1000, 3)
    share, parameter, statistics = start(algorithm, rows)
    by_kernel(algorithm, share, parameter, statistics, 0, 10)
    assert statistics.counts.sum() == 10
    by_kernel(algorithm, share, parameter, statistics, 10, 75)
    assert statistics.counts.sum() == 75
    assert (share.state_rows()[75:] == -1).all()


def test_where_a_pass_is_cut_into_calls_decides_no_bit() -> None:
    rows = blobs(1000, 7, dtype=np.float64)
    algorithm = KMeans(k=5, init="random")
    ends = [(1000,), (128, 640, 1000)]  # which of them a worker has depends on measured times
    found = []
    for cuts in ends:
        share, parameter, statistics = start(algorithm, rows)
        kernel, flag = algorithm.kernel(share), new_flag()
        assert kernel is not None
        for begin, end in zip((0, *cuts), cuts, strict=False):
            kernel(share, parameter, statistics, begin, end, 0, flag)
        found.append(b"".join(a.tobytes() for a in pytree.flatten(statistics)))
    assert found[0] == found[1]


def test_float32_first_gives_the_bits_of_float64_alone() -> None:
    rows = blobs(1000, 7, dtype=np.float64, mean=3.0)
    rows[300:340] = rows[:40]
    rows[500], rows[501], rows[502:510] = 1e100, 1e30, np.round(rows[502:510])
    weights = np.random.default_rng(3).random(len(rows))

    def bits() -> list[bytes]:
        algorithm = KMeans(k=23, init=np.repeat(rows[:12], 2, axis=0)[:23])  # every centroid twice: ties everywhere
        share, parameter, statistics = start(algorithm, rows[:400])
        share = make_shard(
            rows, None, algorithm.initState(*rows.shape, np.random.default_rng(0)), "tiles", weights=weights
        )
        for first, end in ((0, 70), (70, 1000), (0, 1000)):
            by_kernel(algorithm, share, parameter, statistics, first, end)
            parameter = algorithm.updateParameter(statistics, parameter)
        return [share.state.tobytes(), *(a.tobytes() for a in pytree.flatten(statistics))]

    with using({"shapes.kmeans_float32_first_clusters": 1000}):
        alone = bits()
    assert bits() == alone


def test_predict_and_evaluate_agree_with_training() -> None:
    rows = blobs(900, 6)
    algorithm = KMeans(k=4)
    share, parameter, statistics = start(algorithm, rows)
    by_kernel(algorithm, share, parameter, statistics)
    assert (algorithm.predict(rows, parameter) == share.state_rows()[:, 0]).mean() > 0.999
    assert algorithm.evaluate(rows, None, parameter).objective == pytest.approx(
        algorithm.objective(statistics, parameter), rel=1e-6
    )
    with pytest.raises(UsageError, match="columns"):
        algorithm.predict(rows[:, :2], parameter)


def test_seeding_says_what_is_wrong(tmp_path: Any) -> None:
    rows = blobs(20, 3)
    np.save(tmp_path / "start.npy", rows[:4])
    assert KMeans(k=4, init=str(tmp_path / "start.npy")).initParameter(sample_of(rows), np.random.default_rng(0))
    for wrong, words in [
        (KMeans(k=21), "points"),
        (KMeans(k=4, init="kmeans++"), "neither"),
        (KMeans(k=3, init=str(tmp_path / "start.npy")), "give k=4"),
        (KMeans(k=2, init=rows[:3]), "give k=3"),
    ]:
        with pytest.raises(UsageError, match=words):
            wrong.initParameter(sample_of(rows), np.random.default_rng(0))


def test_plus_plus_seeds_better_than_chance() -> None:
    rng = np.random.default_rng(5)
    rows = (rng.normal(size=(30, 2)) * 100)[rng.integers(30, size=3000)] + rng.normal(size=(3000, 2))
    worth = {how: np.median([start_inertia(rows, how, seed) for seed in range(5)]) for how in ("k-means++", "random")}
    assert worth["k-means++"] < 0.5 * worth["random"]


def start_inertia(rows: np.ndarray, how: str, seed: int) -> float:
    algorithm = KMeans(k=30, init=how)
    parameter = algorithm.initParameter(sample_of(rows), np.random.default_rng(seed))
    return algorithm.evaluate(rows, None, parameter).objective


@pytest.mark.data
def test_on_higgs_it_ends_where_lloyd_ends() -> None:
    from sklearn.cluster import KMeans as Lloyd

    with np.load(data_file("higgs", "higgs_real_combined.npz")) as stored:
        rows = max((stored[name] for name in stored.files), key=lambda a: a.ndim)[:8000, 1:].astype(np.float32)
    algorithm = KMeans(k=10, init="first")
    share, parameter, statistics = start(algorithm, rows)
    for _ in range(20):
        by_kernel(algorithm, share, parameter, statistics)
        parameter = algorithm.updateParameter(statistics, parameter)
    by_kernel(algorithm, share, parameter, statistics)
    peer = Lloyd(10, init=rows[:10].astype(np.float64), n_init=1, max_iter=20, tol=0, algorithm="lloyd")
    peer.fit(rows.astype(np.float64))
    assert algorithm.objective(statistics, parameter) == pytest.approx(peer.inertia_, rel=1e-6)


# -- sparse rows --------------------------------------------------------------------------------------------


def words(points: int = 300, columns: int = 40, seed: int = 0) -> np.ndarray:
    """Three topics; every tenth row is empty."""
    rng = np.random.default_rng(seed)
    rates = rng.gamma(0.3, size=(3, columns))
    rows = rng.poisson(rates[np.arange(points) % 3]).astype(np.float64)
    rows[::10] = 0.0
    return rows


def test_sparse_kernel_does_what_the_hooks_say() -> None:
    rows = words()
    algorithm = KMeans(k=4)
    run = local_start(algorithm, sparse_of(rows), workers=2)
    plain, state = pytree.zeros_like(run.statistics), algorithm.initState(len(rows), 40, np.random.default_rng(0))
    for _ in range(4):
        parameter = run.parameter
        run.passes(1)
        for i, row in enumerate(rows):
            stored = np.flatnonzero(row)
            point = DataPoint(SparseRow(stored.astype(np.int32), row[stored]), 0.0, state[i])
            algorithm.aggregate(plain, algorithm.updateDataPoint(point, parameter, 0))
        for found, wanted in zip(run.statistics, plain, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-9)
        np.testing.assert_array_equal(np.concatenate([share.state for share in run.shares]), state)


def test_sparse_rows_end_where_dense_rows_end() -> None:
    rows = words(seed=1)
    given = rows[[1, 2, 3]]
    dense = local_start(KMeans(k=3, init=given), rows).passes(30)
    sparse = local_start(KMeans(k=3, init=given), sparse_of(rows), workers=3).passes(30)
    assert sparse.objectives[-1] == pytest.approx(dense.objectives[-1], rel=1e-9)
    found = KMeans(k=3).evaluate(sparse_of(rows), None, sparse.parameter)
    assert found.objective == pytest.approx(sparse.objectives[-1], rel=1e-9)
    np.testing.assert_array_equal(
        KMeans(k=3).predict(sparse_of(rows), sparse.parameter), KMeans(k=3).predict(rows, sparse.parameter)
    )


def test_sparse_starts_are_as_good_as_dense_ones() -> None:
    rows = words(600, 30, seed=2)
    first = local_start(KMeans(k=5), sparse_of(rows)).passes(20).objectives[-1]
    assert first <= 1.05 * local_start(KMeans(k=5), rows).passes(20).objectives[-1]


def test_points_that_were_not_seen_count_as_the_sample_has_them() -> None:
    """Only the points about 0 have been visited: the other clusters stay where the sample put them."""
    rows = np.repeat([[0.0], [10.0], [20.0]], 50, axis=0) + np.tile([-1.0, 1.0], 75)[:, None]
    algorithm = KMeans(k=3, init=np.array([[0.5], [10.5], [19.0]]))
    share, parameter, statistics = start(algorithm, rows)
    by_kernel(algorithm, share, parameter, statistics, 0, 50)
    moved = algorithm.updateParameter(statistics, parameter)
    assert moved.centroids[:, 0] == pytest.approx([0.5 * (1 - 50 / (50 + 50 * 2 / 3)), 10.5, 19.0])
    by_kernel(algorithm, share, moved, statistics, 50, 150)
    moved = algorithm.updateParameter(statistics, moved)
    np.testing.assert_allclose(moved.centroids[:, 0], [0.0, 10.0, 20.0], atol=1e-12)
    assert moved.points[2] == 1.0


def test_starts_of_sparse_rows_are_the_same_compiled_and_interpreted() -> None:
    """Products and sums of many entries are compiled; both ways take them in the same order."""
    rng = np.random.default_rng(3)
    whole = np.where(rng.random((300, 40)) < 0.2, rng.random((300, 40)), 0.0)
    indptr = np.concatenate(([0], np.cumsum((whole > 0).sum(axis=1))))
    rows = Sparse(indptr, np.nonzero(whole)[1].astype(np.int32), whole[whole > 0], 40)
    found = []
    for least in (0, 1 << 40):
        with using({"shapes.compiled_sparse_products": least}):
            norms = sparse_module.squared_norms(rows)
            found.append(sparse_module.best_sparse_lloyd(rows, norms, 4, 2, 100, np.random.default_rng(0)))
    assert np.array_equal(*found)
    centres = found[0]
    np.testing.assert_allclose(rows_module.times(rows, centres.T), whole @ centres.T, rtol=1e-12, atol=1e-12)


def test_a_sparse_kernel_follows_theta_between_calls() -> None:
    """It keeps the centroids column by column for as long as θ is the same, and no longer."""
    rng = np.random.default_rng(4)
    whole = rng.random((60, 12))
    rows = Sparse(np.arange(0, 721, 12), np.tile(np.arange(12, dtype=np.int32), 60), whole.ravel(), 12)
    algorithm = KMeans(k=3, init="first")
    sample = Sample(rows, None, 60, 12)
    shard = make_shard(rows, None, algorithm.initState(60, 12, rng), "rows")
    kernel = algorithm.kernel(shard)
    assert kernel is not None
    parameter = pytree.read_only(algorithm.initParameter(sample, rng))
    for _ in range(3):
        sums = algorithm.initAggregator(sample, parameter)
        shard.state[:] = -1
        for first in range(0, 60, 20):
            kernel(shard, parameter, sums, first, first + 20, 0, new_flag())
        expected = ((whole[:, None, :] - parameter.centroids) ** 2).sum(axis=2).argmin(axis=1)
        assert np.array_equal(shard.state[:, 0], expected)
        parameter = pytree.read_only(parameter._replace(centroids=rng.random((3, 12))))


def test_near_ties_of_tight_clusters_in_float32_are_no_wrong_books() -> None:
    """Which of two centroids is nearer is decided by rounding there; the objective is small beside the sums that it is
    the difference of."""
    rng = np.random.default_rng(0)
    rows = 0.01 * rng.standard_normal((2000, 5)) + rng.integers(0, 4, 2000)[:, None] * 10.0
    found = flegel.run(KMeans(k=10), rows.astype(np.float32), workers=2, sync="bsp", seed=3)
    assert found.outcome == "converged", found.reason
    assert not found.audit["problems"]
