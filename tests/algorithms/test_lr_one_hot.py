"""Logistic regression where columns are exactly collinear: all columns of one-hot encodings, and the bias.

Without a penalty infinitely many weights have the smallest loss. Wanted are small ones, so that a category which the
rows do not show gets a usual answer, whatever the rounding of the rows.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from local_training import Run, sparse_of, start

from flegel.algorithms.lr import LR
from flegel.configuration.active import using

POINTS = 1500


def table(classes: int, standardized: bool, kind: Any) -> tuple[Any, Any]:
    """Categories, each with its own log-odds, and two quantities; every class is in every category."""
    rng, categories = np.random.default_rng(3), (6, 4)
    chosen = [rng.permutation(np.arange(POINTS) % count) for count in categories]
    rows = np.hstack([np.eye(count)[which] for count, which in zip(categories, chosen, strict=True)])
    rows = np.hstack([rows, rng.standard_normal((POINTS, 2))])
    scores = rows @ rng.standard_normal((rows.shape[1], classes)) - 2.0 * (np.arange(classes) == 1)
    labels = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1).astype(np.float64)
    if standardized:
        rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    return rows.astype(kind), labels


@cache
def least_weights(classes: int, standardized: bool, kind: Any) -> tuple[Any, float]:
    """The smallest weights (and bias) of the smallest loss, by Newton steps with a pseudo-inverse, and that loss."""
    rows, labels = table(classes, standardized, kind)
    wide = np.hstack([rows.astype(np.float64), np.ones((POINTS, 1))])
    target = np.eye(classes)[labels.astype(int)]
    theta, value = np.zeros((classes, wide.shape[1])), np.inf
    for _ in range(12):
        scores = wide @ theta.T
        logs = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
        value, likely = float(-(logs * target).sum() / POINTS), np.exp(logs)
        slope = ((likely - target).T @ wide / POINTS).ravel()
        bends = -likely[:, :, None] * likely[:, None, :] + likely[:, :, None] * np.eye(classes)
        blocks = [[(wide.T * bends[:, a, b]) @ wide / POINTS for b in range(classes)] for a in range(classes)]
        whole = np.block(blocks)
        theta -= (np.linalg.pinv(whole, rcond=1e-10, hermitian=True) @ slope).reshape(theta.shape)
    return (theta if classes > 2 else theta[1:] - theta[:1]), value


def trained(run: Run, barriers: int) -> Any:
    for _ in range(60):
        run.passes(1, POINTS // len(run.shares) // barriers)
        if run.algorithm.optimality(run.statistics, run.parameter) <= 1e-4:  # type: ignore[operator]
            break
    assert run.algorithm.optimality(run.statistics, run.parameter) <= 1e-4  # type: ignore[operator]
    found = run.algorithm.finalParameter(run.statistics, run.parameter)
    assert run.algorithm.warnings(run.statistics, found) == []
    return found


@pytest.mark.parametrize("path", ["all", "late", "sample"])
@pytest.mark.parametrize(("kind", "sparse"), [(np.float32, False), (np.float64, False), (np.float32, True)])
@pytest.mark.parametrize("standardized", [False, True])
@pytest.mark.parametrize("classes", [2, 3])
def test_weights_are_small(classes: int, standardized: bool, kind: Any, sparse: bool, path: str) -> None:
    """Whether second derivatives are summed from the start, after some passes, or only estimated on the sample."""
    changes = {} if path == "all" else {"shapes.lr_full_numbers": 0, "lr.passes_before_late_sums": 3}
    if path == "sample":
        changes["shapes.lr_late_numbers"] = 0
    rows, labels = table(classes, standardized, kind)
    wanted, least = least_weights(classes, standardized, kind)
    algorithm = LR(classes=[float(c) for c in range(classes)])
    with using(changes):
        run = start(algorithm, sparse_of(rows, kind) if sparse else rows, labels, workers=2)
        found = trained(run, 4)
        later = run.passes(20).parameter.weights
    assert algorithm.evaluate(rows, labels, found).objective <= least * (1 + 1e-4)
    assert np.abs(found.weights).max() <= 3 * np.abs(wanted).max()
    assert np.abs(found.bias).max() <= 3 * np.abs(wanted).max()
    assert np.abs(later).max() <= 3 * np.abs(wanted).max(), "and they stay so"
    unseen = rows[:1].copy()
    unseen[:, :6] = rows[:, :6].min(axis=0)
    assert algorithm.probabilities(unseen, found).max() < 0.99
