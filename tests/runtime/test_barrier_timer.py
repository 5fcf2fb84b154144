"""A barrier with a timer in a whole job: a slow worker is stopped, and no point is lost by that."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import flegel
from flegel.errors import UsageError


class SlowSums(flegel.Algorithm):
    """Sums of columns; a visit takes 2 ms."""

    def initParameter(self, sample: Any, rng: Any) -> Any:
        return np.zeros(sample.columns)

    def initState(self, points: int, columns: int, rng: Any) -> Any:
        return np.zeros((points, 1))

    def updateDataPoint(self, dataPoint: Any, parameter: Any, iterationNum: int) -> Any:
        time.sleep(0.002)
        new = (1.0 - dataPoint.state[0]) * dataPoint.features
        dataPoint.state[0] = 1.0
        return new

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return np.asarray(aggregator)

    def objective(self, aggregator: Any, parameter: Any) -> float:
        return -float(np.sum(parameter))


def test_a_slow_worker_reports_what_it_has_done_and_no_point_is_lost() -> None:
    data = np.arange(240.0).reshape(120, 2)
    result = flegel.run(
        SlowSums(), data, workers=2, processes=False, sync="bsp", partition="shuffle:0=20", barrier_timeout="20ms",
    )  # fmt: skip
    assert all(worker["passes"] >= 1.0 for worker in result.worker) and result.outcome == "converged"
    np.testing.assert_array_equal(result.parameter, data.sum(axis=0))


def test_models_without_such_a_barrier_refuse_the_timer() -> None:
    with pytest.raises(UsageError, match=r"fsp has no barrier_timeout=; it is an option of bsp, bsp-mini"):
        flegel.run(SlowSums(), np.ones((4, 2)), barrier_timeout=120.0)
