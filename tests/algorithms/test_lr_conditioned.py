"""Logistic regression on nearly collinear tables whose second derivatives are too many to be summed from the start."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from local_training import Run, sparse_of, start

from bench.micro.connections import connections
from flegel.algorithms.lr import LR
from flegel.algorithms.lr.curvature import SIDE, TILE_ROWS, add_block, width_of
from flegel.algorithms.lr.search import LATER, Solver, StepSearch, begin, quasi_newton, shorter
from flegel.configuration.active import active, using

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
    assert active().shapes.lr_full_numbers < algorithm.outputs * (columns + 1) ** 2 <= active().shapes.lr_late_numbers
    run = start(algorithm, sparse_of(rows) if sparse else rows, labels, workers=workers)
    assert until_converged(run, 100, barriers) <= 100
    found = algorithm.finalParameter(run.statistics, run.parameter)
    reached = algorithm.evaluate(rows, labels, found).objective
    assert reached <= run.passes(25).objectives[-1] * 1.0001, "it said that it was there"
    assert algorithm.warnings(run.statistics, found) == []
    if classes > 2:
        np.testing.assert_allclose(found.weights.sum(axis=0), 0.0, atol=1e-9)


def test_with_the_diagonal_alone_it_takes_longer() -> None:
    rows, labels = table(80, 12, 1e8)

    def passes(most: int) -> int:
        run = start(LR(l2=0.01 / POINTS, classes=[float(c) for c in range(12)]), rows, labels)
        return until_converged(run, most)

    needed = passes(150)
    assert needed <= 150
    half_as_many_again = math.ceil(1.5 * needed)
    with using({"lr.late_sums_from_steps": 1e9}):
        assert passes(half_as_many_again) > half_as_many_again, "not there yet"


def test_well_conditioned_tables_never_sum_them() -> None:
    rows, labels = table(80, 12, 2.0)
    run = start(LR(l2=0.1, classes=[float(c) for c in range(12)]), rows, labels)
    assert until_converged(run, active().lr.passes_before_late_sums) <= active().lr.passes_before_late_sums
    assert run.parameter.internal_visit[5] == LATER
    assert run.statistics.curvature[:, 0].all(), "their diagonal"
    assert not run.statistics.curvature[:, 1:].any()


@pytest.mark.parametrize("sparse", [False, True])
def test_the_diagonal_is_taken_out_before_all_are_summed(sparse: bool) -> None:
    rows, labels = table(80, 12, 1e8)
    run = start(
        LR(l2=0.01 / POINTS, classes=[float(c) for c in range(12)]), sparse_of(rows) if sparse else rows, labels
    )
    while run.parameter.internal_visit[5] != 1.0:
        run.passes(1)
    np.testing.assert_allclose(run.statistics.curvature, 0.0, atol=1e-9)
    run.passes(1)
    state = run.shares[0].state
    h = (state if sparse else state.transpose(0, 2, 1).reshape(-1, 26))[:POINTS, 13:25].astype(np.float64)
    metric = run.parameter.internal_metric
    full = np.hstack([(rows - metric[0, :-1]) / metric[1, :-1], np.ones((POINTS, 1))])
    summed = run.statistics.curvature[3]
    np.testing.assert_allclose(summed, np.tril((full * h[:, 3:4]).T @ full), rtol=1e-6, atol=1e-6)


def test_connections_reach_the_minimum_before_all_are_summed() -> None:
    """Heavy tails, near copies, constant columns and classes of two rows: as good after passes that a table takes which
    the diagonal suits, and it knows."""
    rows, labels = connections(4000, np.random.default_rng(0))
    algorithm = LR(l2=1.0 / len(rows), classes=[float(c) for c in range(23)])
    run = start(algorithm, rows, labels)
    passes = 0
    while algorithm.optimality(run.statistics, run.parameter) > 1e-4 and passes < 150:
        run.passes(1)
        passes += 1
    assert passes < 150 and run.parameter.internal_visit[5] == LATER
    reached = run.objectives[-1]
    assert reached <= run.passes(40).objectives[-1] * 1.0001


def test_wide_sparse_rows_begin_with_the_diagonal() -> None:
    rng = np.random.default_rng(0)
    rows = (rng.random((600, 1500)) < 20.0 / np.arange(1, 1501) ** 0.9 / 12.0) * rng.random((600, 1500))
    labels = (rows @ rng.standard_normal((1500, 4)) + rng.gumbel(size=(600, 4))).argmax(axis=1).astype(np.float64)
    algorithm = LR(l2=1.0 / 600, classes=[0.0, 1.0, 2.0, 3.0])
    run = start(algorithm, sparse_of(rows), labels, workers=2)
    assert run.parameter.internal_metric.shape == (2, 1501) and algorithm.holds(run.parameter)
    passes = 0
    while algorithm.optimality(run.statistics, run.parameter) > 1e-4 and passes < 60:
        run.passes(1)
        passes += 1
    assert passes < 60
    assert run.objectives[-1] <= run.passes(40).objectives[-1] * 1.0001


def test_products_made_at_once_give_the_step_of_two_loops() -> None:
    rng = np.random.default_rng(0)
    curved = np.diag(rng.random(12) + 0.5)
    pairs = np.zeros((4, 2, 3, 4))
    for i in range(3):  # the last place is empty
        pairs[i, 0] = rng.standard_normal((3, 4))
        pairs[i, 1] = (curved @ pairs[i, 0].reshape(-1)).reshape(3, 4)
    gradient = rng.standard_normal((3, 4))
    rest, parts = gradient.copy(), []
    for s, y in pairs[:3]:
        parts.append((s * rest).sum() / (s * y).sum())
        rest -= parts[-1] * y
    step = 0.7 * rest
    for (s, y), part in zip(pairs[2::-1], parts[::-1], strict=True):
        step += s * (part - (y * step).sum() / (s * y).sum())
    np.testing.assert_allclose(quasi_newton(gradient, pairs, Solver(lambda g: -0.7 * g), rescaled=False), -step)


def test_a_failed_step_ends_at_the_minimum_of_the_cubic() -> None:
    search = StepSearch(*begin(10, True))._replace(best=0.0, promised=-1.0, length=1.0)
    # 2x³ + x² − x has its minimum at (√7 − 1) / 6
    assert shorter(search, 2.0, 7.0) == pytest.approx((7.0**0.5 - 1.0) / 6.0)


def test_the_objective_never_rises() -> None:
    rows, labels = table(80, 12, 1e8)
    run = start(LR(l2=1.0 / POINTS, classes=[float(c) for c in range(12)]), rows, labels).passes(40)
    assert all(after <= before * (1 + 1e-7) for before, after in zip(run.objectives, run.objectives[1:], strict=False))


@pytest.mark.parametrize("columns", [1, 3, 4, 8, 15, 20])
def test_sums_of_curvature_fill_whole_register_tiles_and_nothing_beyond(columns: int) -> None:
    """Registers of 16 bytes hold fewer numbers than a register tile has rows: its last rows lay behind the sums."""
    width = width_of(columns)
    assert width > columns and width % TILE_ROWS == 0 and width % SIDE == 0
    rows, steps = np.random.default_rng(0).normal(size=(5, width)), np.linspace(0.5, 2.5, 5)[None]
    room = np.full(2 * width * width + TILE_ROWS * width, 7.0)
    sums = room[: width * width].reshape(1, width, width)
    sums[:] = 0.0
    add_block(rows, steps, 5, np.empty((5, width)), sums)
    np.testing.assert_allclose(np.tril(sums[0]), np.tril((rows.T * steps) @ rows), atol=1e-12)
    assert (room[width * width :] == 7.0).all()
