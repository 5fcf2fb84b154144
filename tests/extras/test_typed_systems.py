"""Blocks of the pages that need another system run as they stand: a Slurm, a Spark, a Dask, an object store and an API
server of Kubernetes, all on this host, or a checkout and the suite of benchmarks in it. What the pages call them is
replaced by where they are."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests import needs
from tests.ports import free_port
from tests.typed_pages import PAGES, ROOT, run, typed

sys.path += [str(ROOT / "tests" / "cluster"), str(ROOT / "tests" / "extras" / "launch")]
pytestmark = [pytest.mark.slow, pytest.mark.processes]


def points(rows: int = 400) -> pd.DataFrame:
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(rows, 3)), columns=["width", "depth", "height"])
    frame["kind"] = np.where(frame["width"] > 0, "pulsar", "noise")
    return frame


@contextmanager
def slurm(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Two nodes. Batch jobs of a page go on after its last command; they end before Slurm does."""
    import slurm_host

    (folder / "slurm").mkdir()
    with slurm_host.slurm(folder / "slurm"):
        yield {}
        slurm_host._until(lambda: not queued(), "jobs do not leave the queue", 1800.0)
        for log in (folder / "page").glob("flegel-*.log"):
            assert "saved to" in log.read_text(), log.read_text()


def queued() -> str:
    return subprocess.run(["squeue", "-h"], capture_output=True, text=True, check=True).stdout


@contextmanager
def spark(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A standalone master and a worker with four cores."""
    place = Path(needs.library("pyspark").__file__).parent
    patch.setenv("PYSPARK_PYTHON", sys.executable)
    patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    port = free_port()
    deploy = "org.apache.spark.deploy"
    with ExitStack() as stack:
        for words in (
            (f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"),
            (f"{deploy}.worker.Worker", "--host", "127.0.0.1", "--cores", "4", "--memory", "4g", "--webui-port", "0",
             "--work-dir", str(folder / "spark"), f"spark://127.0.0.1:{port}"),
        ):  # fmt: skip
            daemon = subprocess.Popen(
                [str(place / "bin" / "spark-class"), *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            stack.callback(daemon.wait)
            stack.callback(daemon.kill)
        yield {"spark://head:7077": f"spark://127.0.0.1:{port}"}


@contextmanager
def dask(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    distributed = needs.library("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as workers:
        yield {"tcp://head:8786": workers.scheduler_address}


@contextmanager
def store(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """SeaweedFS with what the pages read from a bucket."""
    from bench.chaos.environment.object_store import Store

    obstore = needs.library("obstore")
    (folder / "store").mkdir()
    found = Store(folder / "store")
    found.start()
    try:
        for name, value in found.environment.items():
            patch.setenv(name, value)
        bucket = obstore.store.from_url("s3://bucket/", client_options={"allow_http": True})
        obstore.put(bucket, "points.parquet", (folder / "shared" / "points.parquet").read_bytes())
        yield {}
    finally:
        found.kill()


@contextmanager
def kubernetes(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """An API server that runs pods as processes of this host, and a kubeconfig that names it."""
    from kubernetes_mock import TOKEN, mock_api

    (folder / "pods").mkdir()
    with store(folder, patch), mock_api(folder / "pods", run=True) as (server, _):
        config = folder / "kubeconfig"
        config.write_text(
            f"current-context: test\n"
            f"contexts: [{{name: test, context: {{cluster: test, user: test, namespace: test}}}}]\n"
            f"clusters: [{{name: test, cluster: {{server: '{server}'}}}}]\n"
            f"users: [{{name: test, user: {{token: {TOKEN}}}}}]\n"
        )
        patch.setenv("KUBECONFIG", str(config))
        yield {}


@contextmanager
def checkout(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A clone of what is committed here, and an empty environment."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), "."], cwd=folder / "page", check=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "environment")], check=True)
    yield {"pip install": f"{folder / 'environment'}/bin/pip install"}


@contextmanager
def ssh(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The master of docs/cluster.md, and its three hosts: this one, under three names, each reached by ssh."""
    from daemon_cluster import DaemonCluster
    from ssh_server import program_for_hosts, ssh_server

    listed = re.search(r"^```\n(node1 .*?)^```", (ROOT / "docs" / "cluster.md").read_text(), re.MULTILINE | re.DOTALL)
    assert listed is not None
    program = program_for_hosts(folder / "flegel")
    hosts = folder / "page" / "hosts.txt"
    for line in listed[1].splitlines():
        name, slots = line.split()[:2]
        with hosts.open("a") as file:
            file.write(f"127.0.0.1 name={name} {slots} flegel={program} home={folder}/{name}\n")
    with ssh_server(folder) as command, DaemonCluster(folder / "page", slaves=0) as cluster, cluster.client() as client:
        patch.setenv("FLEGEL_SSH", command)
        yield {"tcp://head:7077": cluster.address, "--data higgs": "--data higgs:20000"}
        assert sorted(slave.name for slave in client.slaves()) == ["node1", "node2", "node3"]
        assert [(job.state, job.workers) for job in client.jobs()] == [("done", 12)]
        told = {**cluster.environment, "FLEGEL_SSH": command}
        down = [sys.executable, "-m", "flegel.cli.main", "cluster", "down", str(hosts)]
        subprocess.run(down, env=told, check=True, timeout=300)
        cluster.until(lambda: not client.slaves(), "all slaves have left")


UNTIL_IT_HELPS = """
"$@" > looked.log 2>&1 &
slave=$!
until flegel jobs --master "$PARIS" --json > jobs.json && grep -q '"workers": 3' jobs.json; do
  kill -0 $slave && sleep 1 || { cat looked.log; exit 1; }
done
kill -TERM $slave
wait $slave || true
"""
"""A slave of groups runs until it is ended: here, when the job of its first group has workers in its slots."""


@contextmanager
def groups(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Two groups that train one model through a store: a master with a slave of its own, and a job, for each."""
    from daemon_cluster import DaemonCluster

    patch.setenv("FLEGEL_INSECURE", "1")
    script = folder / "until_it_helps.sh"
    script.write_text(UNTIL_IT_HELPS)
    with ExitStack() as stack:
        stack.enter_context(store(folder, patch))
        paris, lyon = (
            stack.enter_context(DaemonCluster(folder / name, slaves=1, slots=1, keys=False))
            for name in ("paris", "lyon")
        )
        for name, cluster in (("paris", paris), ("lyon", lyon)):
            words = ["submit", "kmeans", "--data", "blobs:2000", "--set", "k=3", "--workers", "1", "--tolerance", "0"]
            words += [
                "--group",
                name,
                "--bucket",
                "s3://bucket/job7",
                "--every",
                "1s",
                "--max-seconds",
                "1200",
                "--detach",
            ]
            command = [sys.executable, "-m", "flegel.cli.main", *words]
            subprocess.run(command, env=cluster.environment, check=True, timeout=300)
        patch.setenv("PARIS", paris.address)
        yield {
            "s3://models/job7": "s3://bucket/job7",
            "tcp://paris:7077": paris.address,
            "tcp://lyon:7077": lyon.address,
            "flegel group-slave": f"sh {script} flegel group-slave",
        }
        (job,) = json.loads((folder / "page" / "jobs.json").read_text())
        assert job["state"] == "running" and job["workers"] == 3, "the job of the group has the slots of this host, too"


@contextmanager
def gpu(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """GPUs, of which there is none here: their programs run on processors, with fewer rows and workers."""
    needs.library("torch")
    yield {
        "cuda:0,cuda:1": "torch:cpu",
        "cuda:0": "torch:cpu",
        "cuda": "torch:cpu",
        "--workers 16": "--workers 3",
        "--data higgs": "--data higgs:20000",
        "--data fashion-mnist": "--data fashion-mnist:2000 --max-passes 2",
    }


@contextmanager
def suite(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A clone, whose suite runs small: two quick figures stand for all, and no floors are known at that scale."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), "."], cwd=folder / "page", check=True)
    yield {
        "run all --scale": "run 004-table1 004-fig2 --scale",
        "--scale small": "--scale smoke",
        "--workers 16": "--workers 2",
        "bench.regress runs/bench": "bench.regress runs/bench --scale smoke --floors floors.json --record",
    }


SYSTEMS = {
    "slurm": slurm, "spark": spark, "dask": dask, "store": store, "kubernetes": kubernetes, "checkout": checkout,
    "ssh": ssh, "groups": groups, "gpu": gpu, "suite": suite,
}  # fmt: skip
PROGRAMS = {
    "slurm": ("slurmctld", "slurmd", "munged", "sbatch", "srun", "setpriv"),
    "spark": ("java",),
    "store": ("weed",),
    "kubernetes": ("weed",),
    "ssh": ("sshd", "ssh", "ssh-keygen"),
    "groups": ("weed",),
}


@pytest.mark.parametrize(
    ("system", "page"),
    [
        pytest.param(system, page, id=f"{system}-{page.name}", marks=needs.programs(*PROGRAMS.get(system, ())))
        for system in SYSTEMS
        for page in PAGES
        if typed(page, True, system)
    ],
)
def test_blocks_that_need_a_system_run_as_typed(
    system: str, page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if system == "slurm" and os.geteuid() != 0:
        pytest.skip("only root can start Slurm's daemons for a test")
    for name in ("shared", "page"):
        (tmp_path / name).mkdir()
    points().to_parquet(tmp_path / "shared" / "points.parquet")
    for part in range(1, 5) if system == "store" else ():
        points(200 + part).drop(columns="kind").to_parquet(tmp_path / "page" / f"part{part}.parquet")
    with SYSTEMS[system](tmp_path, monkeypatch) as places:
        run(page, typed(page, True, system), tmp_path / "page", {"/shared/": f"{tmp_path}/shared/", **places})
