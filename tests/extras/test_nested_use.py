"""Jobs inside workers of Dask, joblib and PyTorch: the same bits, and no more threads than these libraries leave."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests import needs
from tests.nested_job import nested_job


@pytest.mark.processes
@pytest.mark.parametrize("processes", [True, False])
def test_jobs_in_tasks_of_dask_have_one_thread_in_its_processes(processes: bool) -> None:
    distributed = needs.library("distributed")
    alone, most = nested_job()
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=2, processes=processes, dashboard_address=None
        ) as workers,
        distributed.Client(workers) as client,
    ):
        found = client.gather([client.submit(nested_job, None, number, pure=False) for number in range(4)])
    assert {objective for objective, _ in found} == {alone}
    assert all(threads == 1 if processes else threads <= most for _, threads in found)


@pytest.mark.processes
@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_jobs_in_workers_of_joblib(backend: str) -> None:
    joblib = needs.library("joblib")
    alone, most = nested_job()
    found = joblib.Parallel(n_jobs=2, backend=backend)(joblib.delayed(nested_job)() for _ in range(4))
    assert {objective for objective, _ in found} == {alone}
    allowed = max(joblib.cpu_count() // 2, 1) if backend == "loky" else most
    assert all(threads <= allowed for _, threads in found)


class Jobs:
    """A dataset whose items are jobs."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, item: int) -> Any:
        return nested_job()


@pytest.mark.processes
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_jobs_in_workers_of_a_loader_have_one_thread_as_pytorch_has(method: str) -> None:
    data = needs.library("torch.utils.data")
    alone, _ = nested_job()
    loader = data.DataLoader(Jobs(), num_workers=2, batch_size=None, multiprocessing_context=method)
    assert [tuple(each) for each in loader] == [(alone, 1)] * 3


def test_a_job_beside_threads_of_pytorch() -> None:
    torch = needs.library("torch")
    alone, threads = nested_job()
    busy, over = threading.Event(), threading.Event()
    matrix = torch.ones(400, 400)

    def multiply() -> None:
        while not over.is_set():
            torch.mm(matrix, matrix)
            busy.set()

    beside = threading.Thread(target=multiply)
    beside.start()
    try:
        assert busy.wait(600)
        assert nested_job() == (alone, threads)
    finally:
        over.set()
        beside.join(600)
