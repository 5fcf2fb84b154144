"""Fits inside searches of scikit-learn that run several at once."""

from __future__ import annotations

import joblib
import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV

from flegel.runtime.job import teams
from flegel.sklearn import GaussianMixture, KMeans, LogisticRegression

RNG = np.random.default_rng(4)
X = RNG.normal(size=(400, 5)) + 3.0 * RNG.integers(0, 3, (400, 1))
Y = (X[:, 0] > 3.0).astype(int)

SEARCHES = {
    "kmeans": (KMeans(random_state=0), {"n_clusters": [2, 3]}),
    "gmm": (GaussianMixture(random_state=0), {"n_components": [1, 2]}),
    "lr": (LogisticRegression(), {"C": [0.1, 1.0]}),
}


@pytest.mark.processes
@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_a_search_finds_the_same_with_two_jobs_as_with_one(name: str, backend: str) -> None:
    model, grid = SEARCHES[name]
    alone = GridSearchCV(model, grid, cv=2).fit(X, Y)
    with joblib.parallel_config(backend=backend):
        together = GridSearchCV(model, grid, cv=2, n_jobs=2).fit(X, Y)
    np.testing.assert_array_equal(together.cv_results_["mean_test_score"], alone.cv_results_["mean_test_score"])
    assert together.best_params_ == alone.best_params_ and teams._in_use == 0
