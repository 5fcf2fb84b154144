"""Rows above the memory limit: shards lie in mapped scratch files, laid out window by window, and train as ever."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.core.pytree import Array
from flegel.core.shard import Shard, make_shard, pack_tiles
from flegel.datasets import open_data
from flegel.datasets.rows import memory
from flegel.errors import UsageError
from flegel.machine.worker.growing_part import GrowingPart, PartAmongOthers
from flegel.runtime.worker import shard_loading, trainer
from flegel.runtime.worker.shard_loading import in_scratch_file, part_of_worker
from tests import needs

RNG = np.random.default_rng(0)
ROWS = (RNG.normal(size=(4, 9))[RNG.integers(4, size=5003)] * 3 + RNG.normal(size=(5003, 9))).astype(np.float32)


def is_mapped(array: Any) -> bool:
    while array is not None:
        if isinstance(array, np.memmap):
            return True
        array = getattr(array, "base", None)
    return False


@pytest.fixture
def shards(monkeypatch: pytest.MonkeyPatch) -> list[Shard]:
    """Those that workers of this process load."""
    found: list[Shard] = []

    def make(*given: Any, **more: Any) -> Shard:
        found.append(make_shard(*given, **more))
        return found[-1]

    monkeypatch.setattr(shard_loading, "make_shard", make)
    return found


@pytest.mark.parametrize("points", [64, 5003])
def test_tiles_in_a_scratch_file_are_those_in_memory(points: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flegel.core.shard.WINDOW_NUMBERS", 64 * 9 * 3)
    packed = pack_tiles(ROWS[:points], in_scratch_file)
    assert is_mapped(packed) and np.array_equal(packed, pack_tiles(ROWS[:points]))


@pytest.mark.parametrize("kind", ["file", "map", "array", "parquet"])
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_a_job_above_the_limit_is_the_job_below_it(
    tmp_path: Path, shards: list[Shard], monkeypatch: pytest.MonkeyPatch, kind: str, metric: str
) -> None:
    data: Any = tmp_path / "rows.npy"
    np.save(data, ROWS)
    if kind == "map":
        data = np.load(data, mmap_mode="r")
    elif kind == "array":
        data = ROWS
    elif kind == "parquet":
        pyarrow = needs.library("pyarrow")
        data = tmp_path / "rows.parquet"
        columns = {f"c{t}": ROWS[:, t] for t in range(ROWS.shape[1])}
        needs.library("pyarrow.parquet").write_table(pyarrow.table(columns), data, row_group_size=300)
    objectives = []
    for limit, mapped in (("1G", False), ("20K", True)):
        monkeypatch.setenv("FLEGEL_MEMORY", limit)
        shards.clear()
        model = KMeans(k=4, init=ROWS[:4], metric=metric)
        result = flegel.run(model, data, workers=2, processes="no", sync="bsp", seed=3)
        objectives.append(result.objective)
        assert [is_mapped(shard.features) for shard in shards] == [mapped, mapped]
    assert objectives[0] == pytest.approx(objectives[1], rel=1e-9)


def test_a_map_of_a_whole_file_is_read_from_the_file_where_it_exceeds_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    mapped: Array = np.load(tmp_path / "rows.npy", mmap_mode="r")
    assert open_data(mapped).in_memory
    monkeypatch.setenv("FLEGEL_MEMORY", "20K")
    found = open_data(mapped)
    assert not found.in_memory and found.describe()["source"]["paths"] == [str(tmp_path / "rows.npy"), None]
    assert open_data(mapped[10:]).in_memory, "a part of the file has no name"
    assert open_data(ROWS).in_memory
    assert open_data((mapped, np.zeros(len(ROWS)))).in_memory, "labels are in the memory of this process"


def test_processes_that_load_at_the_same_time_share_what_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda: 8 << 30)
    assert memory.exceeds_memory((4 << 30) + 1) and not memory.exceeds_memory(4 << 30)
    with memory.shared_by(4):
        assert memory.exceeds_memory((1 << 30) + 1) and not memory.exceeds_memory(1 << 30)
    assert not memory.exceeds_memory(4 << 30)


def test_nobody_asks_the_system_whether_a_small_array_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> int:
        raise AssertionError("the system was asked")

    monkeypatch.delenv("FLEGEL_MEMORY", raising=False)
    monkeypatch.setattr(memory, "available", asked)
    assert not memory.exceeds_memory(memory.ALWAYS_IN_MEMORY_BYTES)
    monkeypatch.setenv("FLEGEL_MEMORY", "20K")
    assert memory.exceeds_memory(20 * 1024 + 1), "a limit that was given counts for all arrays"


def test_the_limit_of_a_process_counts_like_that_of_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = memory.available()
    assert whole > 1 << 20
    data = next(limit for limit in Path("/proc/self/status").read_text().splitlines() if limit.startswith("VmData:"))
    used = int(data.split()[1]) << 10
    monkeypatch.setattr(resource, "getrlimit", lambda which: (used + (64 << 20), -1))
    assert memory.available() <= 128 << 20


def test_worker_processes_that_have_no_room_are_refused_before_they_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    monkeypatch.setenv("FLEGEL_MEMORY", "20K")
    monkeypatch.setattr(memory, "available", lambda: 200 << 20)
    with pytest.raises(UsageError, match=r"2 worker processes take up to 222 MB .* 200 MB are free .* fewer workers"):
        flegel.run(KMeans(k=4), tmp_path / "rows.npy", workers=2, processes="yes")
    assert flegel.run(KMeans(k=4), tmp_path / "rows.npy", workers=1, max_passes=2).objective > 0


def test_several_workers_visit_a_part_of_their_rows_first_where_these_are_in_scratch_files(
    shards: list[Shard], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[PartAmongOthers | GrowingPart | None] = []

    def noted(*given: Any) -> Any:
        parts.append(part_of_worker(*given))
        return parts[-1]

    monkeypatch.setattr(trainer, "part_of_worker", noted)
    found = []
    for limit in ("1G", "20K"):
        monkeypatch.setenv("FLEGEL_MEMORY", limit)
        parts.clear()
        found.append(
            flegel.run(KMeans(k=4), np.tile(ROWS, (12, 1)), workers=2, processes="no", sync="fsp", seed=3, audit="on")
        )
        assert [type(part) for part in parts] == ([type(None)] * 2 if limit == "1G" else [PartAmongOthers] * 2)
    assert all(part is not None and part.over for part in parts)
    assert found[1].reason.startswith("relative change") and not found[1].warnings
    assert found[0].objective == pytest.approx(found[1].objective, rel=0.02)
    assert found[1].audit["audits"] >= 1 and found[1].audit["problems"] == []
