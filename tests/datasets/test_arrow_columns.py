"""Columns of Arrow tables and of their files mean what the same columns of a frame mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from flegel.datasets import open_data
from flegel.errors import DataError
from tests import needs
from tests.datasets.helpers import dense

pa = needs.library("pyarrow")

ROWS = 12


def rows(data: Any, **options: Any) -> Any:
    return dense(open_data(data, **options).load()[0])


def written(table: Any, kind: str, folder: Path) -> Any:
    """The table itself, or a file of it."""
    from pyarrow import feather, parquet

    path = folder / f"t.{kind}"
    match kind:
        case "parquet":
            parquet.write_table(table, path)
        case "feather":
            feather.write_feather(table, path)
        case _:
            return table
    return path


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("kind", ["parquet", "feather", "table"])
def test_a_duration_is_in_days_whatever_holds_it(kind: str, unit: str, tmp_path: Path) -> None:
    hours = pd.Series(pd.to_timedelta(np.arange(ROWS), unit="h"))
    lengths = pa.array(hours).cast(pa.duration(unit))
    table = pa.table({"length": lengths, "other": np.arange(ROWS, dtype=float)})
    frame = pd.DataFrame({"length": hours, "other": np.arange(ROWS, dtype=float)})
    found, wanted = rows(written(table, kind, tmp_path)), rows(frame)
    assert np.allclose(found, wanted, 1e-6) and np.allclose(found[:, 0], np.arange(ROWS) / 24)


@pytest.mark.parametrize("kind", ["feather", "table"])
def test_a_gap_among_the_values_of_a_dictionary_is_a_gap(kind: str, tmp_path: Path) -> None:
    codes = pa.array([i % 4 for i in range(ROWS)], pa.int8())
    words = pa.DictionaryArray.from_arrays(codes, pa.array(["u", None, "v", "u"]))
    data = written(pa.table({"a": np.arange(ROWS, dtype=float), "word": words}), kind, tmp_path)
    with pytest.raises(DataError, match="missing"):
        open_data(data)
    kept = rows(data, missing="drop")
    assert len(kept) == 3 * ROWS // 4 and np.array_equal(kept[:3, 0], [0, 2, 3])
    labelled = open_data(data, label="word", missing="drop")
    assert list(labelled.classes or ()) == ["u", "v"] and labelled.rows == 3 * ROWS // 4


@pytest.mark.parametrize("kind", ["parquet", "feather"])
def test_columns_of_one_name_are_all_read(kind: str, tmp_path: Path) -> None:
    columns = [np.arange(ROWS, dtype=float), np.ones(ROWS), 2.0 * np.arange(ROWS)]
    data = open_data(written(pa.Table.from_arrays([pa.array(c) for c in columns], ["a", "b", "a"]), kind, tmp_path))
    assert list(data.names or ()) == ["a", "b", "a.1"]
    assert np.array_equal(dense(data.load()[0]), np.column_stack(columns))
