"""Factorizations of whole matrices, by squares and by Kullback–Leibler divergence: as good as scikit-learn's."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from local_training import sparse_of, start
from scipy.optimize import nnls
from sklearn.decomposition import non_negative_factorization

import flegel
from flegel.algorithms.nmf import NMF
from flegel.algorithms.nmf.kullback import KLNMF
from flegel.algorithms.nmf.rows import descend, start_row, start_whole_row
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
        if isinstance(algorithm, KLNMF):
            start_row(h, stored, row[stored], w[i])
        else:
            start_whole_row(h.T @ h, h.T @ row, w[i])
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


def test_a_factorization_of_counts_becomes_a_genuine_one() -> None:
    algorithm = KLNMF(rank=2)
    rows = counts().astype(np.float64)
    result = flegel.run(algorithm, rows, sync="bsp", processes=False)
    assert set(result.parameters) == {"factors", "scale"} and "gathered" in result.internals
    genuine = result.to_sklearn()
    assert (genuine.solver, genuine.beta_loss) == ("mu", "kullback-leibler")
    np.testing.assert_allclose(genuine.inverse_transform(genuine.transform(rows)), result.predict(rows), 1e-2, 1e-2)


def test_the_divergence_of_an_entry_is_reported_while_a_factorization_of_counts_trains() -> None:
    algorithm, rows = KLNMF(rank=2), counts()
    result = flegel.run(algorithm, rows, sync="bsp", processes=False, progress=False)
    assert result.metrics["mean_divergence"] == pytest.approx(result.objective / rows.size)
    found = algorithm.evaluate(rows, None, result.parameter).metrics["mean_divergence"]
    assert result.metrics["mean_divergence"] == pytest.approx(found, rel=1e-3)


def test_kullback_leibler_kernel_does_what_the_hooks_say() -> None:
    whole = counts(2)
    algorithm = KLNMF(rank=2)
    run = start(algorithm, whole)
    plain, state = pytree.zeros_like(run.statistics), algorithm.initState(len(whole), 18, np.random.default_rng(0))
    for _ in range(3):
        pytree.clear(plain, algorithm.statistics.spent)
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


@pytest.mark.parametrize("apart", [1.0, 1e-2, 1e-4])
def test_a_new_row_is_solved_exactly_where_factors_are_almost_parallel(apart: float) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        h = rng.random((9, 1)) + apart * rng.random((9, 5))
        row, weights = rng.random(9), np.zeros(5)
        descend(h.T @ h, h.T @ row, weights, 1, True)
        assert (weights >= 0).all()
        assert ((row - h @ weights) ** 2).sum() <= nnls(h, row)[1] ** 2 + 1e-12


def test_a_row_whose_columns_have_hardly_any_factors_is_not_blown_up() -> None:
    """Its stored entry alone would ask for weights of 1e13; predictions elsewhere were then 1e13 times too large."""
    h = np.array([[1e-13, 2e-13, 0.0], [3.0, 1.0, 2.0], [0.5, 2.0, 1.0]])
    model = NMF(rank=3, solver="coordinate", precision="float64")
    rows = sparse_of(np.array([[4.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 6.0, 1.0]]))
    first = start(model, rows).parameter
    found = model.evaluate(rows, None, first._replace(factors=h, scale=np.ones(1)))
    assert 16.0 - 1e-9 <= found.objective <= 16.0 + 1e-9


@HISTORIES
@pytest.mark.parametrize("solver", ["coordinate", "multiplicative"])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_penalties_on_squares_and_sums_of_rows_and_columns_are_minimized(
    kind: str, solver: str, workers: int, barriers: int
) -> None:
    whole, penalty = counts(), {"regularization": 0.02, "column_regularization": 0.005, "l1_ratio": 0.4}
    algorithm = NMF(rank=3, solver=solver, precision="float64", **penalty)  # type: ignore[arg-type]
    run = start(algorithm, sparse_of(whole) if kind == "sparse" else whole, workers=workers).passes(2)
    run.objectives.clear()
    run.passes(60, max(share.points for share in run.shares) // barriers)
    assert (np.diff(run.objectives) <= 1e-9 * run.objectives[0]).all()
    w = np.concatenate([share.state[:, :3] for share in run.shares])
    h, scale = run.parameter.factors, run.parameter.scale[0]
    value = ((whole / scale - w @ h.T) ** 2).sum()
    value += 0.02 * 18 * (0.6 * (w**2).sum() + 0.8 * w.sum()) + 0.005 * 150 * (0.6 * (h**2).sum() + 0.8 * h.sum())
    assert run.objectives[-1] == pytest.approx(scale**2 * value, rel=1e-9)
    exact = algorithm.evaluate(whole, None, run.parameter).objective
    assert exact <= run.objectives[-1] * (1 + 1e-9)
    # scikit-learn counts half of the squares, and its sums are in other units
    squares, sums = 0.6 * scale, 0.4 * scale**1.5
    peer = {
        "alpha_W": 0.02 * (squares + sums),
        "alpha_H": 0.005 * (squares + sums),
        "l1_ratio": sums / (squares + sums),
    }
    fitted = algorithm.to_sklearn(run.parameter, None)
    assert {name: getattr(fitted, name) for name in peer} == pytest.approx(peer)
    if solver == "coordinate":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _, found, _ = non_negative_factorization(
                whole, W=np.sqrt(scale) * np.ascontiguousarray(w), H=np.sqrt(scale) * h.T.copy(), n_components=3,
                init="custom", max_iter=400, tol=0, **peer,
            )  # fmt: skip
        further = run.parameter._replace(factors=found.T / np.sqrt(scale))
        assert exact <= algorithm.evaluate(whole, None, further).objective * 1.001


def test_stochastic_steps_have_one_penalty_on_squares() -> None:
    for penalty in ({"l1_ratio": 0.5}, {"column_regularization": 0.1}):
        with pytest.raises(UsageError, match="need solver=coordinate or solver=multiplicative"):
            start(NMF(rank=2, **penalty), counts())  # type: ignore[arg-type]


def test_extrapolation_never_raises_the_objective() -> None:
    run = start(NMF(rank=3, solver="coordinate", precision="float64"), counts())
    values = run.passes(60).objectives
    assert (np.diff(values[2:]) <= 1e-12 * values[0]).all()
    assert float(run.parameter.pace[0]) > 1.0, "there was some"
