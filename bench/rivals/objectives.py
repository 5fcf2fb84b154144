"""Objectives of finished models in plain NumPy, in float64, chunk by chunk. Shares no code with the engine."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

Model = dict[str, Any]
CHUNK = 16384
SWEEPS = 40  # of coordinate descent, by which weights are found


def single_threaded() -> AbstractContextManager[Any]:
    """Matrix products in one thread each, where that can be asked for: the threads are ours."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return nullcontext()
    return threadpool_limits(1)


def _sum(rows: int, part: Callable[[slice], float]) -> float:
    """Over all chunks, exactly rounded, whatever the order; NumPy lets go of the GIL, so threads help."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with single_threaded(), ThreadPoolExecutor(count) as pool:
        return math.fsum(pool.map(part, (slice(at, at + CHUNK) for at in range(0, rows, CHUNK))))


def inertia(X: np.ndarray, y: np.ndarray | None, model: Model) -> float:
    """k-means: sum of squared distances to the nearest centroid."""
    centres = np.asarray(model["centroids"], np.float64)

    def part(chunk: slice) -> float:
        rows = X[chunk].astype(np.float64)
        nearest = ((centres**2).sum(1) - 2 * rows @ centres.T).argmin(1)
        return float(((rows - centres[nearest]) ** 2).sum())

    return _sum(len(X), part)


def log_likelihood(X: np.ndarray, y: np.ndarray | None, model: Model) -> float:
    """Mixture of Gaussians with diagonal covariances: sum of log densities."""
    weights, means, variances = (np.asarray(model[k], np.float64) for k in ("weights", "means", "covariances"))
    level = np.log(weights) - 0.5 * (np.log(2 * np.pi * variances).sum(1))

    def part(chunk: slice) -> float:
        rows = X[chunk].astype(np.float64)
        scores = np.stack(
            [level[j] - 0.5 * ((rows - means[j]) ** 2 / variances[j]).sum(1) for j in range(len(weights))], axis=1
        )
        return float(np.logaddexp.reduce(scores, axis=1).sum())

    return _sum(len(X), part)


def log_loss(X: np.ndarray, y: np.ndarray | None, model: Model) -> float:
    """Logistic regression with two classes: mean log loss."""
    assert y is not None
    weights, bias = np.asarray(model["weights"], np.float64).ravel(), float(np.ravel(model["bias"])[0])

    def part(chunk: slice) -> float:
        scores = X[chunk].astype(np.float64) @ weights + bias
        return float(np.logaddexp(0, np.where(y[chunk] > 0, -scores, scores)).sum())

    return _sum(len(X), part) / len(X)


def misfit(X: np.ndarray, y: np.ndarray | None, model: Model) -> float:
    """Factorization: the squared error of all entries, with the weights of each row that fit H best."""
    H = np.asarray(model["factors"], np.float64) * float(np.ravel(model.get("scale", 1.0))[0])
    gram = H.T @ H

    def part(chunk: slice) -> float:
        rows = X[chunk].astype(np.float64)
        ends = rows @ H
        W = np.maximum(np.linalg.lstsq(gram, ends.T, rcond=None)[0].T, 0.0)
        for _ in range(SWEEPS):
            for f in range(len(gram)):
                if gram[f, f] > 0:
                    W[:, f] = np.maximum(W[:, f] + (ends[:, f] - W @ gram[:, f]) / gram[f, f], 0.0)
        return float(((rows - W @ H.T) ** 2).sum())

    return _sum(len(X), part)


OBJECTIVES = {
    "kmeans": (inertia, False), "gmm": (log_likelihood, True), "lr": (log_loss, False), "nmf": (misfit, False)
}  # fmt: skip
"""By algorithm: how to compute it, and whether more is better."""
