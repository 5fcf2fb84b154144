"""Workers that wait between two jobs: taken, given back, ended; and which jobs run in threads."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.configuration.active import active
from flegel.job import Job
from flegel.runtime.backends.numba.compiler_process import CompilerProcess
from flegel.runtime.job import placement, warm_code
from flegel.runtime.job.part import JobRun
from flegel.runtime.job.placement import Choice, choose
from flegel.runtime.job.request import Request, workers_for
from flegel.runtime.job.warm_clusters import WarmClusters, warm_clusters
from flegel.runtime.parts import compile_ahead

ROWS = np.random.default_rng(0).normal(size=(300, 3))


def test_training_that_ends_before_processes_have_started_runs_in_threads() -> None:
    assert (
        choose(0.02, active().processors.cold_start_seconds).kind == "threads"
        and "20 ms" in choose(0.02, active().processors.cold_start_seconds).reason
    )
    assert choose(active().processors.cold_start_seconds, active().processors.cold_start_seconds) == Choice("processes")


@pytest.mark.parametrize(
    ("seconds", "compiled", "kind"),
    [(0.5, True, ""), (2.0, True, ""), (0.5, False, "threads"), (2.0, False, "threads"), (9.0, False, "processes")],
)
def test_a_job_that_must_compile_does_not_wait_for_a_measurement(
    monkeypatch: pytest.MonkeyPatch, seconds: float, compiled: bool, kind: str
) -> None:
    monkeypatch.setattr(placement, "rough_seconds", lambda request: seconds)
    monkeypatch.setattr(placement, "has_code", lambda request: compiled)
    choice = placement.early_choice(Request(KMeans(k=3), None, Job(workers=2)))  # type: ignore[arg-type]
    assert (choice.kind if choice is not None else "") == kind


class Own(KMeans):
    """A class of the user's."""


@pytest.mark.skipif(sys.platform != "linux", reason="processes that die with their parent")
@pytest.mark.parametrize(
    ("algorithm", "rows", "compiled", "started"),
    [
        (KMeans(k=3), 10**6, False, True),
        (KMeans(k=3), 10**6, True, False),
        (KMeans(k=3), 10**4, False, False),
        (KMeans(k=3, init=np.zeros((3, 28))), 10**6, False, False),
        (Own(k=3), 10**6, False, False),
    ],
)
def test_a_process_compiles_where_rows_take_a_while(
    monkeypatch: pytest.MonkeyPatch, algorithm: KMeans, rows: int, compiled: bool, started: bool
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(compile_ahead, "has_code", lambda request: compiled)
    monkeypatch.setattr(compile_ahead, "CompilerProcess", asked.append)
    data = SimpleNamespace(rows=rows, columns=28, dtype=np.dtype("f4"), sparse=False, weighted=False)
    compile_ahead.CompileAhead(JobRun(Request(algorithm, data), 0.0))._start()  # type: ignore[arg-type]
    assert bool(asked) == started
    if asked:
        seen: list[warm_code.Case] = []
        monkeypatch.setattr(warm_code, "compile_case", seen.append)
        monkeypatch.setattr(warm_code, "die_with_parent", lambda: None)
        monkeypatch.setattr(sys, "argv", ["warm_code", *asked])
        warm_code.main()
        assert seen[0].algorithm.hyper() == algorithm.hyper() and seen[0].dtype == "float32"


def test_a_compiler_that_nobody_needs_ends() -> None:
    process = CompilerProcess(json.dumps(["kmeans", {"k": 3}, "float32", False, False]))
    process.close()
    assert process._process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("rows", "columns", "most"), [(1, 3, 1), (1000, 28, 1), (10**7, 28, len(os.sched_getaffinity(0)))]
)
def test_small_jobs_have_fewer_workers_by_default(rows: int, columns: int, most: int) -> None:
    class Shape:
        sparse = False

    shape = Shape()
    shape.rows, shape.columns = rows, columns  # type: ignore[attr-defined]
    for job, count in ((Job(), most), (Job(device="cuda"), 1), (Job(device="cuda", workers=3), 3)):
        assert workers_for(job, KMeans(k=10), shape) == count  # type: ignore[arg-type]


def test_an_unknown_word_for_processes_is_refused() -> None:
    with pytest.raises(flegel.UsageError, match="auto, yes or no"):
        flegel.run(KMeans(k=2), ROWS, processes="maybe")


def test_jobs_in_threads_use_the_same_threads_again_and_give_the_same_bits() -> None:
    said: list[str] = []
    first = flegel.run(KMeans(k=3), ROWS, sync="bsp", workers=2, say=said.append)
    assert first.placement == "threads" and any("threads of this process" in text for text in said)
    workers = {t for t in threading.enumerate() if t.name.startswith("worker-")}
    again = flegel.run(KMeans(k=3), ROWS, sync="bsp", workers=2)
    assert {t for t in threading.enumerate() if t.name.startswith("worker-")} == workers
    assert np.array_equal(first.parameters["centroids"], again.parameters["centroids"])
    flegel.shutdown()
    assert not any(t.name.startswith("worker-") for t in threading.enumerate())


def test_a_job_that_fails_leaves_no_workers_behind() -> None:
    flegel.shutdown()
    with pytest.raises(flegel.FlegelError):
        flegel.run(KMeans(k=3), np.full((10, 2), np.nan))
    assert warm_clusters.waiting("threads") == 0


def test_two_jobs_at_once_have_a_cluster_each_and_one_waits_afterwards() -> None:
    clusters = WarmClusters()
    with clusters.lease("threads", 1) as first:
        with clusters.lease("threads", 1) as second:
            assert first is not second
        assert clusters.waiting("threads") == 1
    assert clusters.waiting("threads") == 1
    with clusters.lease("threads", 3) as third:
        assert third is second and third.workers == 3
    clusters.close()
    assert clusters.waiting("threads") == 0


@pytest.mark.processes
def test_processes_wait_for_the_next_job_and_a_forked_process_has_its_own() -> None:
    flegel.shutdown()
    flegel.run(KMeans(k=3), ROWS, workers=1, processes=True)
    (cluster,) = warm_clusters._idle_clusters.values()
    pid = cluster.registry.processes[0].pid  # type: ignore[attr-defined]
    assert flegel.run(KMeans(k=3), ROWS, workers=1, processes=True).placement == "processes"
    assert cluster.registry.processes[0].pid == pid, "the same process"  # type: ignore[attr-defined]
    results = multiprocessing.get_context("fork").Queue()
    child = multiprocessing.get_context("fork").Process(
        target=lambda: results.put((warm_clusters.waiting("processes"), flegel.run(KMeans(k=3), ROWS).placement))
    )
    child.start()
    assert results.get(timeout=240) == (0, "threads")
    child.join(240)
    assert flegel.run(KMeans(k=3), ROWS, workers=1, processes=True).placement == "processes"
    flegel.shutdown()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
