"""Logistic regression where one row is up to a hundred million times as long as the others: what says that it has
converged has the minimum, and what has not says so."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from scipy.special import logsumexp
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression as Peer

from flegel.algorithms.lr.lr import LR
from flegel.algorithms.lr.precondition import coordinates
from flegel.core.shard import Sparse
from flegel.sklearn import LogisticRegression

NEAR = 1e-4


def drawn(seed: int, classes: int, sparse: bool = False) -> tuple[Any, Any, float]:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((150, int(rng.integers(3, 9))))
    if sparse:
        rows *= rng.random(rows.shape) < 0.4
    labels = (rows @ rng.standard_normal((rows.shape[1], classes)) + rng.gumbel(size=(150, classes))).argmax(axis=1)
    labels[:classes] = np.arange(classes)
    rows[0, 0] += 1.0
    rows[0] *= 10 ** rng.uniform(4, 8)
    return (scipy.sparse.csr_matrix(rows) if sparse else rows), labels, 10 ** rng.uniform(-4, 4)


def objective(model: Any, rows: Any, labels: Any, strength: float) -> float:
    scores = np.asarray(rows @ model.coef_.T) + model.intercept_
    if scores.shape[1] == 1:
        scores = np.hstack([np.zeros_like(scores), scores])
    loss = logsumexp(scores, axis=1) - scores[np.arange(len(labels)), labels]
    return float(loss.sum() + 0.5 / strength * (model.coef_**2).sum())


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("seed", range(5))
def test_one_long_row_does_not_hide_the_minimum(seed: int, classes: int, sparse: bool) -> None:
    rows, labels, strength = drawn(seed, classes, sparse)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peers = [
            Peer(C=strength, solver=solver, tol=1e-10, max_iter=2000).fit(rows, labels)
            for solver in ("newton-cholesky", "lbfgs")
        ]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        ours = LogisticRegression(C=strength, max_iter=500).fit(rows, labels)
    best = min(objective(peer, rows, labels, strength) for peer in peers)
    near = objective(ours, rows, labels, strength) <= best * (1.0 + NEAR)
    assert near or any(issubclass(one.category, ConvergenceWarning) for one in said)


@pytest.mark.parametrize("sparse", [False, True])
def test_means_and_units_of_columns_are_those_of_the_other_rows(sparse: bool) -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((500, 3))
    rows[7] *= 1e6
    rows[:, 2] = 4.0
    given = scipy.sparse.csr_matrix(rows)
    features = Sparse(given.indptr, given.indices, given.data, 3) if sparse else rows
    mean, unit = coordinates(features, 3, True, not sparse)[:, :3]
    assert np.all(np.abs(mean[:2]) < 0.5) and np.all(np.abs(unit[:2] - 1.0) < 0.2)


def test_a_search_that_is_stuck_is_a_warning_of_the_estimator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LR, "optimality", lambda *_: np.nan)
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((60, 2))
    with pytest.warns(ConvergenceWarning, match="no step improves the objective any more"):
        LogisticRegression().fit(rows, (rows[:, 0] + rng.standard_normal(60) > 0).astype(int))
