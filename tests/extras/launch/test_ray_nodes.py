"""Nodes of Ray that come and go while a job trains, as its autoscaler lets them; all of them on this host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from launch_checks import check_collection, check_nothing_is_left, until

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.cluster.launch.ray import RayCluster
from tests import needs

ray = needs.library("ray")
needs.library("ray.data")


@pytest.fixture
def own_ray() -> Iterator[Any]:
    """A head; Ray gives each node 30 s to start, which a busy machine may not manage."""
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 3, "include_dashboard": False})
    ray.init(address=nodes.address, log_to_driver=False, configure_logging=False)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.mark.slow
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
