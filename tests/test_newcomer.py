"""What people type in their first hour, and the answer that tells them what to type instead."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.lr import LR
from flegel.cli.main import app
from flegel.errors import DataError, UsageError
from flegel.results.result import Result

ROWS = np.random.default_rng(0).normal(size=(60, 2)) + 4.0 * (np.arange(60) % 2)[:, None]
FRAME = pd.DataFrame({"a": ROWS[:, 0], "b": ROWS[:, 1], "town": np.where(np.arange(60) % 2, "Brno", "Porto")})


@pytest.fixture(scope="module")
def trained() -> Result:
    return flegel.run(LR(l2=0.1), FRAME, np.arange(60) % 2, workers=1, max_passes=20)


def test_one_row_of_a_frame_is_chosen_with_two_brackets(trained: Result) -> None:
    with pytest.raises(UsageError, match=r"give a frame: df\.iloc\[\[0\]\] is one row"):
        trained.predict(FRAME.iloc[0])
    assert trained.predict(FRAME.iloc[[0]]).shape == (1,)


def test_a_warning_about_unknown_text_shows_the_line_of_the_user(trained: Result) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trained.predict(FRAME.assign(town="Oslo"))
    ours = [one for one in said if issubclass(one.category, UserWarning)]  # others may come with collected garbage
    assert [one.filename for one in ours] == [__file__] and "'Oslo'" in str(ours[0].message)


def test_a_result_tells_what_became_of_columns(trained: Result) -> None:
    assert any("town" in line and "one-hot" in line for line in trained.data_report)
    assert "one-hot" in trained.summary()


def test_a_model_scores_the_pair_that_it_was_trained_on(trained: Result) -> None:
    labels = np.arange(60) % 2
    assert trained.score((FRAME, labels)) == trained.score(FRAME, labels) > 0.9
    with pytest.raises(UsageError, match="not 3 things"):
        trained.score((FRAME, labels, None))


def test_a_model_is_loaded_from_its_folder_or_from_a_file_in_it(trained: Result, tmp_path: Path) -> None:
    from flegel.runtime.job.result_store import save

    save(trained, tmp_path / "model")
    found = [flegel.load(tmp_path / "model" / name).predict(FRAME) for name in ("", "model.json", "model.npz")]
    assert all(np.array_equal(found[0], one) for one in found)
    FRAME.to_csv(tmp_path / "rows.csv", index=False)
    words = ["predict", str(tmp_path / "model"), "--data", str(tmp_path / "rows.csv"), "--out", str(tmp_path / "o.csv")]
    assert "o.csv has the answers for 60 rows" in CliRunner().invoke(app, words).output


def test_a_strength_of_scikit_learn_has_another_name_here() -> None:
    with pytest.raises(UsageError, match="'C'; give l2 = 1"):
        LR(C=1.0)


def test_centroids_that_are_fewer_than_k_ask_for_another_k() -> None:
    with pytest.raises(UsageError, match=r"init has 3 rows, and k is 10; give k=3\."):
        flegel.run(KMeans(init=ROWS[:3]), ROWS, workers=1, processes=False)


def test_columns_without_names_are_told_by_number_alone() -> None:
    rows = np.column_stack([ROWS, ROWS[:, 0]])
    rows[3, 2], rows[5, 1] = np.inf, np.nan
    with pytest.raises(DataError, match=r"column 2 is inf"):
        flegel.run(KMeans(k=2), rows, missing="mean", workers=1, processes=False)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["kmeans", "--data", "p.csv", "--k", "10"], "a hyper-parameter of kmeans: --set k=10"),
        (["--data", "p.csv", "kmeans", "--n-init=2"], "a hyper-parameter of kmeans: --set n_init=2"),
        (["kmeans", "points.csv"], "flegel submit kmeans --data points.csv"),
        (["kmeans", "--data", "p.csv", "--bogus"], "No such option: --bogus"),
    ],
)
def test_words_that_are_no_options_are_answered_with_those_to_type(words: list[str], answer: str) -> None:
    done = CliRunner().invoke(app, ["submit", *words], env={"COLUMNS": "200", "TERMINAL_WIDTH": "200"})
    assert done.exit_code == 2
    assert answer in " ".join(done.output.replace("│", " ").split())


@pytest.mark.parametrize("name", ["id", "customer_id", "PassengerId", "order ID", "index"])
def test_a_column_of_identifiers_is_told_with_what_to_type(name: str) -> None:
    said: list[str] = []
    frame = pd.DataFrame({name: np.arange(60) * 7 % 61, "a": ROWS[:, 0]})
    flegel.run(KMeans(k=2), frame, workers=1, processes=False, say=said.append)
    (line,) = [text for text in said if "identifier" in text]
    assert line.startswith(f"column {name}: another number in every row") and f"drop=['{name}']" in line


def test_a_column_of_labels_among_the_features_is_told_with_what_to_type() -> None:
    said: list[str] = []
    frame = pd.DataFrame({"a": ROWS[:, 0], "b": ROWS[:, 1], "label": np.arange(60) % 2})
    flegel.run(KMeans(k=2), frame, workers=1, processes=False, say=said.append)
    assert any('column label is trained on like a measurement; label="label"' in text for text in said)
    said.clear()
    flegel.run(KMeans(k=2), frame, label="label", workers=1, processes=False, say=said.append)
    assert not any("measurement" in text for text in said)


def test_a_measurement_is_no_identifier() -> None:
    said: list[str] = []
    frame = pd.DataFrame({"id": np.arange(60) // 2, "avoid": ROWS[:, 0], "GRID": ROWS[:, 1]})
    flegel.run(KMeans(k=2), frame, workers=1, processes=False, say=said.append)
    assert not any("identifier" in text for text in said)


@pytest.mark.parametrize(
    ("command", "runner"), [("compare", "compare"), ("simulate", "simulation.simulation_runner"), ("check", "")]
)
def test_commands_that_train_in_another_way_read_tables_as_submit_does(
    command: str, runner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages about a table name options of `submit`; these commands did not have them."""
    seen: list[Any] = []

    def stop(*given: Any, **named: Any) -> None:
        seen.extend([*given, *named.values()])
        raise UsageError("seen")

    home = f"flegel.compare.{runner}" if runner else "flegel.checks.conformance.kept_promises"
    monkeypatch.setattr(home, stop)
    ratings = [f"{user},{item},{1 + user * item % 5}" for user in range(20) for item in range(15) if (user + item) % 3]
    (tmp_path / "listed.csv").write_text("\n".join(["a,b,c", *ratings]) + "\n")
    words = ["nmf", "--data", str(tmp_path / "listed.csv"), "--set", "rank=2", "--format", "ratings"]
    done = CliRunner().invoke(app, [command, *words, "--columns", "a,b,c"])
    assert done.exit_code == 2 and "seen" in done.output, done.output
    rows = next(one for given in seen for one in (given, getattr(given, "data", None)) if hasattr(one, "columns"))
    assert rows.columns == 15, "a column for each item"
