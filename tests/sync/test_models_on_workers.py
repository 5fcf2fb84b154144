"""Every model on real worker processes, once: what virtual time cannot prove."""

from __future__ import annotations

import numpy as np
import pytest

import flegel
from flegel.errors import UsageError
from flegel.sync import models

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("sync", models())
def test_every_model_trains_with_a_straggler(sync: str, cluster, points) -> None:
    reference = flegel.run("kmeans", points, sync="bsp", workers=2, cluster=cluster, tolerance=1e-8, max_iterations=300)
    result = flegel.run(
        "kmeans", points, sync=sync, workers=2, cluster=cluster, tolerance=1e-6, straggler="0:3x", max_seconds=600
    )
    assert result.objective <= 1.05 * reference.objective
    assert 0 < result.utilization <= 1
    assert sum(result.staleness.values()) >= result.iterations
    for worker in result.worker:
        assert 0 <= worker["merge_seconds"] <= worker["wait_seconds"] + 1e-9


@pytest.mark.parametrize("coordination", ["semi", "centralized"])
def test_the_objective_never_rises_under_flexible_barriers(coordination: str, cluster, points) -> None:
    result = flegel.run(
        "kmeans", points, sync="fsp", interval="1ms", coordination=coordination, workers=2, cluster=cluster,
        tolerance=0, max_passes=12,
    )  # fmt: skip
    values = [row["objective"] for row in result.rows if row["objective"] is not None]
    assert len(values) > 5 and (np.diff(values) <= 1e-9 * values[0]).all()


def test_decisions_and_spans_are_in_the_trace(cluster, points) -> None:
    result = flegel.run("kmeans", points, sync="fsp", workers=2, cluster=cluster, tolerance=0, max_iterations=40)
    assert any("φ=" in row["reason"] for row in result.rows)
    assert {span[0] for row in result.rows for span in row["spans"]} == {0, 1}


def test_natural_contention_ends_with_the_job(cluster, points) -> None:
    options = {"sync": "fsp", "interval": "2ms", "workers": 2, "cluster": cluster, "tolerance": 0, "max_iterations": 10}
    assert flegel.run("kmeans", points, straggler="0:natural", **options).iterations == 10
    assert flegel.run("kmeans", points, **options).iterations == 10


def test_a_wrong_straggler_is_refused_before_anything_starts(points) -> None:
    with pytest.raises(UsageError, match="workers 0 to 1"):
        flegel.run("kmeans", points, workers=2, straggler="5:8x")
