"""What every launched cluster must do: train to the same objective as locally, lose a slave, leave nothing."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.cluster.connected import SubmittedJob
from flegel.cluster.launch.launched_cluster import LaunchedCluster
from flegel.machine.coordinator.observation import JobSnapshot

SPHERICAL = f"{Path(__file__).resolve().parents[3] / 'docs' / 'examples' / 'spherical.py'}:Spherical"
WAIT = 180.0


def check_trains(cluster: LaunchedCluster, workers: int = 2) -> None:
    """k-means and a user's class, under bsp from the same start: the same objective as on workers of this host."""
    for algorithm in (KMeans(k=4, init="first"), SPHERICAL):
        same = {"workers": workers, "sync": "bsp", "max_iterations": 5, "tolerance": 0.0}
        there = flegel.run(algorithm, "blobs:4000", cluster=cluster, **same)
        here = flegel.run(algorithm, "blobs:4000", **same)
        assert there.objective == here.objective and there.iterations == here.iterations == 5


def check_collection(cluster: LaunchedCluster, collect: Callable[[pd.DataFrame], Any], workers: int = 2) -> None:
    """A collection of the other system is written by that system and trains as the same frame does here."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(400, 3)), columns=list("abc"))
    frame["kind"] = np.where(frame["a"] > 0, "yes", "no")
    same = {"workers": workers, "sync": "bsp", "max_iterations": 5, "tolerance": 0.0, "label": "kind"}
    there = cluster.run("lr", collect(frame), **same)
    assert there.iterations == 5 and list(there.class_names) == ["no", "yes"]
    assert there.objective == pytest.approx(flegel.run("lr", frame, **same).objective, rel=1e-6)


def check_loses_a_slave(cluster: LaunchedCluster, kill: Callable[[str], Any]) -> None:
    """The slave without the coordinator is ended by the other system; the job notices, trains on and reaches the
    objective that it would have reached. It trains until then, however long the other system takes."""
    here = flegel.run(KMeans(k=4, init="first"), "blobs:4000", workers=2, sync="bsp")
    options = {"workers": 2, "sync": "bsp", "tolerance": 0.0, "max_seconds": 4 * WAIT, "straggler": "all:20ms/500"}
    job = cluster.submit(KMeans(k=4, init="first"), "blobs:4000", **options)
    until(lambda: (seen := job.progress()) is not None and seen.iteration > 1)
    victim = next(slave.name for slave in cluster.slaves() if slave.name != job.view().place)
    kill(victim)
    until(lambda: any(each.kind == "lost" for each in progress(job).incidents))
    before = progress(job).iteration
    until(lambda: progress(job).iteration > before + 3)
    until(lambda: progress(job).objective == pytest.approx(here.objective, rel=1e-9))
    job.cancel()
    until(lambda: victim in cluster.lost)
    until(lambda: sum(slave.state == "here" for slave in cluster.slaves()) == 2)  # another one in its place


def progress(job: SubmittedJob) -> JobSnapshot:
    """What a job that trains says of itself."""
    assert job.state == "running", job.view()
    seen = job.progress()
    assert seen is not None
    return seen


def check_nothing_is_left(cluster: LaunchedCluster) -> None:
    """After `close`: no slave or master of this launch runs, and no file of it exists."""
    assert not cluster.home.exists()
    until(lambda: not launch_processes(cluster))
    until(lambda: not list(Path(tempfile.gettempdir()).glob(f"flegel-*{cluster.launch_id}*")))


def launch_processes(cluster: LaunchedCluster) -> list[psutil.Process]:
    """Slaves and masters that descend from this process, and those without a parent that use a file of this launch:
    tests beside this one launch clusters, too."""
    found = []
    for process in psutil.process_iter():
        try:
            if not any(word.startswith("flegel.cluster.launch.") for word in process.cmdline()):
                continue
            orphan = process.ppid() == 1 and any(cluster.launch_id in file.path for file in process.open_files())
            if orphan or psutil.Process() in process.parents():
                found.append(process)
        except psutil.Error:
            continue
    return found


def until(holds: Callable[[], bool], seconds: float = WAIT) -> None:
    limit = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < limit, "not within the time"
        time.sleep(0.1)
