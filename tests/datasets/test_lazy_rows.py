"""Rows that are streamed: generators and Arrow streams are written in parts and read as files, which go again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flegel.datasets import open_data
from flegel.datasets.lazy import parts
from flegel.errors import DataError, UsageError

X = np.arange(24.0).reshape(8, 3)
Y = np.array([0, 1] * 4)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(parts, "BLOCK_ROWS", 3)
    monkeypatch.setenv("FLEGEL_SCRATCH", str(tmp_path))


def batches() -> Iterator[Any]:
    table = pa.table({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2]})
    return iter(table.to_batches(max_chunksize=2))


class Stream:
    """Anything that offers an Arrow stream."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return pa.table({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2]}).__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "make",
    [
        lambda: (row for row in X),
        lambda: (list(row) for row in X),
        lambda: (X[i : i + 2] for i in range(0, 8, 2)),
        batches,
        lambda: (dict(zip("abc", row, strict=True)) for row in X),
        lambda: pa.RecordBatchReader.from_batches(next(batches()).schema, batches()),
        Stream,
    ],
    ids=["rows", "lists", "blocks", "batches", "dicts", "reader", "stream"],
)
def test_streams_give_the_rows_in_their_order(make: Any) -> None:
    data = open_data(make(), dtype="float64")
    assert (data.rows, data.columns, data.labelled) == (8, 3, False)
    assert np.array_equal(data.load()[0], X)


@pytest.mark.parametrize(
    "make",
    [lambda: zip(X, Y, strict=True), lambda: ((X[i : i + 4], Y[i : i + 4]) for i in (0, 4))],
    ids=["rows", "blocks"],
)
def test_pairs_give_labels(make: Any) -> None:
    features, labels = open_data(make(), dtype="float64").load()
    assert np.array_equal(features, X) and labels is not None and np.array_equal(labels, Y)


def test_the_files_are_gone_with_the_data_set(tmp_path: Path) -> None:
    data = open_data(row for row in X)
    assert len(list(tmp_path.glob("flegel-rows-*/part-*.npy"))) == 3
    del data
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_what_is_in_memory_is_not_written() -> None:
    frame = pa.table({"a": [1.0]})
    for value in (X, (X, Y), frame, frame.to_pandas(), [[1.0]], {"a": [1.0]}):
        assert parts.writer_of(value) is None


@pytest.mark.parametrize(
    ("make", "error", "sentence"),
    [
        (lambda: iter(()), DataError, "no rows"),
        (lambda: iter([[1.0], [1.0, 2.0]]), DataError, "equal length"),
        (lambda: iter([np.array([["a"]])]), DataError, "not numbers"),
        (lambda: iter([(X, Y[:2])]), DataError, "8 rows but 2 labels"),
    ],
)
def test_wrong_streams_are_refused_and_leave_no_files(make: Any, error: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=sentence):
        open_data(make())
    assert not list(tmp_path.iterdir())


def test_labels_cannot_be_given_twice() -> None:
    with pytest.raises(UsageError, match="given twice"):
        open_data(zip(X, Y, strict=True), label=0)
