"""A real cluster on the dashboard: its jobs and slaves arrive, and buttons have the rights of the key."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import needs

needs.library("starlette")
needs.library("uvicorn")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "cluster"))

from daemon_cluster import DaemonCluster

from flegel.algorithms.kmeans import KMeans
from flegel.dashboard.cluster_jobs import ClusterDashboard
from flegel.dashboard.hub import Hub
from flegel.dashboard.server import ActionRequest
from flegel.errors import UsageError

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonCluster]:
    with DaemonCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def frames(hub: Hub, kind: str) -> list[dict[str, Any]]:
    return [frame for frame in map(json.loads, hub.history()) if frame["kind"] == kind]


def seen_by(hub: Hub, job: str) -> tuple[list[str], int]:
    """The state of this job, and how many slaves there are, as the page shows it now."""
    (view,) = frames(hub, "cluster")
    return [each["state"] for each in view["jobs"] if each["job"] == job], len(view["slaves"])


def test_jobs_and_slaves_arrive_and_a_button_cancels(cluster: DaemonCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    hub = Hub()
    with cluster.client() as client:
        board = ClusterDashboard(hub, client.address, insecure=False)
        try:
            job = cluster.submit(
                KMeans(k=4, init="first"), "blobs:4000", client, tolerance=0.0, max_seconds=600.0,
                straggler="all:20ms/500", workers=2,
            )  # fmt: skip
            cluster.training(client, job)
            cluster.until(lambda: len(frames(hub, "rows")) > 0 and len(frames(hub, "look")) > 1, "looks arrive")
            assert board.may_act and frames(hub, "job")[0]["title"] == job
            cluster.until(lambda: seen_by(hub, job) == (["running"], 2), "the cluster arrives")
            cluster.until(lambda: frames(hub, "look")[-1]["worker"]["id"] == [0, 1], "both workers arrive")
            with pytest.raises(UsageError, match="no job"):
                board.act(ActionRequest("cancel", "nothing"))
            with pytest.raises(UsageError, match="1 to 1024"):
                board.act(ActionRequest("scale", job, 5000))
            assert "cancelled" in board.act(ActionRequest("cancel", job))
            cluster.until(lambda: len(frames(hub, "end")) == 1, "the end arrives")
            assert "cancelled" in frames(hub, "end")[0]["error"]
        finally:
            board.close()
