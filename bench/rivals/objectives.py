"""Objectives of finished models in plain NumPy, in float64, chunk by chunk. Shares no code with the engine."""

from __future__ import annotations

from typing import Any

import numpy as np

Model = dict[str, Any]
CHUNK = 65536


def _chunks(rows: int) -> range:
    return range(0, rows, CHUNK)


def inertia(X: np.ndarray, y: np.ndarray | None, model: Model) -> float:
    """k-means: sum of squared distances to the nearest centroid."""
    centres = np.asarray(model["centroids"], np.float64)
    total = 0.0
    for at in _chunks(len(X)):
        rows = X[at : at + CHUNK].astype(np.float64)
        nearest = ((centres**2).sum(1) - 2 * rows @ centres.T).argmin(1)
        total += float(((rows - centres[nearest]) ** 2).sum())
    return total


def log_likelihood(X: np.ndarray, y: np.ndarray | None, model: Model) -> float:
    """Mixture of Gaussians with diagonal covariances: sum of log densities."""
    weights, means, variances = (np.asarray(model[k], np.float64) for k in ("weights", "means", "covariances"))
    level = np.log(weights) - 0.5 * (np.log(2 * np.pi * variances).sum(1))
    total = 0.0
    for at in _chunks(len(X)):
        rows = X[at : at + CHUNK].astype(np.float64)
        scores = np.stack(
            [level[j] - 0.5 * ((rows - means[j]) ** 2 / variances[j]).sum(1) for j in range(len(weights))], axis=1
        )
        total += float(np.logaddexp.reduce(scores, axis=1).sum())
    return total


def log_loss(X: np.ndarray, y: np.ndarray | None, model: Model) -> float:
    """Logistic regression with two classes: mean log loss."""
    assert y is not None
    weights, bias = np.asarray(model["weights"], np.float64).ravel(), float(np.ravel(model["bias"])[0])
    total = 0.0
    for at in _chunks(len(X)):
        scores = X[at : at + CHUNK].astype(np.float64) @ weights + bias
        total += float(np.logaddexp(0, np.where(y[at : at + CHUNK] > 0, -scores, scores)).sum())
    return total / len(X)


OBJECTIVES = {"kmeans": (inertia, False), "gmm": (log_likelihood, True), "lr": (log_loss, False)}
"""By algorithm: how to compute it, and whether more is better."""
