"""Calls that are made ahead for many points: which ones are found, and that nothing changes by it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from test_compile import prepare
from test_points import CLUSTERS

from flegel import Kernels
from flegel.algorithm import Algorithm
from flegel.algorithms import points
from flegel.algorithms.over_tiles import (
    MARGIN,
    UNKNOWN,
    nearest_filler,
    prepare_nearest,
    prepare_sums,
    sums_filler,
)
from flegel.algorithms.points import dot, nearest, squared_distance
from flegel.algorithms.simd.registers import register_lanes, tile_shape
from flegel.core import pytree
from flegel.core.shard import TILE, Sparse, make_shard
from flegel.core.stop_flag import new_flag
from flegel.runtime.backends.numba import compiler as compiling
from flegel.runtime.backends.numba.calls_ahead import calls_ahead, find_calls
from flegel.runtime.backends.numba.kernels import build_kernel


class Model(NamedTuple):
    centres: Any
    scale: Any


# -- which calls are found ----------------------------------------------------------------------------------


class Found:
    """Methods with one call each that depends on the features and θ alone."""

    def direct(self, dataPoint: Any, parameter: Any, iterationNum: int) -> Any:
        return nearest(dataPoint.features, parameter)

    def by_names(self, dataPoint: Any, parameter: Any, iterationNum: int) -> Any:
        x, last = dataPoint.features, dataPoint.state[0]
        rows = parameter.centres
        if last < 0:
            return last
        return points.nearest(x, rows) + last

    def in_a_loop(self, dataPoint: Any, parameter: Any, iterationNum: int) -> Any:
        least = np.inf
        for j in range(self.k):  # type: ignore[attr-defined]
            least = min(least, squared_distance(dataPoint.features, parameter[j]))
        return least

    def inside_another_call(self, p: Any, theta: Any, iterationNum: int) -> Any:
        total = 0.0
        for j in range(len(theta.centres)):
            total += np.exp(dot(p.features, theta.centres[j]))
        return total


class NotFound:
    """Each is not certain to mean the same, or might be rare."""

    def changed_features(self, dataPoint: Any, parameter: Any, iterationNum: int) -> Any:
        return nearest(dataPoint.features * 2.0, parameter)

    def name_of_two_things(self, dataPoint: Any, parameter: Any, iterationNum: int) -> Any:
        x = dataPoint.features
        x = x - x.mean()
        return nearest(x, parameter)

    def another_parameter(self, dataPoint: Any, parameter: Any, iterationNum: int) -> Any:
        parameter = parameter[1:]
        return nearest(dataPoint.features, parameter)

    def part_of_theta(self, dataPoint: Any, parameter: Any, iterationNum: int) -> Any:
        return nearest(dataPoint.features, parameter[2:])

    def rarely(self, dataPoint: Any, parameter: Any, iterationNum: int) -> Any:
        best = 0
        if iterationNum == 7:
            best = nearest(dataPoint.features, parameter)
        return best if best else (iterationNum and nearest(dataPoint.features, parameter))

    def other_function(self, dataPoint: Any, parameter: Any, iterationNum: int) -> Any:
        nearest = np.dot
        return nearest(dataPoint.features, parameter)

    def row_by_hand(self, dataPoint: Any, parameter: Any, iterationNum: int) -> Any:
        j = 3
        return squared_distance(dataPoint.features, parameter[j])

    def moving_row(self, dataPoint: Any, parameter: Any, iterationNum: int) -> Any:
        total = 0.0
        for j in range(3):
            j += 1
            total += squared_distance(dataPoint.features, parameter[j])
        return total

    def until(self, dataPoint: Any, parameter: Any, iterationNum: int) -> Any:
        while iterationNum:
            iterationNum -= nearest(dataPoint.features, parameter)
        return 0

    def from_the_point(self, dataPoint: Any, parameter: Any, iterationNum: int) -> Any:
        return nearest(dataPoint.features, dataPoint.state)


def methods(cls: type) -> list[Any]:
    return [value for name, value in vars(cls).items() if not name.startswith("__")]


def test_calls_of_features_and_theta_are_found() -> None:
    said = []
    for method in methods(Found):
        found = find_calls(method)
        assert found is not None, method
        said += [(call.name, call.field) for call in found[1]]
    assert said == [("nearest", ""), ("nearest", "centres"), ("squared_distance", ""), ("dot", "centres")]


@pytest.mark.parametrize("method", methods(NotFound), ids=lambda m: m.__name__)
def test_what_is_not_certain_to_mean_the_same_is_left_alone(method: Any) -> None:
    assert find_calls(method) is None


def test_only_arrays_that_suit_vectors_are_taken() -> None:
    def made(rows: Any, theta: Any, method: Any = Found.direct) -> int:
        count = len(rows.indptr) - 1 if isinstance(rows, Sparse) else len(rows)
        return len(calls_ahead(method, make_shard(rows, None, np.zeros((count, 1)), "rows"), theta))

    rows, theta = np.ones((70, 5), np.float32), np.ones((3, 5))
    assert made(rows, theta) == made(rows.astype(float), theta) == 1
    assert made(rows, Model(theta, np.ones(1)), Found.by_names) == 1
    assert made(rows, Model(theta, np.ones(1))) == made(rows, theta, Found.by_names) == 0
    assert made(rows.astype(int), theta) == made(rows, theta[:, :4]) == 0
    assert made(rows, theta[0]) == made(rows, theta[:0]) == 0
    assert made(rows[:, :3], theta[:, :3]) == made(np.ones((70, 600)), np.ones((3, 600))) == 0
    sparse = Sparse(np.arange(4), np.zeros(3, np.int64), np.ones(3), 5)
    assert made(sparse, theta) == 0


# -- the same to the last bit -------------------------------------------------------------------------------


def hard_rows(dtype: Any) -> np.ndarray:
    """Ordinary rows, and from 70 on ties, infinities, numbers that are none, and very large and small ones."""
    rows = np.random.default_rng(0).normal(size=(2 * TILE + 37, 6)).astype(dtype)
    rows[70:76] = 0.0
    rows[76, 2], rows[77, 3] = np.nan, np.inf
    rows[78:82] *= np.array([1e-30, 1e30, 1e18, 1e-18], dtype)[:, None]
    return rows


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_nearest_row_is_known_or_left_to_exact_code(dtype: str) -> None:
    features = hard_rows(dtype)
    theta = np.random.default_rng(1).normal(size=(3, 6)).astype(np.float32)
    theta[1], theta[2] = 5.0, -theta[0]  # zero is as near to the last as to the first
    lanes, group = tile_shape(np.float32, 3)
    for rows in (theta, theta + np.float32(300.0)):
        prepared, known = prepare_nearest(features, rows, group), 0
        for first, end in ((0, 64), (64, 100), (100, 164), (127, len(features))):
            found = np.full(TILE, 99, np.int32)
            nearest_filler(lanes, group)(features, first, end, prepared, found)
            for i in range(first, end):
                exact = nearest(features[i], rows)
                assert found[i - first] in (UNKNOWN, exact)
                known += found[i - first] != UNKNOWN
        if rows is theta:
            assert known > 150, "most points are certain"
            nearest_filler(lanes, group)(features, 64, 128, prepared, found)
            assert (found[6:14] == UNKNOWN).all(), "ties and what is no number are not"


@pytest.mark.parametrize("name", ["squared_distance", "dot"])
def test_sums_over_points_are_those_of_single_points(name: str) -> None:
    function, features = {"squared_distance": squared_distance, "dot": dot}[name], hard_rows(np.float32)
    kind = np.float64 if name == "dot" else np.float32  # rows of another precision too
    rows = np.random.default_rng(1).normal(size=(3, 6)).astype(kind)
    table = np.empty((3, 2 * MARGIN + TILE), kind)
    fill = sums_filler(name, 6, 2 * register_lanes(np.float32))
    prepared = prepare_sums(features, rows, table)
    for first, end in ((0, 64), (64, 100), (127, len(features))):
        fill(features, first, end, prepared, table)
        exact = [[function(x, row) for x in features[first:end]] for row in rows]
        np.testing.assert_array_equal(table[:, MARGIN : MARGIN + end - first], exact)


class RowByRow(CLUSTERS):  # type: ignore[misc, valid-type]
    """The same in a loop, with θ in another precision."""

    kernels = Kernels(narrow_parameter=False)

    def updateDataPoint(self, dataPoint: Any, parameter: Any, iterationNum: int) -> Any:
        x, last = dataPoint.features, dataPoint.state[0]
        best, least = 0, np.inf
        for j in range(self.k):
            distance = squared_distance(x, parameter[j])
            if distance < least:
                best, least = j, distance
        dataPoint.state[0] = best
        return Moved(x, last, best)


class Moved(NamedTuple):
    x: Any
    last: int
    best: int


@pytest.mark.slow  # compiles four loops; `test_points` has one of them beside the interpreted one
@pytest.mark.parametrize("algorithm", [CLUSTERS(k=3), RowByRow(k=3)], ids=str)
def test_a_class_with_calls_ahead_gives_the_same_bits_as_without(
    algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = hard_rows(np.float32)
    rows[76:78] = 1.0  # numbers, or nothing in the sums could be compared
    share, parameter, zero = prepare(algorithm, rows)
    results = []
    for ahead in (True, False):
        if not ahead:
            monkeypatch.setattr(compiling, "calls_ahead", lambda *_: [])
        built = build_kernel(algorithm, share, parameter, zero)
        assert built.kind == "compiled", built.note
        share.state[...], share.halted[...], total = -1, np.arange(len(rows)) % 5 == 0, pytree.copy(zero)
        for first, end in ((0, 3), (3, 90), (90, len(rows))):
            assert built.kernel(share, parameter, total, first, end, 0, new_flag()) == end
        results.append([share.state.copy(), *pytree.flatten(total)])
    for with_tiles, without in zip(*results, strict=True):
        np.testing.assert_array_equal(with_tiles, without)
    assert (results[0][0][share.halted == 1] == -1).all(), "halted points are not visited"
