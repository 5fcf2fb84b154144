"""Logistic regression with the interface of `sklearn.linear_model.LogisticRegression`. The engine computes."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.linear_model._base import LinearClassifierMixin, SparseCoefMixin
from sklearn.utils import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from flegel.algorithms.lr.lr import LR
from flegel.algorithms.lr.model import Linear
from flegel.core.pytree import Array
from flegel.results.result import Result
from flegel.sklearn.base import EngineEstimator, share

PARTIAL_PASSES = 3  # of `partial_fit`: one to measure the start, two to measure steps from it


class LogisticRegression(LinearClassifierMixin, SparseCoefMixin, ClassifierMixin, EngineEstimator):  # type: ignore[misc]
    """Logistic regression for two or more classes. Parameters as in scikit-learn; besides:

    `tol`: the fit ends when the objective is so near to its minimum, relatively. `max_iter`: passes over the rows.
    `workers`, `sync`, `cluster`: see `flegel.run`. `target`: the fit ends at this mean loss.
    """

    _accepts_sparse = True
    classes_: Array

    def __init__(
        self,
        *,
        C: float = 1.0,
        l1_ratio: float = 0.0,
        tol: float | None = 1e-4,
        fit_intercept: bool = True,
        class_weight: Any = None,
        random_state: Any = None,
        max_iter: int = 100,
        verbose: int = 0,
        warm_start: bool = False,
        workers: int | None = None,
        sync: str | None = None,
        cluster: Any = None,
        target: float | None = None,
    ) -> None:
        self.C = C
        self.l1_ratio = l1_ratio
        self.tol = tol
        self.fit_intercept = fit_intercept
        self.class_weight = class_weight
        self.random_state = random_state
        self.max_iter = max_iter
        self.verbose = verbose
        self.warm_start = warm_start
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
        weights = self._weights_by_class(numbers, self._weights(sample_weight, X), X.shape[0])
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
        result = self._fitted(X, numbers, weights, start=before, passes=PARTIAL_PASSES)
        after = result.parameter
        self.coef_ = (before.weights + part * (after.weights - before.weights)).astype(X.dtype)
        self.intercept_ = (before.bias + part * (after.bias - before.bias)).astype(X.dtype)
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

    def _fitted(self, X: Any, numbers: Array, weights: Array | None, **options: Any) -> Result:
        """One job. The penalty is divided by the rows, because the engine's objective is a mean."""
        if not self.C > 0:
            raise ValueError(f"C must be positive, not {self.C!r}.")
        ratio = 0.0 if self.l1_ratio is None else float(self.l1_ratio)
        if not 0 <= ratio <= 1:
            raise ValueError(f"l1_ratio must lie between 0 and 1, not {self.l1_ratio!r}.")
        strength = 0.0 if np.isinf(self.C) else 1.0 / float(self.C)

        def algorithm(rows: int) -> LR:
            """Its objective is a mean over rows, scikit-learn's a sum."""
            return LR(
                classes=[float(c) for c in range(len(self.classes_))],
                l2=(1.0 - ratio) * strength / rows,
                l1=ratio * strength / rows,
                intercept=bool(self.fit_intercept),
            )

        return self._train(algorithm, X, numbers.astype(np.float64), weights, **options)

    def _take(self, result: Result, dtype: Any) -> None:
        self.coef_ = np.asarray(result.parameter.weights, dtype=dtype)
        bias = result.parameter.bias if self.fit_intercept else np.zeros(len(self.coef_))
        self.intercept_ = np.asarray(bias, dtype=dtype)

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
