"""Logistic regression on nearly collinear tables whose second derivatives are too many to be summed from the start."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from local_training import Run, sparse_of, start

from flegel.algorithms.lr import LR, lr
from flegel.algorithms.lr.lr import FULL_NUMBERS, LATE_NUMBERS, LATE_PASSES
from flegel.algorithms.lr.search import LATER

POINTS = 1200


def table(columns: int, classes: int, condition: float, seed: int = 0) -> tuple[Any, Any]:
    """Standardized columns whose combinations differ in size by `condition`; hardly a label is noise."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.standard_normal((columns, columns)))[0]
    rows = rng.standard_normal((POINTS, columns)) * np.geomspace(1.0, 1.0 / condition, columns) @ turn
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    scores = rows @ rng.standard_normal((columns, classes)) / columns**0.5 * 20.0
    labels = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1).astype(np.float64)
    labels[:classes] = np.arange(classes)
    return rows, labels


def until_converged(run: Run, passes: int, barriers: int = 1) -> int:
    each = POINTS // len(run.shares) // barriers
    for done in range(passes):
        run.passes(1, each)
        if run.algorithm.optimality(run.statistics, run.parameter) <= 1e-4:
            return done + 1
    return passes + 1


@pytest.mark.parametrize(("workers", "barriers"), [(1, 1), (3, 8)])
@pytest.mark.parametrize(("columns", "classes", "sparse"), [(80, 12, False), (270, 2, False), (80, 12, True)])
def test_the_minimum_is_reached_and_known(
    columns: int, classes: int, sparse: bool, workers: int, barriers: int
) -> None:
    rows, labels = table(columns, classes, 1e8)
    algorithm = LR(l2=1.0 / POINTS, classes=[float(c) for c in range(classes)])
    assert FULL_NUMBERS < algorithm.outputs * (columns + 1) ** 2 <= LATE_NUMBERS
    run = start(algorithm, sparse_of(rows) if sparse else rows, labels, workers=workers)
    assert until_converged(run, 80, barriers) <= 80
    found = algorithm.finalParameter(run.statistics, run.parameter)
    reached = algorithm.evaluate(rows, labels, found).objective
    assert reached <= run.passes(25).objectives[-1] * 1.0001, "it said that it was there"
    assert algorithm.warnings(run.statistics, found) == []
    if classes > 2:
        np.testing.assert_allclose(found.weights.sum(axis=0), 0.0, atol=1e-9)


def test_without_second_derivatives_it_takes_twice_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = table(80, 12, 1e8)

    def passes() -> int:
        run = start(LR(l2=0.01 / POINTS, classes=[float(c) for c in range(12)]), rows, labels)
        return until_converged(run, 100)

    late = passes()
    monkeypatch.setattr(lr, "LATE_NUMBERS", 0)
    assert passes() > 2 * late


def test_well_conditioned_tables_never_sum_them() -> None:
    rows, labels = table(80, 12, 2.0)
    run = start(LR(l2=0.1, classes=[float(c) for c in range(12)]), rows, labels)
    assert until_converged(run, LATE_PASSES) <= LATE_PASSES
    assert run.parameter.internal_visit[5] == LATER
    assert not run.statistics.curvature.any()


def test_the_objective_never_rises() -> None:
    rows, labels = table(80, 12, 1e8)
    run = start(LR(l2=1.0 / POINTS, classes=[float(c) for c in range(12)]), rows, labels).passes(40)
    assert all(after <= before * (1 + 1e-7) for before, after in zip(run.objectives, run.objectives[1:], strict=False))
