"""What benchmarks lean on: threads make the rows of the set, and objectives are what others say they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.common import data_cache
from bench.rivals import trainers
from bench.rivals.objectives import OBJECTIVES
from bench.rivals.registry import FIELDS
from flegel.core.shard import Sparse
from flegel.datasets import open_data


@pytest.mark.parametrize("name", ["higgs:3000", "nbaiot:700", "puf:1500", "ml10m:600"])
def test_threads_make_the_same_rows_as_one_does(name: str) -> None:
    made, labels = data_cache.load(name, threads=3).load()
    wanted, answers = open_data(name).load()
    if isinstance(wanted, Sparse):
        assert made.columns == wanted.columns
        for part in ("indptr", "indices", "values"):
            np.testing.assert_array_equal(getattr(made, part), getattr(wanted, part))
    else:
        np.testing.assert_array_equal(made, wanted)
        np.testing.assert_array_equal(labels, answers)


@pytest.mark.parametrize("name", ["susy:900", "ml10m:300"])
def test_the_cache_returns_what_was_stored(name: str, tmp_path: Path) -> None:
    cache = data_cache.DataCache(tmp_path / "cache")
    first, again = cache.rows(name), cache.rows(name)
    assert (again.name, again.rows, again.columns, again.stand_in) == (
        first.name, first.rows, first.columns, first.stand_in
    )  # fmt: skip
    for one, other in zip(first.load(), again.load(), strict=True):
        if isinstance(one, Sparse):
            one, other = one.values, other.values
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    cache.keep_target("k", 1.5, "a note")
    assert cache.target("k") == (1.5, "a note") and cache.target("other") is None


def test_objectives_agree_with_scikit_learn() -> None:
    from sklearn.cluster import KMeans
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss
    from sklearn.mixture import GaussianMixture

    rng = np.random.default_rng(0)
    X = rng.normal(size=(6000, 4))
    X[:2000] += 4
    y = (X[:, 0] + rng.logistic(size=len(X)) > 0).astype(float)
    means = KMeans(3, n_init=1, random_state=0).fit(X)
    found = OBJECTIVES["kmeans"][0](X, None, {"centroids": means.cluster_centers_})
    assert found == pytest.approx(means.inertia_, rel=1e-9)
    mixed = GaussianMixture(2, covariance_type="diag", random_state=0).fit(X)
    parts = {"weights": mixed.weights_, "means": mixed.means_, "covariances": mixed.covariances_}
    assert OBJECTIVES["gmm"][0](X, None, parts) == pytest.approx(mixed.score(X) * len(X), rel=1e-9)
    fitted = LogisticRegression().fit(X, y)
    model = {"weights": fitted.coef_, "bias": fitted.intercept_}
    assert OBJECTIVES["lr"][0](X, y, model) == pytest.approx(log_loss(y, fitted.predict_proba(X)[:, 1]), rel=1e-6)


def test_the_misfit_of_the_planted_factors_is_that_of_the_best_weights() -> None:
    from scipy.optimize import nnls

    misfit = OBJECTIVES["nmf"][0]
    rng = np.random.default_rng(0)
    H = rng.gamma(1.0, 1.0, (12, 3))
    X = rng.gamma(1.0, 1.0, (40, 3)) @ H.T
    assert misfit(X, None, {"factors": H}) == pytest.approx(0.0, abs=1e-6)
    X += rng.gamma(1.0, 1.0, X.shape)
    wanted = sum(nnls(H, row)[1] ** 2 for row in X)
    assert misfit(X, None, {"factors": H / 2, "scale": np.array([2.0])}) == pytest.approx(wanted, rel=1e-6)


def test_rivals_come_nearer_to_the_objective_step_by_step() -> None:
    objective = OBJECTIVES["kmeans"][0]
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6000, 3)).astype(np.float32)
    X[:2000] += 5
    task = trainers.Task(X, None, {"centroids": X[:4].copy()}, 2)
    before = objective(X, None, {"centroids": X[:4]})
    for name in ("scikit-learn Lloyd", "scikit-learn Elkan", "scikit-learn MiniBatchKMeans, batch 1024"):
        made = FIELDS["kmeans"][name](task)
        if made.whole:
            made.fit(5)
        else:
            for _ in range(12):
                made.step()
            assert made.told().endswith("passes")
        assert objective(X, None, made.model()) < 0.9 * before
