"""Slaves as jobs of a real Slurm: two nodes on this host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from launch_checks import check_loses_a_slave, check_nothing_is_left, check_trains, until
from slurm_host import PROGRAMS, slurm

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.cluster.launch.slurm import SlurmCluster, SlurmPlacer, scancel
from tests import needs

pytestmark = [
    needs.programs(*PROGRAMS),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start Slurm's daemons for a test"),
]


@pytest.fixture(scope="module", autouse=True)
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with slurm(tmp_path_factory.mktemp("slurm")) as folder:
        yield folder


@pytest.mark.processes
def test_jobs_train_on_nodes_of_slurm_and_survive_a_killed_one(two_nodes: Path) -> None:
    with SlurmCluster(slaves=2) as cluster:
        placer = cluster._placer
        assert isinstance(placer, SlurmPlacer) and len(set(placer.places.values())) == 2
        check_trains(cluster)
        check_loses_a_slave(cluster, lambda name: scancel("--signal=KILL", placer.places[name].partition(".")[0]))
    check_nothing_is_left(cluster)
    until(lambda: not queued())  # Slurm lists a job for a while after its end


def queued() -> str:
    return subprocess.run(["squeue", "-h"], capture_output=True, text=True, check=True).stdout


def shown(job: str) -> str:
    return subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
@pytest.mark.processes
def test_a_batch_job_that_is_signalled_keeps_a_checkpoint_requeues_itself_and_ends_as_if_it_had_not(
    tmp_path: Path,
) -> None:
    same = {"sync": "bsp", "tolerance": 0, "max_iterations": 200, "workers": 2}
    words = [word for name, value in same.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    words = ["submit", "kmeans", "--data", "blobs:4000", "--set", "k=4", "--set", "init=first", *words]
    words += ["--straggler", "all:20ms/500", "--out", "result", "--json", "figures.json"]
    script = [sys.executable, "-m", "flegel", "launch", "slurm", "--script", "--option", "time=10:00", "--", *words]
    text = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    submitted = subprocess.run(["sbatch", "--parsable"], input=text, capture_output=True, text=True, cwd=tmp_path)
    job = submitted.stdout.strip()
    until(lambda: (tmp_path / "checkpoints" / job / "commit-0").exists())
    scancel("--batch", "--signal=USR1", job)  # as Slurm does before the time limit
    until(lambda: "Restarts=1" in shown(job) and "PENDING" in shown(job))
    subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], check=True)
    until(lambda: "COMPLETED" in shown(job))
    log = (tmp_path / f"flegel-{job}.log").read_text()
    assert "its checkpoint is of iteration" in log and "back into the queue" in log
    there = json.loads((tmp_path / "figures.json").read_text())
    here = flegel.run(KMeans(k=4, init="first"), "blobs:4000", **same)
    assert there["iterations"] == 200 and there["objective"] == here.objective
