"""Weights of rows: from a triple or from a column; sharded, sampled and described with their rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import flegel
from flegel.datasets import open_data, read_rows, read_shard
from flegel.errors import FlegelError

ROWS = np.arange(60.0).reshape(20, 3)
WEIGHTS = np.arange(20.0) / 3


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv"
    lines = [f"{a},{w!r},{b},{c}" for (a, b, c), w in zip(ROWS.tolist(), WEIGHTS.tolist(), strict=True)]
    path.write_text("\n".join(["a,w,b,c", *lines]) + "\n")
    return path


def test_a_triple_gives_weights_and_they_stay_with_their_rows() -> None:
    data = open_data((ROWS, None, WEIGHTS))
    assert data.weighted and data.in_memory and not data.labelled
    parts = [data.shard(index, 3, seed=5) for index in range(3)]
    assert sorted(np.concatenate([part.ids for part in parts])) == list(range(20))
    for part in [*parts, data.draw(7, seed=1), data.read()]:
        assert part.weights is not None
        np.testing.assert_allclose(part.weights, WEIGHTS[part.ids], rtol=1e-12)
        np.testing.assert_array_equal(part.features, ROWS[part.ids])


def test_sums_of_weights_by_difference_are_exact() -> None:
    weights = open_data((ROWS, None, np.full(20, 0.1))).read().weights
    assert weights is not None
    total = 0.0
    for change in [*weights, *-weights[::-1]]:
        total += change
    assert total == 0.0


def test_no_weights_where_the_triple_has_none() -> None:
    data = open_data((ROWS, np.arange(20) % 2, None))
    assert data.labelled and not data.weighted and data.read().weights is None


@pytest.mark.parametrize("partition", ["shuffle", "contiguous", "sorted-by b"])
def test_a_column_of_a_file_holds_the_weights(table: Path, partition: str) -> None:
    data = open_data(table, weight="w", dtype="float64")
    assert data.weighted and data.columns == 3 and data.names == ["a", "b", "c"]
    description = json.loads(json.dumps(data.describe()))
    found = [read_shard(description, index, 2, partition, 3) for index in range(2)]
    for rows in [*found, read_rows(description, np.array([4, 17])), data.draw(5)]:
        np.testing.assert_allclose(rows.weights, WEIGHTS[rows.ids])
        np.testing.assert_allclose(rows.features, ROWS[rows.ids])


@pytest.mark.parametrize(
    ("spec", "options", "sentence"),
    [
        ((ROWS, None, WEIGHTS[:5]), {}, "give one per row"),
        ((ROWS, None, np.where(WEIGHTS == 2, -1.0, 1.0)), {}, "row 7 has the weight -1"),
        ((ROWS, None, np.where(WEIGHTS == 2, np.nan, 1.0)), {}, "row 7 has the weight nan"),
        ((ROWS, None, WEIGHTS), {"weight": 0}, "given twice"),
        (ROWS, {"weight": 7}, "no weight column 7"),
        (ROWS[:, :1], {"weight": 0}, "no column but the weights"),
    ],
)
def test_weights_that_cannot_be_used_are_refused(spec: object, options: dict[str, int], sentence: str) -> None:
    with pytest.raises(FlegelError, match=sentence):
        open_data(spec, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("weight", "as_column", "sentence"),
    [
        (0.0, False, "Every weight of .* is 0"),
        (0.0, True, "Every weight of .* is 0"),
        (1e120, False, "divide all of them"),
    ],
)
def test_weights_that_no_sum_can_use_are_refused(weight: float, as_column: bool, sentence: str, tmp_path: Path) -> None:
    rows, weights = np.random.default_rng(0).normal(size=(30, 2)), np.full(30, weight)
    data = open_data((rows, rows[:, 0], weights))
    if as_column:
        np.savetxt(
            tmp_path / "rows.csv", np.c_[rows, rows[:, 0], weights], delimiter=",", header="a,b,y,w", comments=""
        )
        data = open_data(tmp_path / "rows.csv", label="y", weight="w")
    with pytest.raises(FlegelError, match=sentence):
        flegel.run("ridge", data, workers=1, processes="no", progress=False)


def test_the_advice_for_an_infinite_label_is_one_that_helps(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,y\n1,2\n2,inf\n3,4\n")
    for missing in ({}, {"missing": "drop"}):
        with pytest.raises(FlegelError, match="take the row out of the data"):
            flegel.run("ridge", tmp_path / "rows.csv", label="y", workers=1, processes="no", progress=False, **missing)
