"""Slaves as barrier stages of Spark, in its local cluster mode: executors are processes of their own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from launch_checks import check_collection, check_loses_a_slave, check_nothing_is_left, check_trains, until

from flegel.cluster.launch.spark import SparkCluster, new_session
from flegel.errors import UsageError
from tests import needs

pyspark = needs.library("pyspark")
pytestmark = needs.programs("java")


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}
    found = new_session("local-cluster[3,1,1024]", settings)
    yield found
    found.stop()


@pytest.mark.slow
@pytest.mark.processes
def test_jobs_train_on_executors_and_survive_a_killed_one(session: Any) -> None:
    with SparkCluster(session, slaves=2) as cluster:
        check_trains(cluster)
        check_collection(cluster, session.createDataFrame)
        check_loses_a_slave(cluster, lambda name: kill_executor_of(name))
    check_nothing_is_left(cluster)
    assert session.range(10).count() == 10, "Spark itself goes on"


@pytest.mark.slow
@pytest.mark.processes
def test_frames_of_executors_train_and_are_refused_where_slaves_hold_every_core(session: Any) -> None:
    with SparkCluster(session, slaves=2) as cluster:
        check_collection(cluster, session.createDataFrame)
        cluster.scale(3)
        until(lambda: sum(slave.state == "here" for slave in cluster.slaves()) == 3)
        with pytest.raises(UsageError, match="All 3 slots of Spark are in use"):
            cluster.submit("kmeans", session.range(10).toDF("a"))
    check_nothing_is_left(cluster)


def kill_executor_of(name: str) -> None:
    """The executor whose process has the slave of this name among its descendants."""
    for process in psutil.process_iter():
        try:
            if "CoarseGrainedExecutorBackend" not in " ".join(process.cmdline()):
                continue
            files = [file.path for child in process.children(recursive=True) for file in child.open_files()]
        except psutil.Error:
            continue
        if any(f"-{name}-" in path for path in files):
            os.kill(process.pid, signal.SIGKILL)
            return
    raise AssertionError(f"no executor has {name}")
