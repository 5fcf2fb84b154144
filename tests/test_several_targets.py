"""Models of several targets, which are the last columns of their table: predictions and evaluations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import flegel
from flegel.algorithms.least_squares import Ridge
from flegel.errors import DataError

NAMES = ["a", "b", "kind", "y1", "y2"]


def table_of(rows: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    numbers = rng.normal(size=(rows, 2))
    kind = rng.choice(["red", "green", "blue"], rows)
    targets = numbers @ np.array([[1.0, -2.0], [0.5, 3.0]]) + 10.0 * (kind == "red")[:, None] + [100.0, -7.0]
    made = pd.DataFrame(np.hstack([numbers, targets]), columns=["a", "b", "y1", "y2"])
    made.insert(2, "kind", kind)
    return made[NAMES]


def trained(data: Any, **options: Any) -> Any:
    return flegel.run(Ridge(alpha=1e-9, targets=2), data, workers=1, processes="no", progress=False, **options)


@pytest.mark.parametrize("scaling", ["none", "standard"])
def test_tables_with_and_without_targets_get_the_same_answers(tmp_path: Path, scaling: str) -> None:
    table = table_of()
    result = trained(table, scale=scaling, out=tmp_path / "model")
    truth = table[["y1", "y2"]].to_numpy()
    assert np.allclose(result.predict(table[["a", "b", "kind"]]), truth, atol=1e-3)
    assert np.allclose(result.predict(table), truth, atol=1e-3)
    model = flegel.load(tmp_path / "model")
    table.to_csv(tmp_path / "whole.csv", index=False)
    table.drop(columns=["y1", "y2"]).to_csv(tmp_path / "rows.csv", index=False)
    for name in ("whole.csv", "rows.csv"):
        assert np.allclose(model.predict(tmp_path / name), truth, atol=1e-3)


@pytest.mark.parametrize("kind", ["array", "sparse", "npy"])
def test_arrays_with_and_without_targets_get_the_same_answers(tmp_path: Path, kind: str) -> None:
    whole = np.array(table_of().drop(columns="kind"))
    whole[:, 2:] = whole[:, :2] @ np.array([[1.0, -2.0], [0.5, 3.0]]) + [100.0, -7.0]

    def given(rows: Any, name: str) -> Any:
        if kind == "sparse":
            return sparse.csr_matrix(rows)
        if kind == "array":
            return rows
        np.save(tmp_path / name, rows)
        return tmp_path / name

    result = trained(given(whole, "whole.npy"))
    for rows in (given(whole, "whole.npy"), given(whole[:, :2], "rows.npy")):
        assert np.allclose(result.predict(rows), whole[:, 2:], atol=1e-4)


def test_several_targets_are_evaluated_on_tables_that_have_them() -> None:
    table = table_of()
    result = trained(table)
    found = result.evaluate(table)
    assert found.objective == pytest.approx(float(result.objective), abs=1e-9)
    assert found.metrics["r2"] == pytest.approx(1.0)
    with pytest.raises(DataError, match="has no column 'y1'"):
        result.evaluate(table[["a", "b", "kind"]])


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ((np.ones((9, 4)), np.ones(9)), "predicts the last 2 columns .* has labels"),
        (np.ones((9, 2)), "none is left to predict from"),
    ],
)
def test_targets_beside_labels_or_without_features_are_refused(data: Any, sentence: str) -> None:
    with pytest.raises(flegel.UsageError, match=sentence):
        trained(data)
