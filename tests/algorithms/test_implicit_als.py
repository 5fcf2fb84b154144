"""Implicit-feedback factors: exact steps, every model, and figures from scratch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from typer.testing import CliRunner

import flegel
from flegel import check_algorithm
from flegel.algorithms.implicit_als import ImplicitALS
from flegel.cli.main import app
from flegel.core.pytree import Array
from flegel.core.shard import Sparse
from flegel.errors import UsageError
from flegel.sklearn import ImplicitALS as Estimator
from tests.models import MODELS

RNG = np.random.default_rng(0)
WANTS = RNG.gamma(0.3, 1.0, (300, 5)) @ RNG.gamma(0.3, 1.0, (5, 40))
X = scipy.sparse.csr_matrix(RNG.poisson(0.5 * WANTS).astype(float))
ALPHA, L2 = 4.0, 0.5


def sweep_by_hand(rows: Array, fixed: Array) -> Array:
    """Least squares for the factors of rows, written down plainly."""
    found = []
    for row in rows:
        confidence = np.diag(1.0 + ALPHA * row)
        matrix = fixed.T @ confidence @ fixed + L2 * np.eye(fixed.shape[1])
        found.append(np.linalg.solve(matrix, fixed.T @ confidence @ (row > 0)))
    return np.array(found)


def objective_by_hand(rows: Array, users: Array, items: Array) -> float:
    errors = (1.0 + ALPHA * rows) * ((rows > 0) - users @ items.T) ** 2
    return float(errors.sum() + L2 * ((users**2).sum() + (items**2).sum()))


def test_passes_of_bsp_are_sweeps_of_alternating_least_squares() -> None:
    algorithm = ImplicitALS(rank=4, alpha=ALPHA, l2=L2)
    assert check_algorithm(algorithm)
    one, two = (
        flegel.run(algorithm, X, sync="bsp", workers=1, seed=0, max_passes=passes, progress=False).parameter.factors
        for passes in (1, 2)
    )
    users = sweep_by_hand(X.toarray(), one)
    np.testing.assert_allclose(two, sweep_by_hand(X.toarray().T, users), rtol=1e-6, atol=1e-9)


@pytest.mark.processes
@pytest.mark.parametrize("sync", MODELS)
def test_every_model_ends_where_no_sweep_by_hand_improves(sync: str, cluster) -> None:
    algorithm = ImplicitALS(rank=4, alpha=ALPHA, l2=L2)
    result = flegel.run(algorithm, X, sync=sync, workers=2, cluster=cluster, straggler="0:3x", max_seconds=600, seed=1)
    assert result.outcome == "converged", result.reason
    rows, items = X.toarray(), np.asarray(result.parameter.factors)
    users = sweep_by_hand(rows, items)
    found = algorithm.evaluate(Sparse(X.indptr, X.indices, X.data, X.shape[1]), None, result.parameter)
    assert found.objective == pytest.approx(objective_by_hand(rows, users, items), rel=1e-9)
    assert result.objective == pytest.approx(found.objective, rel=1e-3)
    better = sweep_by_hand(rows.T, users)
    assert objective_by_hand(rows, users, better) >= found.objective * (1 - 1e-3)
    assert found.metrics["mean_rank"] < 0.25


def test_dense_and_sparse_rows_and_weights_give_the_same_factors() -> None:
    options = {"sync": "bsp", "workers": 1, "max_passes": 3, "seed": 0, "progress": False}
    algorithm = ImplicitALS(rank=3)
    sparse = flegel.run(algorithm, X, **options).parameter.factors
    np.testing.assert_allclose(flegel.run(algorithm, X.toarray(), **options).parameter.factors, sparse, rtol=1e-8)
    weights = RNG.integers(1, 4, size=X.shape[0])
    twice = X[np.repeat(np.arange(X.shape[0]), weights)]
    weighted = flegel.run(algorithm, (X, None, weights.astype(float)), **options).parameter.factors
    np.testing.assert_allclose(weighted, flegel.run(algorithm, twice, **options).parameter.factors, rtol=1e-7)


def test_recommendations_leave_out_what_users_have() -> None:
    model = Estimator(4, alpha=ALPHA, regularization=L2, random_state=0).fit(X)
    items, scores = model.recommend(X[:5], 6)
    assert items.shape == scores.shape == (5, 6) and (np.diff(scores, axis=1) <= 0).all()
    assert all(X[user, item] == 0 for user in range(5) for item in items[user])
    known, _ = model.recommend(X[:5], X.shape[1], known=True)
    assert all(len(set(row)) == X.shape[1] for row in known)
    np.testing.assert_allclose(
        model.transform(X), sweep_by_hand(X.toarray(), model.components_.T), rtol=1e-6, atol=1e-9
    )
    items, scores = model.recommend(np.ones((1, X.shape[1])), 3)
    assert (items == -1).all() and (scores == -np.inf).all(), "nothing is left"
    for wrong in (-1, 0, 2.5):
        with pytest.raises(ValueError, match="whole number, at least 1"):
            model.recommend(X[:2], wrong)


def test_a_list_of_ratings_and_evaluate_on_the_command_line(tmp_path: Path) -> None:
    users, items = X.nonzero()
    lines = [f"{u},{i},{int(X[u, i])}" for u, i in zip(users, items, strict=True)]
    (tmp_path / "plays.csv").write_text("user,item,rating\n" + "\n".join(lines) + "\n")
    command = [
        "submit",
        "implicitals",
        "--data",
        str(tmp_path / "plays.csv"),
        "--set",
        "rank=3",
        "--max-passes",
        "10",
        "--out",
        str(tmp_path / "out"),
    ]
    told = CliRunner().invoke(app, command)
    assert told.exit_code == 0, told.output
    figures = CliRunner().invoke(app, ["evaluate", str(tmp_path / "out"), "--data", str(tmp_path / "plays.csv")])
    assert figures.exit_code == 0 and "mean_rank" in figures.output, figures.output


def test_what_is_no_count_and_what_is_too_large_are_refused() -> None:
    with pytest.raises(UsageError, match="counts of use are from 0 to"):
        flegel.run(ImplicitALS(rank=2), -X.toarray(), progress=False)
    found = flegel.run(ImplicitALS(rank=2), X, progress=False)
    with pytest.raises(UsageError, match="counts of use are from 0 to"):
        found.predict(-X.toarray()[:3])
    with pytest.raises(UsageError, match=r"counts of use are from 0 to 2.5e\+08 .* or divide them"):
        flegel.run(ImplicitALS(rank=2), X * 1e17, progress=False)
    wide = scipy.sparse.csr_matrix(([1.0], ([0], [0])), shape=(3, 2**21))
    with pytest.raises(UsageError, match=r"more than 1 GB; use rank="):
        flegel.run(ImplicitALS(rank=20), wide, progress=False)
