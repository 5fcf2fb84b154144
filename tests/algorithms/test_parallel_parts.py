"""Parts of an array by the threads that a job gives to its start: same results, the job's settings, errors, nesting."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import flegel
from flegel.algorithm import Sample
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.kmeans.wide_start import start_of
from flegel.configuration.active import active, using
from flegel.core import parallel_parts
from flegel.core.parallel_parts import GivenThreads, giving, in_parts

THREE = GivenThreads(3, nullcontext)


def test_parts_come_back_in_their_order_and_cover_everything() -> None:
    alone = in_parts(10, 4, lambda part: (part.start, part.stop))
    with giving(THREE):
        together = in_parts(10, 4, lambda part: (part.start, part.stop))
    assert alone == together == [(0, 4), (4, 8), (8, 10)]
    assert in_parts(0, 4, lambda part: part) == []


def test_parts_are_worked_on_by_other_threads_only_where_a_job_gives_some() -> None:
    here = threading.get_ident()
    met = threading.Barrier(3, timeout=60)  # three parts that wait for each other need three threads

    def meet(part: slice) -> int:
        met.wait()
        return threading.get_ident()

    with giving(THREE):
        assert len(set(in_parts(3, 1, meet))) == 3
    assert in_parts(3, 1, lambda part: threading.get_ident()) == [here] * 3


def test_threads_see_the_settings_of_the_job() -> None:
    with using({"starts.wide_passes": 17}), giving(THREE):
        assert in_parts(3, 1, lambda part: active().starts.wide_passes) == [17] * 3


def test_work_that_is_cut_again_stays_in_its_thread() -> None:
    def outer(part: slice) -> bool:
        mine = threading.get_ident()
        return in_parts(4, 1, lambda inner: threading.get_ident()) == [mine] * 4

    with giving(THREE):
        assert in_parts(3, 1, outer) == [True] * 3


def test_an_error_of_a_part_reaches_the_caller() -> None:
    def fail(part: slice) -> None:
        raise ValueError(f"part {part.start}")

    with giving(THREE), pytest.raises(ValueError, match="part 0"):
        in_parts(3, 1, fail)


@pytest.mark.parametrize("levels", [1, 2])
def test_a_start_has_the_same_bits_with_any_number_of_threads(levels: int) -> None:
    rng = np.random.default_rng(0)
    rows = (4.0 * rng.normal(size=(90, 70))[rng.integers(90, size=3000)] + rng.normal(size=(3000, 70))).astype(
        np.float32
    )
    settings = {"starts.wide_two_levels_from_clusters": 100 if levels == 2 else 10**6}
    with using(settings | {"starts.wide_products_at_once": 20_000}):
        alone = start_of(rows, 120, 4, np.random.default_rng(1))
        with giving(THREE):
            together = start_of(rows, 120, 4, np.random.default_rng(1))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_start_of_a_job_has_the_threads_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    given, begin = [], KMeans._start

    def seen(self: KMeans, sample: Sample, rng: np.random.Generator) -> Any:
        given.append(parallel_parts._given.get())
        return begin(self, sample, rng)

    monkeypatch.setattr(KMeans, "_start", seen)
    flegel.run(KMeans(k=2), np.random.default_rng(0).normal(size=(200, 2)), threads=3, max_iterations=1)
    assert given[0] is not None and given[0].number == 3
    assert parallel_parts._given.get() is None
