"""When logistic regression says that it is at the minimum: tables on which it said so too early, or could say it
sooner."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

import flegel
from bench.micro.linear_minimum import Objective, Table, draw
from flegel.algorithms.lr import LR
from flegel.algorithms.lr.search import NOT_YET, Curvature, Penalty


def trained(rows: Any, labels: Any, l2: float, **settings: float) -> Any:
    given = {"sync": "bsp", "workers": 1, "processes": "no", "progress": False, "settings": settings}
    return flegel.run(LR(l2=l2), rows, labels, **given)


def least(table: Table, start: Any) -> float:
    objective = Objective(table)
    options = {"maxiter": 2000, "maxfun": 5000, "ftol": 1e-15, "gtol": 1e-12}
    return float(minimize(objective, start, jac=True, method="L-BFGS-B", options=options).fun)


@pytest.mark.parametrize("number", [4, 28])
def test_a_plateau_is_not_taken_for_the_minimum(number: int) -> None:
    """Weights grow without end along planes between some of the classes: steps bring next to nothing for a while."""
    table = draw(number, ["lr-many"], np.random.default_rng([101, number]), 800)
    result = trained(table.rows, table.labels, table.l2)
    theta = Objective(table).packed(result.parameter.weights, result.parameter.bias)
    assert not result.converged or result.objective <= least(table, theta) * 1.0001
    assert result.converged or result.warnings


@pytest.mark.parametrize("intercept", [True, False])
def test_the_penalty_alone_bounds_the_distance(intercept: bool) -> None:
    rng = np.random.default_rng(1)
    rows, labels = rng.standard_normal((200, 5)), rng.integers(0, 3, 200).astype(float)
    objective = Objective(Table(rows, labels, None, "lr-many", 0.05, ""))
    free = np.tile([1.0] * 5 + [float(intercept)], 3)

    def restricted(theta: Any) -> tuple[float, Any]:
        value, gradient = objective(theta * free)
        return value, gradient * free

    lowest = minimize(restricted, objective.start(), jac=True, method="L-BFGS-B", options={"gtol": 1e-12}).fun
    for size in (1.0, 0.1, 0.01):
        theta = size * rng.standard_normal(18) * free
        value, gradient = restricted(theta)
        metric = np.stack([np.append(np.zeros(5), float(intercept)), np.ones(6)])
        scores = np.hstack([rows, np.ones((200, 1))]) @ theta.reshape(3, 6).T
        likely = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        sums = np.zeros((3, 6, 6))
        sums[:, -1, -1] = (likely * (1.0 - likely)).sum(0)
        curvature = Curvature(sums, 200.0, metric, 0.5, True, 1e-16)
        bound = curvature.bound_of_gap(gradient.reshape(3, 6), Penalty(0.05, 0.0))
        assert value - lowest <= bound < NOT_YET
    assert curvature.bound_of_gap(gradient.reshape(3, 6), Penalty(0.0, 0.0)) == NOT_YET


def test_a_strong_penalty_ends_a_fit_sooner() -> None:
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((500, 20))
    labels = (rows @ rng.standard_normal((20, 6)) + rng.gumbel(size=(500, 6))).argmax(1).astype(float)
    ends = trained(rows, labels, 0.1)
    later = trained(rows, labels, 0.1, **{"lr.bound_with_bias": 1e12})
    assert ends.converged and later.converged
    assert ends.rows[-1]["passes"] < later.rows[-1]["passes"]
    assert ends.objective <= later.objective * 1.0001
