"""Jobs inside programs that have threads, processes and event loops of their own: the same bits, no thread too many."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.api import jobs as api
from flegel.runtime.job import teams
from flegel.runtime.system import processors
from tests.nested_job import ROWS, nested_job


@pytest.fixture
def four_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teams, "computing_threads", lambda: 4)


def test_jobs_that_begin_at_the_same_moment_do_not_take_the_same_processors(
    four_processors: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, together, chosen = nested_job(), threading.Barrier(4), teams.team_for

    def choose(*given: Any) -> Any:
        found = chosen(*given)
        together.wait(600)  # each has seen four free ones
        return found

    monkeypatch.setattr(api, "team_for", choose)
    most: list[int] = []

    def job(_: int) -> tuple[float, int]:
        return nested_job(lambda *_: most.append(teams._in_use))

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(job, range(4)))
    assert {objective for objective, _ in results} == {alone[0]} and alone[1] == 4
    assert max(threads for _, threads in results) == 4
    assert max(most) <= 4 + 3, "a job has one thread at least"
    assert teams._in_use == 0


def test_a_team_in_a_worker_process_has_its_processors_too(four_processors: None) -> None:
    left: list[int] = []

    def look(*_: Any) -> None:
        left.append(teams.computing_threads() - teams._in_use)

    flegel.run(KMeans(k=8), ROWS, threads=3, processes=True, max_iterations=1, phase=look)
    flegel.run(KMeans(k=8), ROWS, workers=3, processes=False, max_iterations=1, phase=look)
    assert set(left) == {1} and teams._in_use == 0


def test_a_job_in_an_executor_of_an_event_loop_gives_the_bits_of_a_lone_one(four_processors: None) -> None:
    async def several() -> list[tuple[float, int]]:
        loop = asyncio.get_running_loop()
        return await asyncio.gather(*(loop.run_in_executor(None, nested_job) for _ in range(3)))

    assert {objective for objective, _ in asyncio.run(several())} == {nested_job()[0]}


@pytest.mark.processes
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_jobs_in_processes_that_a_program_starts_while_it_trains(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked process has the memory of its parent, where a job holds locks and processors."""
    objective, threads = nested_job()
    begun, over = threading.Event(), threading.Event()

    def wait(*_: Any) -> None:
        begun.set()
        over.wait(240)

    beside = threading.Thread(target=nested_job, args=(wait,))
    beside.start()
    try:
        assert begun.wait(600)
        with multiprocessing.get_context(method).Pool(2) as pool:
            found = pool.starmap_async(nested_job, [()] * 4).get(240)
    finally:
        over.set()
        beside.join(600)
    assert found == [(objective, threads)] * 4


def test_processors_are_shared_with_other_processes_of_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "available_processors", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert processors.processors_for_processes() == 8, "a variable about threads"
    monkeypatch.setattr("multiprocessing.process.parent_process", lambda: object())
    assert processors.processors_for_processes() == 2


def test_limits_of_openmp_are_those_of_teams_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "available_processors", lambda: 8)
    for name in processors.TOLD_BY_OTHERS:
        monkeypatch.delenv(name, raising=False)

    def told(path: str, threads: int) -> list[int]:
        return processors.limits_of_openmp([{"user_api": "openmp", "filepath": path, "num_threads": threads}])

    assert told("/site/scikit_learn.libs/libgomp.so", 3) == [3] and told("/site/torch/lib/libgomp.so", 1) == [1]
    assert told("/site/torch/lib/libgomp.so", 4) == [], "its own choice, which may be half of the processors"
    assert processors.limits_of_openmp([{"user_api": "blas", "filepath": "/x/libopenblas.so", "num_threads": 1}]) == []
    if any(one["user_api"] == "openmp" for one in processors.numeric_libraries().info()):
        with threadpool_limits(1, "openmp"):
            assert processors.computing_threads() == 1


def test_all_jobs_of_a_process_survive_being_many(four_processors: None) -> None:
    work: list[Callable[[], tuple[float, int]]] = [nested_job] * 8
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda job: job(), work))
    assert len({objective for objective, _ in results}) == 1 and np.isfinite(results[0][0])
