"""Columns whose squares float64 cannot hold: fits are right whatever their unit is, or a sentence names the column."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flegel
from flegel import sklearn
from flegel.algorithm import Sample
from flegel.algorithms.glm.glm import column_units
from flegel.algorithms.glm.losses import Poisson
from flegel.algorithms.least_squares import LinearRegression, Ridge
from flegel.algorithms.lr import LR
from flegel.algorithms.number_range import check_squares
from flegel.core.shard import Sparse
from flegel.datasets.rows.scale import advice, moments, scaling
from flegel.errors import UsageError

RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((300, 4)) + 0.5
SCORE = ROWS @ [1.0, -0.5, 0.3, 0.2]
NUMBERS = SCORE + 0.1 * RNG.standard_normal(300)
COUNTS = RNG.poisson(np.exp(0.3 * SCORE)).astype(float)
AMOUNTS = np.exp(0.3 * SCORE) * RNG.gamma(2.0, 0.5, 300) + 1e-6
CLASSES = (SCORE + RNG.logistic(size=300) > 0).astype(float)
UNITS = [1e-200, 1e-160, 1e160, 1e200, np.array([1e200, 1.0, 1e-200, 1.0])]
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def sparse_of(rows: Any) -> Sparse:
    counts = np.arange(len(rows) + 1) * rows.shape[1]
    places = np.tile(np.arange(rows.shape[1], dtype=np.int32), len(rows))
    return Sparse(counts, places, rows.ravel().copy(), rows.shape[1])


@pytest.mark.parametrize("unit", UNITS, ids=str)
@pytest.mark.parametrize(("name", "labels"), [("LinearRegression", NUMBERS), ("Poisson", COUNTS), ("Gamma", AMOUNTS)])
def test_weights_follow_the_unit_of_a_column(name: str, labels: Any, unit: Any) -> None:
    model = getattr(sklearn, name if name == "LinearRegression" else f"{name}Regressor")
    given = {} if name == "LinearRegression" else {"alpha": 0.0}
    usual, extreme = model(**given).fit(ROWS, labels), model(**given).fit(ROWS * unit, labels)
    np.testing.assert_allclose(extreme.coef_ * unit, usual.coef_, rtol=1e-6)
    np.testing.assert_allclose(extreme.predict(ROWS * unit), usual.predict(ROWS), rtol=1e-6)


@pytest.mark.parametrize("name", ["Ridge", "HuberRegressor"])
def test_a_penalty_holds_the_weights_of_tiny_columns_at_zero(name: str) -> None:
    model = getattr(sklearn, name)
    tiny, large = model().fit(ROWS * 1e-200, NUMBERS), model().fit(ROWS * 1e200, NUMBERS)
    assert not (tiny.coef_ * 1e-200).any()
    free = model(alpha=0.0).fit(ROWS, NUMBERS)
    np.testing.assert_allclose(large.coef_ * 1e200, free.coef_, rtol=1e-6)


@pytest.mark.parametrize("sparse", [False, True])
def test_least_squares_of_rows_in_any_form(sparse: bool) -> None:
    form = sparse_of if sparse else np.asarray
    for algorithm in (LinearRegression(), LinearRegression(intercept=False), Ridge(alpha=0.0)):
        usual = flegel.run(algorithm, (form(ROWS), NUMBERS))
        extreme = flegel.run(algorithm, (form(ROWS * 1e-200), NUMBERS))
        np.testing.assert_allclose(extreme.parameter.weights * 1e-200, usual.parameter.weights, rtol=1e-9)
        assert extreme.objective == pytest.approx(usual.objective, rel=1e-9)


def test_singular_values_are_those_of_the_rows() -> None:
    usual, large = (sklearn.LinearRegression().fit(ROWS * unit, NUMBERS) for unit in (1.0, 1e200))
    np.testing.assert_allclose(large.singular_ / 1e200, usual.singular_, rtol=1e-9)
    assert large.rank_ == usual.rank_ == 4


@pytest.mark.parametrize("unit", [1e160, 1e200, np.array([1.0, 1e200, 1.0, 1.0])], ids=str)
@pytest.mark.parametrize("name", ["PCA", "LedoitWolf", "GaussianNB", "GaussianMixture", "Lasso", "ElasticNet"])
def test_squares_beyond_float64_are_refused_in_a_sentence(name: str, unit: Any) -> None:
    labels = CLASSES if name == "GaussianNB" else NUMBERS
    with pytest.raises(ValueError, match=r"column \d \(counted from 0\) has numbers as large as .*power of ten"):
        getattr(sklearn, name)().fit(ROWS * unit, labels)


@pytest.mark.parametrize("name", ["PCA", "LedoitWolf", "GaussianNB", "GaussianMixture", "KMeans"])
def test_squares_that_vanish_are_refused_in_a_sentence(name: str) -> None:
    with pytest.raises(ValueError, match=r"no number above .* 0 in float64; multiply"):
        getattr(sklearn, name)().fit(ROWS * 1e-200, CLASSES)


def test_tiny_columns_beside_usual_ones_are_refused_only_where_they_matter() -> None:
    mixed = Sample(ROWS * np.array([1.0, 1.0, 1e-200, 1.0]), NUMBERS, 300, 4)
    check_squares(mixed, "PCA")
    with pytest.raises(UsageError, match="column 2"):
        check_squares(mixed, "LinearRegression", every=True)
    check_squares(Sample(np.zeros((3, 2)), None, 3, 2), "PCA")
    with pytest.raises(UsageError, match="column 0"):
        LinearRegression(positive=True).validate(Sample(ROWS * 1e-200, NUMBERS, 300, 4))


def test_logistic_regression_takes_large_columns_and_names_tiny_ones_without_a_penalty() -> None:
    usual, large = (flegel.run(LR(l2=0.0), (ROWS * unit, CLASSES)) for unit in (1.0, 1e200))
    np.testing.assert_allclose(large.parameter.weights * 1e200, usual.parameter.weights, rtol=1e-2)
    with pytest.raises(flegel.UsageError, match="LR: column 0"):
        flegel.run(LR(l2=0.0), (ROWS * 1e-200, CLASSES))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_units_of_columns_whose_squares_float64_cannot_hold(unit: float, sparse: bool) -> None:
    form = sparse_of if sparse else np.asarray
    usual, extreme = (column_units(Sample(form(ROWS * one), None, 300, 4), np.zeros(4)) for one in (1.0, unit))
    np.testing.assert_allclose(extreme / unit, usual, rtol=1e-12)


def test_standard_scaling_keeps_columns_whose_squares_float64_cannot_hold() -> None:
    rows = ROWS * np.array([1e200, 1.0, 1e-200, 1.0])
    how = scaling(moments(rows), "standard")
    spread = ((rows - how.shift) * how.factor).std(axis=0)
    assert (spread > 0.1).all() and (spread <= 1.0 + 1e-12).all()
    assert "columns differ" in str(advice(rows, None, np.zeros(4, bool))) or advice(rows, None, np.zeros(4, bool))


def test_poisson_regression_with_a_penalty_on_a_tiny_column_converges() -> None:
    found = flegel.run(Poisson(l2=1.0), (ROWS * UNITS[-1], COUNTS))
    assert found.converged and found.parameter.weights[2] == 0.0
