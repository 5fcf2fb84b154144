"""Slaves as actors of Ray."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from launch_checks import check_collection, check_loses_a_slave, check_nothing_is_left, check_trains, until

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.cluster.launch.ray import RayCluster
from tests import needs

ray = needs.library("ray")
needs.library("ray.data")


@pytest.fixture(scope="module", autouse=True)
def own_ray() -> Iterator[None]:
    ray.init(num_cpus=4, resources={"place": 2}, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.processes
def test_jobs_train_on_actors_and_survive_one_that_ray_kills() -> None:
    with RayCluster(slaves=2, strategy="PACK") as cluster:
        check_trains(cluster)
        check_collection(cluster, ray.data.from_pandas)
        check_loses_a_slave(cluster, cluster.kill)
    check_nothing_is_left(cluster)
    assert ray.is_initialized(), "a Ray that was there before stays"


@pytest.mark.processes
def test_a_job_trains_on_an_actor_that_takes_resources_of_its_own() -> None:
    with RayCluster(slaves=1, strategy="PACK", resources={"place": 1}) as cluster:
        there = flegel.run(KMeans(k=4, init="first"), "blobs:4000", cluster=cluster, workers=1, sync="bsp")
        until(lambda: ray.available_resources().get("place", 0) == 1)  # nodes tell what is in use, a moment later
    here = flegel.run(KMeans(k=4, init="first"), "blobs:4000", workers=1, sync="bsp")
    assert there.objective == here.objective
    check_nothing_is_left(cluster)


@pytest.mark.slow
@pytest.mark.processes
def test_jobs_train_on_four_actors() -> None:
    with RayCluster(slaves=4) as cluster:
        check_trains(cluster, workers=4)
    check_nothing_is_left(cluster)
