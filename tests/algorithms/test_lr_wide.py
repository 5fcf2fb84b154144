"""Logistic regression of wide rows: both kernels add what the hooks return, and one table says which serves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from local_training import sparse_of

import flegel
from flegel.algorithm import Sample
from flegel.algorithms.lr import LR
from flegel.algorithms.lr.kernels import kernel_for
from flegel.algorithms.lr.products import ProductKernel
from flegel.algorithms.lr.shapes import kernel_choice, served_by, served_shapes
from flegel.algorithms.lr.sparse_many import ManyClasses
from flegel.configuration.active import active, using
from flegel.core import pytree
from flegel.core.shard import DataPoint, SparseRow, make_shard
from flegel.core.stop_flag import new_flag

POINTS, COLUMNS, CLASSES = 2 * active().lr.product_rows + 70, 150, 48
BY_TILES, BY_PRODUCTS = kernel_for, ProductKernel


def table(dtype: str, points: int = POINTS, classes: int = CLASSES, columns: int = COLUMNS) -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    rows = rng.normal(2.0, 1.5, size=(points, columns)).astype(dtype)
    return rows, (rng.integers(classes, size=points) * 2).astype(np.float64)


def begun(rows: Any, labels: Any, classes: int = CLASSES, sparse: bool = False, **hyper: Any) -> tuple[LR, Any, Any]:
    """The algorithm, a θ that is not 0, and empty statistics."""
    algorithm = LR(classes=[2.0 * c for c in range(classes)], l2=1e-3, **hyper)
    sample = Sample(sparse_of(rows) if sparse else rows, labels, len(rows), rows.shape[1])
    rng = np.random.default_rng(1)
    parameter = pytree.as_doubles(algorithm.initParameter(sample, rng))
    parameter = parameter._replace(
        weights=0.05 * rng.normal(size=parameter.weights.shape), bias=0.1 * rng.normal(size=classes)
    )
    return algorithm, parameter, pytree.as_doubles(algorithm.initAggregator(sample, parameter))


def nearby(parameter: Any, number: int) -> Any:
    """The so manieth θ, read-only as in a job: kernels are compiled for that type, and not once more for another."""
    visit = np.r_[0.01, 1.0 + number, 0.5 - 0.45 * number, 1e-3, 1.0, parameter.internal_visit[5:]]
    return pytree.read_only(parameter._replace(weights=(1.0 + number) * parameter.weights, internal_visit=visit))


def by_hooks(algorithm: LR, shard: Any, parameter: Any, zero: Any, which: range, sparse: bool = False) -> Any:
    total = pytree.zeros_like(zero)
    for i in which:
        weight = 1.0 if shard.weights is None else float(shard.weights[i])
        row = shard.features[i].astype(np.float64)
        features = SparseRow(np.flatnonzero(row).astype(np.int32), row[row != 0.0]) if sparse else row
        point = DataPoint(features, shard.labels[i], shard.state[i], weight)
        change = algorithm.updateDataPoint(point, parameter, 0)
        for into, extra in zip(total, change, strict=True):
            into += extra
    return total


@pytest.mark.parametrize("kernel", [BY_TILES, BY_PRODUCTS], ids=["tiles", "products"])
@pytest.mark.parametrize(("dtype", "weighted"), [("float32", False), ("float64", True)])
def test_a_kernel_adds_what_the_hooks_return(kernel: Any, dtype: str, weighted: bool) -> None:
    rows, labels = table(dtype)
    labels[5] = 999.0  # unknown
    algorithm, parameter, zero = begun(rows, np.delete(labels, 5))
    weights = np.random.default_rng(0).uniform(0.5, 2.0, POINTS) if weighted else None
    layout = "tiles" if kernel is BY_TILES else "rows"
    states = algorithm.initState(POINTS, COLUMNS, np.random.default_rng(0))
    shard = make_shard(rows, labels, states, layout, weights=weights)
    plain = make_shard(rows, labels, states.copy(), "rows", weights=weights)
    train = kernel_for(True, shard, CLASSES) if kernel is BY_TILES else ProductKernel(True)
    found, expected = pytree.zeros_like(zero), pytree.zeros_like(zero)
    for number, which in enumerate((range(3, POINTS - 9), range(POINTS))):
        theta = nearby(parameter, number)
        assert train(shard, theta, found, which.start, which.stop, 0, new_flag()) == which.stop
        for into, extra in zip(expected, by_hooks(algorithm, plain, theta, zero, which), strict=True):
            into += extra
        for name, mine, theirs in zip(zero._fields, found, expected, strict=True):
            size = max(float(np.abs(theirs).max()), 1e-3)
            assert np.allclose(mine, theirs, atol=(2e-5 if dtype == "float32" else 1e-6) * size, rtol=0), name
    assert np.allclose(shard.state_rows(), plain.state_rows(), atol=2e-6)


def test_a_raised_flag_leaves_points_alone_and_the_first_block_of_a_call_is_finished() -> None:
    rows, labels = table("float32")
    algorithm, parameter, zero = begun(rows, labels)
    shard = make_shard(rows, labels, algorithm.initState(POINTS, COLUMNS, np.random.default_rng(0)), "rows")
    flag, found = new_flag(), pytree.zeros_like(zero)
    flag[0] = 1
    assert ProductKernel(True)(shard, parameter, found, 7, POINTS, 0, flag) == 7
    assert not shard.state.any() and not any(np.asarray(field).any() for field in found)


class RaisedLater:
    """A flag that is raised at its n-th reading."""

    def __init__(self, readings: int) -> None:
        self.left = readings

    def __getitem__(self, at: int) -> int:
        self.left -= 1
        return int(self.left <= 0)


def test_a_flag_that_is_raised_between_parts_of_scores_ends_a_block_that_is_not_the_first() -> None:
    rows, labels = table("float32")
    algorithm, parameter, zero = begun(rows, labels)
    shard = make_shard(rows, labels, algorithm.initState(POINTS, COLUMNS, np.random.default_rng(0)), "rows")
    some = active().lr.product_rows
    with using({"lr.product_multiplications": 16 * some * COLUMNS}):
        kernel = ProductKernel(True)
    flag, found = RaisedLater(4), pytree.zeros_like(zero)  # read before both blocks; of the second, after 16 outputs
    assert kernel(shard, parameter, found, 0, POINTS, 0, flag) == some  # type: ignore[arg-type]
    assert flag.left == 0, "not read again behind all parts"
    assert shard.state[:some].any() and not shard.state[some:].any()


def test_rows_are_judged_in_parts_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = table("float32", 300)
    labels[7] = 999.0  # unknown
    algorithm, parameter, _ = begun(rows, np.delete(labels, 7))
    whole = algorithm.evaluate(rows, labels, parameter), algorithm.predict(rows, parameter)
    monkeypatch.setattr("flegel.algorithms.rows.NUMBERS_AT_ONCE", 1_000)
    parts = algorithm.evaluate(sparse_of(rows), labels, parameter), algorithm.predict(rows, parameter)
    assert np.array_equal(parts[1], whole[1])
    assert parts[0].objective == pytest.approx(whole[0].objective, rel=1e-9)
    assert parts[0].metrics == pytest.approx(whole[0].metrics, rel=1e-9)


def test_one_table_says_which_kernel_serves_a_shape() -> None:
    assert served_shapes()[-1][:2] == (1, 1), "every shape is served"
    for outputs, columns, kernel in (
        (1, 28, "tiles"),
        (10, 784, "tiles"),
        (7, 54, "tiles"),
        (1000, 20, "tiles"),  # enough products, but all second derivatives are summed
        (1000, 2048, "products"),
    ):
        assert served_by(outputs, columns).kernel == kernel
        assert kernel_choice(outputs, columns).startswith(f"{kernel} for {columns:,} columns × {outputs:,} outputs")
        known = LR(classes=[float(c) for c in range(max(outputs, 2))])
        assert known.layout_for(columns) == ("rows" if kernel == "products" else "tiles")
    assert LR().layout_for(2048) == "tiles", "nothing is known of the classes yet"
    assert LR(classes=[float(c) for c in range(100)]).layout_for(20) == "tiles", "all second derivatives are summed"


def test_a_job_of_many_classes_trains_by_products_and_says_so() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(900, 360)).astype(np.float32)
    labels = (rows @ rng.normal(size=(360, CLASSES))).argmax(axis=1)
    labels[:CLASSES] = np.arange(CLASSES)
    algorithm = LR(l2=0.01)
    result = flegel.run(algorithm, (rows, labels), workers=2, sync="bsp", seed=1, processes=False)
    assert result.kernel_choice == kernel_choice(CLASSES, 360) and result.kernel_choice.startswith("products")
    evaluated = algorithm.evaluate(rows, labels, result.parameter)
    assert result.objective == pytest.approx(evaluated.objective, rel=1e-4)
    zeros = result.parameter._replace(weights=0 * result.parameter.weights, bias=0 * result.parameter.bias)
    assert evaluated.objective < 0.7 * algorithm.evaluate(rows, labels, zeros).objective


SUMS_OF_SPARSE = {"all second derivatives": (12, 1.0), "their diagonal": (700, 0.0), "the diagonal at first": (90, 2.0)}


@pytest.mark.parametrize(("columns", "mode"), SUMS_OF_SPARSE.values(), ids=list(SUMS_OF_SPARSE))
@pytest.mark.parametrize("weighted", [False, True])
def test_two_steps_over_sparse_rows_give_the_bits_of_one(columns: int, mode: float, weighted: bool) -> None:
    classes, points = 9, 3000
    rows, labels = table("float32", points, classes, columns)
    rows[np.random.default_rng(0).random(rows.shape) < 0.8] = 0.0
    labels[[7, 2999]] = 999.0  # unknown
    algorithm, parameter, zero = begun(rows, np.delete(labels, [7, 2999]), classes, sparse=True)
    assert parameter.internal_visit[5] == mode
    weights = np.random.default_rng(0).uniform(0.5, 2.0, points) if weighted else None
    states = algorithm.initState(points, columns, np.random.default_rng(0))
    one, two = (make_shard(sparse_of(rows), labels, states.copy(), "rows", weights=weights) for _ in range(2))
    plain = make_shard(rows, labels, states.copy(), "rows", weights=weights)
    at_once, in_steps = kernel_for(True, one, classes), kernel_for(True, two, classes)
    assert isinstance(in_steps, ManyClasses)
    found, expected, by_hook = (pytree.zeros_like(zero) for _ in range(3))
    for number, (start, end) in enumerate(((5, 2000), (0, points))):
        theta = nearby(parameter, number)
        assert at_once(one, theta, expected, start, end, 0, new_flag()) == end
        in_steps.prepare(two, theta)
        for low, high in ((start, 1500), (1500, points)):  # of the first call, points from 2000 on are forgotten again
            in_steps.decide(two, theta, found, low, high, 0, new_flag())
        for part in reversed(range(in_steps.collect(two, start, end))):
            in_steps.add(two, theta, found, part)
        more = by_hooks(algorithm, plain, theta, zero, range(start, end), sparse=True)
        by_hook = pytree.add(by_hook, more)
    for name, mine, theirs, right in zip(zero._fields, found, expected, by_hook, strict=True):
        assert np.array_equal(mine, theirs), name
        assert np.allclose(mine, right, rtol=0, atol=1e-6 * max(float(np.abs(right).max()), 1e-3)), name
    assert np.array_equal(one.state, two.state)
    assert np.allclose(one.state_rows(), plain.state_rows(), atol=2e-6)
