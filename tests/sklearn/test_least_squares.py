"""Linear regression, ridge, lasso and elastic net: algorithms and estimators beside scikit-learn's, and paths."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from scipy.linalg import LinAlgWarning
from sklearn import linear_model
from sklearn.exceptions import ConvergenceWarning

import flegel
from flegel import check_algorithm, sklearn
from flegel.algorithms import least_squares as algorithms
from flegel.algorithms.coordinate_descent import descend, duality_gap
from flegel.algorithms.least_squares import Penalties

RNG = np.random.default_rng(8)
X = RNG.normal(size=(200, 6)) * np.logspace(0, 2, 6) + 100.0
Y = X @ (RNG.normal(size=6) / np.logspace(0, 2, 6)) + RNG.normal(size=200)
WEIGHTS = RNG.integers(1, 4, size=200).astype(float)
FINE: dict[str, Any] = {"tol": 1e-12, "max_iter": 100_000}
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("LinearRegression", {}, {}),
    ("LinearRegression", {"positive": True}, {}),
    ("Ridge", {"alpha": 5.0}, {}),
    ("Lasso", {"alpha": 0.2}, FINE),
    ("ElasticNet", {"alpha": 0.2, "l1_ratio": 0.3}, FINE),
]


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize(("name", "hyper", "fine"), CASES, ids=str)
def test_weights_are_those_of_scikit_learns_minimum(name: str, hyper: Any, fine: Any, intercept: bool) -> None:
    theirs = getattr(linear_model, name)(fit_intercept=intercept, **hyper, **fine).fit(X, Y, sample_weight=WEIGHTS)
    algorithm = getattr(algorithms, name)(intercept=intercept, tolerance=1e-13, **hyper)
    result = flegel.run(algorithm, (X, Y, WEIGHTS), workers=2, sync="asp", processes="no", progress=False)
    np.testing.assert_allclose(result.parameter.weights[0], theirs.coef_, rtol=1e-5, atol=1e-7)
    repeated = np.repeat(X, WEIGHTS.astype(int), axis=0), np.repeat(Y, WEIGHTS.astype(int))
    found = algorithm.evaluate(*repeated, result.parameter)
    assert found is not None and result.objective == pytest.approx(found.objective, rel=1e-6)
    assert result.metrics["mse"] == pytest.approx(found.metrics["mse"], rel=1e-6)
    assert result.metrics["r2"] == pytest.approx(found.metrics["r2"], rel=1e-6)  # of all rows, at their weights
    np.testing.assert_allclose(result.to_sklearn().predict(X), theirs.predict(X), rtol=1e-5, atol=1e-4)
    for rows in (X, scipy.sparse.csr_matrix(X)):
        ours = getattr(sklearn, name)(fit_intercept=intercept, **hyper, **fine).fit(rows, Y, sample_weight=WEIGHTS)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-5, atol=1e-6)
        assert ours.intercept_ == pytest.approx(theirs.intercept_, rel=1e-5, abs=1e-4)


def test_blocks_are_points_and_collinear_columns_have_the_shortest_weights() -> None:
    check_algorithm(algorithms.Lasso(alpha=0.1))
    twice = np.hstack([X, X[:, :2]])
    ours, theirs = (lib.LinearRegression().fit(twice, Y) for lib in (sklearn, linear_model))
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-6)
    assert ours.rank_ == theirs.rank_ == 6


@pytest.mark.parametrize("name", ["LinearRegression", "Ridge", "Lasso", "ElasticNet"])
def test_several_targets_share_one_pass(name: str) -> None:
    both = np.column_stack([Y, X[:, 0] - Y])
    fine = FINE if name in ("Lasso", "ElasticNet") else {}
    ours, theirs = (getattr(lib, name)(**fine) for lib in (sklearn, linear_model))
    np.testing.assert_allclose(ours.fit(X, both).coef_, theirs.fit(X, both).coef_, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=1e-5, atol=1e-5)
    if name == "Ridge":
        ours, theirs = (lib.Ridge(alpha=[1.0, 50.0]).fit(X, both) for lib in (sklearn, linear_model))
        np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-6)


@pytest.mark.parametrize("ratio", [0.5, 1.0])
def test_a_path_of_penalties_needs_one_pass_and_begins_where_the_last_one_ended(ratio: float) -> None:
    rows, target = X - X.mean(axis=0), Y - Y.mean()
    alphas, found, gaps, sweeps = sklearn.enet_path(rows, target, l1_ratio=ratio, alphas=15, return_n_iter=True)
    known, peer, _ = linear_model.enet_path(rows, target, l1_ratio=ratio, alphas=15, **FINE)
    np.testing.assert_allclose(alphas, known)
    np.testing.assert_allclose(found, peer, atol=1e-5)
    assert not found[:, 0].any() and (gaps <= 1e-7 * (target**2).mean()).all() and len(sweeps) == 15
    result = flegel.run(algorithms.Lasso(alpha=1.0), (X, Y), processes="no", progress=False)
    steps = algorithms.Lasso().path(result.parameter, [Penalties(alpha, 0.0) for alpha in (1.0, 0.1, 0.01)])
    direct = linear_model.Lasso(0.01, **FINE).fit(X, Y)
    np.testing.assert_allclose(steps[-1].weights[0], direct.coef_, atol=1e-4)


def test_the_duality_gap_bounds_the_distance_to_the_minimum() -> None:
    gram, cross, power = X.T @ X / 200, X.T @ Y / 200, float(Y @ Y / 200)

    def value(w: Any) -> float:
        return float(0.5 * (w @ gram @ w + power) - cross @ w + 0.3 * np.abs(w).sum() + 0.05 * w @ w)

    best = np.zeros(6)
    descend(gram, cross, power, 0.3, 0.1, best, 1e-13, 100_000, False)
    for scale in (0.0, 0.5, 0.9, 1.1):
        some = scale * best
        gap = duality_gap(cross, power, cross - gram @ some, 0.3, 0.1, some, False)
        assert gap >= value(some) - value(best) - 1e-9


def test_warm_starts_warnings_and_wrong_use() -> None:
    model = sklearn.Lasso(alpha=0.01, warm_start=True).fit(X, Y)
    first = model.n_iter_
    assert model.fit(X, Y).n_iter_ <= first and model.dual_gap_ >= 0
    with pytest.warns(ConvergenceWarning, match="did not converge"):
        sklearn.Lasso(alpha=1e-4, max_iter=1, tol=1e-12).fit(X, Y)
    with pytest.raises(ValueError, match="positive=True"):
        sklearn.Ridge(solver="lbfgs").fit(X, Y)
    with pytest.raises(ValueError, match="one target"):
        sklearn.lasso_path(X, np.column_stack([Y, Y]))


def test_the_solver_is_named_as_scikit_learn_would_choose_it() -> None:
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(30, 3)), rng.normal(size=30)
    for given in (rows, scipy.sparse.csr_matrix(rows)):
        for options in ({}, {"solver": "lsqr"}, {"positive": True}, {"fit_intercept": False}):
            if options.get("positive") and given is not rows:
                continue
            theirs = linear_model.Ridge(**options).fit(given, labels)
            assert sklearn.Ridge(**options).fit(given, labels).solver_ == theirs.solver_


def test_a_path_of_several_targets_is_refused_by_its_own_name() -> None:
    rows = np.random.default_rng(0).normal(size=(20, 3))
    with pytest.raises(ValueError, match=r"^lasso_path takes one target"):
        sklearn.lasso_path(rows, rows[:, :2])
    with pytest.raises(ValueError, match=r"^enet_path takes one target"):
        sklearn.enet_path(rows, rows[:, :2])


def test_products_of_columns_without_digits_are_told() -> None:
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(400, 3)) @ rng.normal(size=(3, 8)) + 0.05 * rng.normal(size=(400, 8))
    labels = rows[:, 0] + rng.normal(size=400)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for given in (rows, np.c_[rows, rows[:, :2]], np.c_[rows, np.eye(4)[rng.integers(0, 4, 400)]], 1e6 + rows):
            sklearn.LinearRegression().fit(given, labels)
        long_row = rows.copy()
        long_row[0] *= 1e6
        sklearn.Ridge(alpha=1.0).fit(rows, labels)
    with pytest.warns(LinAlgWarning, match="less than two digits"):
        sklearn.LinearRegression().fit(long_row, labels)
    result = flegel.run("linear", long_row, labels, workers=1, processes="no", progress=False)
    assert result.warnings == [algorithms.LOST_DIGITS]
