"""Naive Bayes: the algorithms and the estimators beside scikit-learn's; weights, sparse rows, rows in parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from sklearn import naive_bayes

import flegel
from flegel import UsageError, check_algorithm, sklearn
from flegel.algorithm import Sample
from flegel.algorithms import naive_bayes as algorithms
from flegel.core.shard import Sparse

RNG = np.random.default_rng(4)
LABELS = RNG.integers(3, size=300)
X = RNG.normal(size=(300, 4)) + LABELS[:, None] + 1e4
COUNTS = RNG.poisson(1.0 + LABELS[:, None] * np.arange(5), size=(300, 5)).astype(float)
WEIGHTS = RNG.integers(1, 4, size=300).astype(float)
CASES = [("GaussianNB", X), ("MultinomialNB", COUNTS), ("BernoulliNB", COUNTS)]
FITTED = {"GaussianNB": ("theta_", "var_", "class_prior_"), "": ("feature_log_prob_", "class_log_prior_")}


@pytest.mark.parametrize(("name", "rows"), CASES, ids=lambda x: x if isinstance(x, str) else "")
def test_an_algorithm_finds_what_scikit_learn_finds(name: str, rows: Any) -> None:
    algorithm = getattr(algorithms, name)()
    assert "block equals per-point (float64)" in check_algorithm(algorithm, rows, LABELS.astype(float))
    theirs = getattr(naive_bayes, name)().fit(rows, LABELS, WEIGHTS)
    for sync in ("bsp", "asp"):
        result = flegel.run(algorithm, (rows, LABELS, WEIGHTS), sync=sync, workers=2, processes="no", progress=False)
        np.testing.assert_allclose(result.probabilities(rows), theirs.predict_proba(rows), atol=1e-8)
    np.testing.assert_allclose(result.to_sklearn().predict_proba(rows), theirs.predict_proba(rows), atol=1e-8)
    repeated = np.repeat(rows, WEIGHTS.astype(int), axis=0), np.repeat(LABELS, WEIGHTS.astype(int))
    found = algorithm.evaluate(*repeated, result.parameter)
    assert found is not None and result.objective == pytest.approx(found.objective)
    assert found.metrics["accuracy"] == pytest.approx(theirs.score(*repeated))


def test_sums_of_many_classes_are_those_of_few() -> None:
    target, mass = RNG.integers(20, size=100), RNG.random(100)
    few = algorithms.by_class(COUNTS[:100], target % 16, mass, 16)
    many = algorithms.by_class(COUNTS[:100], target % 16, mass, 20)
    np.testing.assert_allclose(many[:16], few)


def test_rows_that_cannot_be_counted_are_refused() -> None:
    with pytest.raises(UsageError, match="a value is below 0"):
        flegel.run(algorithms.MultinomialNB(), -COUNTS, LABELS, progress=False)
    sparse = scipy.sparse.csr_matrix(COUNTS)
    with pytest.raises(UsageError, match="binarize below 0"):
        flegel.run(algorithms.BernoulliNB(binarize=-1.0), sparse, LABELS, progress=False)


@pytest.mark.parametrize(("name", "rows"), CASES, ids=lambda x: x if isinstance(x, str) else "")
def test_an_estimator_has_scikit_learns_attributes_for_all_rows_so_far(name: str, rows: Any) -> None:
    ours, theirs = getattr(sklearn, name), getattr(naive_bayes, name)
    whole, peer = ours().fit(rows, LABELS, WEIGHTS), theirs().fit(rows, LABELS, WEIGHTS)
    parts, peers = ours(), theirs()
    for low, high in ((0, 50), (50, 300)):
        chosen = rows[low:high], LABELS[low:high], [0, 1, 2, 3], WEIGHTS[low:high]
        parts.partial_fit(*chosen)
        peers.partial_fit(*chosen)
    for attribute in FITTED.get(name, FITTED[""]):
        np.testing.assert_allclose(getattr(whole, attribute), getattr(peer, attribute), rtol=1e-9)
        np.testing.assert_allclose(getattr(parts, attribute)[:3], getattr(peers, attribute)[:3], rtol=1e-9)
    np.testing.assert_array_equal(whole.predict(rows), peer.predict(rows))
    if name != "GaussianNB":
        sparse = ours().fit(scipy.sparse.csr_matrix(rows), LABELS, WEIGHTS)
        np.testing.assert_allclose(sparse.feature_log_prob_, whole.feature_log_prob_)
    else:
        with pytest.raises(ValueError, match="do not exist in the initial classes"):
            parts.partial_fit(rows, LABELS + 9)
        with pytest.raises(ValueError, match="priors must match"):
            ours(priors=[0.5, 0.5]).fit(rows, LABELS)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_number_below_0_is_refused_where_the_sample_lacks_it(sparse: bool) -> None:
    algorithm, rows = algorithms.MultinomialNB(), COUNTS.copy()
    theta = algorithm.initParameter(Sample(rows, LABELS, len(rows), rows.shape[1]), RNG)
    rows[17, 1] = -5.0
    matrix = scipy.sparse.csr_matrix(rows)
    given = Sparse(matrix.indptr, matrix.indices, matrix.data, rows.shape[1]) if sparse else rows
    with pytest.raises(UsageError, match=r"below 0 \(1 at least\)"):
        algorithm.updateParameter(algorithm.contributions(given, LABELS, None, theta), theta)


def test_squares_beyond_the_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"GaussianNB: column .* beyond the range of float64"):
        sklearn.GaussianNB().fit((X - 1e4) * 1e160, LABELS)
