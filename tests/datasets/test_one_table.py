"""One table gets the same rows whatever it comes from: text, Parquet, Arrow, frames, records, lists. Excel:
tests/extras/test_excel.py."""

from __future__ import annotations

import datetime as dt
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from flegel.datasets import open_data, open_for_prediction
from flegel.errors import DataError
from tests import needs
from tests.datasets.helpers import dense

ROWS = 300
START = dt.datetime(2024, 1, 1)


def drawn() -> dict[str, Any]:
    """A column of every sort; every text occurs, so that all sources know the same categories."""
    rng = np.random.default_rng(11)
    seconds = [int(k) for k in rng.integers(0, 40_000_000, ROWS)]
    return {
        "decimal": rng.normal(size=ROWS).round(3),
        "whole": rng.integers(0, 1000, ROWS),
        "few whole": rng.integers(0, 4, ROWS),
        "zeros and ones": rng.integers(0, 2, ROWS),
        "boolean": rng.integers(0, 2, ROWS).astype(bool),
        "word": rng.choice(["red", "green", "blue"], ROWS),
        "digits as text": rng.choice(["1", "2", "3"], ROWS),
        "bytes": [word.encode() for word in rng.choice(["aa", "bb"], ROWS)],
        "category": pd.Categorical(rng.choice(["u", "v"], ROWS)),
        "day": [(START + dt.timedelta(seconds=k)).date() for k in seconds],
        "moment": [START + dt.timedelta(seconds=k) for k in seconds],
        "time of day": [(START + dt.timedelta(seconds=k)).time() for k in seconds],
        "few times of day": [dt.time(6 * (k % 3), 30) for k in seconds],
        "whole with gaps": pd.array([None if k % 9 == 0 else k % 9 for k in seconds], dtype="Int64"),
        "duration": pd.to_timedelta(rng.integers(-90_000_000, 900_000_000, ROWS), unit="ms"),
        "duration with gaps": pd.to_timedelta([None if k % 9 == 0 else k for k in seconds], unit="s"),
        "boolean with gaps": pd.array([None if k % 9 == 0 else bool(k % 2) for k in seconds], dtype="boolean"),
    }


COLUMNS = drawn()


def written(save: Callable[[pd.DataFrame, Path], Any], name: str) -> Callable[[pd.DataFrame, Path], Any]:
    def make(frame: pd.DataFrame, folder: Path) -> Path:
        save(frame, folder / name)
        return folder / name

    return make


def as_text(frame: pd.DataFrame) -> pd.DataFrame:
    """Text files have no bytes."""
    return frame.map(lambda value: value.decode() if isinstance(value, bytes) else value)


def arrow(frame: pd.DataFrame) -> Any:
    return needs.library("pyarrow").Table.from_pandas(frame, preserve_index=False)


def save_arrow(frame: pd.DataFrame, path: Path) -> None:
    table = arrow(frame)
    with needs.library("pyarrow.ipc").new_file(str(path), table.schema) as sink:
        sink.write_table(table)


def save_json_lines(frame: pd.DataFrame, path: Path) -> None:
    def plain(value: Any) -> Any:
        if value is None or value is pd.NA or value is pd.NaT:
            return None
        return value.decode() if isinstance(value, bytes) else value.item() if hasattr(value, "item") else value

    lines = [{name: plain(value) for name, value in row.items()} for row in frame.astype(object).to_dict("records")]
    text = "".join(json.dumps(line, default=str) + "\n" for line in lines)
    with gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w") as stream:
        stream.write(text)


SOURCES: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    "csv": written(lambda frame, path: as_text(frame).to_csv(path, index=False), "t.csv"),
    "csv.gz": written(lambda frame, path: as_text(frame).to_csv(path, index=False), "t.csv.gz"),
    "tsv": written(lambda frame, path: as_text(frame).to_csv(path, index=False, sep="\t"), "t.tsv"),
    "jsonl": written(save_json_lines, "t.jsonl"),
    "ndjson.gz": written(save_json_lines, "t.ndjson.gz"),
    "parquet": written(lambda frame, path: frame.to_parquet(path, index=False), "t.parquet"),
    "feather": written(lambda frame, path: frame.to_feather(path), "t.feather"),
    "arrow": written(save_arrow, "t.arrow"),
    "pyarrow": lambda frame, folder: arrow(frame),
    "polars": lambda frame, folder: needs.library("polars").from_arrow(arrow(frame)),
    "records": lambda frame, folder: frame.to_records(index=False),
    "lists": lambda frame, folder: {str(name): frame[name].tolist() for name in frame},
    "objects": lambda frame, folder: frame.to_numpy(object),
}


def rows_of(source: Any, missing: str) -> tuple[Any, list[str], list[bool]]:
    """Rows, what the columns were used for, and which features --scale leaves alone."""
    data = open_data(source, missing=missing)
    how = data.source.treatment
    if how is None:
        return data.load()[0], ["number"] * data.columns, [False] * data.columns
    return data.load()[0], [column.use for column in how.columns], how.unscaled().tolist()


def check_same_rows(column: str, source: Callable[[pd.DataFrame, Path], Any], folder: Path) -> None:
    """The source of this column beside numbers gives what the frame gives."""
    frame = pd.DataFrame({"x": np.arange(ROWS) * 0.5, "y": COLUMNS[column]})
    missing = "mean" if "gaps" in column else "error"
    rows, uses, unscaled = rows_of(source(frame, folder), missing)
    expected, wanted, left = rows_of(frame, missing)
    assert uses == wanted
    assert unscaled == left
    np.testing.assert_allclose(rows, expected, rtol=1e-6, atol=1e-6)
    if column == "moment":
        assert rows.dtype == np.float64, "float32 loses minutes"


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("source", SOURCES)
def test_one_table_has_the_same_rows_from_every_source(tmp_path: Path, column: str, source: str) -> None:
    check_same_rows(column, SOURCES[source], tmp_path)


@pytest.mark.parametrize("source", ["parquet", "feather", "arrow", "pyarrow"])
def test_whole_numbers_that_are_categories_stay_categories(tmp_path: Path, source: str) -> None:
    kind = pd.Categorical(np.random.default_rng(2).integers(0, 5, ROWS))
    frame = pd.DataFrame({"x": np.arange(ROWS) * 0.5, "kind": kind})
    rows, uses, _ = rows_of(SOURCES[source](frame, tmp_path), "error")
    assert uses == ["number", "onehot"]
    np.testing.assert_allclose(rows, rows_of(frame, "error")[0])


@pytest.mark.parametrize("column", ["whole", "few whole", "whole with gaps", "boolean", "boolean with gaps"])
@pytest.mark.parametrize("source", SOURCES)
def test_numbers_that_are_named_as_categories_are_the_same_ones_from_every_source(
    tmp_path: Path, source: str, column: str
) -> None:
    frame = pd.DataFrame({"x": np.arange(ROWS) * 0.5, "y": COLUMNS[column]})
    options: dict[str, Any] = {"missing": "mean"} if "gaps" in column else {}
    made = SOURCES[source](frame, tmp_path)
    named = ["y"] if source != "objects" else [1]
    found = open_data(made, categories=named, **options).treatment
    expected = open_data(frame.astype({"y": "category"}), categorical="onehot", **options).treatment
    assert found.columns[1].categories == expected.columns[1].categories
    new = open_for_prediction(str(made), found) if isinstance(made, Path) else made
    np.testing.assert_array_equal(dense(found.apply(new)), dense(expected.apply(frame)))
    rows = dense(open_data(made, categories=named, **options).load()[0])
    np.testing.assert_array_equal(rows, dense(found.apply(new)))


def test_a_model_of_durations_takes_them_from_text_and_from_frames(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": np.arange(ROWS) * 0.5, "y": COLUMNS["duration"]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    of_text, of_frame = open_data(tmp_path / "t.csv").treatment, open_data(frame).treatment
    text = open_for_prediction(str(tmp_path / "t.csv"), of_frame)
    np.testing.assert_allclose(of_frame.apply(text), of_text.apply(frame), rtol=1e-6)
    iso = {"x": ["1", "2"], "y": ["P1DT12H", "-PT6H"]}
    np.testing.assert_allclose(of_text.apply(iso)[:, 1], [1.5, -0.25])


def test_lines_of_json_that_are_no_rows_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    for text, words in (
        ('{"a": 1}\n{"a": ', "line 2 is no JSON"),
        ("[1, 2]\n", "line 1 is no object"),
        ('{"a": 1, "b": [1]}\n', "line 1: 'b' holds a list"),
        ("\n", "holds no values"),
        ("\xff", "is not UTF-8"),
    ):
        path.write_bytes(text.encode("latin-1"))
        with pytest.raises(DataError, match=words):
            open_data(path)
    path.write_text('{"a": 1, "b": [1]}\n\n{"a": NaN, "c": 2.5}\n{"c": 3}\n')
    found = open_data(path, drop=["b"], missing="mean")
    np.testing.assert_array_equal(found.load()[0], [[1, 2.75], [1, 2.5], [1, 3]])
