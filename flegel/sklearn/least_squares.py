"""Linear regression, ridge, lasso and elastic net with the interface of scikit-learn. One pass of the engine's
algorithm gives second moments of rows and targets; coefficients, and paths of them, are made of those.
"""

from __future__ import annotations

import numbers
import warnings
from typing import Any

import numpy as np
import scipy.sparse
from scipy.linalg import LinAlgWarning
from sklearn import linear_model
from sklearn.exceptions import ConvergenceWarning

from flegel.algorithms import least_squares as algorithms
from flegel.algorithms.least_squares import Penalties, Regression, normal_equations
from flegel.core.pytree import Array
from flegel.sklearn.base import EngineEstimator
from flegel.sklearn.drop_in import with_engine_parameters

FINER = 1e-4
"""Sweeps over moments cost little beside the pass over rows, so they go on to this part of `tol`."""

DIRECT = ("svd", "cholesky", "sparse_cg")
"""Solvers for which scikit-learn tells no number of steps."""


class _FromMoments(EngineEstimator):  # type: ignore[misc]
    """One job for all targets: several of them become columns beside those of X."""

    _accepts_sparse = True
    _one_target_is_a_row = False
    """The shape of `coef_` where y has one column: (1, columns) in place of (columns,), as in scikit-learn's class."""

    def _most_passes(self) -> int:
        return 0  # `max_iter` counts other things

    def _checked(self, X: Any, y: Any) -> tuple[Any, Array, bool]:
        """Rows, targets (rows, targets), and whether these had two dimensions."""
        self._validate_params()
        X, y = self._rows(X, reset=True, y=y, multi_output=True, y_numeric=True)
        y = np.asarray(y, np.float64)
        return X, y.reshape(len(y), -1), y.ndim > 1

    def _solved(self, algorithm: algorithms.LinearRegression, X: Any, Y: Array, sample_weight: Any) -> Regression:
        weights, labels = self._weights(_each(sample_weight, X), X), None
        if Y.shape[1] == 1:
            labels = Y[:, 0]
        else:
            beside = Y.astype(X.dtype)
            X = scipy.sparse.hstack([X, beside], format="csr") if scipy.sparse.issparse(X) else np.hstack([X, beside])
            algorithm.targets = Y.shape[1]
        result = self._train(algorithm, X, labels, weights)
        if algorithms.LOST_DIGITS in result.warnings:
            warnings.warn(algorithms.LOST_DIGITS, LinAlgWarning, stacklevel=3)
        return result.parameter  # type: ignore[no-any-return]

    def _take(self, found: Regression, several: bool, dtype: Any) -> None:
        rows = several and (self._one_target_is_a_row or len(found.weights) > 1)
        self.coef_ = np.asarray(found.weights if rows else found.weights[0], dtype)
        bias = np.asarray(found.bias if several else found.bias[0], dtype)
        self.intercept_ = (bias if several else bias[()]) if self.fit_intercept else 0.0


@with_engine_parameters
class LinearRegression(_FromMoments, linear_model.LinearRegression):  # type: ignore[misc]
    """Least squares. Parameters as in scikit-learn; `copy_X` and `tol` change nothing, `n_jobs` is `workers`."""

    _one_target_is_a_row = True

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> LinearRegression:
        X, Y, several = self._checked(X, y)
        algorithm = algorithms.LinearRegression(
            intercept=bool(self.fit_intercept), positive=bool(self.positive), tolerance=1e-14
        )
        found = self._solved(algorithm, X, Y, sample_weight)
        self._take(found, several, X.dtype)
        if not self.positive and not scipy.sparse.issparse(X):
            gram = normal_equations(found, Y.shape[1], bool(self.fit_intercept))[0]
            unit = found.internal_unit[: len(gram)]
            most = float(unit.max(initial=0.0))
            gram = gram * (unit / most) * (unit / most)[:, None]
            sizes = np.sqrt(np.maximum(np.linalg.eigvalsh(gram)[::-1] * float(found.mass), 0.0)) * most
            self.singular_ = sizes[: min(X.shape)]
            self.rank_ = int((sizes > float(self.tol) * sizes.max(initial=0.0)).sum())
        return self


@with_engine_parameters
class Ridge(_FromMoments, linear_model.Ridge):  # type: ignore[misc]
    """Least squares with squared penalties. Parameters as in scikit-learn; `solver`, `tol`, `max_iter` and `copy_X`
    change nothing, because the minimum is found directly."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Ridge:
        X, Y, several = self._checked(X, y)
        if self.solver == "lbfgs" and not self.positive:
            raise ValueError("'lbfgs' solver can be used only when positive=True. Please use another solver.")
        if self.positive and self.solver not in ("auto", "lbfgs"):
            raise ValueError(
                f"solver='{self.solver}' does not support positive fitting. Please set the solver to 'auto' or "
                "'lbfgs', or set `positive=False`"
            )
        alphas = np.asarray(self.alpha, np.float64).reshape(-1)
        if len(alphas) not in (1, Y.shape[1]):
            raise ValueError(
                f"Number of targets and number of penalties do not correspond: {len(alphas)} != {Y.shape[1]}"
            )
        algorithm = algorithms.Ridge(
            alpha=float(alphas[0]), intercept=bool(self.fit_intercept), positive=bool(self.positive), tolerance=1e-14
        )
        found = self._solved(algorithm, X, Y, sample_weight)
        if len(alphas) > 1:
            mass = float(found.mass)
            each = algorithm.path(found, [Penalties(0.0, alpha / mass) for alpha in alphas])
            found = found._replace(
                weights=np.stack([one.weights[k] for k, one in enumerate(each)]),
                bias=np.array([one.bias[k] for k, one in enumerate(each)]),
            )
        self._take(found, several, X.dtype)
        self.n_iter_ = None if self.solver in DIRECT else 1
        self.solver_ = self._named_solver(X)
        return self

    def _named_solver(self, X: Any) -> str:
        """As scikit-learn would choose it; the minimum is the same."""
        if self.solver != "auto":
            return str(self.solver)
        if self.positive:
            return "lbfgs"
        return "sparse_cg" if scipy.sparse.issparse(X) else "cholesky"


class _WithAbsolutePenalty(_FromMoments):
    """Lasso and elastic net."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None, check_input: bool = True) -> Any:
        known = self.coef_ if self.warm_start and hasattr(self, "coef_") else None
        X, Y, several = self._checked(X, y)
        if self.alpha == 0:
            warnings.warn(
                "With alpha=0, this algorithm does not converge well. You are advised to use the LinearRegression "
                "estimator",
                stacklevel=2,
            )
        algorithm = algorithms.ElasticNet(
            alpha=float(self.alpha),
            l1_ratio=float(self.l1_ratio),
            intercept=bool(self.fit_intercept),
            positive=bool(self.positive),
            tolerance=max(FINER * float(self.tol), 1e-15),
            sweeps=int(self.max_iter),
        )
        found = self._solved(algorithm, X, Y, sample_weight)
        if known is not None and np.atleast_2d(known).shape == found.weights.shape:
            found = algorithm.solved(found, algorithm.penalties(float(found.mass)), np.atleast_2d(known))
        self._take(found, several, X.dtype)
        sweeps = [int(count) for count in np.maximum(found.sweeps, 1)]
        self.n_iter_ = sweeps if several and len(sweeps) > 1 else sweeps[0]
        self.dual_gap_ = np.maximum(found.gap, 0.0) if several and len(sweeps) > 1 else max(float(found.gap[0]), 0.0)
        power = normal_equations(found, len(found.weights), bool(self.fit_intercept))[2]
        if (found.gap > float(self.tol) * power).any() and found.sweeps.max() >= self.max_iter:
            _warn(float(found.gap.max()), float((float(self.tol) * power).max()))
        return self


@with_engine_parameters
class ElasticNet(_WithAbsolutePenalty, linear_model.ElasticNet):  # type: ignore[misc]
    """Least squares with absolute and squared penalties. Parameters as in scikit-learn; `precompute`, `copy_X`,
    `selection` and `random_state` change nothing. `max_iter` counts sweeps over columns, not over rows."""


@with_engine_parameters
class Lasso(_WithAbsolutePenalty, linear_model.Lasso):  # type: ignore[misc]
    """Least squares with absolute penalties; see `ElasticNet`."""

    l1_ratio = 1.0


def enet_path(
    X: Any,
    y: Any,
    *,
    l1_ratio: float = 0.5,
    eps: float = 1e-3,
    alphas: Any = 100,
    sample_weight: Any = None,
    positive: bool = False,
    tol: float = 1e-4,
    max_iter: int = 1000,
    return_n_iter: bool = False,
    **engine: Any,
) -> tuple[Any, ...]:
    """Coefficients for each of several penalties, the largest first, each begun from the one before: one pass over the
    rows serves all. As `sklearn.linear_model.enet_path`, without an intercept; `engine`: `workers`, `sync`, `cluster`.
    Returns alphas, coefficients (columns, alphas) and duality gaps, and the numbers of sweeps if these are wanted."""
    model = ElasticNet(l1_ratio=l1_ratio, fit_intercept=False, positive=positive, tol=tol, max_iter=max_iter, **engine)
    X, Y, several = model._checked(X, y)
    if several:
        name = "lasso_path" if l1_ratio == 1.0 else "enet_path"
        raise ValueError(f"{name} takes one target; call it for each column of y.")
    algorithm = algorithms.ElasticNet(
        l1_ratio=l1_ratio, intercept=False, positive=positive, tolerance=FINER * tol, sweeps=max_iter, alpha=1e300
    )
    known = model._solved(algorithm, X, Y, sample_weight)
    if isinstance(alphas, int | np.integer):
        cross = normal_equations(known, 1, False)[1][0]
        most = float((cross if positive else np.abs(cross)).max()) / max(l1_ratio, 1e-3)
        alphas = np.geomspace(max(most, 1e-300), max(most * eps, 1e-300), int(alphas))
    alphas = np.sort(np.asarray(alphas, np.float64))[::-1]
    found = algorithm.path(known, [Penalties(alpha * l1_ratio, alpha * (1.0 - l1_ratio)) for alpha in alphas])
    coefficients = np.stack([each.weights[0] for each in found], axis=1)
    gaps = np.array([float(each.gap[0]) for each in found])
    return (alphas, coefficients, gaps, *([[int(each.sweeps[0]) for each in found]] if return_n_iter else []))


def lasso_path(X: Any, y: Any, **given: Any) -> tuple[Any, ...]:
    """`enet_path` with absolute penalties alone."""
    return enet_path(X, y, l1_ratio=1.0, **given)


def _each(sample_weight: Any, X: Any) -> Any:
    """scikit-learn takes a number for the weight of every row."""
    return np.full(X.shape[0], float(sample_weight)) if isinstance(sample_weight, numbers.Real) else sample_weight


def _warn(gap: float, goal: float) -> None:
    warnings.warn(
        "Objective did not converge. You might want to increase the number of iterations, check the scale of the "
        f"features or consider increasing regularisation. Duality gap: {gap:.3e}, tolerance: {goal:.3e}",
        ConvergenceWarning,
        stacklevel=3,
    )
