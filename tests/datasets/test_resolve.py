"""A name, a path or an object becomes a data set, and mistakes are said in one sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flegel.datasets import open_data
from flegel.errors import DataError, UsageError
from tests.datasets.helpers import check_shards


def test_a_name_without_its_file_opens_a_stand_in_and_says_so() -> None:
    data = open_data("higgs:5000")
    assert (data.name, data.rows, data.columns, data.stand_in) == ("higgs", 5000, 28, True)
    assert data.note is not None
    assert "5,000 generated rows stand in" in data.note
    assert "\n" not in data.note
    assert open_data("higgs").rows == 1_000_000


def test_a_name_uses_the_real_file_when_it_is_in_the_cache(cache_folder: Path) -> None:
    rows = np.column_stack([np.arange(40) % 2, np.random.default_rng(0).random((40, 28))])
    (cache_folder / "higgs").mkdir()
    np.savetxt(cache_folder / "higgs" / "HIGGS.csv", rows, delimiter=",")
    data = open_data("higgs")
    assert (data.rows, data.columns, data.stand_in, data.note) == (40, 28, False, None)
    features, labels = data.load()
    assert np.allclose(features, rows[:, 1:])
    assert np.array_equal(labels, rows[:, 0])
    assert open_data("higgs:7").rows == 7


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("higs", "did you mean 'higgs'"),
        ("higgs:many", "is no number of rows"),
        ("higgs:0", "selects no rows"),
        ("missing.csv", "does not exist"),
        ("../nowhere/x.npy", "does not exist"),
        ("no/such/*.csv", "No file matches"),
        ("", "empty"),
        ("ftp://host/x.csv", "addresses begin with"),
    ],
)
def test_an_unknown_name_or_path_is_refused(spec: str, words: str) -> None:
    with pytest.raises(UsageError, match=words.replace("*", r"\*")) as caught:
        open_data(spec)
    assert caught.value.exit_code == 2


def test_options_that_mean_nothing_for_a_generated_set_are_refused() -> None:
    with pytest.raises(UsageError, match="label"):
        open_data("higgs:100", label=0)
    with pytest.raises(UsageError, match="dtype"):
        open_data("higgs:100", dtype="int8")
    assert open_data("higgs:100", dtype="float64").load()[0].dtype == np.float64


def test_options_that_a_format_does_not_know_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.libsvm").write_text("1 1:2\n")
    np.save(tmp_path / "a.npy", np.ones((2, 2)))
    for name, option in (("a.libsvm", {"label": 0}), ("a.npy", {"delimiter": ","})):
        with pytest.raises(UsageError, match="has no effect"):
            open_data(tmp_path / name, **option)


def test_npy_keeps_its_type_and_is_mapped(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).random((100, 5))
    np.save(tmp_path / "a.npy", rows)
    data = open_data(tmp_path / "a.npy")
    assert data.dtype == np.float64
    features, labels = data.load()
    assert labels is None
    assert isinstance(features.base, np.memmap) or isinstance(features, np.memmap)
    assert np.array_equal(features, rows)
    assert open_data(tmp_path / "a.npy", dtype="float32").load()[0].dtype == np.float32
    check_shards(open_data(tmp_path / "a.npy", label=-1), 3)


def test_small_integers_become_float32_and_large_ones_float64(tmp_path: Path) -> None:
    for kind, wanted in (("u1", "float32"), ("i2", "float32"), ("i4", "float64"), ("f4", "float32")):
        np.save(tmp_path / "a.npy", np.arange(12).reshape(4, 3).astype(kind))
        assert open_data(tmp_path / "a.npy").dtype == np.dtype(wanted)


def test_a_folder_and_a_glob_of_files_are_one_set(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"part-{number}.csv").write_text("a,b\n" + "".join(f"{number},{k}\n" for k in range(5)))
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / "README.md").write_text("about")
    for spec in (str(tmp_path), str(tmp_path / "part-*.csv")):
        data = open_data(spec)
        assert (data.rows, data.columns, data.names) == (15, 2, ["a", "b"])
        assert np.array_equal(data.load()[0][:, 0], np.repeat([0, 1, 2], 5))
        check_shards(data, 2)
        check_shards(data, 4, "contiguous")


def test_the_name_of_the_file_can_be_the_label(tmp_path: Path) -> None:
    (tmp_path / "good.csv").write_text("1,2\n3,4\n")
    (tmp_path / "bad.csv").write_text("5,6\n")
    data = open_data(tmp_path, label="@file")
    assert data.classes == ["bad", "good"]
    assert data.load()[1].tolist() == [0.0, 1.0, 1.0]


def test_rows_keeps_the_first_ones(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("".join(f"{k},1\n" for k in range(1000)))
    data = open_data(tmp_path / "a.csv", rows=10)
    assert data.load()[0][:, 0].tolist() == list(range(10))
    check_shards(data, 3)
    with pytest.raises(UsageError):
        open_data(tmp_path / "a.csv", rows=0)


def test_a_folder_of_two_kinds_or_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file that can be read"):
        open_data(tmp_path)
    (tmp_path / "a.csv").write_text("1,2\n")
    np.save(tmp_path / "b.npy", np.ones((2, 2)))
    with pytest.raises(DataError, match="mixes npy and text"):
        open_data(tmp_path)


def test_a_sample_is_spread_over_the_set_and_has_no_row_twice() -> None:
    data = open_data("blobs:50000")
    features, labels = data.sample(500, seed=3)
    assert features.shape == (500, 16)
    assert labels is not None
    assert len(np.unique(features, axis=0)) == 500
    assert np.array_equal(features, data.sample(500, seed=3)[0])
    assert not np.array_equal(features, data.sample(500, seed=4)[0])
    assert len(np.unique(labels)) == 10
    assert data.sample(10**6)[0].shape == (50000, 16)


def test_a_shard_larger_than_the_limit_lives_in_a_scratch_file(monkeypatch: pytest.MonkeyPatch) -> None:
    data = open_data("blobs:20000")
    whole = data.load()[0]
    monkeypatch.setenv("FLEGEL_MEMORY", "100K")
    shard = data.shard(1, 2)
    assert isinstance(shard.features, np.memmap)
    assert np.array_equal(shard.features, whole[shard.ids])
    for wrong in ("much", "-5", "0", "0.5", "nan", "inf", "-4G"):
        monkeypatch.setenv("FLEGEL_MEMORY", wrong)
        with pytest.raises(UsageError, match="FLEGEL_MEMORY"):
            data.shard(1, 2)
