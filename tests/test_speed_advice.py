"""`flegel check` says what keeps a class slow, and only what it saw there."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from flegel import Algorithm, DataPoint, Kernels, Sample, Statistics
from flegel.algorithms.points import add_to, nearest
from flegel.checks import speed_advice
from flegel.checks.conformance import Trial


class Wasteful(Algorithm):
    """Adds all statistics for each point, allocates, and loops over columns."""

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> Any:
        return np.zeros((8, sample.columns))

    def updateDataPoint(self, dataPoint: DataPoint, parameter: Any, iterationNum: int) -> Any:
        change = np.zeros(parameter.shape)
        for j in range(parameter.shape[0]):
            for t in range(parameter.shape[1]):
                change[j, t] = dataPoint.features[t] - parameter[j, t]
        return change

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return oldParameter


class Move(NamedTuple):
    x: Any
    cluster: int


class Frugal(Wasteful):
    """Returns a point and its cluster, and folds them in."""

    kernels = Kernels(narrow_parameter=True)

    def initAggregator(self, sample: Sample, parameter: Any) -> Any:
        return np.zeros(parameter.shape)

    def updateDataPoint(self, dataPoint: DataPoint, parameter: Any, iterationNum: int) -> Any:
        return Move(dataPoint.features, nearest(dataPoint.features, parameter)[0])

    def aggregate(self, aggregator: Any, change: Any) -> Any:
        add_to(aggregator[change.cluster], change.x)


class Shifted(Frugal):
    """Looks for the nearest of rows that are made for each point."""

    def updateDataPoint(self, dataPoint: DataPoint, parameter: Any, iterationNum: int) -> Any:
        x = dataPoint.features - parameter[0]
        return Move(x, nearest(x, parameter))


class Squares(Algorithm):
    """What a point adds is the same under every θ."""

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> Any:
        return np.zeros((sample.columns, sample.columns))

    def contribution(self, dataPoint: DataPoint, parameter: Any) -> Any:
        return np.outer(dataPoint.features, dataPoint.features)

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return aggregator * 1.0


class CountedSquares(Squares):
    """Says so."""

    statistics = Statistics(constant=True)

    def contributions(self, features: Any, labels: Any, weights: Any, parameter: Any) -> Any:
        each = np.ones(len(features)) if weights is None else weights
        return (features * each[:, None]).T @ features


def advice(algorithm: Algorithm) -> list[str]:
    rows = np.ones((64, 28), np.float32)
    return list(speed_advice._advice(Trial(algorithm, rows, np.zeros(64), np.dtype(np.float32))))


def test_each_cause_is_named_with_its_line_and_what_to_write_instead() -> None:
    said = advice(Wasteful())
    causes = ("each point adds 224 numbers", "float64 θ", "(np.zeros)", "squared_distance")
    assert len(said) == len(causes)
    for sentence, cause in zip(said, causes, strict=True):
        assert cause in sentence
    line = Wasteful.updateDataPoint.__code__.co_firstlineno
    assert f"line {line + 1} " in said[2] and f"line {line + 3} " in said[3]


def test_a_call_that_cannot_be_made_for_many_points_is_named() -> None:
    (said,) = advice(Shifted())
    assert f"line {Shifted.updateDataPoint.__code__.co_firstlineno + 2} computes nearest for one point" in said


def test_nothing_is_said_of_a_class_that_does_all_that() -> None:
    assert advice(Frugal()) == []


def test_a_class_that_is_interpreted_hears_why_and_a_fast_one_only_its_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed_advice, "_timed", lambda trial: ("interpreted", "no such thing", 1.0))
    assert "no such thing" in speed_advice.speed_advice(Wasteful())[1]
    monkeypatch.setattr(speed_advice, "_timed", lambda trial: ("compiled", "", 1e-6))
    assert len(speed_advice.speed_advice(Wasteful())) == 1


def test_a_contribution_that_does_not_depend_on_theta_is_named_where_it_is_not_declared() -> None:
    assert [said for said in advice(Squares()) if "Statistics(constant=True)" in said]
    assert not [said for said in advice(CountedSquares()) if "Statistics(constant=True)" in said]


def test_each_timed_pass_of_a_class_that_counts_points_once_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    contributions = CountedSquares.contributions

    def counting(self: Any, features: Any, *others: Any) -> Any:
        counted.append(len(features))
        return contributions(self, features, *others)

    monkeypatch.setattr(CountedSquares, "contributions", counting)
    trial = Trial(CountedSquares(), np.ones((64, 28), np.float32), np.zeros(64), np.dtype(np.float32))
    counted.clear()
    speed_advice._timed(trial)
    assert sum(counted) == 3 * 64
    assert "a mark that it was counted" in speed_advice._kept(trial, "vectorized")[0]
