"""K-means with very many clusters: what is done for empty ones and for swaps takes little memory beside θ."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from flegel.algorithms.kmeans import kmeans, swaps
from flegel.configuration.active import active, using
from flegel.core.pytree import Array


def with_empty_ones(rng: np.random.Generator, k: int, columns: int) -> tuple[Array, Array, Array]:
    """Centroids, which of them have points, and spare rows, one of which is a centroid already."""
    centroids, spare = rng.normal(size=(k, columns)), 3 * rng.normal(size=(16, columns))
    filled = np.ones(k, bool)
    filled[rng.choice(k - 2, 5, replace=False)] = False
    centroids[-1] = spare[3]
    centroids[np.flatnonzero(~filled)[2]] = spare[7]  # it waits there
    return centroids, filled, spare


@pytest.mark.parametrize("seed", range(4))
def test_many_centroids_are_relocated_as_few_are(seed: int) -> None:
    given = with_empty_ones(np.random.default_rng(seed), 300, 24)
    by_differences, none_left = kmeans._relocated(*given)
    with using({"kmeans.compared_by_differences": 0, "kmeans.relocation_numbers": 2**10}):
        by_products, _ = kmeans._relocated(*given)
    assert len(none_left) == 0 and np.array_equal(by_differences, by_products)
    centroids, filled, spare = given
    changed = np.flatnonzero((by_products != centroids).any(axis=1))
    assert len(changed) == 4 and not filled[changed].any(), "the one that waits at a spare row stays"
    assert all((spare == by_products[j]).all(axis=1).any() for j in changed)
    assert len(np.unique(by_products, axis=0)) == 300, "no two go to one place"


def test_without_spare_rows_empty_clusters_are_left_over() -> None:
    centroids, filled, _ = with_empty_ones(np.random.default_rng(0), 30, 4)
    moved, left_over = kmeans._relocated(centroids, filled, np.empty((0, 4)))
    assert np.array_equal(moved, centroids) and left_over.tolist() == np.flatnonzero(~filled).tolist()


def test_relocation_takes_the_stated_memory() -> None:
    k, columns = 20_000, 256
    centroids, filled, spare = with_empty_ones(np.random.default_rng(1), k, columns)
    tracemalloc.start()
    kmeans._relocated(centroids, filled, spare)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most <= centroids.nbytes + 8 * active().kmeans.relocation_numbers + (1 << 20)


def test_no_swap_is_looked_for_among_very_many_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    rows = np.concatenate([rng.normal(size=(100, 2)) + centre for centre in ((0, 0), (20, 0), (40, 0))])
    centroids = np.array([[0.2, 0.0], [-0.2, 0.0], [30.0, 0.0]])
    labels = ((rows[:, None] - centroids) ** 2).sum(axis=2).argmin(axis=1)
    sums = np.array([rows[labels == j].sum(axis=0) for j in range(3)])
    counts, squares = np.bincount(labels).astype(float), np.bincount(labels, (rows**2).sum(axis=1))
    assert swaps.swapped(centroids, sums, counts, squares) is not None
    with using({"training.swap_products": 17}):
        assert swaps.swapped(centroids, sums, counts, squares) is None
