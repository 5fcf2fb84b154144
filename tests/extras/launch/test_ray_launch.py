"""Slaves as actors of Ray."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from launch_checks import check_collection, check_loses_a_slave, check_nothing_is_left, check_trains, until

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.cluster.launch.ray import RayCluster

ray = pytest.importorskip("ray", reason="pip install 'flegel[ray]'")
pytest.importorskip("ray.data", reason="pip install 'ray[data]'")


@pytest.fixture(scope="module", autouse=True)
def own_ray() -> Iterator[Any]:
    """A head and nodes that come and go, all on this host."""
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 3, "include_dashboard": False})
    ray.init(address=nodes.address, log_to_driver=False, configure_logging=False)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.mark.slow
@pytest.mark.processes
def test_jobs_train_on_actors_and_survive_one_that_ray_kills() -> None:
    with RayCluster(slaves=2, strategy="PACK") as cluster:
        check_trains(cluster)
        check_collection(cluster, ray.data.from_pandas)
        check_loses_a_slave(cluster, cluster.kill)
    check_nothing_is_left(cluster)
    assert ray.is_initialized(), "a Ray that was there before stays"


@pytest.mark.slow
@pytest.mark.processes
def test_jobs_train_on_four_actors(own_ray: Any) -> None:
    node = own_ray.add_node(num_cpus=1)
    with RayCluster(slaves=4) as cluster:
        check_trains(cluster, workers=4)
    check_nothing_is_left(cluster)
    own_ray.remove_node(node)


@pytest.mark.processes
def test_a_job_uses_a_node_that_ray_adds_and_outlives_its_loss(own_ray: Any) -> None:
    """As Ray's autoscaler does it; and a collection of Ray is read by its blocks."""
    first = own_ray.add_node(num_cpus=1, resources={"place": 1})
    with RayCluster(slaves=1, most=2, resources={"place": 1}) as cluster:
        endless = {"tolerance": 0.0, "max_seconds": 600.0, "straggler": "all:20ms/500"}
        job = cluster.submit(KMeans(k=4, init="first"), "blobs:4000", sync="bsp", **endless)
        until(lambda: (seen := job.progress()) is not None and seen.iteration > 1)
        second = own_ray.add_node(num_cpus=1, resources={"place": 1})
        until(lambda: sum(job.view().slots.values()) == 2)
        own_ray.remove_node(second, allow_graceful=False)
        until(lambda: sum(job.view().slots.values()) == 1)
        before = job.progress().iteration
        until(lambda: job.progress().iteration > before + 3)
        here = flegel.run(KMeans(k=4, init="first"), "blobs:4000", workers=1, sync="bsp")
        assert job.progress().objective == pytest.approx(here.objective, rel=1e-9)
        job.cancel()
        check_collection(cluster, ray.data.from_pandas, workers=1)
    check_nothing_is_left(cluster)
    own_ray.remove_node(first)
