"""Workers that change their group while both groups train, with real masters, slaves and workers."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flegel.algorithms.kmeans import KMeans
from flegel.cluster.client import Client
from flegel.cluster.group_slave import GroupSlave
from flegel.configuration.active import active
from flegel.group_options import GroupSpec
from flegel.machine.group.records import MEMBERS, MemberBeat, decode
from flegel.runtime.group.bucket import open_bucket
from flegel.runtime.group.keys import PlainObjects
from tests.cluster.daemon_cluster import DaemonCluster, end_with_the_test

pytestmark = pytest.mark.slow


def test_workers_leave_the_larger_group_while_both_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shorter = replace(active(), groups=replace(active().groups, stay_seconds=2.0))
    monkeypatch.setattr("flegel.plan.group_choice.active", lambda: shorter)
    monkeypatch.setattr("flegel.cluster.group_slave.round_trip", lambda address: 0.01)
    rng = np.random.default_rng(0)
    rows = np.concatenate([6.0 * c + rng.normal(size=(2000, 4)) for c in rng.normal(size=(6, 4))]).astype(np.float32)
    for at in range(2):
        np.save(tmp_path / f"part{at}.npy", rows[at::2])
        (tmp_path / f"g{at}").mkdir()
    place = tmp_path / "bucket"
    with (
        DaemonCluster(tmp_path / "g0", slaves=1, slots=1, keys=False) as first,
        DaemonCluster(tmp_path / "g1", slaves=1, slots=1, keys=False) as second,
        first.client() as here,
        second.client() as there,
    ):
        clusters = {"g0": first, "g1": second}
        moving = [mover(clusters, place, f"roam{number}", tmp_path) for number in range(3)]
        try:
            jobs = []
            for at, (cluster, client) in enumerate(((first, here), (second, there))):
                sites = GroupSpec(group=f"g{at}", bucket=str(place), groups=2, every="2", group_timeout=20.0)
                data = str(tmp_path / f"part{at}.npy")
                jobs.append(
                    cluster.submit(
                        KMeans(k=5, init="first"),
                        data,
                        client,
                        workers=1,
                        tolerance=0.0,
                        max_seconds=150.0,
                        sites=sites,
                    )
                )
            for cluster, client, job in zip((first, second), (here, there), jobs, strict=True):
                cluster.training(client, job)
            for slave in moving:
                slave.begin("g0")
            first.until(lambda: workers(place)["g0"] == 4, "four workers train in the first group")
            until = time.monotonic() + 60.0
            while abs(workers(place)["g0"] - workers(place)["g1"]) > 1 and time.monotonic() < until:
                for slave in moving:
                    slave.look()
                time.sleep(1.0)
            counts = workers(place)
            assert abs(counts["g0"] - counts["g1"]) <= 2 and sum(len(slave.moves) for slave in moving) in (1, 2), counts
            ended = [c.wait(client, job, seconds=300.0) for c, client, job in
                     zip((first, second), (here, there), jobs, strict=True)]  # fmt: skip
        finally:
            for slave in moving:
                slave.close()
    assert [view.state for view in ended] == ["done", "done"], [view.reason for view in ended]
    assert [view.attempt for view in ended] == [1, 1]


def workers(place: Path) -> dict[str, int]:
    """Workers by group, as the groups tell."""
    found = {}
    for name in ("g0", "g1"):
        held = open_bucket(str(place)).get(MEMBERS + name)
        found[name] = decode(held[0], MemberBeat)[0].workers if held else 0
    return found


def mover(clusters: dict[str, DaemonCluster], place: Path, name: str, folder: Path) -> GroupSlave:
    """A slave of this test that chooses by the number of workers: the load average is that of one host for all."""
    by_address = {cluster.address: cluster for cluster in clusters.values()}

    def start(address: str) -> subprocess.Popen[bytes]:
        with (folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "flegel.cli.main", "slave", "--master", address, "--name", name, "--slots", "1",
                 "--folder", str(folder / name)],
                env=by_address[address].environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, preexec_fn=end_with_the_test,
            )  # fmt: skip

    return GroupSlave(
        {group: cluster.address for group, cluster in clusters.items()}, open_bucket(str(place)), PlainObjects(), name,
        1, start, lambda address: Client(address, insecure=True), lambda beat: float(beat.workers),
    )  # fmt: skip
