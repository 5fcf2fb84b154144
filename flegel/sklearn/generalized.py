"""Poisson, gamma and Huber regression and the linear support vector machine with the interface of scikit-learn. The
engine's algorithm finds the minimum; checks, answers and scores are scikit-learn's own.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import scipy.sparse
from sklearn import linear_model, svm
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_array, compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight

from flegel.algorithms.glm import losses
from flegel.algorithms.glm.glm import GeneralizedLinear, LinearFit
from flegel.core.pytree import Array
from flegel.sklearn.base import EngineEstimator
from flegel.sklearn.drop_in import with_engine_parameters

FINER = 1e-6
"""scikit-learn's `tol` bounds a gradient, ours the relative distance to the minimum, which is about its square."""


class _Newton(EngineEstimator):  # type: ignore[misc]
    """`max_iter` counts passes over the rows; `tol` is that of scikit-learn, squared about."""

    _accepts_sparse = True
    random_state: Any = 0  # nothing is drawn

    def _sync(self, partial: bool = False) -> str:
        return "bsp" if self.sync is None else str(self.sync)

    def _minimum(self, algorithm: Any, X: Any, y: Array, weights: Array | None, start: Any = None) -> LinearFit:
        finer = max(FINER * float(self.tol), 1e-14)
        return self._train(algorithm, X, y, weights, start=start, tolerance=finer).parameter  # type: ignore[no-any-return]

    def _set_from(self, parameter: Any, algorithm: Any, dtype: Any) -> bool:
        offset = getattr(algorithm, "offset", False)
        self._take(parameter._replace(weights=parameter.weights[:-1]) if offset else parameter, dtype)
        return True

    def _take(self, found: LinearFit, dtype: Any) -> None:
        self.coef_ = np.asarray(found.weights, dtype)
        self.intercept_ = np.asarray(found.bias, dtype)[()] if self.fit_intercept else 0.0

    def _start(self, columns: int) -> LinearFit | None:
        """The present model, where `warm_start` asks for it: what `continueParameter` reads of a θ."""
        if not self.warm_start or not hasattr(self, "coef_") or len(self.coef_) != columns:
            return None
        shape = np.array([self.scale_]) if hasattr(self, "scale_") else np.zeros(0)
        weights, bias = np.asarray(self.coef_, np.float64), np.asarray(float(self.intercept_))
        return LinearFit(weights, bias, shape, *([np.zeros(0)] * 5))


class _LogLink(_Newton):
    _algorithm: type[GeneralizedLinear]

    def fit(self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None) -> Any:
        """`offset`: of each row, added to its score."""
        self._validate_params()
        X, y = self._rows(X, reset=True, y=y, y_numeric=True)
        y = np.asarray(y, np.float64)
        self._base_loss = self._get_loss()
        if not self._base_loss.in_y_true_range(y):
            raise ValueError(
                f"Some value(s) of y are out of the valid range of the loss {type(self._base_loss).__name__!r}."
            )
        weights, start = self._weights(sample_weight, X), self._start(X.shape[1])
        if offset is not None:
            column = _offsets(offset, X.shape[0]).astype(X.dtype)
            X = scipy.sparse.hstack([X, column], format="csr") if scipy.sparse.issparse(X) else np.hstack([X, column])
            start = None
        algorithm = self._algorithm(l2=float(self.alpha), intercept=bool(self.fit_intercept), offset=offset is not None)
        found = self._minimum(algorithm, X, y, weights, start)
        self._take(found if offset is None else found._replace(weights=found.weights[:-1]), X.dtype)
        if self.fit_intercept and not (y if weights is None else y[weights > 0]).any():
            warnings.warn(losses.ALL_ZERO, ConvergenceWarning, stacklevel=2)
        return self

    def predict(self, X: Any, offset: Any = None) -> Array:
        """Means; with `offset`, which is added to the score of each row."""
        if offset is None:
            return np.asarray(super().predict(X))
        scores = self._linear_predictor(X)
        return np.asarray(self._get_loss().link.inverse(scores + _of_rows(offset, scores)))

    def score(self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None) -> float:
        """The part of the deviance that is explained. With `offset` it is compared with that of a model of the offset
        and an intercept alone."""
        if offset is None:
            return float(super().score(X, y, sample_weight))
        scores = self._linear_predictor(X)
        given, loss = _of_rows(offset, scores), self._base_loss
        y = check_array(y, dtype=scores.dtype, order="C", ensure_2d=False)
        if not loss.in_y_true_range(y):
            raise ValueError(f"Some value(s) of y are out of the valid range of the loss {loss.__name__}.")
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, X, dtype=y.dtype)
        shares = np.full(len(y), 1.0 / len(y)) if weights is None else weights / weights.sum()
        bias = self._algorithm().start(y, shares, given)[0]  # the best one
        least = float(shares @ loss.constant_to_optimal_zero(y_true=y, sample_weight=None))
        left = loss(y_true=y, raw_prediction=scores + given, sample_weight=weights, n_threads=1)
        alone = loss(y_true=y, raw_prediction=given + bias, sample_weight=weights, n_threads=1)
        return float(1.0 - (left + least) / (alone + least))


def _of_rows(offset: Any, scores: Array) -> Array:
    """An offset for each of the scores, in their type."""
    return _offsets(offset, len(scores))[:, 0].astype(scores.dtype)


def _offsets(offset: Any, rows: int) -> Array:
    """Of each row, as a column; refused in a sentence where they are no such numbers."""
    try:
        numbers = np.asarray(offset, np.float64)
    except (TypeError, ValueError):
        raise ValueError("offset has values that are no numbers; give a number for each row.") from None
    if numbers.size != rows:
        count = f"{numbers.size} number{'s' if numbers.size != 1 else ''}"
        raise ValueError(f"offset has {count} for {rows} rows; give one for each.")
    if not np.isfinite(numbers).all():
        raise ValueError("offset has numbers that are missing or infinite; leave such rows out, or give 0 for them.")
    return numbers.reshape(-1, 1)


@with_engine_parameters
class PoissonRegressor(_LogLink, linear_model.PoissonRegressor):  # type: ignore[misc]
    """Counts. Parameters as in scikit-learn; `solver` changes nothing. `fit`, `predict` and `score` also take
    `offset`."""

    _algorithm = losses.Poisson


@with_engine_parameters
class GammaRegressor(_LogLink, linear_model.GammaRegressor):  # type: ignore[misc]
    """Positive quantities. Parameters as in scikit-learn; `solver` changes nothing. `fit`, `predict` and `score` also
    take `offset`."""

    _algorithm = losses.Gamma


@with_engine_parameters
class HuberRegressor(_Newton, linear_model.HuberRegressor):  # type: ignore[misc]
    """Robust linear regression. Parameters and attributes as in scikit-learn."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> HuberRegressor:
        self._validate_params()
        X, y = self._rows(X, reset=True, y=y, y_numeric=True)
        y = np.asarray(y, np.float64)
        weights = self._weights(sample_weight, X)
        mass = float(X.shape[0] if weights is None else weights.sum())
        algorithm = losses.Huber(
            epsilon=float(self.epsilon), l2=2.0 * float(self.alpha) / mass, intercept=bool(self.fit_intercept)
        )
        found = self._minimum(algorithm, X, y, weights, self._start(X.shape[1]))
        self._take(found, X.dtype)
        self.scale_ = float(found.shape[0])
        away = np.abs(y - X @ self.coef_ - self.intercept_)
        self.outliers_ = away > self.scale_ * self.epsilon
        if self.scale_ < losses.VANISHED_SCALE * float(np.mean(away)):
            warnings.warn(
                "The scale went to 0, as with nearly as many columns as rows, and the model may be short of its "
                "minimum. Raise alpha, or use fewer columns.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self


@with_engine_parameters
class LinearSVC(_Newton, svm.LinearSVC):  # type: ignore[misc]
    """Planes between classes, one against the rest, with squared hinge loss and a squared or absolute penalty; others
    are refused. Parameters as in scikit-learn; `dual` and `random_state` change nothing."""

    random_state = None
    warm_start = False

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> LinearSVC:
        self._validate_params()
        self._refuse()
        X, y = self._rows(X, reset=True, y=y)
        check_classification_targets(y)
        weights = self._weights(sample_weight, X)
        if weights is not None:  # a class whose rows all weigh 0 is none
            counted = weights > 0
            X, y, weights = X[counted], y[counted], weights[counted]
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                "This solver needs samples of at least 2 classes in the data, but the data contains only one class: "
                f"{self.classes_[0]!r}"
            )
        if self.class_weight is not None:
            each = compute_class_weight(self.class_weight, classes=self.classes_, y=y, sample_weight=weights)
            weights = each[numbers] * (np.ones(len(y)) if weights is None else weights)
        mass = float(X.shape[0] if weights is None else weights.sum())
        dtype, rows = X.dtype, self._with_column(X)
        strength = 1.0 / (float(self.C) * mass)
        penalty = {"l1": strength} if self.penalty == "l1" else {"l2": strength}
        algorithm = losses.LinearSVM(**penalty, intercept=False)
        positives = [1] if len(self.classes_) == 2 else range(len(self.classes_))
        passes, planes = 1, []
        for positive in positives:
            planes.append(self._minimum(algorithm, rows, (numbers == positive).astype(np.float64), weights).weights)
            passes = max(passes, self.n_iter_)
        self._take_planes(np.stack(planes), dtype)
        self.n_iter_ = passes
        return self

    def _set_from(self, parameter: Any, algorithm: Any, dtype: Any) -> bool:
        if len(self.classes_) > 2:  # a job for each class
            return False
        self._take_planes(parameter.weights[None], dtype)
        return True

    def _take_planes(self, found: Array, dtype: Any) -> None:
        columns = found.shape[1] - int(bool(self.fit_intercept))
        self.coef_ = np.asarray(found[:, :columns], dtype)
        bias = found[:, -1] * self.intercept_scaling if self.fit_intercept else np.zeros(len(found))
        self.intercept_ = np.asarray(bias, dtype)

    def _not_converged(self, reason: str) -> str:
        """With scikit-learn's words: programs look for them."""
        return f"Liblinear failed to converge, increase the number of iterations. ({reason}.)"

    def _refuse(self) -> None:
        hinge, absolute = self.loss == "hinge", self.penalty == "l1"
        unknown = (hinge and (absolute or self.dual is False)) or (absolute and self.dual is True)
        if self.multi_class == "ovr" and unknown:  # scikit-learn has no solver for these, either
            when = "is not supported" if hinge and absolute else f"are not supported when dual={self.dual}"
            given = f"penalty={self.penalty!r}, loss={self.loss!r}, dual={self.dual!r}"
            raise ValueError(
                f"Unsupported set of arguments: The combination of penalty={self.penalty!r} and loss={self.loss!r} "
                f"{when}, Parameters: {given}"
            )
        if hinge or self.multi_class != "ovr":
            raise ValueError(
                f"LinearSVC here has loss='squared_hinge' and multi_class='ovr', not {self.loss!r} and "
                f"{self.multi_class!r}; for others use sklearn.svm.LinearSVC."
            )
        if self.fit_intercept and not self.intercept_scaling > 0:
            raise ValueError(
                f"Intercept scaling is {self.intercept_scaling!r} but needs to be greater than 0. To disable fitting "
                "an intercept, set fit_intercept=False."
            )

    def _with_column(self, X: Any) -> Any:
        """The intercept is the weight of a column, and so part of the penalty, as in scikit-learn."""
        if not self.fit_intercept:
            return X
        column = np.full((X.shape[0], 1), self.intercept_scaling, X.dtype)
        return scipy.sparse.hstack([X, column], format="csr") if scipy.sparse.issparse(X) else np.hstack([X, column])
