"""Mixtures of Bernoulli distributions beside EM by hand: every model, sparse rows and weights, criteria."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from typer.testing import CliRunner

import flegel
from flegel import check_algorithm
from flegel.algorithms.clusters.bernoulli_mixture import BernoulliMixture
from flegel.cli.main import app
from flegel.core.pytree import Array
from flegel.errors import UsageError
from flegel.sklearn import BernoulliMixture as Estimator
from tests.models import MODELS

RNG = np.random.default_rng(1)
CHANCES = RNG.beta(0.5, 0.5, size=(4, 15))
WHICH = RNG.choice(4, 1200, p=[0.4, 0.3, 0.2, 0.1])
X = (RNG.random((1200, 15)) < CHANCES[WHICH]).astype(float)
SMOOTHING = 1e-3


def joint_by_hand(weights: Array, chances: Array) -> Array:
    return np.asarray(np.log(weights) + X @ np.log(chances).T + (1 - X) @ np.log1p(-chances).T)


def step_by_hand(weights: Array, chances: Array) -> tuple[Array, Array]:
    joint = joint_by_hand(weights, chances)
    shares = np.exp(joint - np.logaddexp.reduce(joint, axis=1)[:, None])
    counts = shares.sum(axis=0)
    chances = (shares.T @ X + SMOOTHING) / (counts[:, None] + 2 * SMOOTHING)
    return (counts + SMOOTHING) / (counts + SMOOTHING).sum(), chances


def likelihood_by_hand(weights: Array, chances: Array) -> float:
    return float(np.logaddexp.reduce(joint_by_hand(weights, chances), axis=1).sum())


def best_by_hand(starts: int = 5, steps: int = 200) -> float:
    found = []
    for seed in range(starts):
        weights, chances = np.full(4, 0.25), np.random.default_rng(seed).uniform(0.25, 0.75, (4, 15))
        for _ in range(steps):
            weights, chances = step_by_hand(weights, chances)
        found.append(likelihood_by_hand(weights, chances))
    return max(found)


def test_passes_of_bsp_are_steps_of_em() -> None:
    algorithm = BernoulliMixture(k=4)
    assert check_algorithm(algorithm)
    one, two = (
        flegel.run(algorithm, X, sync="bsp", workers=1, seed=0, max_passes=passes, progress=False).parameter
        for passes in (1, 2)
    )
    weights, chances = step_by_hand(one.weights, one.chances)
    np.testing.assert_allclose(two.weights, weights, rtol=1e-8)
    np.testing.assert_allclose(two.chances, chances, rtol=1e-7)


@pytest.mark.processes
@pytest.mark.parametrize("sync", MODELS)
def test_every_model_is_as_likely_as_the_best_of_several_starts_by_hand(sync: str, cluster) -> None:
    algorithm = BernoulliMixture(k=4)
    result = flegel.run(algorithm, X, sync=sync, workers=2, cluster=cluster, straggler="0:3x", max_seconds=600, seed=1)
    assert result.outcome == "converged", result.reason
    found = algorithm.evaluate(X, None, result.parameter)
    total = likelihood_by_hand(result.parameter.weights, result.parameter.chances)
    assert found.metrics["log_likelihood"] * len(X) == pytest.approx(total, rel=1e-10)
    assert result.objective == pytest.approx(found.objective, rel=1e-5)
    assert total >= best_by_hand() - 1e-4 * abs(total)


def test_dense_and_sparse_rows_and_weights_give_the_same_mixture() -> None:
    options = {"sync": "bsp", "workers": 1, "max_passes": 5, "seed": 0, "progress": False}
    algorithm = BernoulliMixture(k=3)
    dense = flegel.run(algorithm, X, **options).parameter.chances
    sparse = flegel.run(algorithm, scipy.sparse.csr_matrix(X), **options).parameter.chances
    np.testing.assert_allclose(sparse, dense, rtol=1e-9)
    weights = RNG.integers(1, 4, size=len(X))
    start = flegel.run(algorithm, X, **options)
    weighted = flegel.run(algorithm, (X, None, weights.astype(float)), start=start, **options).parameter.chances
    twice = flegel.run(algorithm, np.repeat(X, weights, axis=0), start=start, **options).parameter.chances
    np.testing.assert_allclose(weighted, twice, rtol=1e-8)


def test_the_estimator_finds_components_and_their_number() -> None:
    models_of = {k: Estimator(k, random_state=0).fit(X) for k in (1, 4, 7)}
    assert min(models_of, key=lambda k: models_of[k].bic(X)) == 4
    four = models_of[4]
    np.testing.assert_allclose(four.predict_proba(X).sum(axis=1), 1.0)
    assert four.converged_ and four.lower_bound_ == pytest.approx(four.score(X))
    order = np.argsort(-four.weights_)
    np.testing.assert_allclose(four.means_[order], CHANCES, atol=0.12)
    with pytest.raises(ValueError, match="smoothing must be above 0"):
        Estimator(2, smoothing=0.0).fit(X)


def test_the_command_line_trains_and_evaluates(tmp_path: Path) -> None:
    np.savetxt(
        tmp_path / "answers.csv", X, delimiter=",", fmt="%d", header=",".join(f"q{t}" for t in range(15)), comments=""
    )
    data = ["--data", str(tmp_path / "answers.csv")]
    told = CliRunner().invoke(
        app, ["submit", "bernoullimixture", *data, "--set", "k=4", "--out", str(tmp_path / "out")]
    )
    assert told.exit_code == 0, told.output
    figures = CliRunner().invoke(app, ["evaluate", str(tmp_path / "out"), *data])
    assert figures.exit_code == 0 and "log_likelihood" in figures.output, figures.output
    with pytest.raises(UsageError, match="k=3 is more than the number of points"):
        flegel.run(BernoulliMixture(k=3), X[:2], progress=False)
