"""The treatment of a table: decided once, alike for every worker, part of the model, applied by name."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest

from flegel.core.gaps import GAP
from flegel.core.shard import Sparse
from flegel.datasets import Treatment, open_data, open_for_prediction
from flegel.datasets.rows.scale import Scaling, advice
from flegel.datasets.tables.cells import CellFormat, date_value, number_value, shape
from flegel.datasets.tables.columns import cells
from flegel.datasets.tables.survey import ColumnSurvey
from flegel.errors import DataError, UsageError
from tests.datasets.helpers import check_shards, dense

FRAME = pd.DataFrame(
    {
        "size": [1.0, 2.0, None, 4.0, 5.0, 6.0] * 20,
        "colour": ["red", "blue", "red", None, "green", "blue"] * 20,
        "day": pd.to_datetime(["2024-01-01", "2024-02-01"] * 60),
        "paid": [True, False, False] * 40,
        "kind": ["u", "v"] * 60,
    }
)


def treated(**options: Any) -> Treatment:
    return open_data(FRAME, label="kind", **{"missing": "mean", **options}).treatment


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet", ".feather"])
@pytest.mark.parametrize("missing", ["drop", "indicator"])
def test_workers_read_their_parts_with_the_same_treatment(tmp_path: Path, suffix: str, missing: str) -> None:
    path = tmp_path / f"t{suffix}"
    if suffix.startswith(".csv"):
        FRAME.to_csv(path, index=False)
    else:
        FRAME.to_parquet(path) if suffix == ".parquet" else FRAME.to_feather(path)
    data = open_data(path, label="kind", missing=missing)
    check_shards(data, 3)
    kept = FRAME.dropna() if missing == "drop" else FRAME
    assert data.rows == len(kept) and data.classes == ["u", "v"]
    assert np.array_equal(data.load()[1], (kept["kind"] == "v").to_numpy(float))


def test_a_treatment_survives_json() -> None:
    how = treated().scaled_by(Scaling(np.arange(7.0), np.full(7, 1 / 3)))
    assert msgspec.json.decode(msgspec.json.encode(how), type=Treatment) == how


def test_a_damaged_treatment_is_refused() -> None:
    whole = msgspec.to_builtins(treated())
    for change in ({"width": 3}, {"factor": [1.0], "shift": [0.0]}, {"columns": [{"name": "a", "use": "eval"}]}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({**whole, **change}, Treatment)


def test_columns_are_found_by_name_in_any_order_and_others_are_ignored() -> None:
    how, table = treated(), FRAME.drop(columns="kind")
    wanted = how.apply(table)
    assert np.array_equal(how.apply(table[["paid", "day", "colour", "size"]].assign(more=1)), wanted)
    assert np.array_equal(how.apply(FRAME), wanted)
    assert np.array_equal(how.apply(table.astype({"size": object, "colour": object})), wanted)
    with pytest.raises(DataError, match="no column 'colour', which the model was trained on; did you mean 'color'"):
        how.apply(table.rename(columns={"colour": "color"}))
    with pytest.raises(DataError, match="no column 'size' and 2 more columns"):
        how.apply(table[["paid"]])


def test_names_of_plain_numbers_are_matched_too() -> None:
    how = open_data(pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})).treatment
    assert how.plain
    assert how.apply(pd.DataFrame({"b": [9.0], "a": [8.0]})).tolist() == [[8.0, 9.0]]
    assert how.apply(np.array([[8.0, 9.0]])).tolist() == [[8.0, 9.0]]


def test_texts_that_training_did_not_have_are_zero_and_said_once() -> None:
    new = FRAME[:2].assign(colour=["pink", "red"])
    with pytest.warns(UserWarning, match=r"1 row has a value in column 'colour' that training did not have \('pink'\)"):
        rows = treated().apply(new)
    names = treated().feature_names
    assert names is not None
    places = [k for k, name in enumerate(names) if name.startswith("colour=")]
    assert rows[:, places].tolist() == [[0, 0, 0, 0], [0, 0, 1, 0]]
    said: list[str] = []
    assert treated(categorical="ordinal").apply(new, said.append)[:, 1].tolist() == [-1, 2] and len(said) == 1


def test_gaps_are_filled_in_with_the_values_of_training_or_refused() -> None:
    new = pd.DataFrame({"size": [None], "colour": [None], "day": ["2024-03-01"], "paid": [None]})
    rows = treated().apply(new)
    assert rows[0, 0] == pytest.approx(3.6) and rows[0, 4] == 1 and rows[0, -1] == pytest.approx(1 / 3)
    for missing in ("error", "drop"):
        how = open_data(FRAME.dropna() if missing == "error" else FRAME, label="kind", missing=missing).treatment
        with pytest.raises(DataError, match="row 1 has no value in column 'size'"):
            how.apply(new)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (np.zeros(4), "one row or one column of 4 values"),
        (np.zeros((2, 3)), "trained on 2 columns; these data have 3"),
        (np.array([[1.0, np.nan]]), r"Row 1, column 2 is nan"),
        (Sparse(np.array([0, 1]), np.array([0]), np.array([np.inf]), 2), "Row 1, column 1 is inf"),
        (np.array([["x", "y"]]), "'x' is no number"),
        (np.zeros((0, 2)), "no rows"),
        ([[1.0, 2.0], [3.0]], "rows of equal length"),
        (object(), "cannot be read as rows"),
    ],
)
def test_rows_that_a_model_of_numbers_cannot_take_are_one_sentence(given: Any, words: str) -> None:
    with pytest.raises((DataError, UsageError), match=words):
        Treatment(2).apply(given)


def test_a_table_without_names_is_taken_by_position(tmp_path: Path) -> None:
    text = "".join(f"{k},{'ab'[k % 2]},{k * 2},{'uv'[k % 2]}\n" for k in range(30))
    (tmp_path / "t.csv").write_text(text)
    how = open_data(tmp_path / "t.csv", label=-1).treatment
    rows = how.apply(open_for_prediction(str(tmp_path / "t.csv"), how))
    assert rows[:2].tolist() == [[0, 1, 0, 0], [1, 0, 1, 2]]
    (tmp_path / "new.csv").write_text("5,b,7\n6,a,8\n")
    assert how.apply(open_for_prediction(str(tmp_path / "new.csv"), how)).tolist() == [[5, 0, 1, 7], [6, 1, 0, 8]]


def test_files_are_read_as_the_model_was_trained(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "train.csv", index=False)
    FRAME[["paid", "colour", "size", "day"]][:3].to_parquet(tmp_path / "new.parquet")
    data = open_data(tmp_path / "train.csv", label="kind", missing="mean")
    how = data.treatment
    rows = how.apply(open_for_prediction(str(tmp_path / "new.parquet"), how))
    assert np.array_equal(rows, dense(data.load()[0])[:3])
    folder = tmp_path / "set" / "colour=green"
    folder.mkdir(parents=True)
    FRAME[4:5].drop(columns=["colour", "kind"]).to_parquet(folder / "a.parquet")
    again = how.apply(open_for_prediction(str(tmp_path / "set"), how))
    assert np.array_equal(again, dense(data.load()[0])[4:5])
    pd.DataFrame({"z": [7.0], "y": [1.0], "x": [2.0]}).to_csv(tmp_path / "plain.csv", index=False)
    assert Treatment(2, ["x", "y"]).apply(
        open_for_prediction(str(tmp_path / "plain.csv"), Treatment(2, ["x", "y"]))
    ).tolist() == [[2.0, 1.0]]


def test_many_categories_are_sparse_where_that_is_allowed() -> None:
    rng = np.random.default_rng(0)
    names = [f"user {k}" for k in rng.integers(0, 8_000, 20_000)]
    table = pd.DataFrame({"user": names, "x": rng.normal(size=len(names))})
    rows, _ = open_data(table).load()
    assert isinstance(rows, Sparse) and rows.columns > 7000
    assert (np.diff(rows.indptr) == 2).all()
    few = open_data(table[:2000].assign(user=[f"user {k % 300}" for k in range(2000)]))
    assert few.sparse and not open_data(table[:2000].assign(user=table["user"][:1].item() + "x"), sparse=False).sparse


def test_what_became_of_columns_is_told() -> None:
    report = open_data(FRAME, label="kind", missing="drop").source.report
    assert report[0] == "the given DataFrame: 80 rows, 5 columns → 6 features; 40 rows left out"
    assert any("label, 2 classes: u, v" in line for line in report)
    assert open_data(pd.DataFrame({"x": [1.0, 2.0]})).source.report == ()


def test_advice_about_scaling_names_both_columns() -> None:
    rows = np.array([[1.0, 1e6], [2.0, 5e6], [3.0, 1e6]])
    text = advice(rows, ["carat", "price"], np.zeros(2, bool))
    assert text is not None and "'price'" in text and "--scale standard" in text
    assert advice(rows, None, np.array([False, True])) is None
    assert advice(rows[:, :1], None, np.zeros(1, bool)) is None
    rows[2, 1] = GAP
    assert advice(rows, None, np.zeros(2, bool)) is None, "its columns cannot be scaled, and the mark is no value"


def test_advice_about_scaling_is_given_for_tables_that_text_made_sparse() -> None:
    rows = Sparse(
        np.array([0, 3, 5, 8]), np.array([0, 1, 2, 0, 1, 0, 1, 2]), np.array([1, 1e6, 1, 2, 5e6, 3, 1e6, 1]), 3
    )
    text = advice(rows, ["carat", "price", "cut=good"], np.array([False, False, True]))
    assert text is not None and "'price'" in text
    assert advice(rows, None, np.zeros(3, bool)) is None, "rare words of texts have small deviations"


def test_a_column_that_makes_most_features_is_named() -> None:
    frame = pd.DataFrame({"x": np.arange(1500.0), "plane": [f"N{i % 1200}" for i in range(1500)]})
    said = open_data(frame, categorical="onehot").treatment.advice()
    assert said is not None and said.startswith("'plane' makes 1,200 of 1,201 features; --drop plane")
    assert treated().advice() is None


def test_scaling_leaves_zeros_and_ones_alone() -> None:
    names = treated().feature_names
    assert names is not None
    kept = dict(zip(names, treated().unscaled().tolist(), strict=True))
    assert kept["size"] is False and kept["day"] is False and kept["paid"] and kept["colour=red"]


def test_surveys_of_two_parts_are_merged() -> None:
    texts = ["1", "2", "", "x", "7,5", "true", "2024-01-01", "3", "?"]
    whole, first, second = ColumnSurvey("a"), ColumnSurvey("a"), ColumnSurvey("a")
    whole.add(cells(texts))
    first.add(cells(texts[:4]))
    second.add(cells(texts[4:]))
    first.merge(second)
    assert (first.rows, first.missing, first.shapes, first.texts) == (9, 2, whole.shapes, whole.texts)
    assert first.first == whole.first and first.first_gap == whole.first_gap == 2


@pytest.mark.parametrize(
    ("cell", "name"),
    [("1", "integer"), ("-1.5e3", "point"), ("1.234", "dot-group"), ("1,5", "comma"), ("1,234", "comma-group"),
     ("1,234.5", "comma-groups"), ("1.234,5", "dot-groups"), ("12 345", "integer"), ("yes", "boolean"),
     ("2024-02-30", "text"), ("2024-02-29", "year-first"), ("30.02.2024", "text"), ("1/2/2024", "day-or-month"),
     ("1_0", "text"), ("tcp", "text"), ("NA", "missing")],
)  # fmt: skip
def test_cells_have_shapes(cell: str, name: str) -> None:
    assert shape(cell) == name


def test_values_of_cells() -> None:
    assert number_value("1.234,5", CellFormat(",", ".")) == 1234.5
    assert number_value("12’000.5", CellFormat(".", " ")) == 12000.5
    assert date_value("1970-01-02T12:00:00+12:00", CellFormat()) == 1.0
    assert date_value("02/01/1970", CellFormat(dates="month-first")) == 31.0


def test_a_gap_deep_in_a_large_file_names_the_ways_out(tmp_path: Path) -> None:
    lines = [f"{k},{k}\n" for k in range(40_000)]
    lines[35_000] = lines[37_000] = "7,\n"
    (tmp_path / "a.csv").write_text("".join(lines))
    with pytest.raises(DataError, match=r"column 2 has no value in 2 of 40,000 rows \(first: line 35001\)") as caught:
        open_data(tmp_path / "a.csv").load()
    assert "--missing drop" in str(caught.value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_data(tmp_path / "a.csv", missing="drop").rows == 39_998


def test_excel_without_its_library_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    (tmp_path / "t.xlsx").write_bytes(b"PK\x03\x04")
    with pytest.raises(UsageError, match=r"pip install 'flegel\[excel\]', or save it as CSV"):
        open_data(tmp_path / "t.xlsx")


def test_a_second_start_finds_the_survey_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FRAME.to_csv(tmp_path / "t.csv", index=False)
    first = open_data(tmp_path / "t.csv", missing="mean")
    monkeypatch.setattr("flegel.datasets.tables.open_table.survey", None)
    again = open_data(tmp_path / "t.csv", missing="mean")
    assert again.treatment == first.treatment and again.source.report == first.source.report
    with pytest.raises(TypeError):
        open_data(tmp_path / "t.csv", missing="median")
