"""Starts of k-means with many clusters: in two levels, from given centroids, and the directions that both use."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flegel.algorithm import Sample
from flegel.algorithms import directions
from flegel.algorithms.directions import leading_directions
from flegel.algorithms.kmeans import KMeans, kmeans, wide_start
from flegel.algorithms.kmeans.wide_start import start_of
from flegel.configuration.active import active, using
from flegel.core.pytree import Array


def rows_in_clumps(count: int, columns: int, clumps: int, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    centres = 4.0 * rng.normal(size=(clumps, columns))
    return (centres[rng.integers(clumps, size=count)] + rng.normal(size=(count, columns))).astype(np.float32)


def scatter(rows: Array, centres: Array, labels: Array) -> float:
    return float(((rows - centres[labels]) ** 2).sum())


@pytest.mark.parametrize("weighted", [False, True])
def test_two_levels_find_centroids_as_good_as_one_level_does(weighted: bool) -> None:
    rows = rows_in_clumps(4000, 70, 90)
    weights = np.random.default_rng(1).random(len(rows)) + 0.5 if weighted else None
    one = start_of(rows, 100, 4, np.random.default_rng(0), weights)
    with using({"starts.wide_two_levels_from_clusters": 100}):
        two = start_of(rows, 100, 4, np.random.default_rng(0), weights)
    assert two.centres.shape == one.centres.shape
    assert len(np.unique(two.centres, axis=0)) == 100
    assert scatter(rows, two.centres, two.labels) < 1.1 * scatter(rows, one.centres, one.labels)


def test_as_many_clusters_as_narrow_clumps_find_nearly_all_of_them() -> None:
    rng = np.random.default_rng(0)
    clump = rng.permutation(np.repeat(np.arange(1000), 4))
    middles = 3.0 * rng.normal(size=(1000, 70))
    rows = (middles[clump] + 0.1 * rng.normal(size=(4000, 70))).astype(np.float32)
    found = start_of(rows, 1000, 4, np.random.default_rng(0))
    clumps_without_centroid = 1000 - len(np.unique(found.labels[np.unique(clump, return_index=True)[1]]))
    assert clumps_without_centroid <= 1
    assert scatter(rows, found.centres, found.labels) < 1.5 * scatter(rows, middles.astype(np.float32), clump)


@pytest.mark.parametrize("scale", [2.0**70, 2.0**-90])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_start_is_the_same_at_any_scale(scale: float, dtype: type) -> None:
    """Squares of such rows are no numbers of float32."""
    rows = rows_in_clumps(1500, 70, 90).astype(dtype)
    small = scale if dtype is np.float64 else np.float32(np.sqrt(scale))
    unit = wide_start._unit(rows * small)
    alone = start_of(rows * small / unit, 80, 4, np.random.default_rng(0))
    found = start_of(rows * small, 80, 4, np.random.default_rng(0))
    np.testing.assert_array_equal(found.centres, alone.centres * unit)
    assert len(np.unique(found.labels)) > 70


def test_rows_far_from_the_others_are_not_missed_by_the_sample_of_a_start() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(6000, 70))
    rows[rng.choice(6000, 5, replace=False)] *= 1000.0
    found = KMeans(k=64).initParameter(Sample(rows, None, len(rows), 70, None), rng)
    assert (np.linalg.norm(found.centroids, axis=1) > 1000.0).sum() == 5


def test_two_levels_take_rows_that_are_all_the_same() -> None:
    for rows in (np.zeros((60, 70), np.float32), rows_in_clumps(60, 70, 60), np.eye(70, dtype=np.float32)[:30]):
        with using({"starts.wide_two_levels_from_clusters": 20}):
            found = start_of(rows, 30, 4, np.random.default_rng(0))
        assert found.centres.shape == (30, 70)
        assert np.isfinite(found.centres).all() and found.labels.max() < 30


def test_a_row_of_two_levels_is_compared_with_few_centroids(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    nearest = wide_start._nearest

    def counted(rows: Array, centres: Array) -> Array:
        compared.append(len(rows) * len(centres))
        return nearest(rows, centres)

    rows = rows_in_clumps(4000, 70, 300)
    monkeypatch.setattr(wide_start, "_nearest", counted)
    start_of(rows, 900, 4, np.random.default_rng(0))
    in_one_level = sum(compared)
    compared.clear()
    with using({"starts.wide_two_levels_from_clusters": 900}):
        start_of(rows, 900, 4, np.random.default_rng(0))
    assert sum(compared) < 0.8 * in_one_level


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 1e9)), min_size=1, max_size=12), st.data())
def test_groups_share_the_centroids_and_none_gets_more_than_it_has_rows(
    groups: list[tuple[int, float]], data: st.DataObject
) -> None:
    rows = np.array([count for count, _ in groups])
    spread = np.array([value if count > 1 else 0.0 for count, value in groups])
    filled = int((rows > 0).sum())
    if not filled:
        return
    k = data.draw(st.integers(filled, int(rows.sum())))
    found = wide_start._divided(spread, rows, k)
    assert found.sum() == k
    assert (found <= rows).all() and (found[rows > 0] >= 1).all()


@pytest.mark.parametrize("how", ["init", "start"])
def test_given_centroids_are_met_by_few_rows_of_the_sample(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """They are taken as they are: to assign all of the sample to them would take as long as a pass."""
    rows = rows_in_clumps(6000, 70, 90)
    looked = []
    follow = kmeans.follow
    monkeypatch.setattr(kmeans, "follow", lambda some, *rest: (looked.append(len(some)), follow(some, *rest))[1])
    centroids = rows[:2000].astype(np.float64)
    sample = Sample(rows, None, len(rows), 70, None)
    given_start = KMeans(k=2000, init=centroids) if how == "init" else KMeans(k=2000)
    rng = np.random.default_rng(0)
    if how == "init":
        found = given_start.initParameter(sample, rng)
    else:
        found = given_start.continueParameter(kmeans.Centroids(centroids, np.zeros(70)), sample, rng)
    assert looked == [active().starts.kmeans_followed_rows]
    np.testing.assert_array_equal(found.centroids, centroids)


def test_directions_are_orthonormal_for_any_rows_and_need_householder_for_none_that_vary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its threads wait for each other at every column: on a busy machine it took seconds."""
    rng, calls = np.random.default_rng(0), []
    exact = np.linalg.qr
    monkeypatch.setattr(directions.np.linalg, "qr", lambda *args: (calls.append(args), exact(*args))[1])
    usual = {
        "no leading ones": rng.normal(size=(300, 96)),
        "decaying": rng.normal(size=(300, 96)) * 0.8 ** np.arange(96),
        "exactly six": rng.normal(size=(300, 6)) @ rng.normal(size=(6, 96)),
        "float32": rows_in_clumps(300, 96, 10),
    }
    for name, rows in usual.items():
        found = leading_directions(rows, 24)
        assert np.abs(found.T @ found - np.eye(24)).max() < 1e-9, name
    assert not calls
    for rows in (np.zeros((300, 96)), np.ones((300, 96)), 1e100 * usual["decaying"]):
        found = leading_directions(rows, 24)
        assert np.abs(found.T @ found - np.eye(24)).max() < 1e-9
