"""Logistic regression with the interface of `sklearn.linear_model.LogisticRegression`. The engine computes."""

from __future__ import annotations

import numbers
import warnings
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.base import ClassifierMixin
from sklearn.linear_model._base import LinearClassifierMixin, SparseCoefMixin
from sklearn.utils import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from flegel.algorithms.lr.lr import LR
from flegel.algorithms.lr.model import Linear
from flegel.configuration.sources import settings_outside
from flegel.core.pytree import Array
from flegel.results.result import Result
from flegel.sklearn.base import EngineEstimator, share

SOLVERS = {
    "lbfgs": "lbfgs failed to converge",
    "liblinear": "Liblinear failed to converge, increase the number of iterations.",
    "newton-cg": "newton-cg failed to converge. Increase the number of iterations.",
    "newton-cholesky": "Newton solver did not converge after {max_iter} iterations.",
    "sag": "The max_iter was reached which means the coef_ did not converge",
    "saga": "The max_iter was reached which means the coef_ did not converge",
}
"""Names of scikit-learn's solvers, and what each says when it has not converged: programs look for these words."""
PENALTIES = ("l2", "l1", "elasticnet")
COMMON_TOL = 1e-4
"""scikit-learn's default. Its `tol` bounds a gradient, and the distance to the minimum falls with that one's square: a
finer `tol` asks for so much more."""
LEAST_DISTANCE = 1e-14
"""To the minimum, relatively: smaller ones cannot be told from rounding."""
ELASTIC_NET_FINER = 1e-2
"""Of `tol`, where a part of the penalty is absolute: the minimum is flat there, and weights at a distance of 1e-4 are
worse than those of another penalty."""


class LogisticRegression(LinearClassifierMixin, SparseCoefMixin, ClassifierMixin, EngineEstimator):  # type: ignore[misc]
    """Logistic regression for two or more classes. Parameters as in scikit-learn; besides:

    `tol`: the fit ends when the objective is so near to its minimum, relatively; below 1e-4, at the square of `tol`
    over 1e-4, because scikit-learn's bounds a gradient. `max_iter`: passes over the rows. `workers`, `sync`, `cluster`:
    see `flegel.run`. `target`: the fit ends at this mean loss.

    All solvers of scikit-learn minimize one function, and ours is another way to its minimum, with any penalty. So
    `solver` and `dual` change nothing, but for liblinear, which takes two classes and counts the intercept, divided by
    `intercept_scaling`, in the penalty. `n_jobs`: as `workers`, where these are not given. `penalty` is deprecated.
    """

    _accepts_sparse = True
    classes_: Array

    def __init__(
        self,
        penalty: Any = "deprecated",
        *,
        C: float = 1.0,
        l1_ratio: float = 0.0,
        dual: bool = False,
        tol: float | None = 1e-4,
        fit_intercept: bool = True,
        intercept_scaling: float = 1,
        class_weight: Any = None,
        random_state: Any = None,
        solver: str = "lbfgs",
        max_iter: int = 100,
        verbose: int = 0,
        warm_start: bool = False,
        n_jobs: int | None = None,
        workers: int | None = None,
        sync: str | None = None,
        cluster: Any = None,
        target: float | None = None,
    ) -> None:
        self.penalty = penalty
        self.C = C
        self.l1_ratio = l1_ratio
        self.dual = dual
        self.tol = tol
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
        self.class_weight = class_weight
        self.random_state = random_state
        self.solver = solver
        self.max_iter = max_iter
        self.verbose = verbose
        self.warm_start = warm_start
        self.n_jobs = n_jobs
        self.workers = workers
        self.sync = sync
        self.cluster = cluster
        self.target = target

    # -- training ------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> LogisticRegression:
        """Train; with `warm_start` from the present weights, if the classes are the same."""
        known: Any = (self.classes_, self._theta()) if self.warm_start and hasattr(self, "coef_") else None
        X, y = self._rows(X, reset=True, y=y)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                "This solver needs samples of at least 2 classes in the data, but the data contains only one class: "
                f"{self.classes_[0]!r}"
            )
        start = known[1] if known is not None and np.array_equal(known[0], self.classes_) else None
        if start is not None and start.weights.shape[1] != X.shape[1]:
            raise ValueError(
                f"The last fit had {start.weights.shape[1]} columns, and X has {X.shape[1]}: a fit cannot begin with "
                "it. Use warm_start=False."
            )
        self._check_solver(len(self.classes_))
        weights = self._weights_by_class(numbers, self._weights(sample_weight, X), X.shape[0])
        if self._check_number("max_iter", 0) == 0:
            if start is None:
                self._take_nothing(X)
            return self
        self._take(self._fitted(X, numbers, weights, start=start), X.dtype)
        self._mass = float(X.shape[0] if weights is None else weights.sum())
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> LogisticRegression:
        """Goes on from the present weights: trains on these rows from there, and takes the mean of both, each counted
        with the rows that it has seen. The first call needs `classes` where its rows do not have all."""
        first = not hasattr(self, "coef_")
        X, y = self._rows(X, reset=first, y=y)
        check_classification_targets(y)
        if first:
            self.classes_ = np.unique(y if classes is None else classes)
            if len(self.classes_) < 2:
                raise ValueError("partial_fit needs at least 2 classes; name all of them with classes=.")
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(f"`classes={classes!r}` is not the same as on last call to partial_fit: {self.classes_!r}")
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(f"The label {unknown[0]!r} is not among the classes {self.classes_.tolist()}.")
        numbers = np.searchsorted(self.classes_, y)
        weights = self._weights_by_class(numbers, self._weights(sample_weight, X), X.shape[0])
        mass = float(X.shape[0] if weights is None else weights.sum())
        if first:
            self._take(self._fitted(X, numbers, weights), X.dtype)
            self._mass = mass
            return self
        before, part = self._theta(), share(self._mass, mass)
        result = self._fitted(X, numbers, weights, start=before, passes=settings_outside().training.partial_fit_passes)
        weights, bias = self._found(result.parameter)
        self.coef_ = (before.weights + part * (weights - before.weights)).astype(X.dtype)
        self.intercept_ = (before.bias + part * (bias - before.bias)).astype(X.dtype)
        self.n_iter_ = np.array([self.n_iter_], dtype=np.int32)
        self._mass += mass
        return self

    def _weights_by_class(self, numbers: Array, weights: Array | None, rows: int) -> Array | None:
        """Sample weights times class weights."""
        if self.class_weight is None:
            return weights
        labels = self.classes_[numbers]
        if isinstance(self.class_weight, str) and weights is not None:
            each = compute_class_weight(self.class_weight, classes=self.classes_, y=labels, sample_weight=weights)
        else:
            each = compute_class_weight(self.class_weight, classes=self.classes_, y=labels)
        return np.asarray(each[numbers] * (np.ones(rows) if weights is None else weights))

    def _check_solver(self, classes: int) -> None:
        """Refuse names that scikit-learn does not know, and what liblinear cannot do there."""
        if self.solver not in [*SOLVERS]:
            raise ValueError(f"solver must be one of {list(SOLVERS)}, not {self.solver!r}; all give the same model.")
        if self.solver == "liblinear" and classes > 2:
            raise ValueError(
                "The 'liblinear' solver does not support multiclass classification (n_classes >= 3). Either use "
                "another solver or wrap the estimator in a OneVsRestClassifier to keep applying a one-versus-rest "
                "scheme."
            )
        if self.solver == "liblinear" and self.fit_intercept and not self._check_real("intercept_scaling") > 0:
            raise ValueError(
                f"Intercept scaling is {self.intercept_scaling!r} but needs to be greater than 0. To disable fitting "
                "an intercept, set fit_intercept=False."
            )

    def _penalty(self) -> tuple[float, float]:
        """1/C, and the part of it that is absolute; `penalty` says the same in the words of earlier versions."""
        if not isinstance(self.C, numbers.Real) or not self.C > 0:
            raise ValueError(f"C must be a positive number, not {self.C!r}.")
        if self.l1_ratio is None and self.penalty != "elasticnet":
            warnings.warn(
                "'l1_ratio=None' was deprecated in version 1.8 and will trigger an error in 1.10: use l1_ratio=0.",
                FutureWarning,
                stacklevel=4,
            )
        ratio = 0.0 if self.l1_ratio is None else self._check_real("l1_ratio")
        if not 0 <= ratio <= 1:
            raise ValueError(f"l1_ratio must lie between 0 and 1, not {self.l1_ratio!r}.")
        strength = 0.0 if np.isinf(self.C) else 1.0 / float(self.C)
        if isinstance(self.penalty, str) and self.penalty == "deprecated":
            return strength, ratio
        if self.penalty is not None and self.penalty not in PENALTIES:
            raise ValueError(f"penalty must be one of {[*PENALTIES, None]}, not {self.penalty!r}; better use l1_ratio.")
        if self.penalty == "elasticnet" and self.l1_ratio is None:
            raise ValueError("l1_ratio must be specified when penalty is elasticnet.")
        warnings.warn(
            "'penalty' was deprecated in version 1.8 and will be removed in 1.10: use l1_ratio=0 for 'l2', l1_ratio=1 "
            "for 'l1', a number between for 'elasticnet', and C=np.inf for None.",
            FutureWarning,
            stacklevel=4,
        )
        fixed = {"l2": 0.0, "l1": 1.0}
        if self.penalty in fixed and ratio != fixed[self.penalty]:
            warnings.warn(
                f"Inconsistent values: penalty={self.penalty} with l1_ratio={self.l1_ratio}. penalty is deprecated. "
                "Please use l1_ratio only.",
                stacklevel=4,
            )
        if self.penalty == "l1" and ratio not in (0.0, 1.0):
            warnings.warn(
                f"l1_ratio parameter is only used when penalty is 'elasticnet'. Got (penalty={self.penalty})",
                stacklevel=4,
            )
        if self.penalty is None:
            if self.C != 1.0:
                warnings.warn("Setting penalty=None will ignore the C and l1_ratio parameters", stacklevel=4)
            return 0.0, 0.0
        return strength, fixed.get(self.penalty, ratio)

    def _fitted(self, X: Any, numbers: Array, weights: Array | None, **options: Any) -> Result:
        """One job. The penalty is divided by the rows, because the engine's objective is a mean."""
        strength, ratio = self._penalty()
        as_column = self._intercept_is_a_column
        if as_column:
            column = np.full((X.shape[0], 1), self.intercept_scaling, dtype=X.dtype)
            X = scipy.sparse.hstack([X, column], format="csr") if scipy.sparse.issparse(X) else np.hstack([X, column])
            if options.get("start") is not None:
                options["start"] = self._with_column(options["start"])

        def algorithm(rows: int) -> LR:
            """The algorithm for a number of rows: its objective is a mean over rows, scikit-learn's a sum."""
            return LR(
                classes=[float(c) for c in range(len(self.classes_))],
                l2=(1.0 - ratio) * strength / rows,
                l1=ratio * strength / rows,
                intercept=bool(self.fit_intercept) and not as_column,
            )

        if self.tol is not None:
            options["tolerance"] = self._distance(ELASTIC_NET_FINER if ratio > 0 else 1.0)
        return self._train(algorithm, X, numbers.astype(np.float64), weights, **options)

    def _distance(self, finer: float) -> float:
        """To the minimum, relatively, at which a fit ends."""
        tol = self._check_real("tol", 0, "None")
        return max(finer * tol * min(1.0, tol / COMMON_TOL), LEAST_DISTANCE)

    @property
    def _intercept_is_a_column(self) -> bool:
        """As in liblinear: so it is part of the penalty."""
        return self.solver == "liblinear" and bool(self.fit_intercept)

    def _with_column(self, theta: Linear) -> Linear:
        """θ whose intercept is the weight of a column."""
        column = theta.bias[:, None] / self.intercept_scaling
        return theta._replace(weights=np.hstack([theta.weights, column]), bias=np.zeros_like(theta.bias))

    def _take(self, result: Result, dtype: Any) -> None:
        self._set_from(result.parameter, None, dtype)
        self.n_iter_ = np.array([self.n_iter_], dtype=np.int32)

    def _set_from(self, parameter: Any, algorithm: Any, dtype: Any) -> bool:
        weights, bias = self._found(parameter)
        self.coef_, self.intercept_ = weights.astype(dtype), bias.astype(dtype)
        return True

    def _take_nothing(self, X: Any) -> None:
        """What `max_iter=0` gives in scikit-learn: zeros."""
        outputs = len(self.classes_) if len(self.classes_) > 2 else 1
        self.coef_, self.intercept_ = np.zeros((outputs, X.shape[1]), X.dtype), np.zeros(outputs, X.dtype)
        self.n_iter_, self._mass = np.zeros(1, dtype=np.int32), 0.0

    def _not_converged(self, reason: str) -> str:
        words = SOLVERS[self.solver].format(max_iter=self.max_iter)
        return f"{words} ({reason}). Raise max_iter or tol, or scale the columns."

    def _found(self, parameter: Any) -> tuple[Array, Array]:
        """Weights of the columns, and the intercept."""
        weights = np.asarray(parameter.weights)
        if self._intercept_is_a_column:
            return weights[:, :-1], weights[:, -1] * self.intercept_scaling
        return weights, np.asarray(parameter.bias) if self.fit_intercept else np.zeros(len(weights))

    def _theta(self) -> Linear:
        """What `LR.continueParameter` reads of a θ."""
        empty = np.zeros(0)
        coefficients = self.coef_.toarray() if hasattr(self.coef_, "toarray") else self.coef_
        classes = np.arange(len(self.classes_), dtype=np.float64)
        weights, bias = coefficients.astype(np.float64), np.asarray(self.intercept_, dtype=np.float64)
        return Linear(weights, bias, classes, *([empty] * (len(Linear._fields) - 3)))

    # -- use -----------------------------------------------------------------------------------------------

    def predict_proba(self, X: Any) -> Array:
        """P(class | row), one column a class in the order of `classes_`."""
        check_is_fitted(self)
        scores = self.decision_function(X)
        scores = np.column_stack([np.zeros_like(scores), scores]) if scores.ndim == 1 else scores
        likely = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(likely / likely.sum(axis=1, keepdims=True))

    def predict_log_proba(self, X: Any) -> Array:
        return np.asarray(np.log(self.predict_proba(X)))
