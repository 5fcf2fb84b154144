"""Slaves as jobs of a real Slurm: two nodes on this host."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from launch_checks import check_loses_a_slave, check_nothing_is_left, check_trains
from slurm_host import missing, slurm

from flegel.cluster.launch.slurm import SlurmCluster, SlurmPlacer, scancel

if missing():
    pytest.skip(missing(), allow_module_level=True)


@pytest.fixture(scope="module", autouse=True)
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with slurm(tmp_path_factory.mktemp("slurm")) as folder:
        yield folder


@pytest.mark.processes
def test_jobs_train_on_nodes_of_slurm_and_survive_a_killed_one(two_nodes: Path) -> None:
    with SlurmCluster(slaves=2, timeout=120.0) as cluster:
        placer = cluster._placer
        assert isinstance(placer, SlurmPlacer) and len(set(placer.places.values())) == 2
        check_trains(cluster)
        check_loses_a_slave(cluster, lambda name: scancel("--signal=KILL", placer.places[name]))
    check_nothing_is_left(cluster)
    assert subprocess.run(["squeue", "-h"], capture_output=True, text=True, check=True).stdout == ""
