"""Jobs whose workers hold θ and merge reports among themselves: the results of the coordinator, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flegel
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.lr import LR
from flegel.algorithms.nmf import NMF
from flegel.core import pytree
from flegel.errors import AlgorithmError, ProtocolError, UsageError
from flegel.runtime.processes.thread_cluster import ThreadCluster
from tests.balance.test_processes import MOVES, moving


@pytest.fixture(scope="module")
def local_cluster() -> Any:
    with ThreadCluster(workers=3) as warm:
        yield warm


def rows(points: np.ndarray, kind: type) -> Any:
    if kind is LR:
        return points, (points[:, 0] > 0).astype(float)
    return np.abs(points) if kind is NMF else points


@pytest.mark.parametrize(
    ("make", "sync"),
    [
        (lambda: KMeans(k=4), "bsp"),
        (lambda: KMeans(k=4), "bsp-mini"),
        (lambda: GMM(k=3), "bsp"),
        (LR, "bsp"),
        (lambda: NMF(rank=2), "bsp"),
    ],
)
def test_results_are_those_of_the_coordinator(local_cluster: Any, points: np.ndarray, make: Any, sync: str) -> None:
    options: dict[str, Any] = {
        "workers": 3,
        "cluster": local_cluster,
        "sync": sync,
        "tolerance": 0,
        "max_iterations": 6,
    }
    if sync == "bsp-mini":
        options["batches"] = 4
    data = rows(points, type(make()))
    one, other = (flegel.run(make(), data, topology=t, **options) for t in ("coordinator", "allreduce"))
    assert [r["objective"] for r in other.rows] == [r["objective"] for r in one.rows]
    for mine, theirs in zip(pytree.flatten(other.parameter), pytree.flatten(one.parameter), strict=True):
        assert np.array_equal(mine, theirs)
    assert other.audit["problems"] == [] and other.audit["recounts"] == 0


def test_points_move_under_flexible_barriers(local_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a plan of the test: what is measured of workers depends on the host."""
    moving(monkeypatch, *MOVES)
    rng = np.random.default_rng(1)
    data = (rng.normal(size=(20_000, 6)) + 3 * rng.integers(3, size=(20_000, 1))).astype(np.float32)
    result = flegel.run(
        KMeans(k=4),
        data,
        workers=3,
        cluster=local_cluster,
        sync="fsp",
        interval="2ms",
        topology="allreduce",
        tolerance=0,
        balance="async",
        max_seconds=600,
    )
    assert result.balance["points"] >= 5000 and result.audit["problems"] == []
    values = [r["objective"] for r in result.rows if r["objective"] is not None]
    assert (np.diff(values) <= 1e-9 * values[0]).all()


class Faulty(KMeans):
    """Does what an algorithm must not."""

    fault: str = ""

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        if self.fault == "raises":
            raise ValueError("not today")
        return oldParameter._replace(centroids=oldParameter.centroids + id(self) % 1000003)


class Merging(flegel.Algorithm):
    """Merges reports its own way."""

    def initParameter(self, sample: Any, rng: Any) -> Any:
        return np.zeros(sample.columns)

    def updateDataPoint(self, dataPoint: Any, parameter: Any, processIndex: int) -> Any:
        return dataPoint.features

    def updateParameter(self, aggregator: Any, parameter: Any) -> Any:
        return aggregator

    def aggregate(self, target: Any, aggregator: Any) -> Any:
        return np.maximum(target, aggregator)


@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [
        ("raises", AlgorithmError, r"updateParameter raised ValueError: not today \(worker \d, round 0\)"),
        ("differs", ProtocolError, r"another θ than worker 0 in round 0.*topology=.coordinator"),
    ],
)
def test_hooks_that_fail_on_workers_say_so(
    local_cluster: Any, points: np.ndarray, fault: str, error: type, text: str
) -> None:
    with pytest.raises(error, match=text):
        flegel.run(
            Faulty(k=4, fault=fault), points, workers=2, cluster=local_cluster, sync="bsp", topology="allreduce",
            max_iterations=3,
        )  # fmt: skip


@pytest.mark.parametrize("sync", ["asp", "ssp", "psp"])
def test_models_that_merge_single_reports_refuse_it(points: np.ndarray, sync: str) -> None:
    with pytest.raises(
        UsageError, match=f"^{sync} merges reports of single workers.*works with auto, bsp, bsp-mini, fsp"
    ):
        flegel.run("kmeans", points, sync=sync, topology="allreduce")


def test_what_needs_single_reports_at_the_coordinator_is_refused(points: np.ndarray) -> None:
    with pytest.raises(UsageError, match=r"aggregate of Merging merges reports its own way.*topology=.coordinator."):
        flegel.run(Merging(), points, topology="allreduce", max_iterations=2)
    with pytest.raises(UsageError, match=r"attribute= asks for the gain of each report"):
        flegel.run("kmeans", points, topology="allreduce", attribute=True)
    with pytest.raises(UsageError, match=r"servers= keeps θ on servers"):
        flegel.run("kmeans", points, topology="allreduce", servers=2)
    with pytest.raises(UsageError, match=r"topology=\"ring\" is not known"):
        flegel.run("kmeans", points, topology="ring")
