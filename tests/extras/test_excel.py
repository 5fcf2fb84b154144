"""Excel files: the first sheet with rows is a table like any other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import flegel
from flegel.algorithms.clusters.kprototypes import KPrototypes
from flegel.datasets import open_data
from flegel.errors import DataError
from tests import needs
from tests.datasets.helpers import check_shards
from tests.datasets.test_one_table import COLUMNS, as_text, check_same_rows, written

needs.library("openpyxl")

FRAME = pd.DataFrame(
    {
        "a": [1.5, 2.5, None, 4.5],
        "town": ["Köln", "Bonn", "Köln", "Ulm"],
        "day": pd.to_datetime(["2024-01-31", "2024-02-01", "2024-02-02", "2024-02-03"]),
        "paid": [True, False, True, True],
    }
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLEGEL_DATA", str(tmp_path / "cache"))
    return tmp_path


def test_a_sheet_is_read_as_pandas_reads_it(folder: Path) -> None:
    FRAME.to_excel(folder / "t.xlsx", index=False)
    data = open_data(folder / "t.xlsx", missing="mean", dtype="float64")
    rows = data.load()[0]
    read = pd.read_excel(folder / "t.xlsx")
    assert np.allclose(rows[:, 0], read["a"].fillna(read["a"].mean()))
    assert rows[:, 1:4].tolist() == pd.get_dummies(read["town"]).to_numpy(float).tolist()
    assert rows[:, 4].tolist() == ((read["day"] - pd.Timestamp(0)) / pd.Timedelta(days=1)).tolist()
    assert rows[:, 5].tolist() == [1, 0, 1, 1]
    check_shards(data, 2)


def test_the_index_of_a_frame_is_no_feature_and_further_sheets_are_said(folder: Path) -> None:
    with pd.ExcelWriter(folder / "t.xlsx") as book:
        FRAME[["town", "paid"]].to_excel(book, sheet_name="first")
        FRAME.to_excel(book, sheet_name="second")
    data = open_data(folder / "t.xlsx")
    assert data.columns == 4
    assert data.source.report[-1] == "t.xlsx has 2 sheets; 'first' was read."


def test_what_is_no_workbook_is_one_sentence(folder: Path) -> None:
    (folder / "t.xlsx").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(DataError, match="no complete Excel file"):
        open_data(folder / "t.xlsx")


@pytest.mark.parametrize("column", COLUMNS)
def test_a_table_has_the_rows_that_it_has_from_other_sources(tmp_path: Path, column: str) -> None:
    sheet = written(lambda frame, path: as_text(frame).to_excel(path, index=False), "t.xlsx")
    check_same_rows(column, sheet, tmp_path)


def test_text_and_booleans_of_a_sheet_are_categories(folder: Path) -> None:
    which = np.random.default_rng(0).integers(3, size=60)
    frame = pd.DataFrame({"age": 20.0 + 20.0 * which, "colour": np.array(["red", "blue", "green"])[which]})
    frame = frame.assign(vip=which == 1)
    frame.to_excel(folder / "people.xlsx", index=False)
    given = {"sync": "bsp", "workers": 1, "seed": 0, "progress": False}
    one, other = (flegel.run(KPrototypes(k=3), table, **given) for table in (frame, folder / "people.xlsx"))
    np.testing.assert_array_equal(one.labels, other.labels)
