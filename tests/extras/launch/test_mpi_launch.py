"""Slaves that mpiexec starts."""

from __future__ import annotations

import os
import signal

import psutil
import pytest
from launch_checks import check_loses_a_slave, check_nothing_is_left, check_trains

from flegel.cluster.launch.mpi import MpiCluster
from tests import needs

pytestmark = needs.programs("mpiexec")


@pytest.mark.processes
def test_jobs_train_on_slaves_of_mpi_and_survive_a_killed_one() -> None:
    with MpiCluster(slaves=2) as cluster:
        check_trains(cluster)
        commands = cluster._placer._commands  # type: ignore[attr-defined]

        def kill(name: str) -> None:
            """The process that mpiexec has started: mpiexec ends with it, and only with it."""
            (slave,) = [p for p in psutil.Process(commands[name].pid).children(recursive=True) if _is_slave(p)]
            os.kill(slave.pid, signal.SIGKILL)

        check_loses_a_slave(cluster, kill)
    check_nothing_is_left(cluster)


def _is_slave(process: psutil.Process) -> bool:
    return "flegel.cluster.launch.processes.slave_process" in process.cmdline()
