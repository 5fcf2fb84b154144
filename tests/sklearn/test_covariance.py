"""Covariance, as it is and shrunk: the algorithm and the estimators beside scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import covariance

import flegel
from flegel import check_algorithm, sklearn
from flegel.algorithms.covariance import Covariance

RNG = np.random.default_rng(6)
X = RNG.normal(size=(120, 5)) @ RNG.normal(size=(5, 5)) + 1e3
SHRINK = {"none": "EmpiricalCovariance", "fixed": "ShrunkCovariance", "ledoit-wolf": "LedoitWolf", "oas": "OAS"}


@pytest.mark.parametrize("shrink", SHRINK)
@pytest.mark.parametrize("centred", [False, True])
def test_matrices_and_shrinkage_are_scikit_learns(shrink: str, centred: bool) -> None:
    rows = X - X.mean(axis=0) + 0.1 if centred else X
    theirs = getattr(covariance, SHRINK[shrink])(assume_centered=centred).fit(rows)
    algorithm = Covariance(shrink=shrink, centred=centred)
    result = flegel.run(algorithm, rows, processes="no", progress=False)
    np.testing.assert_allclose(result.parameter.covariance, theirs.covariance_, rtol=1e-8)
    found = algorithm.evaluate(rows, None, result.parameter).objective
    assert result.objective == pytest.approx(found) == pytest.approx(-theirs.score(rows) * len(rows))
    np.testing.assert_allclose(result.predict(rows), theirs.mahalanobis(rows), rtol=1e-6)
    genuine = result.to_sklearn()
    assert type(genuine).__name__ == SHRINK[shrink]
    np.testing.assert_allclose(genuine.get_precision(), theirs.get_precision(), rtol=1e-6)
    ours = getattr(sklearn, SHRINK[shrink])(assume_centered=centred).fit(rows)
    np.testing.assert_allclose(ours.covariance_, theirs.covariance_, rtol=1e-8)
    assert getattr(ours, "shrinkage_", None) == pytest.approx(getattr(theirs, "shrinkage_", None))


def test_weights_are_repeated_rows_and_blocks_are_points() -> None:
    check_algorithm(Covariance(shrink="ledoit-wolf"))
    weights = RNG.integers(1, 4, size=len(X))
    one = sklearn.LedoitWolf().fit(X, sample_weight=weights)
    other = covariance.LedoitWolf().fit(np.repeat(X, weights, axis=0))
    np.testing.assert_allclose(one.covariance_, other.covariance_, rtol=1e-8)
    assert one.shrinkage_ == pytest.approx(other.shrinkage_)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("size", [1e100, 1e160])
def test_powers_beyond_the_range_are_refused(size: float, centred: bool) -> None:
    for shrink in SHRINK.values():
        with pytest.raises(ValueError, match=r"powers|squares"):
            getattr(sklearn, shrink)(assume_centered=centred).fit((X - 1e3) * size)
    if size == 1e160:
        with pytest.raises(ValueError, match="squares are beyond"):
            sklearn.Lasso().fit((X - 1e3) * size, X[:, 0])
