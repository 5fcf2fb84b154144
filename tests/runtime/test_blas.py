"""Linear algebra of hooks does not take the workers' processors."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.runtime.processes.blas_threads import by_one_thread


def threads() -> dict[str, int]:
    """By library."""
    found = ThreadpoolController().info()
    return {each["filepath"]: each["num_threads"] for each in found if each["user_api"] == "blas"}


pytestmark = pytest.mark.skipif(not threads(), reason="numpy uses no library whose threads can be counted")


@pytest.fixture(autouse=True)
def before() -> Iterator[dict[str, int]]:
    with ThreadpoolController().limit(limits=3, user_api="blas"):
        found = threads()
        if set(found.values()) == {1}:
            pytest.skip("these libraries were built for one thread")
        yield found
        now = threads()
        assert {path: now[path] for path in found} == found


def test_hooks_have_one_thread(before: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    objective = KMeans.objective

    def watched(self: KMeans, aggregator: Any, parameter: Any) -> float | None:
        seen.extend(number for path, number in threads().items() if path in before)
        return objective(self, aggregator, parameter)

    monkeypatch.setattr(KMeans, "objective", watched)
    flegel.run(KMeans(k=2), np.random.default_rng(0).normal(size=(200, 2)), workers=1, max_iterations=3)
    assert seen and set(seen) == {1}


def test_a_job_that_fails_gives_the_threads_back() -> None:
    with pytest.raises(ValueError, match="it fails"), by_one_thread():
        raise ValueError("it fails")


def test_jobs_beside_each_other_end_in_any_order(before: dict[str, int]) -> None:
    begun, end = threading.Event(), threading.Event()

    def job() -> None:
        with by_one_thread():
            begun.set()
            end.wait(600)

    longer = threading.Thread(target=job)
    with by_one_thread():
        longer.start()
        begun.wait(600)
        assert set(threads().values()) == {1}
    assert threads() == before  # the longer one does without
    end.set()
    longer.join(600)
    with by_one_thread():
        assert set(threads().values()) == {1}


@pytest.mark.processes
def test_a_process_that_is_forked_inside_a_job_limits_its_own_jobs() -> None:
    def linear_algebra(into: Any) -> None:
        with ThreadpoolController().limit(limits=3, user_api="blas"), by_one_thread():
            into.put(set(threads().values()))

    context = multiprocessing.get_context("fork")
    seen = context.SimpleQueue()
    with by_one_thread():
        child = context.Process(target=linear_algebra, args=(seen,))
        child.start()
        child.join(600)
    assert seen.get() == {1}
