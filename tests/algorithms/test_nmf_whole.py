"""Factorizations of whole matrices, by squares and by Kullback–Leibler divergence: as good as scikit-learn's."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from local_training import sparse_of, start
from sklearn.decomposition import non_negative_factorization

from flegel.algorithms.nmf import NMF
from flegel.algorithms.nmf.kullback import KLNMF
from flegel.algorithms.nmf.rows import start_row
from flegel.core import pytree
from flegel.core.shard import DataPoint
from flegel.errors import UsageError

HISTORIES = pytest.mark.parametrize(("workers", "barriers"), [(1, 1), (3, 7)])


def counts(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    table = rng.poisson(rng.gamma(0.5, size=(150, 3)) @ rng.gamma(0.5, size=(3, 18)) * 3.0).astype(np.float64)
    table[::11], table[:, 5] = 0.0, 0.0
    return table


def scikit_learn(algorithm: Any, whole: np.ndarray, first: Any, **rule: Any) -> float:
    h, scale = np.asarray(first.factors), float(first.scale[0])
    w = np.zeros((len(whole), algorithm.rank))
    for i, row in enumerate(whole / scale):
        stored = np.flatnonzero(row)
        start_row(h, stored, row[stored], w[i])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, found, _ = non_negative_factorization(
            whole / scale, W=w, H=h.T.copy(), n_components=algorithm.rank, init="custom", max_iter=400, tol=0, **rule
        )
    return float(algorithm.evaluate(whole, None, first._replace(factors=found.T.copy())).objective)


@HISTORIES
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_coordinate_descent_ends_like_scikit_learns(kind: str, workers: int, barriers: int) -> None:
    whole = counts()
    algorithm = NMF(rank=3, solver="coordinate", precision="float64")
    data = sparse_of(whole) if kind == "sparse" else whole
    run = start(algorithm, data, workers=workers)
    peer = scikit_learn(algorithm, whole, run.parameter, solver="cd")
    run.passes(120, max(share.points for share in run.shares) // barriers)
    assert all(
        b <= a * (1 + 1e-9) for a, b in zip(run.objectives[barriers:], run.objectives[barriers + 1 :], strict=False)
    )
    assert algorithm.evaluate(data, None, run.parameter).objective <= 1.001 * peer


@pytest.mark.slow
@HISTORIES
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_kullback_leibler_ends_like_scikit_learns(kind: str, workers: int, barriers: int) -> None:
    whole = counts(1)
    algorithm = KLNMF(rank=3)
    data = sparse_of(whole) if kind == "sparse" else whole
    run = start(algorithm, data, workers=workers)
    peer = scikit_learn(algorithm, whole, run.parameter, solver="mu", beta_loss="kullback-leibler")
    run.passes(250, max(share.points for share in run.shares) // barriers)
    found = algorithm.evaluate(data, None, run.parameter).objective
    assert found <= 1.001 * peer
    assert run.objectives[-1] == pytest.approx(found, rel=1e-3)


def test_kullback_leibler_kernel_does_what_the_hooks_say() -> None:
    whole = counts(2)
    algorithm = KLNMF(rank=2)
    run = start(algorithm, whole)
    plain, state = pytree.zeros_like(run.statistics), algorithm.initState(len(whole), 18, np.random.default_rng(0))
    for _ in range(3):
        pytree.clear(plain, algorithm.spent)
        parameter = run.parameter
        run.passes(1)
        for i, row in enumerate(whole):
            algorithm.aggregate(plain, algorithm.updateDataPoint(DataPoint(row, 0.0, state[i]), parameter, 0))
        for found, wanted in zip(run.statistics, plain, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(run.shares[0].state, state, rtol=1e-10, atol=1e-12)


def test_entries_that_have_no_divergence_are_refused() -> None:
    with pytest.raises(UsageError, match="negative"):
        start(KLNMF(rank=2), -counts())
    with pytest.raises(UsageError, match="missing"):
        start(KLNMF(rank=2), np.where(counts() > 0, counts(), np.nan))
