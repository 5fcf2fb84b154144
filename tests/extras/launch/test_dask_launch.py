"""Slaves as tasks on workers of Dask."""

from __future__ import annotations

import os
import signal

import pytest
from launch_checks import check_loses_a_slave, check_nothing_is_left, check_trains

from flegel.cluster.launch.dask import DaskCluster
from tests import needs

distributed = needs.library("distributed")


@pytest.mark.processes
def test_jobs_train_on_workers_of_dask_and_survive_a_killed_one() -> None:
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as workers,
        distributed.Client(workers) as client,
    ):
        with DaskCluster(client) as cluster:
            check_trains(cluster)
            pids = client.run(os.getpid)
            check_loses_a_slave(cluster, lambda name: os.kill(pids[cluster._placer.workers[name]], signal.SIGKILL))  # type: ignore[attr-defined]
        check_nothing_is_left(cluster)
        assert client.submit(sum, [1, 2]).result() == 3, "Dask itself goes on"
