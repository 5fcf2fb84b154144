"""Which estimators of scikit-learn have an ONNX form, and rows on which such a file is tried. Never trains."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flegel.core.pytree import Array

EXPORTED = (
    *("KMeans", "GaussianMixture", "LogisticRegression", "GaussianNB", "MultinomialNB", "BernoulliNB"),
    *("LinearRegression", "Ridge", "Lasso", "ElasticNet", "PoissonRegressor", "GammaRegressor", "HuberRegressor"),
    *("LinearSVC", "PCA", "TruncatedSVD"),
)
"""Estimators of scikit-learn that a saved model may become on its way."""
EXPORTED_IN_WORDS = (
    "k-means, Gaussian mixtures, logistic, linear, ridge, lasso, elastic net, Poisson, gamma and Huber regression, "
    "linear support vectors, PCA, SVD and naive Bayes"
)


def why_not(estimator: Any) -> str | None:
    """Why a fitted estimator has no ONNX form, in a sentence; empty: its kind is not known here. None: it has one."""
    kind = type(last_step(estimator)).__name__
    if kind == "NMF":
        return (
            "A factorization cannot be exported: its answer is the solution of a problem for each row, and ONNX has no "
            "operator for that. Use `result.to_sklearn()`, or keep `components_`."
        )
    return None if kind in EXPORTED else ""


def last_step(estimator: Any) -> Any:
    """The model behind scalers."""
    return estimator[-1] if hasattr(estimator, "steps") else estimator


def probe_rows(estimator: Any, columns: int, number: int) -> Array:
    """Rows about the centres of the model, or about 0, in float32."""
    rng, model = np.random.default_rng(0), last_step(estimator)
    centres = centres_of(model, columns)
    spread = (centres.std(axis=0) + 1.0) / (max(norm(model.coef_), 1.0) if is_exponential(model) else 1.0)
    rows = centres[rng.integers(len(centres), size=number)] + spread * rng.normal(size=(number, columns))
    if type(model).__name__ == "MultinomialNB":
        rows = np.abs(rows)
    if hasattr(estimator[0] if hasattr(estimator, "steps") else None, "inverse_transform"):
        rows = estimator[0].inverse_transform(rows)
    return np.asarray(rows, np.float32)


def centres_of(model: Any, columns: int) -> Array:
    """Where rows of a model lie: its centres, means of classes, the mean, the border between true and false; rows whose
    exponent is 0, so that answers are within float32."""
    for name in ("cluster_centers_", "means_", "theta_", "mean_"):
        if hasattr(model, name):
            return np.atleast_2d(getattr(model, name))
    if is_exponential(model):
        return np.atleast_2d(-model.intercept_ * model.coef_ / max(norm(model.coef_) ** 2, 1e-300))
    return np.full((1, columns), getattr(model, "binarize", None) or 0.0)


def is_exponential(model: Any) -> bool:
    return type(model).__name__ in ("PoissonRegressor", "GammaRegressor")


def norm(coefficients: Any) -> float:
    return math.sqrt(float(coefficients @ coefficients))
