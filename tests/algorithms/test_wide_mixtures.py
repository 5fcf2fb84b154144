"""Mixtures and fuzzy c-means with many clusters of wide rows: starts and evaluations by matrix products are exact."""

from __future__ import annotations

import numpy as np
import pytest

from flegel.algorithm import Sample
from flegel.algorithms.fcm import FCM
from flegel.algorithms.fcm.fcm import _squared_distances
from flegel.algorithms.gmm import GMM
from flegel.algorithms.gmm.shapes import by_products, served_by_products
from flegel.configuration.active import active
from flegel.core.pytree import Array

K, COLUMNS = 64, 72


def rows() -> Array:
    rng = np.random.default_rng(2)
    centres = 3.0 * rng.normal(size=(K, COLUMNS))
    return centres[rng.integers(K, size=1500)] + rng.normal(size=(1500, COLUMNS))


def test_half_squared_distances_by_products_are_those_by_differences() -> None:
    rng, y = np.random.default_rng(0), rows()[:200]
    means, whiten = rows()[200 : 200 + K], rng.uniform(0.5, 2.0, (K, COLUMNS))
    assert served_by_products(y, means, whiten)
    expected = np.stack([0.5 * (((y - m) * w) ** 2).sum(axis=1) for m, w in zip(means, whiten, strict=True)], axis=1)
    assert np.allclose(by_products(y, means, whiten), expected, rtol=1e-9)
    assert not served_by_products(y, means, 1e6 * whiten), "differences keep the digits of narrow components"
    assert not served_by_products(y[:, :3], means[:, :3], whiten[:, :3]), "narrow rows keep their bits"


def test_a_row_at_a_centroid_is_at_distance_zero() -> None:
    y = rows() + 100.0
    centres = y[:K].copy()
    assert centres.size >= active().shapes.fcm_products_from
    found = _squared_distances(y, centres)
    assert (np.diagonal(found[:K]) == 0.0).all()
    assert np.allclose(found, np.stack([((y - c) ** 2).sum(axis=1) for c in centres], axis=1), rtol=1e-6)


@pytest.mark.parametrize("algorithm", [GMM(k=K), FCM(k=K, m=1.2)], ids=["gmm", "fcm"])
def test_a_start_finds_the_clusters(algorithm: GMM | FCM) -> None:
    data = rows()
    started = algorithm.initParameter(Sample(data, None, len(data), COLUMNS), np.random.default_rng(0))
    centres = started.means if isinstance(algorithm, GMM) else started.centroids
    within = _squared_distances(data, np.asarray(centres)).min(axis=1).mean()
    assert within < 2.5 * COLUMNS, "the variance within a cluster is 1 in every column, that between them 9"
