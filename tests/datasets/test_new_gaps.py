"""Gaps in rows that a model is asked about: it does as in training, and the caller may say otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import flegel
from flegel.cli.main import app
from flegel.core.gaps import GAP
from flegel.core.shard import Sparse
from flegel.datasets import Treatment, open_data
from flegel.datasets.tables.new_gaps import fill_in
from flegel.errors import DataError, UsageError
from flegel.runtime.job.result_store import save

RNG = np.random.default_rng(0)
WHOLE = pd.DataFrame({"a": RNG.normal(size=90), "b": RNG.normal(size=90), "c": ["x", "y", "x"] * 30})
WHOLE["kind"] = np.where(WHOLE.a + (WHOLE.c == "x") > 0.3, "yes", "no")
GAPPED = WHOLE.copy()
GAPPED.loc[[0, 7, 14], "a"] = np.nan
GAPPED.loc[[7, 8], "c"] = None
COMPLETE = GAPPED.dropna()


def treated(table: pd.DataFrame = WHOLE, **options: Any) -> Treatment:
    return open_data(table, label="kind", **options).treatment


@pytest.mark.parametrize("trained", ["error", "drop", "mean", "median", "indicator"])
def test_rows_with_gaps_are_left_out_where_the_caller_says_so(trained: str) -> None:
    how, said = treated(GAPPED if trained != "error" else WHOLE, missing=trained), []
    rows, taken = how.apply_to_complete(GAPPED, "drop", said.append)
    np.testing.assert_array_equal(taken, GAPPED.notna().all(axis=1))
    np.testing.assert_array_equal(rows, how.apply(COMPLETE))
    assert said == ["4 of 90 rows have gaps and are left out (--missing drop)."]
    with pytest.raises(DataError, match="has no value in column 'a'"):
        how.apply_to_complete(GAPPED, "error")


def test_values_of_training_are_used_where_there_are_some_and_those_of_the_rows_otherwise() -> None:
    new = pd.DataFrame({"a": [np.nan, 5.0, 7.0], "b": [1.0, 2.0, 3.0], "c": ["x", "y", None]})
    said: list[str] = []
    own = treated(GAPPED, missing="mean").apply_to_complete(new, "mean", said.append)[0]
    assert own[0, 0] == pytest.approx(GAPPED.a.mean(), rel=1e-6) and said == []
    rows = treated().apply_to_complete(new, "mean", said.append)[0]
    assert rows[0, 0] == 6.0 and rows[2, 2:].tolist() == [0, 0]
    assert said == [
        "1 row has no value in column 'c', for which the model has no column: 0 in all of it.",
        "1 gap of column 'a' gets the mean of these rows: the model has none from its training.",
    ]
    assert treated(GAPPED, missing="mean").apply_to_complete(new, "median", said.append)[0][0, 0] == 6.0
    with pytest.raises(DataError, match="Column 'a' has no value in these rows"):
        treated().apply_to_complete(new[:1], "mean")
    with pytest.raises(UsageError, match="has no columns that mark gaps"):
        treated().apply_to_complete(new, "indicator")


@pytest.mark.parametrize(
    ("missing", "wanted"), [("drop", [[3, 4]]), ("mean", [[3, 2], [3, 4]]), ("keep", [[GAP, 2], [3, 4]])]
)
def test_rows_of_numbers_alone_are_treated_too(missing: str, wanted: list[list[float]], tmp_path: Path) -> None:
    new = np.array([[np.nan, 2.0], [3.0, 4.0]], np.float32)
    for table in (new, pd.DataFrame(new)):
        np.testing.assert_array_equal(Treatment(2).apply_to_complete(table, missing, print)[0], np.float32(wanted))
    assert np.isnan(new[0, 0])
    with pytest.raises(DataError, match="column 1 is nan"):
        Treatment(2).apply_to_complete(new, "error")


def test_gaps_of_sparse_rows_get_the_mean_with_the_zeros_that_are_not_stored() -> None:
    rows = Sparse(np.array([0, 2, 3, 3]), np.array([0, 1, 1]), np.array([np.nan, 6.0, np.nan]), 2)
    fill_in(rows, "mean", None, print)
    assert rows.values.tolist() == [0.0, 6.0, 3.0]


def test_a_saved_model_remembers_what_it_left_out_and_the_flag_overrides(tmp_path: Path) -> None:
    GAPPED.to_csv(tmp_path / "new.csv", index=False)
    result = flegel.run("lr", GAPPED, label="kind", missing="drop", progress=False, seed=0)
    save(result, tmp_path / "model")
    of_complete = result.evaluate(COMPLETE, "kind")

    def said(*words: str) -> Any:
        return CliRunner().invoke(app, [*words, "--data", str(tmp_path / "new.csv")])

    evaluated = said("evaluate", str(tmp_path / "model"), "--label", "kind")
    assert evaluated.exit_code == 0 and f"accuracy {of_complete.metrics['accuracy']:.6g}" in evaluated.output
    assert "4 of 90 rows have gaps and are left out (--missing drop)" in evaluated.output
    assert "--missing mean" in said("evaluate", str(tmp_path / "model"), "--label", "kind", "--missing", "error").output
    filled = said("evaluate", str(tmp_path / "model"), "--label", "kind", "--missing", "mean")
    assert "get the mean of these rows" in filled.output
    refused = said("predict", str(tmp_path / "model"))
    assert refused.exit_code and "leave such rows out with --missing drop" in " ".join(refused.output.split())
    assert len(said("predict", str(tmp_path / "model"), "--missing", "drop").stdout.splitlines()) == 86
    assert len(said("predict", str(tmp_path / "model"), "--missing", "mean").stdout.splitlines()) == 90
    unknown = said("predict", str(tmp_path / "model"), "--missing", "medan")
    assert unknown.exit_code and "did you mean 'median'" in " ".join(unknown.output.split())


def test_rows_without_a_label_are_left_out_as_in_training() -> None:
    gaps = WHOLE.copy()
    gaps.loc[[1, 5], "kind"] = None
    result = flegel.run("lr", gaps, label="kind", missing="drop", progress=False, seed=0)
    with pytest.warns(UserWarning, match="2 of 90 rows without a label are left out"):
        found = result.evaluate(gaps, "kind")
    assert found == result.evaluate(gaps.dropna(), "kind")


def test_gaps_are_kept_only_for_algorithms_that_know_them(tmp_path: Path) -> None:
    table = WHOLE[["a", "b"]]
    known = flegel.run("gapkmeans", table, progress=False, seed=0, max_iterations=3)
    assert len(known.predict(GAPPED[["a", "b"]], missing="keep")) == 90
    plain = flegel.run("kmeans", table, progress=False, seed=0, max_iterations=3)
    with pytest.raises(UsageError, match="KMeans does not know gaps"):
        plain.predict(GAPPED[["a", "b"]], missing="keep")
    GAPPED[["a", "b"]].to_csv(tmp_path / "plain.csv", index=False, header=False)
    with pytest.warns(UserWarning, match="3 of 90 rows have gaps"):
        assert len(plain.predict(tmp_path / "plain.csv", missing="drop")) == 87
    np.save(tmp_path / "rows.npy", GAPPED[["a", "b"]].to_numpy())
    with pytest.warns(UserWarning, match="3 of 90 rows have gaps"):
        assert len(plain.predict(tmp_path / "rows.npy", missing="drop")) == 87
