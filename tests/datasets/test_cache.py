"""What was read once is mapped the second time, is the same, and never appears half-written."""

from __future__ import annotations

import gzip
import multiprocessing
from pathlib import Path

import numpy as np
import pytest

from flegel.datasets import Dataset, open_data, read_shard
from flegel.datasets.rows import recorder as recorder_module
from flegel.datasets.rows.recorder import wait_for_writes
from flegel.datasets.synthetic import row_cache
from flegel.datasets.synthetic.copula import CopulaSource
from flegel.errors import DataError
from tests.datasets.helpers import all_shards


@pytest.fixture
def small_files_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "MIN_BYTES", 1000)


def table(path: Path, rows: int = 20_000) -> Path:
    numbers = np.random.default_rng(5).normal(size=(rows, 3))
    np.savetxt(path, np.column_stack([np.arange(rows) % 2, numbers]), delimiter=",", fmt="%.9g")
    return path


def test_the_second_start_reads_the_same_shards_without_parsing(
    tmp_path: Path, small_files_count: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = table(tmp_path / "t.csv")
    first = all_shards(open_data(path, label=0), 3, seed=4)
    wait_for_writes()

    def refuse(*_: object) -> None:
        raise AssertionError("text was parsed or counted again")

    monkeypatch.setattr("flegel.datasets.formats.text_source.parse", refuse)
    monkeypatch.setattr("flegel.datasets.formats.text_source.count_lines", refuse)
    second = all_shards(open_data(path, label=0), 3, seed=4)
    for one, other in zip(first, second, strict=True):
        assert np.array_equal(one.ids, other.ids)
        assert np.array_equal(one.features, other.features)
        assert np.array_equal(one.labels, other.labels)
    assert len(all_shards(open_data(path, label=0), 2, "contiguous")) == 2


def test_generated_rows_are_read_the_second_time_and_belong_to_their_generator(
    small_files_count: None, monkeypatch: pytest.MonkeyPatch, cache_folder: Path
) -> None:
    first = all_shards(open_data("higgs:5000"), 3, "contiguous")
    wait_for_writes()
    with monkeypatch.context() as refusing:
        refusing.setattr(CopulaSource, "block", lambda *_: pytest.fail("rows were generated again"))
        second = all_shards(open_data("higgs:5000"), 3, "contiguous")
        open_data("higgs:5000").sample(100)
        assert not list((cache_folder / "columns").glob("partial-*")), "rows of the cache are not written again"
    for one, other in zip(first, second, strict=True):
        assert np.array_equal(one.ids, other.ids)
        assert np.array_equal(one.features, other.features)
        assert np.array_equal(one.labels, other.labels)
    monkeypatch.setattr(row_cache, "generators", lambda: "another text")
    all_shards(open_data("higgs:5000"), 3, "contiguous")
    wait_for_writes()
    entries = sorted((cache_folder / "columns").glob("*/manifest.json"), key=lambda path: path.stat().st_mtime)
    assert len(entries) == 2
    row_cache.make_room(cache_folder / "columns", 5000 * (28 * 4 + 8))
    assert [path.exists() for path in entries] == [False, True], "the newest entry stays"
    monkeypatch.setattr(row_cache, "MOST_ENTRY", 1000)
    all_shards(open_data("higgs:6000"), 3, "contiguous")
    wait_for_writes()
    assert len(list((cache_folder / "columns").glob("*/manifest.json"))) == 1, "a set that is too large is not kept"


def test_a_start_that_ends_meanwhile_does_not_keep_another_from_writing(
    small_files_count: None, monkeypatch: pytest.MonkeyPatch, cache_folder: Path
) -> None:
    gone = cache_folder / "columns" / "partial-of-another-job"

    def folders(self: Path, pattern: str) -> list[Path]:
        return [gone] if pattern == "partial-*" else list(found(self, pattern))

    found = Path.glob
    monkeypatch.setattr(Path, "glob", folders)
    all_shards(open_data("higgs:5000"), 3, "contiguous")
    wait_for_writes()
    assert len(list((cache_folder / "columns").glob("*/manifest.json"))) == 1


def test_a_changed_file_is_parsed_again(tmp_path: Path, small_files_count: None) -> None:
    path = table(tmp_path / "t.csv")
    all_shards(open_data(path), 2)
    wait_for_writes()
    path.write_text("".join(f"{k},1,2,3\n" for k in range(20_000)))
    assert open_data(path).load()[0][777].tolist() == [777, 1, 2, 3]


def test_an_incomplete_start_leaves_no_entry(tmp_path: Path, small_files_count: None, cache_folder: Path) -> None:
    data = open_data(table(tmp_path / "t.csv"))
    data.shard(0, 2)
    wait_for_writes()
    assert not list(cache_folder.rglob("manifest.json"))
    data.shard(1, 2)
    wait_for_writes()
    assert len(list(cache_folder.rglob("manifest.json"))) == 1
    assert not list(cache_folder.rglob("partial-*"))


def test_the_cache_can_be_switched_off(
    tmp_path: Path, small_files_count: None, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEGEL_CACHE", "0")
    all_shards(open_data(table(tmp_path / "t.csv")), 2)
    wait_for_writes()
    assert not list(cache_folder.iterdir())


def test_a_full_disk_costs_the_cache_and_not_the_job(
    tmp_path: Path, small_files_count: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = open_data(table(tmp_path / "t.csv"))
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("usage", (), {"free": 10})())
    with pytest.warns(UserWarning, match="columnar cache was not written"):
        shard = data.shard(0, 2)
    assert len(shard.ids) > 9000


def test_compressed_text_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(table(tmp_path / "t.csv").read_bytes()))
    first = open_data(path, label=0).load()
    monkeypatch.setattr("flegel.datasets.formats.text_stream.line_pieces", lambda *_: pytest.fail("unpacked again"))
    second = open_data(path, label=0).load()
    assert np.array_equal(first[0], second[0])


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"1,2\n3,4\n"))
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FLEGEL_DATA", str(tmp_path / "file"))
    with pytest.raises(DataError, match="FLEGEL_DATA"):
        open_data(path)


def _read(description: dict[str, object], index: int, answers: object) -> None:
    rows = read_shard(description, index, 2)
    answers.put((index, len(rows.ids), float(np.asarray(rows.features, np.float64).sum())))  # type: ignore[attr-defined]


@pytest.mark.processes
def test_workers_in_processes_of_their_own_read_their_shards_together(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(table(tmp_path / "t.csv", 2000).read_bytes()))
    data: Dataset = open_data(path, label=0)
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    processes = [context.Process(target=_read, args=(data.describe(), i, answers)) for i in range(2)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=600) for _ in processes]
    for process in processes:
        process.join(600)
    assert sum(rows for _, rows, _ in found) == 2000
    assert np.isclose(sum(total for *_, total in found), np.asarray(data.load()[0], np.float64).sum())
