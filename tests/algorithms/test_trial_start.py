"""Starts of k-means on a sample: rows that decide the objective are among those that are tried, and swaps leave poor
optima."""

from __future__ import annotations

import numpy as np
import pytest

from flegel.algorithm import Sample
from flegel.algorithms.fcm import FCM
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.kmeans.sparse import far_rows
from flegel.algorithms.kmeans.trial_start import best_start, rows_by_scatter, with_swaps
from flegel.algorithms.seeding import (
    _quantiles,
    different_clusters,
    nearest_centre,
    nearest_marked,
    origin_of,
    prepared,
    several_lloyd,
)
from flegel.core.pytree import Array
from flegel.core.shard import Sparse


def cost(rows: Array, centres: Array, weights: Array | None = None) -> float:
    least = ((rows - centres[nearest_centre(rows, centres)]) ** 2).sum(axis=1)
    return float(least.sum() if weights is None else weights @ least)


def groups(count: int, each: int, rng: np.random.Generator) -> Array:
    """Round groups of points on a circle, far apart."""
    angles = 2 * np.pi * np.arange(count) / count
    means = 30.0 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return np.repeat(means, each, axis=0) + rng.normal(size=(count * each, 2))


def test_starts_with_the_same_clusters_under_other_numbers_are_one() -> None:
    labels = np.array([2, 2, 0, 1, 1, 0])
    moved = labels.copy()
    moved[0] = 1
    assert list(different_clusters([labels, np.array([1, 0, 2])[labels], moved, labels + 4])) == [0, 2]


@pytest.mark.parametrize(("algorithm", "trial"), [(FCM(k=4), "alternated"), (GMM(k=4), "_passes")])
@pytest.mark.parametrize(("apart", "tried"), [(30.0, range(1, 2)), (0.0, range(2, 5))])
def test_clusters_that_every_start_finds_are_tried_once(
    algorithm: FCM | GMM, trial: str, apart: float, tried: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    rows = np.repeat(apart * np.array([[0, 0], [1, 0], [0, 1], [1, 1]]), 100, axis=0) + rng.normal(size=(400, 2))
    calls, made = [], getattr(type(algorithm), trial)
    monkeypatch.setattr(type(algorithm), trial, lambda *args: (calls.append(trial), made(*args))[1])
    algorithm.initParameter(Sample(rows, None, len(rows), 2), rng)
    assert len(calls) - 1 in tried  # the last one continues the best


@pytest.mark.parametrize("weighted", [False, True])
def test_a_row_that_is_much_of_the_scatter_is_always_drawn(weighted: bool) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(5000, 3))
        rows[1234] = 200.0
        weights = rng.random(5000) + 0.5 if weighted else None
        some, own = rows_by_scatter(rows, weights, 500, rng)
        assert own is not None and 450 <= len(some) <= 500
        assert (some == 200.0).all(axis=1).sum() == 1
        assert own.sum() == pytest.approx(len(some) * (1.0 if weights is None else weights.mean()))
        assert len(np.unique(some, axis=0)) == len(some)


def test_rows_that_are_drawn_stand_for_all() -> None:
    rng = np.random.default_rng(3)
    rows = rng.standard_t(3.0, size=(8000, 2)) * [1.0, 5.0]
    drawn = [rows_by_scatter(rows, None, 400, np.random.default_rng(seed)) for seed in range(200)]
    found = [own @ some**2 / own.sum() for some, own in drawn if own is not None]
    assert np.mean(found, axis=0) == pytest.approx((rows**2).mean(axis=0), rel=0.05)


def test_all_rows_are_taken_where_they_are_few_and_any_where_all_are_equal() -> None:
    rows, weights = np.ones((10, 2)), np.arange(1.0, 11.0)
    some, own = rows_by_scatter(rows, weights, 10, np.random.default_rng(0))
    assert some is rows and own is weights
    some, own = rows_by_scatter(np.zeros((100, 2)), None, 20, np.random.default_rng(0))
    assert own is not None and 19 <= len(some) <= 20 and own == pytest.approx(np.ones(len(some)))


@pytest.mark.parametrize("weighted", [False, True])
def test_swaps_take_centroids_to_groups_that_have_none(weighted: bool) -> None:
    rng = np.random.default_rng(0)
    rows = groups(6, 100, rng)
    weights = rng.random(600) + 0.1 if weighted else None
    poor = rows[[0, 1, 2, 100, 200, 300]]  # three in one group, none in two others
    better = with_swaps(prepared(rows), poor, rng, weights)
    assert cost(rows, better, weights) < 0.05 * cost(rows, poor, weights)
    assert sorted(nearest_centre(groups(6, 1, np.random.default_rng(1)), better)) == list(range(6))


def test_swaps_never_make_it_worse() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rows = rng.standard_t(2.0, size=(300, 4))
        start = rows[:7]
        assert cost(rows, with_swaps(prepared(rows), start, rng)) <= cost(rows, start) * (1 + 1e-12)


def test_swaps_of_one_cluster_or_of_equal_rows_change_nothing() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 2))
    assert with_swaps(prepared(rows), rows[:1], np.random.default_rng(0)) is not None
    equal = np.ones((50, 2))
    assert (with_swaps(prepared(equal), equal[:3], np.random.default_rng(0)) == 1.0).all()


@pytest.mark.parametrize("weighted", [False, True])
def test_starts_side_by_side_are_as_good_as_their_costs_say(weighted: bool) -> None:
    rng = np.random.default_rng(1)
    rows = groups(6, 40, rng)
    weights = rng.random(240) + 0.1 if weighted else None
    found = several_lloyd(prepared(rows), 6, [rng] * 5, weights)
    assert len(found) == 5
    for start in found:
        assert start.squared_distances == pytest.approx(cost(rows, start.centres, weights))
        labels = nearest_centre(rows, start.centres)
        own = np.ones(240) if weights is None else weights
        for j in np.unique(labels):  # it has come to rest: each centre is the mean of its rows
            assert start.centres[j] == pytest.approx(np.average(rows[labels == j], axis=0, weights=own[labels == j]))


def test_starts_of_many_rows_are_made_in_parts_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = groups(5, 60, np.random.default_rng(2))
    whole = several_lloyd(prepared(rows), 5, [np.random.default_rng(0)])[0]
    monkeypatch.setattr("flegel.algorithms.seeding.DISTANCES_AT_ONCE", 64)
    parts = several_lloyd(prepared(rows), 5, [np.random.default_rng(0)])[0]
    assert parts.centres == pytest.approx(whole.centres) and parts.squared_distances == pytest.approx(
        whole.squared_distances
    )


def test_more_starts_than_distinct_rows_are_found_all_the_same() -> None:
    rows = np.repeat([[0.0, 1.0], [4.0, 1.0]], 5, axis=0)
    for start in several_lloyd(prepared(rows), 4, np.random.default_rng(0).spawn(3)):
        assert start.squared_distances == pytest.approx(0.0, abs=1e-12)


def test_of_several_nearest_centres_the_first_counts() -> None:
    marked = nearest_marked(np.array([[2.0, 1.0, 3.0], [1.0, 1.0, 3.0], [1.0, 2.0, 3.0]]))
    assert marked.tolist() == [[0.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize("count", [1, 2, 3, 20, 21, 1000])
def test_quantiles_are_those_of_numpy_to_the_last_bit(count: int) -> None:
    rows = np.random.default_rng(count).standard_t(2.0, size=(count, 5)) * [1e-9, 1.0, 3.0, 1e5, 1e9]
    parts = np.array([0.01, 0.05, 0.25, 0.75, 0.95, 0.99])
    assert (_quantiles(np.sort(rows.T, axis=1), parts) == np.quantile(rows, parts, axis=0)).all()
    low, high = np.quantile(rows, [0.05, 0.95], axis=0, method="nearest")
    middle = np.clip(rows, low, high).mean(axis=0)
    assert (origin_of(rows) == np.where(low == high, low, middle)).all()


def test_a_start_finds_every_group() -> None:
    rng = np.random.default_rng(0)
    rows = groups(20, 60, rng)
    for seed in range(30):
        found = best_start(rows, 20, 1, np.random.default_rng(seed))
        assert len(np.unique(nearest_centre(groups(20, 1, np.random.default_rng(1)), found))) == 20


def test_one_far_row_among_many_has_a_centroid_of_its_own() -> None:
    """A wrong wind speed in 23,007 hours of weather is a third of the objective; seven of ten starts missed it."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(20_000, 6))
    rows[7777, 4] = 2000.0
    sample = Sample(rows, None, len(rows), 6)
    for seed in range(6):
        start = KMeans(k=5).initParameter(sample, np.random.default_rng(seed))
        assert np.abs(start.centroids - rows[7777]).max(axis=1).min() == pytest.approx(0.0, abs=1e-6)
        assert start.shares.sum() == pytest.approx(1.0) and start.shares.min() < 1e-3


def test_spare_rows_of_sparse_sets_differ_and_are_no_centroids() -> None:
    rows = Sparse(np.arange(41), np.arange(40, dtype=np.int32) % 10, np.arange(1.0, 41.0), 10)
    squared = np.where(np.arange(40) < 20, 0.0, 1.0)  # the first half are centroids
    found = far_rows(rows, squared, 8, np.random.default_rng(0))
    assert 1 < len(found) <= 8 and found.shape[1] == 10
    assert found.max() <= 40.0 and found.sum(axis=1).min() >= 21.0
    assert len(np.unique(found, axis=0)) == len(found)
    assert len(far_rows(rows, np.zeros(40), 8, np.random.default_rng(0))) == 8


def test_more_starts_of_a_mixture_are_the_same_ones_and_others() -> None:
    rows = prepared(np.random.default_rng(2).normal(size=(300, 3)))
    few, many = (several_lloyd(rows, 4, np.random.default_rng(7).spawn(count)) for count in (2, 5))
    for one, same in zip(few, many, strict=False):
        np.testing.assert_array_equal(one.centres, same.centres)
