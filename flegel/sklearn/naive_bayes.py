"""Naive Bayes with the interface of scikit-learn. One pass of the engine's algorithm gives sums by class; smoothing,
priors and answers are scikit-learn's own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn import naive_bayes
from sklearn.naive_bayes import _check_partial_fit_first_call
from sklearn.utils.validation import check_non_negative

from flegel.algorithms import naive_bayes as algorithms
from flegel.core.pytree import Array
from flegel.sklearn.base import EngineEstimator
from flegel.sklearn.drop_in import with_engine_parameters


class _ByClass(EngineEstimator):  # type: ignore[misc]
    def _summed(self, algorithm: algorithms.NaiveBayes, X: Any, numbers: Array, weights: Array | None) -> Any:
        """θ of one job. Classes without rows are not known to it."""
        rows = X if X.dtype.kind == "f" else X.astype(np.float64)
        return self._train(algorithm, rows, numbers.astype(np.float64), weights).parameter


class _Discrete(_ByClass):
    """Both count events; `_count` is where scikit-learn's `fit` and `partial_fit` look at rows."""

    _accepts_sparse = True
    _algorithm: Any = None

    def _count(self, X: Any, Y: Array) -> None:
        self._check_rows(X)
        weights = np.asarray(Y.sum(axis=1), np.float64)
        if not (weights > 0).any():
            return
        found = self._summed(self._algorithm, X, Y.argmax(axis=1), weights)
        which = found.classes.astype(np.intp)
        self.feature_count_[which] += found.second
        self.class_count_[which] += found.counts

    def _check_rows(self, X: Any) -> None:
        """Raise where rows cannot be counted."""


@with_engine_parameters
class MultinomialNB(_Discrete, naive_bayes.MultinomialNB):  # type: ignore[misc]
    """For counts. Parameters and attributes as in scikit-learn."""

    _positive = True
    _algorithm = algorithms.MultinomialNB()

    def _check_rows(self, X: Any) -> None:
        check_non_negative(X, "MultinomialNB (input X)")


@with_engine_parameters
class BernoulliNB(_Discrete, naive_bayes.BernoulliNB):  # type: ignore[misc]
    """For columns that are true or false. Parameters and attributes as in scikit-learn."""

    _algorithm = algorithms.MultinomialNB()  # rows are binarized by then: counts of ones


@with_engine_parameters
class GaussianNB(_ByClass, naive_bayes.GaussianNB):  # type: ignore[misc]
    """Gaussian columns within each class. Parameters and attributes as in scikit-learn; `epsilon_` of `partial_fit` is
    that of the last rows, as there."""

    classes_: Any
    epsilon_: float

    def _partial_fit(
        self, X: Any, y: Any, classes: Any = None, _refit: bool = False, sample_weight: Any = None
    ) -> GaussianNB:
        if _refit:
            self.classes_ = None
        first = _check_partial_fit_first_call(self, classes)
        X, y = self._rows(X, reset=first, y=y)
        weights = self._weights(sample_weight, X)
        if first:
            self._begin(X.shape[1], X.dtype)
        else:
            self.var_[:, :] -= self.epsilon_
        strange = np.setdiff1d(y, self.classes_)
        if len(strange):
            raise ValueError(f"The target label(s) {strange} in y do not exist in the initial classes {self.classes_}")
        found = self._summed(algorithms.GaussianNB(smoothing=0.0), X, np.searchsorted(self.classes_, y), weights)
        self._merge(found, X.dtype)
        self.epsilon_ = self.var_smoothing * _largest_variance(found)
        self.var_ += self.epsilon_
        if self.priors is None:
            self.class_prior_ = self.class_count_ / self.class_count_.sum()
        return self

    def _begin(self, columns: int, dtype: Any) -> None:
        """Nothing counted yet; priors as they are given."""
        classes = len(self.classes_)
        self.theta_, self.var_ = np.zeros((classes, columns), dtype), np.zeros((classes, columns), dtype)
        self.class_count_, self.class_prior_ = np.zeros(classes, dtype), np.zeros(classes, dtype)
        if self.priors is None:
            return
        priors = np.asarray(self.priors, dtype)
        if len(priors) != classes:
            raise ValueError("Number of priors must match number of classes.")
        if not np.isclose(priors.sum(), 1.0):
            raise ValueError("The sum of the priors should be 1.")
        if (priors < 0).any():
            raise ValueError("Priors must be non-negative.")
        self.class_prior_ = priors

    def _merge(self, found: algorithms.Likelihoods, dtype: Any) -> None:
        """Means and variances of these rows and of all before."""
        which = found.classes.astype(np.intp)
        before, added = self.class_count_[which].astype(np.float64), found.counts
        part = (added / np.maximum(before + added, 1e-300))[:, None]
        means, variances = self.theta_[which].astype(np.float64), self.var_[which].astype(np.float64)
        apart = found.first - means
        self.theta_[which] = means + part * apart
        merged = variances + part * (found.second - variances) + part * (1.0 - part) * apart**2
        self.var_[which] = np.maximum(merged, 0.0)
        self.class_count_[which] += added.astype(dtype)


def _largest_variance(found: algorithms.Likelihoods) -> float:
    """Of a column, over all classes."""
    shares = found.counts / found.counts.sum()
    mean = shares @ found.first
    return float((shares @ (found.second + (found.first - mean) ** 2)).max())
