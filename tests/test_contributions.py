"""A class that returns contributions trains as one that returns changes: the engine keeps, subtracts and weighs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flegel
from flegel import Algorithm, UsageError, check_algorithm
from flegel.algorithm import Sample, keep_contributions, visit_hook
from flegel.core import pytree
from flegel.core.shard import Shard, Sparse, make_shard
from flegel.core.stop_flag import new_flag
from flegel.errors import AlgorithmError
from flegel.job import AlgorithmRef
from flegel.loading.class_source import instantiate, reference
from flegel.loading.code_gate import Consent
from flegel.runtime.backends.numba.interpreted_loop import interpreted
from flegel.runtime.backends.numba.kernels import build_kernel
from tests.contributing import (
    ByChange,
    ByContribution,
    ByHidden,
    ByHiddenTuple,
    HugeHidden,
    HugeIndex,
    Nothing,
    NumberAfterATruthValue,
    OtherShape,
    RealsAfterAnInteger,
    SparseSum,
    Uncompiled,
)

POINTS, COLUMNS = 120, 4
FORMS = [ByContribution, ByHidden, ByHiddenTuple]


def rows(dtype: Any = np.float64) -> np.ndarray:
    rng = np.random.default_rng(3)
    centres = rng.normal(scale=3.0, size=(5, COLUMNS))
    return (centres[rng.integers(5, size=POINTS)] + rng.normal(size=(POINTS, COLUMNS))).astype(dtype)


class Trained:
    """One shard, visited in parts under a θ that follows the statistics."""

    def __init__(self, algorithm: Algorithm, data: Any, weights: Any = None, compiled: bool = True) -> None:
        points = len(data.indptr) - 1 if isinstance(data, Sparse) else len(data)
        columns = data.columns if isinstance(data, Sparse) else data.shape[1]
        self.algorithm, sample = algorithm, Sample(data, None, points, columns, weights)
        self.theta = pytree.as_doubles(algorithm.initParameter(sample, np.random.default_rng(0)))
        keep_contributions(algorithm, sample, self.theta)
        self.zero = pytree.zeros_like(algorithm.initAggregator(sample, self.theta))
        self.total = pytree.copy(self.zero)
        self.shard = self.make(data, points, columns, weights)
        built = build_kernel(algorithm, self.shard, self.theta, self.zero) if compiled else None
        self.kind, self.kernel = (built.kind, built.kernel) if built else ("interpreted", interpreted(algorithm))
        self.data, self.weights = data, weights

    def make(self, data: Any, points: int, columns: int, weights: Any) -> Shard:
        state = self.algorithm.initState(points, columns, np.random.default_rng(0))
        return make_shard(data, None, state, weights=weights)

    def visit(self, start: int, end: int) -> None:
        self.kernel(self.shard, pytree.read_only(self.theta), self.total, start, end, 0, new_flag())

    def update(self) -> None:
        made = self.algorithm.updateParameter(pytree.present(self.total), self.theta)
        self.theta = pytree.as_doubles(made)
        pytree.clear(self.total, self.algorithm.statistics.spent)

    def some_rounds(self) -> Trained:
        for start, end in ((0, 50), (50, 120), (20, 90), (0, 120), (110, 120)):
            self.visit(start, end)
            self.update()
        self.visit(5, 100)
        return self


def same(one: Any, other: Any, tolerance: float) -> None:
    for a, b in zip(pytree.flatten(one), pytree.flatten(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * 100)


@pytest.mark.parametrize("cls", [ByContribution, ByHidden])
def test_compiled_and_interpreted_contributions_come_to_the_same_sums_as_changes(
    cls: type[Algorithm],
) -> None:
    """Rows of float32; float64 ones are compiled for weights, below, and `check_algorithm` tries both."""
    expected = Trained(ByChange(), rows(np.float32), compiled=False).some_rounds()
    for compiled in (False, True):
        found = Trained(cls(), rows(np.float32), compiled=compiled).some_rounds()
        assert found.kind == ("compiled" if compiled else "interpreted")
        same(found.total, expected.total, 1e-5)
        same(found.theta, expected.theta, 1e-5)


@pytest.mark.parametrize(
    ("cls", "compiled"), [*((cls, False) for cls in FORMS), (ByContribution, True), (ByHidden, True)]
)
def test_the_engine_counts_points_by_their_weights(cls: type[Algorithm], compiled: bool) -> None:
    weights = 1.0 + np.arange(POINTS) % 3
    expected = Trained(ByChange(), rows(), weights, compiled=False).some_rounds()
    found = Trained(cls(), rows(), weights, compiled=compiled).some_rounds()
    assert cls.accepts.weighted
    same(found.total, expected.total, 1e-10)


@pytest.mark.parametrize("compiled", [False, True])
def test_sparse_rows_and_a_bare_array(compiled: bool) -> None:
    indptr = np.arange(0, 2 * POINTS + 1, 2)
    data = Sparse(indptr, np.tile([0, 2], POINTS).astype(np.int32), np.arange(2.0 * POINTS), COLUMNS)
    found = Trained(SparseSum(), data, compiled=compiled).some_rounds()
    visited = np.full(POINTS, 4.0)  # θ(t) = t + 1; the θ under which each point was visited last
    visited[110:] = 5.0
    visited[5:100] = 6.0
    np.testing.assert_allclose(found.total, [(np.repeat(visited, 2) * data.values).sum(), POINTS], rtol=1e-12)
    fresh = Trained(SparseSum(), data, compiled=compiled)
    fresh.visit(0, POINTS)
    np.testing.assert_array_equal(fresh.total, [data.values.sum(), POINTS])


def test_integers_alone_stay_exact_beside_float32_rows() -> None:
    for compiled in (False, True):
        found = Trained(HugeIndex(), rows(np.float32), compiled=compiled).some_rounds()
        assert found.shard.state.dtype == np.int64 and found.total.counts.sum() == POINTS


def test_an_integer_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(AlgorithmError, match="large integers alone"):
        Trained(HugeHidden(), rows(np.float32), compiled=False).visit(0, 1)
    with pytest.raises((AlgorithmError, ValueError), match="large integers alone"):
        Trained(HugeHidden(), rows(np.float32)).visit(0, 1)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("cls", [RealsAfterAnInteger, NumberAfterATruthValue, OtherShape])
def test_a_hidden_value_of_another_kind_or_shape_than_the_first_is_refused(cls: Any, compiled: bool) -> None:
    data = rows()
    data[:, 0] = -1.0
    data[1:, 0] = 0.75
    with pytest.raises((AlgorithmError, ValueError), match="first point"):
        Trained(cls(), data, compiled=compiled).visit(0, POINTS)


def test_what_numba_cannot_compile_runs_interpreted_with_the_same_result() -> None:
    found = Trained(Uncompiled(), rows()).some_rounds()
    assert found.kind == "interpreted"
    same(found.total, Trained(ByContribution(), rows(), compiled=False).some_rounds().total, 1e-12)


def test_such_a_class_keeps_its_promises() -> None:
    """The form that no example of the documentation has: tests/test_documented_classes.py checks the other two."""
    held = check_algorithm(ByHiddenTuple())
    assert "statistics conserve (float32)" in held and "weights count (float64)" in held
    assert all(cls.state.memoryless for cls in FORMS), "a visit depends on θ alone"


def test_a_class_that_halts_points_is_not_memoryless() -> None:
    class Halting(ByContribution):
        def contribution(self, dataPoint: Any, parameter: Any) -> Any:
            self.voteToHalt()
            return np.ones(1)

    assert not Halting.state.memoryless


def test_what_is_kept_travels_with_the_class() -> None:
    trained = Trained(ByHidden(), rows())
    ref = reference(trained.algorithm)
    again = instantiate(ref, Consent.PRESENT)
    assert again._kept == trained.algorithm._kept and visit_hook(type(again)) == "hidden"
    state = again.initState(3, COLUMNS, np.random.default_rng(0))
    assert state.shape == (3, 3) and not state.any()
    assert isinstance(ref, AlgorithmRef) and trained.algorithm._kept is not None


def test_points_of_another_shape_are_refused() -> None:
    class Growing(ByContribution):
        def contribution(self, dataPoint: Any, parameter: Any) -> Any:
            return np.ones(1 if dataPoint.features[0] == 0.0 else 2)

    data = np.zeros((3, 1))
    data[2] = 1.0
    with pytest.raises(AlgorithmError, match=r"shapes \[\(2,\)\], but \[\(1,\)\] at the first point"):
        Trained(Growing(k=1), data, compiled=False).visit(0, 3)


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ({"contribution": None, "updateDataPoint": None}, "contribution and updateDataPoint; define one"),
        ({"contribution": None, "hidden": None, "statistics_of": None}, "contribution and hidden; define one"),
        ({"hidden": None}, "hidden without statistics_of"),
        ({"statistics_of": None}, "statistics_of without hidden"),
        ({"contribution": None, "initState": None}, "omit initState"),
        ({"contribution": None, "aggregate": None}, "omit aggregate"),
    ],
)
def test_a_visit_is_said_in_one_way(members: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        type("Two", (Algorithm,), dict.fromkeys(members, lambda self, *_: 0.0))


def test_a_class_without_a_visit_says_what_is_missing() -> None:
    with pytest.raises(UsageError, match=r"does not define contribution \(or updateDataPoint\), updateParameter"):
        flegel.run(Nothing(), np.zeros((20, 2)), workers=1, max_passes=1)


class SumsOfLogarithms(Algorithm):
    """Not finite where a row has a negative number."""

    def initParameter(self, sample: Any, rng: Any) -> Any:
        return np.zeros(2)

    def contribution(self, dataPoint: Any, parameter: Any) -> Any:
        return np.array([np.log(dataPoint.features[0]), 1.0])

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return aggregator


class DividesByZero(SumsOfLogarithms):
    def contribution(self, dataPoint: Any, parameter: Any) -> Any:
        return np.ones(2)

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return aggregator * np.inf


@pytest.mark.parametrize(
    ("cls", "reason"),
    [
        (SumsOfLogarithms, "the sums of what contribution returns are not finite"),
        (DividesByZero, "updateParameter returned numbers that are not finite"),
    ],
)
def test_a_job_whose_numbers_are_not_finite_names_the_hook_that_they_come_from(
    cls: type[Algorithm], reason: str
) -> None:
    data = np.abs(rows()) + 0.1
    data[100, 0] = -1.0
    result = flegel.run(cls(), data, workers=2, processes=False, sync="bsp", max_iterations=2)
    assert result.outcome == "diverged" and reason in result.reason
