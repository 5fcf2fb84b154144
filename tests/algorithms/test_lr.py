"""Logistic regression: hooks and kernel agree, oracles, conservation, edge cases, real data."""

from __future__ import annotations

import math
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import real_data
from local_training import Run, point_of, sample_of, sparse_of, start
from numba import njit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from flegel.algorithms.lr import LR, precondition
from flegel.algorithms.lr.search import Curvature, Penalty, StepSearch, begin, unsolved
from flegel.configuration.active import using
from flegel.core import pytree
from flegel.core.shard import Sparse, make_shard
from flegel.core.stop_flag import new_flag
from flegel.errors import UsageError
from flegel.runtime.backends.numba.interpreted_loop import interpreted
from flegel.runtime.backends.numba.team_threads import InterpretedCalls, Sums, Team


def problem(points: int = 300, columns: int = 7, classes: int = 2, dtype: Any = np.float64) -> tuple[Any, Any]:
    rng = np.random.default_rng(points + columns + classes)
    rows = (rng.standard_normal((points, columns)) * rng.uniform(0.1, 30, columns) + 5).astype(dtype)
    scores = (rows - 5) @ rng.standard_normal((columns, classes)) / 10 + rng.gumbel(size=(points, classes))
    return rows, scores.argmax(axis=1).astype(np.float64)


def trained(algorithm: LR, rows: Any, labels: Any, passes: int = 3) -> Run:
    return start(algorithm, rows, labels).passes(passes, interval=97)


def by_hand(run: Run, rows: Any, labels: Any, points: slice, state: Any) -> Any:
    """The hooks, one point after the other, under the run's θ."""
    report = pytree.zeros_like(run.statistics)
    share = make_shard(rows, labels, state)
    for i in range(share.points)[points]:
        run.algorithm.aggregate(report, run.algorithm.updateDataPoint(point_of(share, i), run.parameter, 0))
    return report, share.state


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("columns", [3, 7, 12])  # with the bias: half, one and one and a half of a register tile
@pytest.mark.parametrize("kind", ["float32", "float64", "sparse"])
def test_kernel_does_what_the_hooks_do(kind: str, columns: int, memory: bool, classes: int) -> None:
    rows, labels = problem(columns=columns, classes=classes, dtype=np.float32 if kind == "float32" else np.float64)
    data = sparse_of(rows) if kind == "sparse" else rows
    run = trained(LR(memory=memory, l2=0.01), data, labels, passes=1)
    (share,) = run.shares
    before = np.array(share.state_rows())
    kernel = run.algorithm.kernel(share)
    report = pytree.zeros_like(run.statistics)
    for first, last in ((0, 64), (64, 200), (200, 300)):
        assert kernel(share, run.parameter, report, first, last, 0, new_flag()) == last
    expected, state = by_hand(run, data, labels, slice(None), before)
    near = 2e-5 if kind == "float32" else 1e-6
    for name, mine, theirs in zip(report._fields, report, expected, strict=True):
        scale = np.abs(expected.gradient).max() if name == "gradient" else max(np.abs(theirs).max(), 1.0)
        np.testing.assert_allclose(mine, theirs, atol=near * scale, err_msg=name)
    np.testing.assert_allclose(share.state_rows(), state, atol=near)


@pytest.mark.parametrize("columns", [7, 330])  # all second derivatives, and their diagonal
def test_kernel_over_sparse_rows_of_many_classes_follows_theta(columns: int) -> None:
    """One kernel keeps θ column by column between its calls: another θ, then the first one again; rows not visited in
    a call stopped by the flag add nothing."""
    rows, labels = problem(60, columns, classes=11)
    rows[np.random.default_rng(0).random(rows.shape) < 0.8] = 0.0
    data, labels[3] = sparse_of(rows), 99.0
    algorithm = LR(classes=[float(c) for c in range(11)], l2=0.01)
    sample = sample_of(data, np.where(labels == 99.0, 0.0, labels))
    parameter = algorithm.initParameter(sample, np.random.default_rng(0))
    mine, theirs = (algorithm.initAggregator(sample, parameter) for _ in range(2))
    assert (mine.curvature.shape[1] == 1) == (columns == 330)
    share, twin = (make_shard(data, labels, np.zeros((60, 24), np.float32)) for _ in range(2))
    random = np.random.default_rng(1)
    first = parameter._replace(weights=random.standard_normal((11, columns)) / 30.0, bias=random.standard_normal(11))
    second = first._replace(weights=-0.5 * first.weights)
    kernel, stopped = algorithm.kernel(share), new_flag()
    stopped[0] = 1
    for number, (theta, since, end) in enumerate([(first, 0, 31), (second, 31, 60), (second, 0, 60), (first, 0, 60)]):
        theta.internal_visit[1] = number + 1.0
        fixed = pytree.read_only(theta)
        assert kernel(share, fixed, mine, since, end, 0, stopped) == since
        assert kernel(share, fixed, mine, since, end, 0, new_flag()) == end
        for i in range(since, end):
            algorithm.aggregate(theirs, algorithm.updateDataPoint(point_of(twin, i), theta, 0))
        for name, ours, expected in zip(mine._fields, mine, theirs, strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max(), err_msg=name)
        np.testing.assert_allclose(share.state_rows(), twin.state_rows(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_hook_compiles_and_says_the_same(kind: str) -> None:
    rows, labels = problem(60, classes=3)
    data = sparse_of(rows) if kind == "sparse" else rows
    run = trained(LR(), data, labels)
    state = run.shares[0].state_rows().astype(np.float32)
    share = make_shard(data, labels, state.copy())
    own = namedtuple("own", "memory")(True)
    compiled = njit(LR.updateDataPoint)
    point = point_of(share, 5)
    expected = LR.updateDataPoint(own, point._replace(state=state[5].copy()), run.parameter, 0)  # type: ignore[arg-type]
    for mine, theirs in zip(compiled(own, point, run.parameter, 0), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-9)


def test_kernel_stops_at_once_when_the_flag_is_up() -> None:
    for data in (problem()[0], sparse_of(problem()[0])):
        run = trained(LR(), data, problem()[1])
        report = pytree.zeros_like(run.statistics)
        flag = new_flag()
        flag[0] = 1
        assert run.algorithm.kernel(run.shares[0])(run.shares[0], run.parameter, report, 0, 300, 0, flag) == 0
        assert all((part == 0).all() for part in report)


def test_gradient_is_the_derivative_of_the_objective() -> None:
    rows, labels = problem(classes=3)
    run = start(LR(l2=0.3, learning_rate=0.5), rows, labels).passes(2)
    run.barrier(300)
    theta = run.trained_with
    gradient = run.statistics.gradient / 300
    gradient[:, :-1] += 0.3 * theta.weights

    def objective(weights: Any, bias: Any) -> float:
        moved = theta._replace(weights=weights, bias=bias)
        return run.algorithm.evaluate(rows, labels, moved).objective

    for k in range(3):
        for t in range(8):
            step = np.zeros((3, 8))
            step[k, t] = 1e-5
            plus = objective(theta.weights + step[:, :-1], theta.bias + step[:, -1])
            minus = objective(theta.weights - step[:, :-1], theta.bias - step[:, -1])
            assert gradient[k, t] == pytest.approx((plus - minus) / 2e-5, abs=1e-6 * np.abs(gradient).max() + 1e-7)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("memory", [True, False])
def test_objective_of_full_passes_is_scikit_learns_loss_at_the_same_theta(classes: int, memory: bool) -> None:
    rows, labels = problem(classes=classes)
    run = start(LR(memory=memory), rows, labels)
    for _ in range(5):
        run.barrier(300)
        probability = run.algorithm.probabilities(rows, run.trained_with)
        assert run.objectives[-1] == pytest.approx(log_loss(labels, probability), rel=1e-6)


@pytest.mark.parametrize(("classes", "workers", "interval"), [(2, 1, 300), (2, 3, 7), (3, 1, 20), (4, 2, 10)])
def test_the_minimum_is_scikit_learns_minimum(classes: int, workers: int, interval: int) -> None:
    rows, labels = problem(classes=classes)
    l2 = 1.0
    model = LogisticRegression(C=1 / (l2 * 300), tol=1e-10, max_iter=10000).fit(rows, labels)
    run = start(LR(l2=l2), rows, labels, workers=workers).passes(30, interval)
    mine = run.algorithm.evaluate(rows, labels, run.parameter).objective
    theirs = log_loss(labels, model.predict_proba(rows)) + l2 / 2 * (model.coef_**2).sum()
    assert mine == pytest.approx(theirs, rel=1e-6)
    assert np.mean(run.algorithm.predict(rows, run.parameter) == model.predict(rows)) > 0.99


def test_every_point_contributes_once() -> None:
    rows, labels = problem(500, classes=3)
    run = start(LR(), rows, labels, workers=3).passes(4.3, interval=31)
    states = np.vstack([share.state_rows() for share in run.shares]).astype(np.float64)
    extended = np.hstack([rows, np.ones((500, 1))])
    from_scratch = states[:, :3].T @ extended
    scale = np.abs(states[:, :3]).T @ np.abs(extended)
    np.testing.assert_array_less(np.abs(run.statistics.gradient - from_scratch), 1e-10 * scale)
    assert run.statistics.loss[0] == pytest.approx(states[:, 3].sum(), rel=1e-10)
    assert run.statistics.seen[0] == 500


def test_labels_may_be_any_two_numbers() -> None:
    rows, labels = problem()
    first = trained(LR(), rows, labels)
    second = trained(LR(), rows, 2 * labels - 1)
    np.testing.assert_array_equal(first.parameter.weights, second.parameter.weights)
    assert set(second.algorithm.predict(rows, second.parameter)) == {-1.0, 1.0}


def test_steps_do_not_depend_on_scale_or_offset_of_the_features() -> None:
    rows, labels = problem()
    plain = trained(LR(), rows, labels)
    moved = rows * np.logspace(-12, 12, 7) + 3.0
    scaled = trained(LR(), moved, labels)
    mine = plain.algorithm.probabilities(rows, plain.parameter)
    np.testing.assert_allclose(scaled.algorithm.probabilities(moved, scaled.parameter), mine, atol=0.02)


def test_separable_labels_are_learned_and_nothing_overflows() -> None:
    rows = np.linspace(-1, 1, 40)[:, None] * 1e20
    labels = (rows[:, 0] > 0).astype(float)
    for interval in (40, 3):
        run = start(LR(), rows, labels).passes(400, interval)
        assert run.algorithm.evaluate(rows, labels, run.parameter).metrics["accuracy"] == 1.0
        assert run.objectives[-1] < 0.05


def test_one_class_one_point_one_feature_constant_columns() -> None:
    rows = np.full((1, 1), 7.0)
    run = start(LR(), rows, np.array([4.0])).passes(20)
    assert run.algorithm.predict(rows, run.parameter) == [4.0]
    assert run.algorithm.warnings(run.statistics, run.parameter)
    rows, labels = problem(columns=3)
    constant = np.hstack([rows, np.full((300, 1), 1e9), np.zeros((300, 1))])
    for data in (constant, constant.astype(np.float32), sparse_of(constant)):
        run = start(LR(), data, labels).passes(20, interval=50)
        other = start(LR(), rows, labels).passes(20, interval=50)
        assert run.objectives[-1] == pytest.approx(other.objectives[-1], rel=1e-2)


@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1e15, 1e30])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_huge_and_tiny_numbers_stay_numbers(scale: float, dtype: Any) -> None:
    rows, labels = problem()
    rows = (rows * scale).astype(dtype)
    for memory in (True, False):
        run = start(LR(memory=memory), rows, labels).passes(5, interval=60)
        assert run.objectives[-1] < math.log(2)


def test_a_sample_that_misses_the_large_values_only_costs_time() -> None:
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((2000, 3))
    rows[::50, 0] = 0.0
    rows[1::50, 0] *= 300
    labels = (rows[:, 1] + 0.02 * rows[:, 0] + rng.standard_normal(2000) > 0).astype(float)
    seen = np.arange(2000) % 50 != 1
    algorithm = LR()
    parameter = algorithm.initParameter(sample_of(rows[seen], labels[seen])._replace(points=2000), rng)
    run = start(algorithm, rows, labels, parameter=parameter).passes(60, interval=100)
    model = LogisticRegression(C=1e6, tol=1e-8, max_iter=1000).fit(rows, labels)
    assert run.objectives[-1] < 1.02 * log_loss(labels, model.predict_proba(rows))


@pytest.mark.parametrize("schedule", ["constant", "inverse", "sqrt"])
def test_gradient_descent_without_memory_learns_with_any_schedule(schedule: str) -> None:
    rows, labels = problem(2000)
    best = LogisticRegression(C=1e6, tol=1e-8, max_iter=1000).fit(rows, labels).predict_proba(rows)
    run = start(LR(memory=False, schedule=schedule, decay=0.1), rows, labels).passes(30, interval=100)
    assert run.algorithm.evaluate(rows, labels, run.parameter).objective < 1.02 * log_loss(labels, best)
    plain = start(LR(scaling=False, learning_rate=1e-3, schedule=schedule), rows, labels).passes(30, interval=100)
    assert plain.objectives[-1] < math.log(2)


def test_no_intercept_means_none() -> None:
    rows, labels = problem()
    run = trained(LR(intercept=False), rows, labels, passes=200)
    model = LogisticRegression(C=1e9, fit_intercept=False, tol=1e-10, max_iter=10000).fit(rows, labels)
    assert run.parameter.bias[0] == 0.0
    assert run.objectives[-1] == pytest.approx(log_loss(labels, model.predict_proba(rows)), rel=1e-5)


def test_many_columns_take_the_leading_directions_only() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((400, 5)) @ rng.standard_normal((5, 900)) + rng.standard_normal((400, 900))
    labels = (rows[:, 0] > 0) + (rows[:, 1] > 1).astype(float)
    run = start(LR(l2=0.01), rows.astype(np.float32), labels)
    assert run.parameter.internal_metric.shape == (2 + 9, 901)
    run.passes(40, interval=100)
    assert run.objectives[-1] < 0.3


def test_wrong_use_is_said_in_one_sentence() -> None:
    rows, labels = problem()
    with pytest.raises(UsageError, match="have none"):
        LR().validate(sample_of(rows, None))
    with pytest.raises(UsageError, match="turn text into class numbers"):
        LR().validate(sample_of(rows, np.array(["a", "b"] * 150)))
    with pytest.raises(UsageError, match="label 1 is not among"):
        LR(classes=[0, 2]).validate(sample_of(rows, labels))
    with pytest.raises(UsageError, match="look like a quantity"):
        LR().validate(sample_of(np.zeros((2000, 1)), np.arange(2000.0)))
    with pytest.raises(UsageError, match="not known yet"):
        LR().initState(3, 2, np.random.default_rng(0))
    with pytest.raises(UsageError, match="l2"):
        LR(l2=-1)
    run = start(LR(), rows, labels)
    run.shares[0].labels.flags.writeable = True  # a view that refuses writes
    run.shares[0].labels[3] = 9.0
    with pytest.raises(UsageError, match="1 points carry labels outside"):
        run.barrier(300)


def test_every_setting_is_described() -> None:
    assert all(setting.description for setting in LR.hyper_parameters().values())


@pytest.mark.data
@pytest.mark.parametrize("standardized", [True, False])
def test_higgs(standardized: bool) -> None:
    rows, labels = real_data.higgs()
    unit = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    model = LogisticRegression(C=1e8, tol=1e-8, max_iter=1000).fit(unit, labels)
    data = (unit if standardized else rows).astype(np.float32)
    run = start(LR(), data, labels, workers=4).passes(5, interval=50)
    best = log_loss(labels, model.predict_proba(unit))
    assert run.algorithm.evaluate(data, labels, run.parameter).objective < best + 1e-4


@pytest.mark.slow
@pytest.mark.data
def test_skin_even_in_the_order_of_its_labels() -> None:
    rows, labels = real_data.skin()
    model = LogisticRegression(C=1e8, tol=1e-8, max_iter=1000).fit(rows, labels)
    run = start(LR(), rows.astype(np.float32), labels, workers=2).passes(8, interval=2000)
    best = log_loss(labels, model.predict_proba(rows))
    assert run.algorithm.evaluate(rows, labels, run.parameter).objective < best + 3e-3


@pytest.mark.slow
@pytest.mark.data
def test_a9a() -> None:
    rows, labels = real_data.a9a()
    run = start(LR(l2=1e-4), rows, labels, workers=2).passes(10, interval=300)
    measured = run.algorithm.evaluate(rows, labels, run.parameter)
    assert measured.metrics["accuracy"] > 0.847
    assert measured.metrics["log_loss"] < 0.326  # the best there is without a penalty: 0.3226


def test_columns_that_the_sample_does_not_show_do_not_shorten_every_step() -> None:
    rows, columns = 2000, 9000
    at = np.random.default_rng(0).integers(0, rows, rows).astype(np.int32)
    features = Sparse(np.arange(rows + 1), at, np.ones(rows, np.float32), columns)
    bound = precondition.scaled(features, columns, 0.25, 1e-5, True)[1, columns]
    assert bound < 1.0  # 80 where the penalty is no part of the units; every step is shorter by that factor


def test_the_best_parameter_measured_again_is_accepted_in_spite_of_rounding() -> None:
    """Losses are float32: a job that went back to its best θ measured 1e-6 more there, and called that the minimum."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 3))
    labels = (rows[:, 0] > 0.3).astype(np.float64)
    model = LR(l2=0.1)
    sample = sample_of(rows, labels)
    with using({"lr.sample_start_steps": 0}):
        first = model.initParameter(sample, rng)
    shard = make_shard(rows, labels, model.initState(40, 3, rng), "rows")
    sums = model.initAggregator(sample, first)
    interpreted(model)(shard, first, sums, 0, 40, 0, new_flag())
    back = StepSearch(*begin(40, True))._replace(best=np.log(2.0) * (1 - 1e-6), measured=1.0, wary=2.0)
    after = model.updateParameter(sums, first._replace(internal_search=np.array(back)))
    assert np.abs(after.weights).max() > 0, "the next step starts from there"
    assert model.optimality(sums, after) > 1e-4


def test_a_search_that_ends_far_from_its_minimum_says_why() -> None:
    metric = np.array([[0.0, 0.0, 1.0], [1e-4, 1e5, 1.0]])
    far = StepSearch(*begin(10, True))._replace(best=0.3, measured=40.0, gap=0.2)
    assert "factor of 1e+09" in unsolved(far, metric)[0] and "20 %" in unsolved(far, metric)[0]
    assert not unsolved(far._replace(gap=1e-4), metric) and not unsolved(far._replace(measured=3.0), metric)


def test_the_metric_of_many_sparse_columns_is_that_of_the_same_dense_ones() -> None:
    rng = np.random.default_rng(1)
    dense = np.where(rng.random((300, 40)) < 0.1, rng.random((300, 40)), 0.0)
    one, other = (precondition.scaled(each, 40, 0.25, 1e-3, True) for each in (dense, sparse_of(dense)))
    np.testing.assert_allclose(one[:2], other[:2], rtol=1e-9, atol=1e-12)


def test_many_decimal_labels_are_no_classes() -> None:
    ages = np.round(np.linspace(18.0, 80.0, 300), 1)
    with pytest.raises(UsageError, match="decimal numbers as labels look like a quantity"):
        LR().validate(sample_of(np.zeros((300, 1)), ages))
    LR().validate(sample_of(np.zeros((300, 1)), np.arange(300.0)))
    LR().validate(sample_of(np.zeros((300, 1)), np.arange(300) % 10 / 2.0))


def test_one_class_is_one_sentence() -> None:
    rows, labels = problem()
    run = start(LR(), rows, np.zeros(len(labels))).passes(3)
    assert run.algorithm.baseline(run.statistics, run.parameter) > run.objectives[-1], "no word of a bad start"
    (only,) = run.algorithm.warnings(run.statistics, run.parameter)
    assert only.startswith("There is only one class: every label is 0")


@pytest.mark.parametrize("columns", [7, 330])  # all second derivatives, and their diagonal
@pytest.mark.parametrize("by_block", [False, True])
def test_blocks_of_sparse_rows_of_many_classes_bring_what_one_call_brings(columns: int, by_block: bool) -> None:
    """Threads of a team add what their blocks have summed by columns once, where statistics are those of a thread."""
    rows, labels = problem(300, columns, classes=5)
    rows[np.random.default_rng(0).random(rows.shape) < 0.8] = 0.0
    data, algorithm = sparse_of(rows), LR(classes=[float(c) for c in range(5)], l2=0.01)
    sample = sample_of(data, labels)
    parameter = algorithm.initParameter(sample, np.random.default_rng(0))
    parameter.internal_visit[1] = 1.0
    found = []
    for edges in ([0, 300], [0, 40, 41, 200, 230, 300]):
        share = make_shard(data, labels, np.zeros((300, 12), np.float32))
        empty = algorithm.initAggregator(sample, parameter)
        total, team = Sums(empty), Team(2)
        calls = InterpretedCalls(team, [algorithm.kernel(share) for _ in range(2)], empty, by_block)
        for _ in range(2):  # nothing of the first time is added again
            share.state[:], total = 0.0, Sums(empty)
            assert calls.visit(share, pytree.read_only(parameter), edges, 0, new_flag(), total).reached == 300
        team.close()
        found.append(total.tree)
    assert found[0].gradient.any() and found[0].curvature.any()
    for name, one, other in zip(found[0]._fields, *found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9 * max(np.abs(one).max(), 1e-300), err_msg=name)


def until_known(rows: Any, labels: Any, barriers: int, **hyper: Any) -> tuple[Run, int]:
    """Barriers, so many a pass, until the minimum is known to be within the usual tolerance."""
    run = start(LR(**hyper), rows, labels)
    for made in range(1, 60 * barriers):
        run.barrier(len(labels) // barriers)
        if run.algorithm.optimality(run.statistics, run.parameter) <= run.algorithm.learning.tolerance:
            return run, made
    raise AssertionError("the minimum was not reached")


@pytest.mark.parametrize(("barriers", "most", "measured"), [(1, 6, 5), (8, 63, 2)])
def test_a_few_points_whose_curvature_changes_do_not_keep_a_job_training(
    barriers: int, most: int, measured: int
) -> None:
    """A pass later (7 and 71 barriers) the objective is within 1e-10 and 1e-9 of its minimum."""
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(20_000, 5)).astype(np.float32)
    labels = (rows @ rng.normal(size=5) * 12 / math.sqrt(5) + rng.logistic(size=20_000) > 0).astype(float)
    with using({"lr.sample_start_steps": 0}):
        run, made = until_known(rows, labels, barriers)
        search = StepSearch(*run.parameter.internal_search)
        assert made <= most
        assert search.measured <= measured
        assert search.best <= run.passes(6).objectives[-1] * (1 + 1e-4)


@pytest.mark.parametrize(
    ("points", "barriers", "most"), [(2_000, 1, 2), (2_000, 8, 16), (20_000, 1, 3), (20_000, 8, 24)]
)
def test_two_classes_begin_at_the_minimum_of_a_sample(points: int, barriers: int, most: int) -> None:
    """From θ = 0 one barrier a pass takes 6 and 7 of them, eight take 63."""
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(points, 5)).astype(np.float32)
    labels = (rows @ rng.normal(size=5) * 12 / math.sqrt(5) + rng.logistic(size=points) > 0).astype(float)
    run, made = until_known(rows, labels, barriers)
    assert made <= most
    assert StepSearch(*run.parameter.internal_search).best <= run.passes(6).objectives[-1] * (1 + 1e-4)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_the_start_on_all_rows_is_their_minimum(intercept: bool, weighted: bool) -> None:
    rows, labels = problem(points=500)
    weights = np.random.default_rng(5).uniform(0.0, 3.0, 500) if weighted else None
    algorithm = LR(l2=0.01, intercept=intercept, class_weight=[1.0, 2.5])
    sample = sample_of(rows, labels)._replace(weights=weights)
    found = algorithm.initParameter(sample, np.random.default_rng(0))
    mass = (np.ones(500) if weights is None else weights) * np.where(labels == 1, 2.5, 1.0)
    peer = LogisticRegression(C=1 / (0.01 * 500), tol=1e-10, max_iter=500, fit_intercept=intercept)
    peer.fit(rows, labels, sample_weight=mass)
    theirs, ours = (
        mass @ np.logaddexp(0.0, np.where(labels == 1, -1, 1) * (rows @ w[0] + b[0])) / 500 + 0.005 * float(w[0] @ w[0])
        for w, b in ((peer.coef_, peer.intercept_), (found.weights, found.bias))
    )
    assert theirs * (1 - 1e-6) <= ours <= theirs * (1 + 1e-3)
    assert intercept or found.bias[0] == 0.0


def test_where_only_a_part_of_the_rows_is_separable_or_they_are_too_few_the_start_is_zero() -> None:
    rows, labels = problem(points=1000)
    apart = (rows[:, 0] > np.median(rows[:, 0])).astype(float)
    for sample in (sample_of(rows, apart), sample_of(rows[:100], labels[:100])):
        found = LR().initParameter(sample._replace(points=100_000), np.random.default_rng(0))
        assert not found.weights.any()
        assert not StepSearch(*found.internal_search).settling


def test_classes_that_a_plane_separates_end_at_once_and_are_told() -> None:
    """From θ = 0 a pass a barrier takes 23 of them."""
    rows = np.random.default_rng(0).normal(size=(1000, 28)).astype(np.float32)
    labels = (rows @ np.random.default_rng(2).normal(size=28) > 0).astype(float)
    run, made = until_known(rows, labels, 1)
    assert made == 1
    assert run.objectives[-1] <= 1e-4 * math.log(2)
    assert "separates" in run.algorithm.warnings(run.statistics, run.parameter)[0]


@pytest.mark.parametrize("length", [1e2, 1e4, 1e6])
@pytest.mark.parametrize("barriers", [1, 8])
def test_one_row_far_longer_than_the_others_is_waited_for(length: float, barriers: int) -> None:
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(2_000, 6))
    labels = (rows @ rng.normal(size=6) + rng.logistic(size=2_000) > 0).astype(float)
    rows[0] *= length
    run, _ = until_known(rows, labels, barriers, l2=1e-3)
    peer = LogisticRegression(C=1 / (1e-3 * 2_000), tol=1e-10, max_iter=500, solver="newton-cholesky").fit(rows, labels)
    theirs = log_loss(labels, peer.predict_proba(rows)) + 0.5e-3 * float((peer.coef_**2).sum())
    assert StepSearch(*run.parameter.internal_search).best <= theirs * (1 + 1e-4)


def test_a_change_of_second_derivatives_is_that_of_the_direction_in_which_it_is_largest() -> None:
    rng = np.random.default_rng(3)
    made = rng.normal(size=(40, 4))
    before, now = made.T @ made, made[1:].T @ made[1:]
    metric = np.array([[0.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    curvature = Curvature(np.tril(now)[None], 1.0, metric, 0.25, True, 1e-16)
    expected = np.abs(np.linalg.eigvals(np.linalg.solve(now, now - before))).max()
    assert curvature.changed(np.tril(before)[None], Penalty(0.0, 0.0)) == pytest.approx(expected, rel=1e-6)
    assert curvature.changed(np.zeros((1, 4, 4)), Penalty(0.0, 0.0)) == math.inf
