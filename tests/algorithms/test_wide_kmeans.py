"""K-means on wide rows with many centroids: the same clusters as an exhaustive search, whatever is left out."""

from __future__ import annotations

import secrets
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import flegel
from flegel.algorithms.directions import leading_directions
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.kmeans.kmeans import Centroids, KMeansSums
from flegel.algorithms.kmeans.shapes import is_wide, kernel_choice, served_by, served_shapes
from flegel.algorithms.kmeans.wide import WideKernel, best_count
from flegel.algorithms.kmeans.wide_start import follow, means, start_of
from flegel.algorithms.seeding import nearest_centre, prepared, several_lloyd
from flegel.core import pytree
from flegel.core.pytree import Array
from flegel.core.shard import make_shard
from flegel.core.stop_flag import new_flag

POINTS, K = 1200, 70


def rows_along(rng: np.random.Generator, columns: int, directions: int, noise: float = 0.05) -> Array:
    """Clusters that vary along a few directions, as embeddings do."""
    spectrum = (np.arange(directions) + 1.0) ** -0.5
    centres = rng.normal(size=(150, directions)) * 1.5
    inside = centres[rng.integers(150, size=POINTS)] + rng.normal(size=(POINTS, directions))
    turned = (inside * spectrum) @ rng.normal(size=(directions, columns)) / np.sqrt(directions)
    return np.asarray(turned + noise * rng.normal(size=(POINTS, columns)))


def exhaustive(rows: Array, centroids: Array, last: Array) -> Array:
    """The nearest centroid of each row in float64; its last one where that is as near."""
    squared = np.array([((rows.astype(np.float64) - c) ** 2).sum(axis=1) for c in centroids]).T
    found = squared.argmin(axis=1)
    own = np.arange(len(rows))
    stays = (last >= 0) & (squared[own, last] == squared[own, found])
    return np.where(stays, last, found)


def parameter(centroids: Array, origin: Array) -> Centroids:
    """θ as jobs show it: kernels are compiled for arrays that refuse writes, and not once more for others."""
    found: Centroids = pytree.read_only(Centroids(centroids, origin))
    return found


def empty(columns: int) -> KMeansSums:
    return KMeansSums(np.zeros((K, columns)), np.zeros(K), np.zeros(K))


def tables() -> dict[str, Array]:
    rng = np.random.default_rng(7)
    low = rows_along(rng, 96, 12)
    outlier = low.copy()
    outlier[5] *= 1e12
    return {
        "embeddings": low,
        "wider, odd": rows_along(rng, 131, 20),
        "no directions": rng.normal(size=(POINTS, 80)),
        "exactly few directions": rows_along(rng, 96, 6, noise=0.0),
        "far from zero": low + 1e4,
        "tiny": low * 1e-18,
        "huge": low * 1e17,
        "with an outlier": outlier,
        "many equal rows": np.repeat(low[:60], 20, axis=0),
        "small whole numbers": rng.integers(0, 3, size=(POINTS, 72)).astype(np.float64),
    }


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", tables())
def test_every_pass_finds_what_an_exhaustive_search_finds(name: str, dtype: Any) -> None:
    rows = tables()[name].astype(dtype)
    rng = np.random.default_rng(3)
    weights = rng.integers(1, 4, POINTS).astype(np.float64)
    origin = np.asarray(rows.mean(axis=0), dtype=np.float64)
    shard = make_shard(rows, None, np.full((POINTS, 1), -1, np.int32), "rows", weights=weights)
    kernel, total, columns = WideKernel(K), empty(rows.shape[1]), rows.shape[1]
    theta = parameter(rows[rng.choice(POINTS, K, replace=False)].astype(np.float64), origin)
    for turn in range(8):
        last = shard.state[:, 0].copy()
        cut = int(rng.integers(1, POINTS))
        assert kernel(shard, theta, total, 0, cut, 0, new_flag()) == cut
        assert kernel(shard, theta, total, cut, POINTS, 0, new_flag()) == POINTS
        found = shard.state[:, 0]
        differ = found != exhaustive(rows, theta.centroids, last)
        if differ.any():  # only where float64 itself cannot tell
            here, there = (
                theta.centroids[found[differ]],
                theta.centroids[exhaustive(rows, theta.centroids, last)[differ]],
            )
            both = [((rows[differ].astype(np.float64) - c) ** 2).sum(axis=1) for c in (here, there)]
            scale = (rows[differ].astype(np.float64) ** 2).sum(axis=1)
            assert (np.abs(both[0] - both[1]) <= 1e-12 * (scale + both[1])).all(), (
                f"{name}: {differ.sum()} rows in {turn}"
            )
        counts = np.bincount(found, weights, minlength=K)
        assert np.array_equal(total.counts, counts)
        sums = np.zeros((K, columns))
        np.add.at(sums, found, weights[:, None] * (rows.astype(np.float64) - origin))
        scatter = np.abs(rows.astype(np.float64) - origin).max() * POINTS
        assert np.abs(total.sums - sums).max() <= 1e-12 * scatter
        moved = np.where(counts[:, None] > 0, origin + total.sums / np.maximum(counts, 1)[:, None], theta.centroids)
        if turn == 4:  # a jump: bounds must not survive it
            moved = moved[rng.permutation(K)]
        theta = parameter(moved, origin)


def test_rows_from_a_seed_that_nobody_chose_get_the_clusters_of_an_exhaustive_search() -> None:
    seed = secrets.randbits(32)
    rng = np.random.default_rng(seed)
    columns, k = int(rng.integers(32, 200)), int(rng.integers(20, 300))
    rows = rows_along(rng, columns, int(rng.integers(3, 30)), noise=float(rng.random())).astype(np.float32)
    origin = rows.mean(axis=0).astype(np.float64)
    shard = make_shard(rows, None, np.full((POINTS, 1), -1, np.int32), "rows", weights=np.ones(POINTS))
    kernel, total = WideKernel(k), KMeansSums(np.zeros((k, columns)), np.zeros(k), np.zeros(k))
    theta = parameter(rows[rng.choice(POINTS, k, replace=False)].astype(np.float64), origin)
    for turn in range(6):
        kernel(shard, theta, total, 0, POINTS, 0, new_flag())
        squared = np.array([((rows - c) ** 2).sum(axis=1) for c in theta.centroids])
        own = squared[shard.state[:, 0], np.arange(POINTS)]
        assert (own <= squared.min(axis=0) * (1 + 1e-9)).all(), f"seed {seed}, pass {turn}"
        filled = total.counts[:, None] > 0
        theta = parameter(
            np.where(filled, origin + total.sums / np.maximum(total.counts, 1)[:, None], theta[0]), origin
        )


def test_calls_that_end_inside_a_block_leave_right_bounds() -> None:
    rows = tables()["embeddings"].astype(np.float32)
    shard = make_shard(rows, None, np.full((POINTS, 1), -1, np.int32), "rows", weights=np.ones(POINTS))
    kernel, total = WideKernel(K), empty(rows.shape[1])
    theta = parameter(rows[:K].astype(np.float64), np.zeros(rows.shape[1]))
    flag = new_flag()
    for stop in (0, 40, 300):
        kernel(shard, theta, total, 0, stop, 0, flag)
    kernel(shard, theta, total, 300, POINTS, 0, flag)
    assert np.array_equal(shard.state[:, 0], exhaustive(rows, theta.centroids, np.full(POINTS, -1)))


def test_points_whose_bounds_tell_are_not_compared_again() -> None:
    rows = tables()["embeddings"].astype(np.float32)
    shard = make_shard(rows, None, np.full((POINTS, 1), -1, np.int32), "rows", weights=np.ones(POINTS))
    kernel, total = WideKernel(K), empty(rows.shape[1])
    theta = parameter(rows[:K].astype(np.float64), np.zeros(rows.shape[1]))
    kernel(shard, theta, total, 0, POINTS, 0, new_flag())
    before = shard.state.copy()
    (kept,) = kernel._held
    kept.bounds[3][:] = np.inf  # no other centroid can be near: nothing may be looked at
    kernel(shard, parameter(theta.centroids[::-1].copy(), theta.origin), total, 0, POINTS, 0, new_flag())
    assert np.array_equal(before, shard.state)


def test_where_a_pass_is_cut_decides_no_bit() -> None:
    rows = tables()["embeddings"].astype(np.float32)
    theta = parameter(rows[:K].astype(np.float64), np.zeros(rows.shape[1]))
    made = []
    for cuts in ([0, POINTS], [0, 1, 63, 64, 700, POINTS], [*range(0, POINTS, 100), POINTS]):
        shard = make_shard(rows, None, np.full((POINTS, 1), -1, np.int32), "rows", weights=np.ones(POINTS))
        kernel, total = WideKernel(K), empty(rows.shape[1])
        for start, end in pairwise(cuts):
            kernel(shard, theta, total, start, end, 0, new_flag())
        made.append((total.sums.tobytes(), total.counts.tobytes(), shard.state.tobytes()))
    assert made[0] == made[1] == made[2]


def test_a_raised_flag_stops_before_the_first_point() -> None:
    rows = tables()["embeddings"].astype(np.float32)
    shard = make_shard(rows, None, np.full((POINTS, 1), -1, np.int32), "rows", weights=np.ones(POINTS))
    flag, total = new_flag(), empty(rows.shape[1])
    flag[0] = 1
    theta = parameter(rows[:K].astype(np.float64), np.zeros(rows.shape[1]))
    assert WideKernel(K)(shard, theta, total, 5, POINTS, 0, flag) == 5
    assert (shard.state == -1).all() and not total.counts.any()


def test_one_table_says_which_kernel_serves_a_shape() -> None:
    assert served_shapes()[-1][:2] == (1, 1), "every shape is served"
    for columns in (1, 2, 28, 31):
        assert not any(is_wide(k, columns) for k in (1, 16, 4096, 40_000)), (
            "narrow rows keep their kernel, and their bits"
        )
    for k, columns, kernel in (
        (16, 1536, "tiles"),
        (1024, 96, "tiles"),
        (256, 384, "bounds"),
        (1024, 384, "bounds"),
        (4096, 32, "bounds"),
    ):
        assert served_by(k, columns).kernel == kernel
        assert KMeans(k=k).layout_for(columns) == ("rows" if kernel == "bounds" else "tiles")
        assert kernel_choice(k, columns).startswith(f"{kernel} for {columns:,} columns × {k:,} clusters")
    shard = make_shard(np.zeros((4, 384), np.float32), None, np.full((4, 1), -1, np.int32), "rows")
    assert KMeans(k=1024).kernel_choice(shard) == kernel_choice(1024, 384)


def test_a_part_of_the_rows_uses_what_is_known_of_all() -> None:
    rows = tables()["embeddings"].astype(np.float32)
    shard = make_shard(rows, None, np.full((POINTS, 1), -1, np.int32), "rows", weights=np.ones(POINTS))
    kernel, total = WideKernel(K), empty(rows.shape[1])
    theta = parameter(rows[:K].astype(np.float64), np.zeros(rows.shape[1]))
    kernel(shard, theta, total, 0, POINTS, 0, new_flag())
    part = shard.part(100, 300)
    kernel(part, theta, total, 0, 200, 0, new_flag())
    assert len(kernel._held) == 1
    kernel.forget(shard)
    assert not kernel._held


def test_few_directions_are_chosen_where_they_tell_and_none_where_they_do_not() -> None:
    rng = np.random.default_rng(1)
    for rows, few in ((rows_along(rng, 256, 12), True), (rng.normal(size=(POINTS, 256)), False)):
        basis = leading_directions(rows, 128)
        assert np.allclose(basis.T @ basis, np.eye(128), atol=1e-10)
        chosen = best_count(rows[:64], rows[100:400], basis, [16, 32, 64, 128])
        assert (0 < chosen <= 64) == few


@pytest.mark.parametrize("weighted", [False, True])
def test_a_start_is_as_good_as_greedy_kmeans_plus_plus(weighted: bool) -> None:
    ratios = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        rows = rows_along(rng, 96, 12)[:600]
        weights = rng.random(600) + 0.1 if weighted else None

        def cost(centres: Array, rows: Array = rows, weights: Array | None = weights) -> float:
            least = ((rows - centres[nearest_centre(rows, centres)]) ** 2).sum(axis=1)
            return float(least.sum() if weights is None else weights @ least)

        found = start_of(rows, K, 8, rng, weights)
        assert found.centres.shape == (K, 96) and found.spare.shape == (8, 96) and found.labels.max() < K
        ratios.append(
            cost(found.centres) / min(cost(one.centres) for one in several_lloyd(prepared(rows), K, [rng] * 3, weights))
        )
    assert np.median(ratios) < 1.05


def test_a_start_on_equal_rows_has_all_its_centroids() -> None:
    rows = np.ones((200, 70))
    found = start_of(rows, 64, 4, np.random.default_rng(0))
    assert found.centres.shape == (64, 70) and np.isfinite(found.centres).all()
    given = follow(rows, np.zeros((64, 70)), 4, np.random.default_rng(0), None)
    assert (given.centres == 0).all() and given.labels.max() == 0


def test_means_are_those_of_the_clusters() -> None:
    rng = np.random.default_rng(5)
    rows, labels, weights = rng.normal(size=(50, 3)), rng.integers(0, 4, 50), rng.random(50)
    found = means(rows, labels, np.full((6, 3), 9.0), weights)
    for j in range(4):
        assert np.allclose(found[j], np.average(rows[labels == j], axis=0, weights=weights[labels == j]))
    assert (found[4:] == 9.0).all()


@pytest.mark.parametrize("sync", ["bsp", "fsp"])
def test_a_job_on_wide_rows_ends_with_the_objective_of_its_model(sync: str) -> None:
    rows = np.tile(tables()["embeddings"], (1, 8)).astype(np.float32)
    assert is_wide(K, rows.shape[1])
    result = flegel.run(KMeans(k=K), rows, workers=2, sync=sync, seed=1, processes=False)
    assert result.kernel_choice == result.to_json()["kernel_choice"] == kernel_choice(K, rows.shape[1])
    model = result.parameter.centroids
    least = np.min([((rows.astype(np.float64) - c) ** 2).sum(axis=1) for c in model], axis=0)
    assert result.objective == pytest.approx(least.sum(), rel=1e-3)
