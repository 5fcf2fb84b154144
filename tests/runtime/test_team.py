"""Teams: threads of one process that train as one worker, kernels and whole jobs."""

from __future__ import annotations

import gc
import itertools
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numba import njit
from threadpoolctl import ThreadpoolController
from waiting import until

import flegel
from flegel import Algorithm
from flegel.algorithm import Sample
from flegel.algorithms.fcm import FCM
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.kmeans.shapes import is_wide
from flegel.algorithms.least_squares import Ridge
from flegel.algorithms.lr import LR
from flegel.algorithms.nmf import NMF
from flegel.cli.local_job import trained_by
from flegel.configuration.active import DEFAULTS
from flegel.core import pytree
from flegel.core.shard import Shard, Sparse, make_shard
from flegel.core.stop_flag import new_flag
from flegel.core.team_loop import team_loop
from flegel.datasets import open_data
from flegel.datasets.rows.partition import parse
from flegel.declarations.kernels import KernelHooks, TeamCode
from flegel.declarations.optional import hook
from flegel.job import Job, SyncSpec
from flegel.runtime.backends.numba.team import (
    BLOCK_MULTIPLE,
    TeamBackend,
    TeamKernel,
    compiling_loops,
    fixed_block,
    rows_at_once,
)
from flegel.runtime.backends.numba.team_threads import Team
from flegel.runtime.backends.registry import choose
from flegel.runtime.job.observers import JobEnded, JobEvent, Observer
from flegel.runtime.job.prepared_job import PreparedJob
from flegel.runtime.job.request import Request
from flegel.runtime.job.teams import in_use, obstacle, team_for, team_per_host, threads_for
from flegel.runtime.job.warm_code import cases, example_rows, own_kernels, variants
from flegel.runtime.system import processors

RNG = np.random.default_rng(5)
ROWS = np.abs(RNG.normal(size=(3000, 6)) + 3.0 * RNG.integers(0, 3, (3000, 1)))
LABELS = (ROWS[:, 0] + ROWS[:, 1] > 4.0).astype(int)
COUNTS = (1, 2, 7, 16)


class Means(Algorithm):
    """A class of the user's that compiles."""

    k: int = 3

    def initParameter(self, sample: Any, rng: Any) -> Any:
        return sample.features[: self.k].astype(float)

    def contribution(self, dataPoint: Any, parameter: Any) -> Any:
        nearest, least = 0, np.inf
        for j in range(parameter.shape[0]):
            away = ((dataPoint.features - parameter[j]) ** 2).sum()
            if away < least:
                nearest, least = j, away
        result = np.zeros((parameter.shape[0], parameter.shape[1] + 1))
        result[nearest, :-1] = dataPoint.features
        result[nearest, -1] = 1.0
        return result

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return aggregator[:, :-1] / np.maximum(aggregator[:, -1:], 1.0)

    def terminationCheck(self, *_: Any) -> bool:
        return False


class Raises(Means):
    """Refuses a row."""

    def contribution(self, dataPoint: Any, parameter: Any) -> Any:
        if dataPoint.features[0] < 0:
            raise ValueError("negative")
        return np.zeros((parameter.shape[0], parameter.shape[1] + 1))


ALGORITHMS = {
    "kmeans": KMeans(k=5), "gmm": GMM(k=3), "fcm": FCM(k=3), "lr": LR(), "nmf": NMF(rank=2, solver="coordinate"),
    "own": Means(),
}  # fmt: skip


def prepared(algorithm: Algorithm) -> tuple[Shard, Any, Any]:
    """Shard, θ(0) and empty statistics, as a job has them."""
    data = open_data((ROWS, LABELS) if isinstance(algorithm, LR) else ROWS)
    made = PreparedJob(Request(algorithm, data, Job(workers=1)), None)
    layout = hook(algorithm, KernelHooks.layout_for)(ROWS.shape[1])
    state = algorithm.initState(len(ROWS), ROWS.shape[1], np.random.default_rng(0))
    labels = algorithm.accepts.kept_labels(made.sample.labels)
    return make_shard(ROWS, labels, state, layout), made.parameter, made.zero


def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that 3,000 rows are several of them."""
    monkeypatch.setattr("flegel.runtime.backends.numba.team.fixed_block", lambda work, numbers, by_calls: 256)


def visited(algorithm: Algorithm, threads: int, fixed: bool, cuts: tuple[int, ...] = ()) -> list[np.ndarray]:
    """The statistics of two passes, the second under another θ, in calls that are cut there."""
    shard, theta, empty = prepared(algorithm)
    kernel = choose("cpu", "", threads, fixed).build(algorithm, shard, theta, empty, False)
    try:
        for round_ in range(2):
            at = 0
            for end in (*cuts, len(ROWS)):
                at = kernel.run(shard, at, end, round_, new_flag())
            assert at == len(ROWS)
            if not round_:
                total = pytree.unflatten(empty, [a.copy() for a in kernel.statistics()])
                made = algorithm.updateParameter(pytree.present(total), pytree.present(pytree.read_only(theta)))
                kernel.set_parameter(pytree.flatten(pytree.as_typed(made, theta)))
        return [a.copy() for a in kernel.statistics()]
    finally:
        kernel.close()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_team_counts_what_one_thread_counts(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    small_blocks(monkeypatch)
    alone, free = visited(ALGORITHMS[name], 0, False), visited(ALGORITHMS[name], 3, False)
    fixed = visited(ALGORITHMS[name], 3, True)
    for a, b, c in zip(alone, free, fixed, strict=True):
        rounding = 2e-5 * (np.abs(a).max(initial=0.0) + 1e-12)  # kernels of mixtures add float32 parts
        assert np.allclose(a, b, rtol=0, atol=rounding) and np.allclose(a, c, rtol=0, atol=rounding)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_fixed_blocks_give_the_same_bits_for_any_number_of_threads_and_any_cut(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    small_blocks(monkeypatch)
    first = visited(ALGORITHMS[name], 1, True)
    for threads in COUNTS[1:]:
        for a, b in zip(first, visited(ALGORITHMS[name], threads, True), strict=True):
            assert np.array_equal(a, b)
    for a, b in zip(first, visited(ALGORITHMS[name], 2, True, (512, 768, 2560)), strict=True):
        assert np.array_equal(a, b)


def test_bsp_of_a_team_gives_the_same_bits_for_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch)
    results = [flegel.run(KMeans(k=5), ROWS, threads=threads, sync="bsp", processes=False) for threads in COUNTS]
    assert [result.threads for result in results] == list(COUNTS) and results[0].workers == 1
    assert all(np.array_equal(r.parameters["centroids"], results[0].parameters["centroids"]) for r in results)
    assert len({result.objective for result in results}) == 1


@pytest.mark.slow  # all kernels are compiled
@pytest.mark.parametrize("name", own_kernels())
def test_bsp_of_every_built_in_algorithm_gives_the_same_bits_for_any_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    small_blocks(monkeypatch)
    factor = 1.0 if name in ("kmodes", "kprototypes") else np.pi  # sums of whole numbers have no rounding
    for case in cases(name, variants(name)[:1], ("float64",), weights=False):
        rows, labels, _ = example_rows(case)
        if obstacle(case.algorithm):
            continue
        rows = rows._replace(values=rows.values * factor) if isinstance(rows, Sparse) else rows * factor
        found = [
            flegel.run(case.algorithm, (rows, labels) if labels is not None else rows, threads=threads, sync="bsp",
                       processes=False, max_iterations=3)
            for threads in COUNTS
        ]  # fmt: skip
        assert [result.threads for result in found] == list(COUNTS)
        for each in found[1:]:
            for a, b in zip(pytree.flatten(found[0].parameter), pytree.flatten(each.parameter), strict=True):
                assert np.array_equal(a, b, equal_nan=True)


class Gate:
    """A kernel that raises the flag when it comes to a point, and notes what it visits."""

    def __init__(self, flag: np.ndarray, at: int) -> None:
        self.flag, self.at, self.seen = flag, at, list[tuple[int, int]]()

    def __call__(self, shard: Any, parameter: Any, sums: Any, start: int, end: int, iteration: int, flag: Any) -> int:
        self.seen.append((start, end))
        sums += end - start
        if start <= self.at < end:
            self.flag[0] = 1
        return end


@pytest.mark.parametrize("fixed", [0, 64])
def test_a_stopped_team_has_visited_the_first_points_and_no_others(fixed: int) -> None:
    flag = new_flag()
    gate = Gate(flag, 1500)
    kernel = TeamKernel([gate] * 4, "hand-written", "", np.zeros(1), np.zeros(1), fixed)
    kernel._thread_speed = 1e5
    shard = make_shard(np.zeros((4000, 2)), None, np.zeros((4000, 1)), "rows")
    reached = kernel.run(shard, 0, 4000, 0, flag)
    kernel.close()
    assert 1500 < reached < 4000 and kernel.statistics()[0][0] == reached
    seen = sorted(gate.seen)
    assert seen[0][0] == 0 and seen[-1][1] == reached
    assert all(one[1] == two[0] for one, two in itertools.pairwise(seen)), "no gap, nothing twice"
    assert kernel.run(shard, reached, 4000, 0, flag) == reached, "the flag is looked at before the first point"


def test_waiting_for_the_lock_of_the_interpreter_does_not_make_blocks_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter blocks would make threads wait for it more often, and that would make blocks shorter still."""
    now, worked = itertools.count(0.0, 1.0), itertools.count(0.0, 1e-6)
    monkeypatch.setattr("flegel.runtime.clock.now", lambda: next(now))
    monkeypatch.setattr("flegel.runtime.clock.thread_seconds", lambda: next(worked))
    kernel = TeamKernel([lambda *_: 0] * 4, "hand-written", "", np.zeros(1), np.zeros(1), 0)
    shard = make_shard(np.zeros((40_000, 2)), None, np.zeros((40_000, 1)), "rows")
    blocks = []
    for _ in range(4):
        kernel.run(shard, 0, 40_000, 0, new_flag())
        blocks.append(len(kernel._edges(0, 40_000)))
    kernel.close()
    assert blocks == sorted(blocks, reverse=True)


def test_a_kernel_that_is_slow_with_few_rows_gets_blocks_of_as_many_as_it_wants() -> None:
    """Slow rows of many classes: half a millisecond would be five rows, and each call adds all of θ once."""

    class Products:
        rows_at_once = 512

    kernel = TeamKernel([Products()] * 2, "hand-written", "", np.zeros(1), np.zeros(1), 0)  # type: ignore[list-item]
    kernel.expect_speed(10_000.0)
    lengths = np.diff(kernel._edges(0, 40_000))
    kernel.close()
    assert lengths.max() == 512


def test_blocks_of_sparse_rows_go_by_the_numbers_stored() -> None:
    """A row of two numbers among 2,400 columns adds four products, but each call makes 2,400 x 2,400 of them ready."""
    rows = 5_000
    places = (RNG.integers(0, 1200, size=(rows, 2)) + np.array([0, 1200])).ravel()
    features = Sparse(np.arange(0, 2 * rows + 1, 2), places, RNG.normal(size=2 * rows), 2400)
    ridge, sample = Ridge(), Sample(features, np.zeros(rows), rows, 2400)
    theta = ridge.initParameter(sample, np.random.default_rng(0))
    shard = make_shard(features, np.zeros(rows), np.zeros((rows, 1)), "rows")
    kernel = TeamBackend(2, False).build(ridge, shard, theta, ridge.initAggregator(sample, theta), False)
    assert isinstance(kernel, TeamKernel)
    kernel.expect_speed(50_000.0)
    lengths = np.diff(kernel._edges(0, rows))
    kernel.close()
    assert lengths.max() == DEFAULTS.processors.rows_of_large_statistics


def test_blocks_do_not_shrink_where_each_call_makes_a_large_table_ready() -> None:
    """A kernel that is slow because its blocks are short would be given still shorter ones."""
    numbers, work = 100_000, 100_000.0
    few = rows_at_once(work, numbers)
    kernel = TeamKernel([lambda *_: 0] * 2, "hand-written", "", np.zeros(1), np.zeros(1), 0, None, few)
    kernel.expect_speed(50_000.0)  # 25 points in half a millisecond
    lengths = np.diff(kernel._edges(0, 40_000))
    kernel.close()
    assert lengths.max() == DEFAULTS.processors.rows_of_large_statistics
    assert rows_at_once(280.0, 280) == 1
    assert rows_at_once(4e6, 2_000_000) == 50  # not longer than some milliseconds
    assert rows_at_once(float("inf"), numbers) == 1


def test_what_a_thread_raises_reaches_the_caller_and_the_team_goes_on() -> None:
    team, here = Team(3), threading.get_ident()

    def fails(number: int) -> None:
        if threading.get_ident() != here:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        team.together(fails, 3)
    numbers: list[int] = []
    team.together(numbers.append, 3)
    assert sorted(numbers) == [0, 1, 2]
    team.close()
    assert until(lambda: not any(t.name.startswith("team-") for t in threading.enumerate()))


def test_an_error_in_a_hook_is_told_with_the_line_of_the_user() -> None:
    rows = np.abs(RNG.normal(size=(4000, 3)))
    rows[3900] = -1.0
    with pytest.raises(flegel.FlegelError, match="negative"):
        flegel.run(Raises(), rows, threads=2, processes=False, max_iterations=3, sync="bsp", partition="contiguous")
    assert until(lambda: not any(t.name.startswith("team-") for t in threading.enumerate()))


def test_a_class_of_ones_own_trains_by_a_team_where_that_is_asked_for() -> None:
    options: dict[str, Any] = {"processes": False, "max_iterations": 5, "sync": "bsp", "tolerance": 0}
    one, two = (flegel.run(Means(), ROWS, threads=threads, **options) for threads in (1, 2))
    assert two.threads == 2 and two.kernel == "compiled"
    assert np.array_equal(one.parameter, two.parameter)


def descriptors() -> int:
    """Open ones of this process; 0 where the system does not tell."""
    open_now = Path("/proc/self/fd")
    return len(list(open_now.iterdir())) if open_now.exists() else 0


def test_jobs_of_teams_leave_no_threads_and_no_descriptors() -> None:
    def job() -> None:
        assert flegel.run(KMeans(k=3), ROWS, threads=2).placement == "threads"

    flegel.shutdown()
    others = sum(t.name == "trainer" for t in threading.enumerate())  # of hooks that never returned, in other tests
    job()
    before = descriptors()
    for _ in range(12):
        job()
    assert descriptors() <= before
    assert until(lambda: not any(t.name.startswith("team-") for t in threading.enumerate()))
    assert sum(t.name == "trainer" for t in threading.enumerate()) == others + 1
    flegel.shutdown()
    assert until(lambda: sum(t.name == "trainer" for t in threading.enumerate()) == others)


def sleeping() -> bool:
    """All threads of this process but this one sleep."""
    here = threading.get_native_id()
    others = [task for task in Path("/proc/self/task").iterdir() if int(task.name) != here]
    return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "S" for task in others if task.exists())


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system does not tell states of threads")
def test_a_team_leaves_processors_and_threads_of_other_libraries_as_they_were() -> None:
    def settings() -> Any:
        libraries = {found["filepath"]: found["num_threads"] for found in ThreadpoolController().info()}
        tasks = [int(task.name) for task in Path("/proc/self/task").iterdir() if task.exists()]
        return libraries, {frozenset(os.sched_getaffinity(task)) for task in tasks}, sys.getswitchinterval()

    flegel.run(KMeans(k=3), ROWS, threads=2)
    assert until(lambda: not any(t.name.startswith("team-") for t in threading.enumerate()))
    before, collects = settings(), gc.isenabled()
    flegel.run(KMeans(k=3), ROWS, threads=3)
    assert until(lambda: not any(t.name.startswith("team-") for t in threading.enumerate()))
    assert until(sleeping), "a thread of the team looks for work that never comes"
    assert settings() == before and gc.isenabled() == collects


# -- decided first, added later ------------------------------------------------------------------------------

WIDE_ROWS = RNG.normal(size=(3000, 256)) + 4.0 * RNG.normal(size=(40, 256))[RNG.integers(40, size=3000)]
WIDE_K = 192
assert is_wide(WIDE_K, 256)


def sparse_rows() -> Sparse:
    whole = np.where(RNG.random((3000, 60)) < 0.15, RNG.random((3000, 60)), 0.0)
    starts = np.concatenate([[0], np.cumsum((whole > 0).sum(axis=1))])
    return Sparse(starts, np.nonzero(whole)[1].astype(np.int32), whole[whole > 0], 60)


TWO_STEPS: dict[str, tuple[KMeans, Any]] = {
    "wide": (KMeans(k=WIDE_K, init="first"), WIDE_ROWS),
    "wide float32": (KMeans(k=WIDE_K, init="first"), WIDE_ROWS.astype(np.float32)),
    "wide cosine": (KMeans(k=WIDE_K, init="first", metric="cosine"), WIDE_ROWS),
    "sparse": (KMeans(k=7), sparse_rows()),
}


@pytest.mark.parametrize("name", TWO_STEPS)
def test_bsp_of_kernels_that_share_their_sums_gives_the_same_bits_for_any_number_of_threads(name: str) -> None:
    algorithm, rows = TWO_STEPS[name]
    options: dict[str, Any] = {"sync": "bsp", "processes": False, "max_iterations": 6, "tolerance": 0}
    results = [flegel.run(algorithm, rows, threads=threads, **options) for threads in (1, 2, 3)]
    assert {result.objective for result in results} == {results[0].objective}
    assert all(np.array_equal(r.parameters["centroids"], results[0].parameters["centroids"]) for r in results)


@pytest.mark.parametrize("name", ["wide", "sparse"])
def test_a_resumed_team_takes_the_same_course_with_another_number_of_threads(tmp_path: Path, name: str) -> None:
    algorithm, rows = TWO_STEPS[name]
    options: dict[str, Any] = {"sync": "bsp", "processes": False, "tolerance": 0}
    whole = flegel.run(algorithm, rows, threads=2, max_iterations=6, **options)
    place = tmp_path / "checkpoints"
    flegel.run(algorithm, rows, threads=2, max_iterations=3, checkpoint=place, **options)
    resumed = flegel.resume(place, data=rows, threads=3, max_iterations=6)
    assert (resumed.iterations, resumed.threads) == (6, 3)
    assert np.array_equal(resumed.parameters["centroids"], whole.parameters["centroids"])
    assert resumed.objective == whole.objective


@pytest.mark.parametrize("name", ["wide", "sparse"])
def test_kernels_that_share_their_sums_train_by_a_team_by_default(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("flegel.runtime.job.teams.computing_threads", lambda: 3)
    algorithm, rows = TWO_STEPS[name]
    assert flegel.run(algorithm, rows, max_iterations=2, threads=2).placement == "threads"
    found = team_for(Job(), algorithm, open_data(rows))
    assert found.threads > 0 and not found.reason


class Decides:
    """A kernel in two steps that counts points, and raises the flag when it comes to one."""

    unit = 64

    def __init__(self, flag: np.ndarray, at: int, fails: int = -1) -> None:
        self.flag, self.at, self.fails, self.collected = flag, at, fails, (0, 0)

    def __call__(self, *_: Any) -> int:
        raise AssertionError("a team decides first")

    def prepare(self, shard: Any, parameter: Any) -> None:
        pass

    def decide(self, shard: Any, theta: Any, sums: Any, start: int, end: int, iteration: int, flag: Any) -> int:
        if start <= self.fails < end:
            raise ValueError("no")
        if start <= self.at < end:
            self.flag[0] = 1
            return self.at
        return end

    def collect(self, shard: Any, start: int, end: int) -> int:
        self.collected = (start, end)
        return 3

    def add(self, shard: Any, theta: Any, sums: Any, part: int) -> None:
        sums[part] += self.collected[1] - self.collected[0]


def test_points_that_were_decided_behind_a_stopped_block_are_not_visited() -> None:
    flag = new_flag()
    kernel = TeamKernel([Decides(flag, 1530)] * 4, "hand-written", "", np.zeros(1), np.zeros(3), 0)
    kernel._thread_speed = 1e5
    shard = make_shard(np.zeros((4000, 2)), None, np.zeros((4000, 1)), "rows")
    reached = kernel.run(shard, 0, 4000, 0, flag)
    kernel.close()
    assert reached == 1530 and (kernel.statistics()[0] == 1530).all()


def test_what_a_thread_raises_while_it_decides_leaves_the_statistics_alone() -> None:
    kernel = TeamKernel([Decides(new_flag(), -1, 1530)] * 4, "hand-written", "", np.zeros(1), np.zeros(3), 0)
    shard = make_shard(np.zeros((4000, 2)), None, np.zeros((4000, 1)), "rows")
    with pytest.raises(ValueError, match="no"):
        kernel.run(shard, 0, 4000, 0, new_flag())
    assert not kernel.statistics()[0].any()
    assert kernel.run(shard, 0, 1500, 0, new_flag()) == 1500, "the team goes on"
    kernel.close()


def test_a_part_of_rows_that_begins_inside_a_tile_is_counted_right() -> None:
    """Bounds of its first rows lie beside those of other rows."""
    algorithm, rows = TWO_STEPS["wide"]
    shard = make_shard(pytree.protected(rows), None, np.full((3000, 1), -1, np.int32), "rows")
    made = PreparedJob(Request(algorithm, open_data(rows), Job(workers=1)), None)
    found = []
    for threads in (0, 3):
        shard.state[:] = -1
        kernel = choose("cpu", "", threads, True).build(algorithm, shard, made.parameter, made.zero, False)
        kernel.run(shard, 0, 3000, 0, new_flag())
        theta = algorithm.updateParameter(pytree.unflatten(made.zero, kernel.statistics()), made.parameter)
        kernel.set_parameter(pytree.flatten(pytree.as_typed(theta, made.parameter)))
        for low, high in ((0, 37), (37, 1900), (1900, 3000)):
            part = shard.part(low, high)
            assert kernel.run(part, 0, 10**6, 1, new_flag()) == high - low
        found.append([a.copy() for a in (*kernel.statistics(), shard.state)])
        kernel.close()
    for alone, together in zip(*found, strict=True):
        np.testing.assert_array_equal(alone, together)


# -- inside compiled code ------------------------------------------------------------------------------------


@njit(nogil=True)
def weigh(features, state, weights, parameter, sums, start, end, flag, scale):  # type: ignore[no-untyped-def]
    """As the compiled function of a kernel: a sum, and how often each row was visited."""
    for i in range(start, end):
        if features[i, 0] < 0:
            raise ValueError("negative")
        for t in range(features.shape[1]):
            sums[t] += scale * parameter[t] * features[i, t]
        state[i, 0] += 1
    return end


class Entry:
    """An entry point of the loop around it, kept by this process alone."""

    def __init__(self) -> None:
        self._loop = team_loop(weigh)

    def __call__(self, *arguments: Any) -> Any:
        return self._loop(*arguments)

    def code_for(self, *arguments: Any) -> Any:
        return self._loop


ENTRY = Entry()


def compiled_team(threads: int, fixed: int, rows: np.ndarray) -> tuple[TeamKernel, Shard]:
    def kernel(shard: Any, theta: Any, sums: Any, start: int, end: int, iteration: int, flag: Any) -> int:
        return int(weigh(shard.features, shard.state, shard.weights, theta, sums, start, end, flag, 2.0))

    kernel.team = TeamCode(ENTRY, lambda iteration: (2.0,), 10**9)  # type: ignore[attr-defined]
    shard = make_shard(rows, None, np.zeros((len(rows), 1), np.int64), "rows")
    with compiling_loops():
        made = TeamKernel([kernel] * threads, "hand-written", "", np.ones(3), np.zeros(3), fixed, shard)
    assert (made._compiled is not None) == (threads > 1)
    return made, shard


@pytest.mark.parametrize("fixed", [0, 256])
def test_threads_take_blocks_inside_compiled_code_and_leave_it_for_other_rows(fixed: int) -> None:
    rows = np.ascontiguousarray(ROWS[:, :3])
    kernel, shard = compiled_team(3, fixed, rows)
    wanted = np.zeros(3)
    for round_ in range(40):
        theta = np.full(3, 0.5 + round_)
        kernel.set_parameter([theta])
        part = shard.part(0, 1000) if round_ % 10 == 9 else shard  # a part has arrays of its own
        assert kernel.run(part, 0, 10**6, round_, new_flag()) == part.points
        wanted += 2.0 * theta * rows[: part.points].sum(axis=0)
    up = new_flag()
    up[0] = 1
    assert kernel.run(shard, 0, 10**6, 0, up) == 0
    assert np.allclose(kernel.statistics()[0], wanted, rtol=1e-12)
    assert (shard.state[:1000] == 40).all() and (shard.state[1000:] == 36).all(), "every row once in every call"
    kernel.close()
    assert until(lambda: not any(t.name.startswith("team-") for t in threading.enumerate()))


def test_fixed_blocks_inside_compiled_code_give_the_bits_of_the_interpreter() -> None:
    found = set()
    for threads in COUNTS:
        kernel, shard = compiled_team(threads, 256, np.ascontiguousarray(ROWS[:, :3]))
        for end in (512, 1024, 3000):
            kernel.run(shard, 0 if end == 512 else end // 2 if end == 1024 else 1024, end, 0, new_flag())
        found.add(kernel.statistics()[0].tobytes())
        kernel.close()
    assert len(found) == 1


@pytest.mark.slow  # some 20 s of compiling
@pytest.mark.parametrize("name", ["lr", "nmf"])
def test_built_in_loops_of_teams_give_the_bits_of_calls(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    small_blocks(monkeypatch)
    called = visited(ALGORITHMS[name], 1, True)
    with compiling_loops():
        for threads in COUNTS[1:]:
            for a, b in zip(called, visited(ALGORITHMS[name], threads, True, (512, 2560)), strict=True):
                assert np.array_equal(a, b)


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "own"])
def test_kernels_of_later_jobs_share_the_loop_of_the_first_one(name: str) -> None:
    """Code that was linked stays in memory until the process ends: it must not be linked again for each job."""
    algorithm, (shard, *_) = ALGORITHMS[name], prepared(ALGORITHMS[name])
    first, second = (hook(algorithm, KernelHooks.kernel)(shard) for _ in range(2))
    assert first.team.serve is second.team.serve  # type: ignore[union-attr]


def test_an_error_inside_compiled_code_reaches_the_caller_whoever_met_it() -> None:
    rows = np.ascontiguousarray(ROWS[:, :3]).copy()
    rows[2500] = -1.0
    kernel, shard = compiled_team(3, 64, rows)
    with pytest.raises((ValueError, flegel.FlegelError), match="negative"):
        kernel.run(shard, 0, 3000, 0, new_flag())
    assert kernel.run(shard, 0, 1024, 0, new_flag()) == 1024, "the team goes on"
    kernel.close()
    assert until(lambda: not any(t.name.startswith("team-") for t in threading.enumerate()))


# -- who trains by a team ------------------------------------------------------------------------------------


class Draws(Means):
    """Visits are not the same twice."""

    def contribution(self, dataPoint: Any, parameter: Any) -> Any:
        return np.zeros((parameter.shape[0], parameter.shape[1] + 1)) + np.random.random()


class OwnKernel(Means):
    """Nobody knows what its kernel keeps."""

    def kernel(self, share: Shard) -> Any:
        return None


class Refused(Means):
    """Does not compile."""

    def contribution(self, dataPoint: Any, parameter: Any) -> Any:
        return np.array([eval("0.0")] * parameter.size + [0.0] * len(parameter)).reshape(len(parameter), -1)


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (Job(sync=SyncSpec("ssp")), "ssp is about several workers"),
        (Job(straggler="0:8x"), "stragglers are about several workers"),
        (Job(topology="allreduce"), "topologies are"),
        (Job(servers=2), "servers are"),
        (Job(partition="contiguous"), "partitions are"),
    ],
)
def test_what_is_about_several_workers_has_no_team(job: Job, reason: str) -> None:
    found = team_for(job, KMeans(k=10), open_data(ROWS))
    assert found.threads == 0 and reason in found.reason


def test_an_unknown_model_is_refused_before_a_team_is_chosen() -> None:
    with pytest.raises(flegel.UsageError, match="did you mean 'fsp'"):
        team_for(Job(sync=SyncSpec("fps")), KMeans(k=10), open_data(ROWS))


def test_classes_that_a_team_cannot_train_say_why() -> None:
    assert "between two points" in team_for(Job(), NMF(rank=2, solver="sgd"), open_data(ROWS)).reason
    assert "random numbers" in team_for(Job(), Draws(), open_data(ROWS)).reason
    assert "kernel of its own" in team_for(Job(), OwnKernel(), open_data(ROWS)).reason
    assert "checkpoints" in team_for(Job(checkpoint="somewhere"), Means(), open_data(ROWS)).reason
    with pytest.raises(flegel.UsageError, match="give workers"):
        flegel.run(NMF(rank=2, solver="sgd"), ROWS, threads=2)


@pytest.mark.parametrize("solver", ["coordinate", "multiplicative"])
def test_nmf_of_whole_matrices_trains_by_a_team(solver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the solver sgd has a copy of θ that changes between two points."""
    monkeypatch.setattr("flegel.runtime.job.teams.computing_threads", lambda: 3)
    monkeypatch.setattr("flegel.runtime.job.teams.pass_work", lambda algorithm, data: 1e9)
    found = team_for(Job(), NMF(rank=2, solver=solver), open_data(ROWS))
    assert (found.threads, found.reason) == (3, "")


def test_a_class_of_ones_own_that_compiles_trains_by_a_team(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flegel.runtime.job.teams.computing_threads", lambda: 3)
    result = flegel.run(Means(), ROWS, processes=False, max_iterations=2)
    assert (result.workers, result.threads, result.kernel) == (1, 3, "compiled")


class Ends(Observer):
    """Counts how often the job ends."""

    def __init__(self) -> None:
        self.ends = 0

    def see(self, event: JobEvent) -> None:
        self.ends += isinstance(event, JobEnded)


def test_a_class_that_does_not_compile_trains_by_several_workers_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flegel.runtime.job.request.default_workers", lambda: 2)
    said: list[str] = []
    seen = Ends()
    with pytest.warns(flegel.FlegelWarning, match="eval"):
        result = flegel.run(Refused(), ROWS, processes=False, max_iterations=1, say=said.append, observers=[seen])
    assert (result.workers, result.threads, result.kernel) == (2, 0, "interpreted")
    assert any("hooks of Refused do not compile" in text for text in said) and seen.ends == 1


def test_a_team_has_a_thread_for_each_free_processor_and_fewer_for_short_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flegel.runtime.job.teams.computing_threads", lambda: 6)
    large = open_data(np.zeros((300_000, 28), np.float32))
    assert team_for(Job(), KMeans(k=10), large).threads == 6
    assert team_for(Job(), KMeans(k=10), open_data(ROWS)).threads == 1
    assert team_for(Job(threads=3), KMeans(k=10), open_data(ROWS)).threads == 3
    with in_use(4):
        assert team_for(Job(), KMeans(k=10), large).threads == 2
        with in_use(4):
            assert team_for(Job(), KMeans(k=10), large).threads == 1


def test_a_job_has_its_processors_from_its_first_stage_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flegel.runtime.job.teams.computing_threads", lambda: 4)
    left: list[int] = []
    other = open_data(ROWS)
    flegel.run(KMeans(k=3), ROWS, threads=3, phase=lambda *_: left.append(threads_for(KMeans(k=500), other)))
    assert set(left) == {1} and threads_for(KMeans(k=500), other) == 4


def test_several_workers_that_nobody_asked_for_are_explained() -> None:
    said: list[str] = []
    rows = np.abs(RNG.normal(size=(60_000, 28)))
    result = flegel.run(KMeans(k=10), rows, partition="contiguous", max_iterations=1, processes=False, say=said.append)
    assert result.threads == 0 and (result.workers == 1 or any("partitions are about" in text for text in said))


@pytest.mark.parametrize(
    ("workers", "threads", "placement", "said"),
    [
        (1, 2, "threads", "a team of 2 threads of this process"),
        (1, 1, "processes", "a team of 1 thread of a worker process"),
        (4, 0, "processes", "4 workers, processes"),
        (2, 8, "processes", "2 workers, each a team of 8 threads, processes"),
    ],
)
def test_explain_says_who_trained(workers: int, threads: int, placement: str, said: str) -> None:
    assert trained_by(SimpleNamespace(workers=workers, threads=threads, placement=placement)) == said


def test_fixed_blocks_are_whole_runs_of_rows_and_long_enough() -> None:
    assert fixed_block(float("inf"), 10, True) % BLOCK_MULTIPLE == 0
    for work, numbers in [(280.0, 290), (1.0, 3), (1e7, 10**6)]:
        block = fixed_block(work, numbers, False)
        assert block % BLOCK_MULTIPLE == 0 and block * work >= 1 << 20
        assert fixed_block(work, numbers, True) >= block
    assert isinstance(choose("cpu", "", 2), TeamBackend)


# -- processors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, float("inf")),
        ({"cpu.max": "max 100000"}, float("inf")),
        ({"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}, 1.5),
        ({"cpu/a/cpu.cfs_quota_us": "200000", "cpu/a/cpu.cfs_period_us": "100000"}, 2.0),
        ({"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, float("inf")),
        ({"a/cpu.max": "no number"}, float("inf")),
    ],
)
def test_the_tightest_control_group_around_a_process_counts(
    tmp_path: Path, files: dict[str, str], quota: float
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert processors._quota(tmp_path, ["a/b"]) == quota


def test_what_started_this_process_may_say_how_many_threads_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "available_processors", lambda: 8)
    monkeypatch.setattr(processors, "limits_of_openmp", lambda libraries: [])
    for name in processors.TOLD_BY_OTHERS:
        monkeypatch.delenv(name, raising=False)
    assert processors.computing_threads() == 8
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert processors.computing_threads() == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "0")
    assert processors.computing_threads() == 8


def test_a_slave_limits_the_threads_of_a_team(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "available_processors", lambda: 4)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as in all processes that a slave starts
    monkeypatch.setattr(processors, "_team_limits", [])
    assert [processors.threads_of_team(wanted) for wanted in (0, 1, 16)] == [0, 1, 16], "nobody has set a limit"
    for given, most in ((3, 3), (8, 4)):
        processors.limit_team(given)
        assert [processors.threads_of_team(wanted) for wanted in (0, 1, 16)] == [0, 1, most]


@pytest.mark.parametrize(
    ("job", "algorithm", "expected"),
    [
        (Job(), KMeans(k=3), True),
        (Job(sync=SyncSpec("ssp")), KMeans(k=3), True),
        (Job(workers=2), KMeans(k=3), False),
        (Job(threads=2), KMeans(k=3), False),
        (Job(straggler="0:8x"), KMeans(k=3), False),
        (Job(servers=2), KMeans(k=3), False),
        (Job(), NMF(rank=2, solver="sgd"), False),
        (Job(), Means(), False),
    ],
)
def test_a_job_of_a_cluster_without_numbers_has_a_team_on_each_host(
    job: Job, algorithm: Algorithm, expected: bool
) -> None:
    assert team_per_host(job, algorithm) == expected


@pytest.mark.parametrize(
    ("partition", "threads", "expected"),
    [
        ("shuffle", (6, 2), "shuffle:0=6,1=2"),
        ("shuffle", (4, 4), "shuffle"),
        ("shuffle", (), "shuffle"),
        ("contiguous", (6, 2), "contiguous"),
    ],
)
def test_rows_go_to_hosts_by_the_threads_of_their_teams(partition: str, threads: Any, expected: str) -> None:
    """Whether points may move later or not: under bsp a host with few threads would hold up all others."""
    rows = np.zeros((800, 3), np.float32)
    for sync in ("fsp", "bsp"):
        job = Job(workers=2, threads=6, partition=partition, sync=SyncSpec(sync))
        request = Request(KMeans(k=2), open_data(rows), job, team_threads=threads)
        assert request.partition == expected
    if expected.startswith("shuffle:"):
        assert list(parse(expected).portions(800, 2)) == [600, 200]
