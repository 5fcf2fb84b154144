"""A job that diverges goes back to its best θ, then to bsp, and ends with the best θ where the method diverges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest

import flegel
from flegel import Learning, Statistics
from flegel.algorithm import Algorithm, Sample
from flegel.core.pytree import Array
from flegel.core.shard import DataPoint
from flegel.runtime.processes.thread_cluster import ThreadCluster


class Steps(NamedTuple):
    weight: Array
    length: Array


class Gradient(NamedTuple):
    slope: Array
    loss: Array
    seen: Array


class Descent(Algorithm):
    """Mean of a column by gradient descent, with a step that may be far too long."""

    statistics = Statistics(spent=("slope", "loss", "seen"))
    learning = Learning(averaged=True)
    length: float = 0.4
    shorter: float = 1.0

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> Steps:
        return Steps(np.zeros(1), np.array([self.length]))

    def updateDataPoint(self, dataPoint: DataPoint, parameter: Steps, iterationNum: int) -> Gradient:
        away = parameter.weight - dataPoint.features[:1]
        return Gradient(away, 0.5 * away * away, np.ones(1))

    def updateParameter(self, aggregator: Gradient, oldParameter: Steps) -> Steps:
        step = oldParameter.length * aggregator.slope / np.maximum(aggregator.seen, 1.0)
        return Steps(oldParameter.weight - step, oldParameter.length)

    def objective(self, aggregator: Gradient, parameter: Steps) -> float:
        return float(aggregator.loss[0] / max(aggregator.seen[0], 1.0))

    def steppedBack(self, parameter: Steps) -> Steps:
        return Steps(parameter.weight, parameter.length * self.shorter)


ROWS = np.random.default_rng(0).normal(3.0, 1.0, (400, 2))


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadCluster]:
    with ThreadCluster(2) as threads:
        yield threads


def test_a_method_that_can_shorten_its_steps_survives_divergence(cluster: ThreadCluster) -> None:
    result = flegel.run(Descent(length=9.0, shorter=0.1), ROWS, cluster=cluster, sync="bsp", max_iterations=200)
    assert result.outcome == "converged", result.reason
    assert result.parameters["weight"][0] == pytest.approx(ROWS[:, 0].mean(), rel=1e-2)
    (back,) = [i for i in result.incidents if i["kind"] == "recount"]
    assert back["why"].startswith("went back to θ of objective")


def test_a_method_that_diverges_by_itself_ends_with_its_best_parameter(cluster: ThreadCluster) -> None:
    result = flegel.run(
        Descent(length=9.0), ROWS, cluster=cluster, workers=1, sync="fsp", interval=60.0, max_iterations=200
    )
    assert result.outcome == "diverged" and not result.converged
    assert abs(result.parameters["weight"][0]) < 100 and result.objective < 1000
    assert sum(i["kind"] == "recount" for i in result.incidents) == 2
    assert any("replaced by bsp" in i["why"] for i in result.incidents)
