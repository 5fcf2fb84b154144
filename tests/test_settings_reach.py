"""A setting that is given does something: it is read by code, and it reaches the process and the thread that decide."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flegel
from flegel.algorithms import KMeans
from flegel.algorithms.kmeans.shapes import served_by
from flegel.algorithms.kmeans.wide import PackedTheta, WideKernel
from flegel.algorithms.lr.search import pairs_of
from flegel.algorithms.nmf.nmf import NMF
from flegel.api import jobs
from flegel.cluster.master.state import KnownSlave
from flegel.configuration.active import active, adopt, all_settings, using
from flegel.configuration.compiled import check_compiled, kernel_settings
from flegel.core.code_folder import content_key
from flegel.core.shard import TILE
from flegel.errors import UsageError
from flegel.machine.coordinator.roster import Roster
from flegel.machine.group.events import Waiting
from flegel.machine.group.waiting import WaitReports
from flegel.machine.migration.endpoints import MigrationSource
from flegel.machine.server.unit_parts import packed
from flegel.machine.worker.deadline_estimate import DeadlineEstimate
from flegel.plan.growing_part import first_part
from flegel.runtime.backends.numba.team import fixed_block
from flegel.runtime.backends.numba.team_threads import Team
from flegel.runtime.group.link import GroupLink
from flegel.runtime.job.prepared_job import sample_rows
from flegel.runtime.system import device_memory
from flegel.torch.flexible.rank_settings import rank_settings
from flegel.torch.micro_batches import MicroBatches

ROOT = Path(__file__).resolve().parents[1]
ROWS = np.random.default_rng(7).normal(size=(4000, 3))


@cache
def readers() -> str:
    """All code that may read settings."""
    places = (path for folder in ("flegel", "algorithms", "datasets") for path in (ROOT / folder).rglob("*.py"))
    return "\n".join(p.read_text(encoding="utf-8") for p in places if "configuration" not in p.parts)


@pytest.mark.parametrize("name", all_settings())
def test_some_code_reads_it(name: str) -> None:
    assert re.search(rf"\.{name.partition('.')[2]}\b", readers()), f"nothing reads the setting {name}"


def test_a_thread_keeps_what_it_adopted_until_the_next_job() -> None:
    seen = []

    def work() -> None:
        adopt({"training.remembered_steps": 9})
        seen.append(active().training.remembered_steps)
        adopt({})
        seen.append(active().training.remembered_steps)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [9, active().training.remembered_steps]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_gets_the_settings_of_its_job(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the thread that trains; and the next job of the same workers has the defaults again."""
    seen: list[tuple[str, int]] = []

    class Seen(DeadlineEstimate):
        def __init__(self, others: int) -> None:
            super().__init__(others)
            seen.append((threading.current_thread().name, active().training.remembered_steps))

    monkeypatch.setattr("flegel.runtime.worker.trainer.DeadlineEstimate", Seen)
    options: Any = {"workers": workers, "processes": "no", "max_passes": 2.0, "seed": 1}
    flegel.run(KMeans(k=3), ROWS, settings={"training.remembered_steps": 17}, **options)
    flegel.run(KMeans(k=3), ROWS, **options)
    trained = [steps for thread, steps in seen if thread == "trainer" and steps]
    assert trained.count(17) >= workers and trained[-1] == active().training.remembered_steps


@pytest.mark.processes
def test_a_worker_process_refuses_what_it_does_not_know_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of another version would: the coordinator's own check is left out."""
    unknown = {"training.unknown": 1.0}
    monkeypatch.setattr("flegel.runtime.job.coordinator_of_job.active_changes", lambda: unknown)
    with flegel.LocalCluster(1) as cluster, pytest.raises(UsageError, match="No setting is called"):
        flegel.run(KMeans(k=3), ROWS, cluster=cluster, max_passes=2.0)


def test_training_the_first_part_of_the_points_is_as_large_as_it_says() -> None:
    assert first_part(10**6, 10, 100) == 10**6 / 64
    with using({"training.smallest_first_part": 0.125}):
        assert first_part(10**6, 10, 100) == 10**6 / 8


def test_moves_a_source_sends_as_many_windows_ahead_as_it_says() -> None:
    with using({"moves.windows_under_way": 2}):
        assert len(MigrationSource(0, 100 * TILE, window=TILE).start()) == 2
    assert len(MigrationSource(0, 100 * TILE, window=TILE).start()) == 4


def test_liveness_a_job_gives_up_after_as_many_crashes_as_it_says() -> None:
    with using({"liveness.crashes_in_a_row": 2}):
        roster = Roster()
        assert roster.lose(0, fault=True) == ""
        assert "crash 2 in a row" in roster.lose(0, fault=True)


def test_groups_a_wait_is_told_after_as_long_as_it_says() -> None:
    with using({"groups.wait_reported_after_seconds": 0.5}):
        waits = WaitReports()
        assert waits.look("the others", False, 0.0) is None
        assert waits.look("the others", False, 0.6) == Waiting("the others", True)


def test_groups_the_thread_of_a_group_decides_by_the_settings_of_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    monkeypatch.setattr(GroupLink, "_run", lambda self: seen.append(active().groups.max_passes_alone))
    with using({"groups.max_passes_alone": 3.0}):
        link = GroupLink(None, None, None, 1.0)  # type: ignore[arg-type]
    link.start()
    link._thread.join()
    assert seen == [3.0]


def test_starts_the_sample_has_as_many_rows_as_it_says() -> None:
    assert sample_rows(10, sparse=True) == 100_000
    with using({"starts.sample_rows": 5000}):
        assert sample_rows(10, sparse=True) == sample_rows(10, sparse=False) == 5000


def test_starts_of_a_job_are_tried_as_long_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(
        "flegel.algorithms.kmeans.kmeans.best_start",
        lambda rows, k, *_: seen.append(active().starts.swap_rounds) or rows[:k],
    )
    flegel.run(KMeans(k=3), ROWS, settings={"starts.swap_rounds": 2}, workers=1, processes="no", max_passes=1.0)
    assert seen == [2]


def test_shapes_the_kernel_of_a_shape_is_the_one_that_they_say() -> None:
    assert served_by(16, 256).kernel == "tiles"
    with using({"shapes.kmeans_bounds_products": 4096}):
        assert served_by(16, 256).kernel == "bounds"


def test_kmeans_keeps_bounds_of_as_few_bands_as_it_says() -> None:
    rules = {"kmeans.bounds_block_points": 32, "kmeans.bounds_least_bands": 4}
    with using(rules):
        kernel = WideKernel(k=4096)
    assert (kernel.rules.bounds_block_points, kernel.rules.bounds_least_bands) == (32, 4)
    few, many = (PackedTheta(4096, 8, 16, found).bands for found in (kernel.rules, active().kmeans))
    assert few <= 4 < many


def test_kmeans_the_threads_of_a_team_have_the_settings_of_its_caller() -> None:
    seen = [0, 0, 0]
    team = Team(3)
    with using({"kmeans.direction_iterations": 5}):
        team.together(lambda number: seen.__setitem__(number, active().kmeans.direction_iterations), 3)
    assert seen == [5] * team.threads
    team.together(lambda number: seen.__setitem__(number, active().kmeans.direction_iterations), 3)
    assert seen == [active().kmeans.direction_iterations] * team.threads
    team.close()


def test_networks_micro_batches_are_as_small_as_it_says() -> None:
    def size_of_slow_ones() -> int:
        sizes = MicroBatches(256)
        for _ in range(3):
            sizes.add(32, 3.2)
        sizes.add_round(1.0, stopped=True)
        return sizes.size

    with using({"networks.fewest_samples": 16}):
        assert size_of_slow_ones() == 16
    assert size_of_slow_ones() == 8


def test_ranks_have_the_settings_that_the_environment_had_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEGEL_SETTINGS", "ranks.silence_after_failure_seconds=0.7")
    rank_settings.cache_clear()
    try:
        assert rank_settings().silence_after_failure_seconds == 0.7
        monkeypatch.delenv("FLEGEL_SETTINGS")
        assert rank_settings().silence_after_failure_seconds == 0.7, "a process reads them once"
    finally:
        rank_settings.cache_clear()


def test_lr_keeps_as_many_pairs_as_it_says() -> None:
    assert pairs_of(1, 10) == 10
    with using({"lr.most_pairs": 4}):
        assert pairs_of(1, 10) == 4


def test_nmf_takes_workers_to_cost_what_it_says() -> None:
    with using({"nmf.cost_of_workers": 1.0}):
        assert NMF(rank=2, solver="sgd").efficiency(1.0, 3) == 1 / 3


@pytest.fixture
def fresh_kernels() -> Iterator[None]:
    """As in a process that has loaded none; afterwards those of the defaults are read again."""
    for remembered in (kernel_settings, content_key):
        remembered.cache_clear()
    yield
    for remembered in (kernel_settings, content_key):
        remembered.cache_clear()


def test_kernels_have_the_settings_of_the_first_job_and_a_folder_of_their_own(fresh_kernels: None) -> None:
    home = ROOT / "algorithms" / "fcm" / "kernel.py"
    with using({"kernels.soft_terms_per_lane": 64}):
        assert kernel_settings().soft_terms_per_lane == 64
        check_compiled()
        other = content_key(home)
    with pytest.raises(UsageError, match=r"kernels\.soft_terms_per_lane is 64 in this process"):
        flegel.run(KMeans(k=3), ROWS, workers=1, processes="no", max_passes=1.0)
    kernel_settings.cache_clear()
    content_key.cache_clear()
    assert content_key(home) != other


def test_kernels_outside_of_jobs_have_the_settings_of_the_environment(
    fresh_kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEGEL_SETTINGS", "kernels.nmf_entries_at_once=32")
    assert kernel_settings().nmf_entries_at_once == 32


def test_processors_the_blocks_of_a_team_are_as_large_as_they_say() -> None:
    with using({"processors.fixed_block_work": 1 << 25}):
        assert fixed_block(1024.0, 10, by_calls=False) == 1 << 15
    assert fixed_block(1024.0, 10, by_calls=False) == 1 << 12


def test_processors_workers_and_threads_are_chosen_by_the_settings_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    chosen = jobs.team_for
    monkeypatch.setattr(
        jobs, "team_for", lambda *given: (seen.append(active().processors.work_per_thread), chosen(*given))[1]
    )
    flegel.run(KMeans(k=3), ROWS, settings={"processors.work_per_thread": 12345}, max_passes=1.0)
    assert seen == [12345]


def test_tables_are_opened_by_the_settings_of_the_job() -> None:
    names = [f"row {number}" for number in range(30)] + ["row 0"] * 20
    table = {"name": names, "x": list(range(50)), "y": [number % 7 for number in range(50)]}
    options: dict[str, Any] = {"workers": 1, "processes": "no", "max_passes": 1.0}
    assert flegel.run(KMeans(k=2), table, **options).parameter.centroids.shape[1] == 2, "a column of names is left out"
    kept = flegel.run(KMeans(k=2), table, settings={"tables.names_above_rows": 1000}, **options)
    assert kept.parameter.centroids.shape[1] == 32


def test_gpu_rows_are_given_the_part_of_its_memory_that_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory, "free_memory", lambda number: 36_000)
    assert device_memory.rows_on_devices({0: "cuda:0"}, columns=1) == {0: 700}
    with using({"gpu.usable_memory_share": 0.5}):
        assert device_memory.rows_on_devices({0: "cuda:0"}, columns=1) == {0: 500}


def test_transport_units_are_picked_where_it_says_that_it_pays() -> None:
    one = np.zeros((100, 3))
    one[7] = 1.5
    assert len(packed([one], (0,))) == 2, "the number of the unit, and its numbers"
    with using({"transport.picked_bytes_share": 0.0}):
        assert len(packed([one], (0,))) == 1


def test_cluster_a_slave_is_silent_after_as_long_as_it_says() -> None:
    slave = KnownSlave.__new__(KnownSlave)
    slave.last_beat = 0.0
    assert not slave.silent(5.0)
    with using({"cluster.slave_silence_seconds": 2.0}):
        assert slave.silent(5.0)
