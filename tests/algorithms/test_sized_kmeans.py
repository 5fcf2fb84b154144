"""K-means with limits on sizes: exact assignments beside a linear program, sizes that hold, jobs under every model."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

import flegel
from flegel.algorithms.clusters.sized_kmeans import SizedKMeans
from flegel.algorithms.clusters.transport import Sizes, assign
from flegel.algorithms.seeding import as_often_as_they_weigh
from flegel.core.pytree import Array
from flegel.errors import UsageError
from tests.models import MODELS


def skewed(rows: int, seed: int = 0) -> Array:
    """Five clouds of very unequal sizes."""
    rng = np.random.default_rng(seed)
    which = rng.choice(5, rows, p=[0.5, 0.3, 0.1, 0.06, 0.04])
    return 6.0 * rng.normal(size=(5, 3))[which] + rng.normal(size=(rows, 3))


def least_cost(costs: Array, low: float, high: float) -> float:
    """The optimum of the linear program."""
    rows, k = costs.shape
    sums = np.kron(np.ones((1, rows)), np.eye(k))
    limits = np.r_[np.full(k, high), np.full(k, -low)]
    found = linprog(
        costs.ravel(),
        A_ub=np.vstack([sums, -sums]),
        b_ub=limits,
        A_eq=np.kron(np.eye(rows), np.ones((1, k))),
        b_eq=np.ones(rows),
    )
    return float(found.fun)


@pytest.mark.parametrize("kind", ["normal", "rounded", "equal", "apart"])
@pytest.mark.parametrize("seed", range(4))
def test_an_assignment_is_the_optimum_of_the_linear_program(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, k = int(rng.integers(40, 200)), int(rng.integers(2, 7))
    X = rng.normal(size=(rows, 2))
    if kind == "apart":
        X += 100.0 * rng.integers(0, 3, size=(rows, 1))
    X = {"rounded": np.round(X), "equal": np.ones_like(X)}.get(kind, X)
    costs = ((X[:, None] - X[rng.choice(rows, k, replace=False)]) ** 2).sum(axis=2)
    low, high = int(rng.integers(0, rows // k + 1)), int(rng.integers(-(-rows // k), rows + 1))
    labels, prices = assign(costs, np.zeros(k), Sizes(np.full(k, float(low)), np.full(k, float(high))))
    counts = np.bincount(labels, minlength=k)
    assert low <= counts.min() and counts.max() <= high
    total = costs[np.arange(rows), labels].sum()
    assert total == pytest.approx(least_cost(costs, low, high), rel=1e-7, abs=1e-7)
    priced = costs + prices
    assert (priced[np.arange(rows), labels] <= priced.min(axis=1) + 1e-9 * (1 + costs.max())).all(), "no row would move"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("low", "high"), [(50, 50), (50, None), (0, 55), (45, 55)])
def test_prices_alone_give_the_assignment_where_no_rows_are_equal(low: int, high: int | None, seed: int) -> None:
    X = skewed(250, seed)
    costs = ((X[:, None] - X[:5]) ** 2).sum(axis=2)
    sizes = Sizes(np.full(5, float(low)), np.full(5, np.inf if high is None else float(high)))
    labels, prices = assign(costs, np.zeros(5), sizes)
    assert ((costs + prices).argmin(axis=1) == labels).all(), "no row is indifferent"


def test_prices_of_a_part_of_the_rows_shorten_the_way_and_change_no_result() -> None:
    X = skewed(3000)
    costs = ((X[:, None] - X[:4]) ** 2).sum(axis=2)
    sizes = Sizes(np.full(4, 700.0), np.full(4, 800.0))
    begun = assign(costs[:300], np.zeros(4), Sizes(np.full(4, 70.0), np.full(4, 80.0))).prices
    one, other = assign(costs, begun, sizes), assign(costs, np.zeros(4), sizes)
    place = np.arange(len(X))
    assert costs[place, one.labels].sum() == pytest.approx(costs[place, other.labels].sum(), rel=1e-12)


def test_rows_are_drawn_as_often_as_they_weigh() -> None:
    rng, rows = np.random.default_rng(0), np.arange(40.0)[:, None]
    whole = rng.integers(1, 4, 40).astype(np.float64)
    drawn = as_often_as_they_weigh(rows, whole, 1000, rng)
    assert np.bincount(drawn[:, 0].astype(int)).tolist() == whole.tolist(), "small tables whole, equal rows counted"
    weights = rng.random(40)
    often = np.bincount(as_often_as_they_weigh(rows, weights, 1000, rng)[:, 0].astype(int), minlength=40)
    assert (np.abs(often - 1000 * weights / weights.sum()) < 1.0 + 1e-9).all()


@pytest.mark.processes
@pytest.mark.parametrize("sync", MODELS)
def test_sizes_hold_under_every_model(sync: str, cluster) -> None:
    X = skewed(4000)
    algorithm = SizedKMeans(k=4, size_min=950, size_max=1050)
    result = flegel.run(algorithm, X, sync=sync, workers=2, cluster=cluster, straggler="0:3x", max_seconds=600, seed=1)
    assert result.outcome == "converged", result.reason
    assert result.objective == pytest.approx(algorithm.evaluate(X, None, result.parameter).objective, rel=1e-9)
    counts = np.bincount(algorithm.predict(X, result.parameter), minlength=4)
    assert counts.min() >= 925 and counts.max() <= 1075, "by prices alone, but for a few rows"
    settled = algorithm.settled(X, result.parameter)
    counts = np.bincount(settled.labels, minlength=4)
    assert counts.min() >= 950 and counts.max() <= 1050
    assert settled.inertia == pytest.approx(result.objective, rel=0.01)


def test_the_objective_is_a_lower_bound_of_exact_sizes() -> None:
    X = skewed(2000, 3)
    algorithm = SizedKMeans(k=4, size_min=480, size_max=520)
    result = flegel.run(algorithm, X, sync="bsp", workers=1, seed=0, progress=False)
    costs = ((X[:, None] - result.parameter.centroids) ** 2).sum(axis=2)
    labels = assign(costs, result.parameter.prices, algorithm.sizes()).labels
    told = ([row["objective"] for row in result.rows], result.parameter, algorithm.evaluate(X, None, result.parameter))
    assert result.objective <= costs[np.arange(len(X)), labels].sum() * (1 + 1e-12), told


def test_limits_that_cannot_hold_are_refused() -> None:
    X = skewed(100)
    with pytest.raises(UsageError, match="100 points do not fit into 4 clusters of 26 to any number"):
        flegel.run(SizedKMeans(k=4, size_min=26), X, progress=False)
    with pytest.raises(UsageError, match="do not fit into 4 clusters of 0 to 24"):
        flegel.run(SizedKMeans(k=4, size_max=24), X, progress=False)
