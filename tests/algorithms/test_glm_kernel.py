"""The compiled kernel of generalized linear models beside the hook that defines it, and the start on a few rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flegel.algorithm import Sample
from flegel.algorithms.glm import glm
from flegel.algorithms.glm.dense import DenseKernel
from flegel.algorithms.glm.glm import Derivatives, GeneralizedLinear, LinearFit, NewtonSearch
from flegel.algorithms.glm.losses import Gamma, Huber, LinearSVM, Poisson
from flegel.algorithms.glm.places import BEND
from flegel.configuration.active import DEFAULTS, using
from flegel.core import pytree
from flegel.core.shard import make_shard
from flegel.core.stop_flag import new_flag

MODELS = [Poisson(l2=0.01), Gamma(l2=0.01), Huber(l2=0.01), LinearSVM(l2=0.01)]


def rows_of(algorithm: GeneralizedLinear, points: int, columns: int, dtype: Any = np.float64) -> tuple[Any, Any]:
    rng = np.random.default_rng(points + columns)
    rows = (3.0 + rng.normal(size=(points, columns))).astype(dtype)
    score = 0.4 * (rows - 3.0) @ rng.normal(size=columns)
    if isinstance(algorithm, LinearSVM):
        return rows, (score + 0.5 * rng.normal(size=points) > 0).astype(float)
    if isinstance(algorithm, Huber):
        return rows, score + rng.standard_t(3, size=points)
    mean = np.exp(np.clip(score, -3, 3))
    return rows, rng.poisson(mean).astype(float) if isinstance(algorithm, Poisson) else rng.gamma(2.0, mean) + 0.01


def at_random(algorithm: GeneralizedLinear, sample: Sample, seed: int, number: int) -> LinearFit:
    """θ somewhere near the start, as the so manieth one."""
    first = algorithm._first_parameter(sample)
    at = np.asarray(first.internal_at) + 0.2 * np.random.default_rng(seed).normal(size=len(first.internal_at))
    if algorithm.shapes:
        at[-1] = abs(at[-1]) + 0.5
    search = np.asarray(first.internal_search).copy()
    search[0] = number
    return pytree.read_only(algorithm._placed(at, first._replace(internal_search=search)))


def first_of(algorithm: GeneralizedLinear, sample: Sample) -> LinearFit:
    """θ(0), read-only as in a job: kernels are compiled for that type, and not once more for another."""
    return pytree.read_only(algorithm._first_parameter(sample))


@pytest.mark.parametrize("algorithm", MODELS, ids=lambda model: type(model).__name__)
@pytest.mark.parametrize(
    ("columns", "dtype", "weighted", "full"),
    [
        (1, np.float64, False, True),
        (5, np.float64, True, True),
        (8, np.float32, False, True),
        (20, np.float64, True, True),
        (20, np.float32, True, False),
        (5, np.float64, False, False),
    ],
)
def test_the_kernel_adds_what_the_hook_adds(
    algorithm: GeneralizedLinear, columns: int, dtype: Any, weighted: bool, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over several visits, whole blocks and pieces of them, with all second derivatives and with their diagonal."""
    if not full:
        monkeypatch.setattr(glm, "FULL_COLUMNS", 0)
    points = 300
    rows, labels = rows_of(algorithm, points, columns, dtype)
    weights = np.random.default_rng(1).integers(0, 3, points).astype(float) if weighted else None
    sample = Sample(rows, labels, points, columns, weights=weights)
    state = algorithm.initState(points, columns, np.random.default_rng(0)).astype(dtype)
    reference = state.copy()
    shard = make_shard(rows, labels, state, "rows", weights=weights)
    kernel = algorithm.kernel(shard)
    assert isinstance(kernel, DenseKernel)
    sums = algorithm._no_slopes(algorithm._first_parameter(sample))
    plain = pytree.zeros_like(sums, ())
    for visit, (start, end) in enumerate([(0, points), (0, 1), (1, 140), (140, points), (0, points)]):
        theta = at_random(algorithm, sample, visit % 2, visit + 1)
        assert kernel(shard, theta, sums, start, end, visit, new_flag()) == end
        part = slice(start, end)
        mass = None if weights is None else weights[part]
        change = algorithm.change(rows[part], labels[part], mass, reference[part], theta)
        plain = type(sums)(*(np.asarray(a) + b for a, b in zip(plain, change, strict=True)))
    rough = 1e-4 if dtype == np.float32 else 1e-9
    for name, ours, theirs in zip(sums._fields, sums, plain, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=rough, atol=rough * (1.0 + np.abs(theirs).max()), err_msg=name)
    np.testing.assert_allclose(shard.state, reference, rtol=rough, atol=rough)


def test_a_raised_flag_ends_the_visit_between_blocks() -> None:
    rows, labels = rows_of(MODELS[0], 500, 4)
    algorithm = MODELS[0]
    shard = make_shard(rows, labels, algorithm.initState(500, 4, np.random.default_rng(0)), "rows")
    theta = first_of(algorithm, Sample(rows, labels, 500, 4))
    flag = new_flag()
    flag[0] = 1
    sums = algorithm._no_slopes(theta)
    assert algorithm.kernel(shard)(shard, theta, sums, 100, 500, 0, flag) == 100
    assert float(sums.seen) == 0.0


def test_labels_that_do_not_fit_are_counted_once() -> None:
    algorithm = Gamma()
    rows, labels = rows_of(algorithm, 200, 3)
    theta = first_of(algorithm, Sample(rows, labels, 200, 3))
    labels[[3, 150]] = 0.0
    labels[7] = np.nan
    shard = make_shard(rows, labels, algorithm.initState(200, 3, np.random.default_rng(0)), "rows")
    sums, kernel = algorithm._no_slopes(theta), algorithm.kernel(shard)
    for visit in range(2):
        kernel(shard, theta, sums, 0, 200, visit, new_flag())
    assert float(sums.unfit) == 3.0


def test_curvature_that_hardly_changed_is_not_counted_again() -> None:
    algorithm = Poisson()
    rows, labels = rows_of(algorithm, 200, 3)
    sample = Sample(rows, labels, 200, 3)
    theta = first_of(algorithm, sample)
    state = algorithm.initState(200, 3, np.random.default_rng(0))
    shard = make_shard(rows, labels, state, "rows")
    sums, kernel = algorithm._no_slopes(theta), algorithm.kernel(shard)
    kernel(shard, theta, sums, 0, 200, 0, new_flag())
    counted, curvature = shard.state[:, BEND].copy(), sums.curvature.copy()
    little = np.asarray(theta.internal_at) + np.array([0.0, 0.0, 0.0, 0.5 * DEFAULTS.glm.bend_change_counted])
    kernel(shard, pytree.read_only(algorithm._placed(little, theta)), sums, 0, 200, 1, new_flag())
    np.testing.assert_array_equal(shard.state[:, BEND], counted)
    np.testing.assert_array_equal(sums.curvature, curvature)


class Halved(Poisson):
    """A user's own: half of the loss."""

    def derivatives(self, scores: Any, labels: Any, shape: Any) -> Derivatives:
        whole = super().derivatives(scores, labels, shape)
        return Derivatives(whole.loss / 2, whole.slope / 2, whole.bend / 2)


def test_a_class_with_derivatives_of_its_own_is_visited_with_them() -> None:
    rows, labels = rows_of(Poisson(), 200, 3)
    found = []
    for algorithm in (Poisson(), Halved()):
        theta = first_of(algorithm, Sample(rows, labels, 200, 3))
        shard = make_shard(rows, labels, algorithm.initState(200, 3, np.random.default_rng(0)), "rows")
        sums, kernel = algorithm._no_slopes(theta), algorithm.kernel(shard)
        assert isinstance(kernel, DenseKernel) == (type(algorithm) is Poisson)
        kernel(shard, theta, sums, 0, 200, 0, new_flag())
        found.append(float(sums.loss))
    assert found[1] == pytest.approx(found[0] / 2)


@pytest.mark.parametrize("algorithm", MODELS, ids=lambda model: type(model).__name__)
def test_a_table_with_many_rows_starts_near_its_minimum(algorithm: GeneralizedLinear) -> None:
    """From the minimum over one row in 16, all rows lack little: a few steps fewer."""
    points = 8_000
    rows, labels = rows_of(algorithm, points, 3)
    sample = Sample(rows, labels, points, 3)
    lacking, steps = [], []
    for begun in (algorithm._first_parameter(sample), algorithm.initParameter(sample, np.random.default_rng(0))):
        theta = pytree.read_only(begun)
        shard = make_shard(rows, labels, algorithm.initState(points, 3, np.random.default_rng(0)), "rows")
        sums, kernel, values = algorithm._no_slopes(theta), algorithm.kernel(shard), []
        while not values or (theta.internal_search[6] > 1e-9 and not theta.internal_search[7]):
            kernel(shard, theta, sums, 0, points, 0, new_flag())
            theta = pytree.read_only(algorithm.updateParameter(sums, theta))
            values.append(float(theta.internal_search[2]))
        lacking.append(values[0] / values[-1] - 1.0)
        steps.append(len(values))
    assert lacking[1] < 0.1 * lacking[0]
    assert steps[1] < steps[0]


def test_a_small_table_starts_without_rows() -> None:
    algorithm = Poisson()
    rows, labels = rows_of(algorithm, 200, 3)
    started = algorithm.initParameter(Sample(rows, labels, 200, 3), np.random.default_rng(0))
    assert not np.asarray(started.weights).any()


def passes_until_converged(algorithm: GeneralizedLinear, rows: Any, labels: Any) -> tuple[int, float]:
    """How many, and the objective then."""
    theta = first_of(algorithm, Sample(rows, labels, *rows.shape))
    shard = make_shard(rows, labels, algorithm.initState(*rows.shape, np.random.default_rng(0)), "rows")
    sums, kernel = algorithm._no_slopes(theta), algorithm.kernel(shard)
    for passes in range(1, 200):
        sums = sums._replace(bent=np.zeros_like(sums.bent))
        kernel(shard, theta, sums, 0, len(rows), 0, new_flag())
        theta = pytree.read_only(algorithm.updateParameter(sums, theta))
        if algorithm.optimality(sums, theta) <= algorithm.learning.tolerance:
            return passes, float(theta.internal_search[2])
    raise AssertionError("not converged")


def test_a_step_that_left_as_little_as_expected_is_not_measured_once_more() -> None:
    saved = 0
    for algorithm in MODELS:
        for points in (150, 400, 1500):
            rows, labels = rows_of(algorithm, points, 4)
            with using({"glm.left_by_whole_step": 0.0}):
                before, least = passes_until_converged(algorithm, rows, labels)
            passes, value = passes_until_converged(algorithm, rows, labels)
            assert passes == before if algorithm.guards else passes <= before
            assert value - least <= 2.0 * algorithm.learning.tolerance * least
            saved += before - passes
    assert saved >= 4


def test_a_shortened_step_and_one_that_left_more_say_nothing_of_the_distance() -> None:
    search = NewtonSearch(*np.asarray(first_of(Poisson(), Sample(*rows_of(Poisson(), 50, 2), 50, 2)).internal_search))
    search = search._replace(promised=-2.0, length=1.0, bent=3.0)
    assert Poisson()._as_expected(search, 0.009, newton=True)
    assert not Poisson()._as_expected(search, 0.011, newton=True)
    assert not Poisson()._as_expected(search, 0.009, newton=False)
    assert not Poisson()._as_expected(search._replace(length=0.5), 0.009, newton=True)
    assert not Huber()._as_expected(search, 0.009, newton=True)
    assert not Poisson(l1=0.1)._as_expected(search, 0.009, newton=True)
