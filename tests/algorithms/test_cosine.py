"""`KMeans(metric="cosine")` is k-means on rows that were divided by their length by hand, with centroids of length 1.

Rows are drawn from a seed that is new in every run at night; a failure names it.
"""

from __future__ import annotations

import os
import secrets
import zlib
from typing import Any

import numpy as np
import pytest

import flegel
from flegel.algorithm import Sample
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.kmeans.kmeans import Centroids
from flegel.checks.conformance import check_algorithm
from flegel.core.pytree import Array
from flegel.core.shard import Sparse, make_shard, unit_rows, unpack_tiles
from flegel.core.unit_rows import lengths_of
from flegel.errors import UsageError

COLUMNS, K = 7, 4


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Rows that are the same in every run of a test; others at night."""
    night = os.environ.get("FLEGEL_PROFILE") == "nightly"
    seed = secrets.randbits(32) if night else zlib.crc32(request.node.name.encode())
    print(f"rows are drawn from the seed {seed}")
    return np.random.default_rng(seed)


def cones(rng: np.random.Generator, points: int = 400, columns: int = COLUMNS, k: int = K) -> Array:
    """Rows about k directions, of lengths that differ by orders of magnitude; two rows are zero."""
    directions = rng.normal(size=(k, columns))
    rows = directions[rng.integers(k, size=points)] + 0.5 * rng.normal(size=(points, columns))
    rows *= np.exp(3 * rng.normal(size=(points, 1)))
    rows[[3, 50]] = 0.0
    return rows


def normalized(rows: Array) -> Array:
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1.0), dtype=np.float64)


def as_sparse(rows: Array) -> Sparse:
    row, column = np.nonzero(rows)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(rows)))])
    return Sparse(indptr, column.astype(np.int32), rows[row, column], rows.shape[1])


def spherical(units: Array, start: Array, weights: Array) -> tuple[Array, float]:
    """Lloyd's algorithm with centroids of length 1, in NumPy; θ and Σ w ‖x − μ‖²/2."""
    centroids = start / np.linalg.norm(start, axis=1, keepdims=True)
    for _ in range(300):
        labels = (units @ centroids.T).argmax(axis=1)
        sums = np.stack([(weights[:, None] * units)[labels == j].sum(axis=0) for j in range(len(start))])
        fresh = sums / np.linalg.norm(sums, axis=1, keepdims=True)
        if np.allclose(fresh, centroids, rtol=0, atol=1e-14):
            break
        centroids = fresh
    return centroids, half_squares(units, centroids, weights)


def half_squares(units: Array, centroids: Array, weights: Array) -> float:
    """Σ w ‖x − μ‖²/2 to the nearest centroids."""
    nearest = centroids[(units @ centroids.T).argmax(axis=1)]
    return float(weights @ ((units - nearest) ** 2).sum(axis=1) / 2)


# -- rows of length 1 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_in_any_layout_get_the_length_one_and_zeros_stay(rng: np.random.Generator, dtype: str) -> None:
    rows = cones(rng, 200).astype(dtype)
    wanted, state = normalized(rows).astype(dtype), np.zeros((200, 1))
    close = {"rtol": 4 * np.finfo(dtype).eps, "atol": 0}
    np.testing.assert_allclose(unit_rows(rows), wanted, **close)
    np.testing.assert_allclose(make_shard(rows, None, state, "rows", unit=True).features, wanted, **close)
    tiles = make_shard(rows, None, state, "tiles", unit=True).features
    assert isinstance(tiles, np.ndarray)
    np.testing.assert_allclose(unpack_tiles(tiles, 200), wanted, **close)
    sparse = make_shard(as_sparse(rows), None, state, "rows", unit=True).features
    assert isinstance(sparse, Sparse)
    np.testing.assert_allclose(sparse.values, as_sparse(wanted).values, **close)


@pytest.mark.parametrize("size", [1e-300, 1e-170, 1e170, 1e300])
def test_lengths_neither_overflow_nor_vanish(size: float) -> None:
    rows = np.array([[3.0, 4.0], [0.0, 2.0], [0.0, 0.0]]) * size
    np.testing.assert_allclose(lengths_of(rows) / size, [5.0, 2.0, 0.0], rtol=1e-15)
    found = unit_rows(as_sparse(rows))
    assert isinstance(found, Sparse)
    np.testing.assert_allclose(found.values, [0.6, 0.8, 1.0], rtol=1e-15)


def test_rows_of_somebody_else_are_not_changed_and_unit_rows_are_not_copied(rng: np.random.Generator) -> None:
    rows = cones(rng, 100)
    before = rows.copy()
    made = unit_rows(rows)
    assert isinstance(made, np.ndarray) and np.array_equal(rows, before)
    assert unit_rows(made) is made
    assert unit_rows(rows, own=True) is rows and np.array_equal(rows, made)
    sparse = as_sparse(made)
    again = unit_rows(sparse)
    assert isinstance(again, Sparse) and again.values is sparse.values


# -- training ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["float32", "float64", "sparse", "wide"])
@pytest.mark.parametrize("sync", ["bsp", "fsp"])
def test_training_equals_spherical_lloyd_on_rows_normalized_by_hand(
    rng: np.random.Generator, kind: str, sync: str
) -> None:
    columns, k, points = (70, 64, 1500) if kind == "wide" else (COLUMNS, K, 400)
    rows = cones(rng, points, columns, k).astype("float32" if kind == "float32" else "float64")
    units, weights = normalized(rows), rng.integers(1, 4, size=points).astype(float)
    filled = np.flatnonzero(units.any(axis=1))
    start = units[filled[:1]]
    while len(start) < k:  # rows far from each other, so that no cluster loses its rows
        start = np.r_[start, units[filled[(units[filled] @ start.T).max(axis=1).argmin()]][None]]
    wanted, objective = spherical(units, start, weights)
    data = (as_sparse(rows) if kind == "sparse" else rows, None, weights)
    result = flegel.run(
        KMeans(k=k, init=start * 17.0, metric="cosine"), data, workers=2, processes="no", sync=sync, tolerance=1e-12
    )
    found = result.parameter.centroids
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, rtol=1e-12)
    if sync == "bsp":
        np.testing.assert_allclose(found, wanted, atol=1e-5 if kind == "float32" else 1e-9)
        assert result.objective == pytest.approx(objective, rel=1e-6 if kind == "float32" else 1e-9)
    # Which minimum fsp finds depends on who is fast, and is far from this one in a few draws.
    assert result.objective == pytest.approx(half_squares(units, found, weights), rel=1e-5)


def test_the_default_start_is_as_good_as_scikit_learns_on_normalized_rows(rng: np.random.Generator) -> None:
    from sklearn.cluster import KMeans as Theirs

    rows = cones(rng, 900)
    units = normalized(rows)
    theirs = Theirs(K, n_init=10, random_state=0).fit(units)
    directions = theirs.cluster_centers_ / np.linalg.norm(theirs.cluster_centers_, axis=1, keepdims=True)
    _, objective = spherical(units, directions, np.ones(len(rows)))
    result = flegel.run(KMeans(k=K, metric="cosine", n_init=10), rows, workers=1, processes="no", seed=1)
    assert result.objective == pytest.approx(objective, rel=0.01)


def test_hooks_and_kernels_agree_and_statistics_are_conserved() -> None:
    assert check_algorithm(KMeans(k=4, metric="cosine"))
    assert check_algorithm(KMeans(k=64, metric="cosine"), np.random.default_rng(0).normal(size=(331, 64)))


def test_scaled_columns_are_scaled_before_rows_get_their_length(rng: np.random.Generator) -> None:
    rows = cones(rng)
    scaled = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    model = KMeans(k=K, init=normalized(scaled[5:9]), metric="cosine")
    options: dict[str, Any] = {"workers": 2, "processes": "no", "sync": "bsp"}
    one, other = flegel.run(model, rows, scale="standard", **options), flegel.run(model, scaled, **options)
    assert one.objective == pytest.approx(other.objective, rel=1e-9)
    np.testing.assert_allclose(one.parameter.centroids, other.parameter.centroids, atol=1e-9)


# -- centroids --------------------------------------------------------------------------------------------------


def test_an_empty_cluster_goes_to_a_row_and_one_whose_rows_cancel_out_stays() -> None:
    model = KMeans(k=2, metric="cosine", init=np.array([[2.0, 0.0], [2.0, 0.0]]))
    rows = np.array([[5.0, 0.0], [0.0, 3.0], [0.0, 0.1], [7.0, 0.0]])
    result = flegel.run(model, rows, workers=1, processes="no", sync="bsp")
    assert result.objective == pytest.approx(0.0, abs=1e-12)
    assert sorted(result.predict(rows).tolist()) == [0, 0, 1, 1]
    opposite = np.array([[1.0, 0.0], [-1.0, 0.0]])
    kept = flegel.run(KMeans(k=1, metric="cosine", init=np.array([[0.0, 3.0]])), opposite, workers=1, processes="no")
    np.testing.assert_array_equal(kept.parameter.centroids, [[0.0, 1.0]])
    assert kept.objective == pytest.approx(2.0)


def test_zeros_as_a_start_and_rows_that_are_all_zero_are_refused() -> None:
    rows = np.array([[1.0, 2.0], [2.0, 1.0], [0.0, 1.0]])
    with pytest.raises(UsageError, match="centroid 1 of init is zero, so it has no direction"):
        flegel.run(KMeans(k=2, metric="cosine", init=np.array([[1.0, 0], [0, 0]])), rows, processes="no")
    with pytest.raises(UsageError, match="every row that was drawn is zero"):
        flegel.run(KMeans(k=2, metric="cosine"), rows * 0, processes="no")
    with pytest.raises(UsageError, match="metric"):
        KMeans(k=2, metric="angular")


def test_a_start_never_takes_a_row_of_zeros() -> None:
    rows = np.r_[np.zeros((5, 3)), np.eye(3)]
    for init in ("first", "random", "k-means++"):
        model = KMeans(k=3, init=init, metric="cosine")
        for features in (rows, as_sparse(rows)):
            start = model.initParameter(Sample(features, None, 8, 3), np.random.default_rng(0))
            np.testing.assert_allclose(np.sort(start.centroids, axis=0)[-1], 1.0)


# -- answers ----------------------------------------------------------------------------------------------------


def test_answers_do_not_depend_on_the_lengths_of_rows(rng: np.random.Generator) -> None:
    model, rows = KMeans(k=3, metric="cosine"), cones(rng, 200)
    theta = Centroids(normalized(rng.normal(size=(3, COLUMNS))), 0.1 * rng.normal(size=COLUMNS))
    cosines = normalized(rows) @ theta.centroids.T
    distances = np.where(rows.any(axis=1)[:, None], 1.0 - cosines, 0.5)
    factors = np.exp(rng.normal(size=(200, 1)))
    for features in (rows, rows * factors, as_sparse(rows), as_sparse(rows * factors)):
        given = features.values.copy() if isinstance(features, Sparse) else features.copy()
        moving = rows.any(axis=1)
        np.testing.assert_array_equal(model.predict(features, theta)[moving], cosines.argmax(axis=1)[moving])
        np.testing.assert_allclose(model.distances(features, theta), distances, atol=1e-12)
        np.testing.assert_allclose(model.scores(features, theta), -distances.min(axis=1), atol=1e-12)
        found = model.evaluate(features, None, theta)
        assert found.objective == pytest.approx(distances.min(axis=1).sum())
        assert found.metrics["mean_cosine_distance"] == pytest.approx(distances.min(axis=1).mean())
        np.testing.assert_array_equal(features.values if isinstance(features, Sparse) else features, given)


def test_scikit_learn_gives_the_same_answers(rng: np.random.Generator) -> None:
    rows = cones(rng)
    result = flegel.run(KMeans(k=K, metric="cosine"), rows, workers=1, processes="no", scale="standard")
    filled = rows.any(axis=1)
    np.testing.assert_array_equal(result.to_sklearn().predict(rows)[filled], result.predict(rows)[filled])
