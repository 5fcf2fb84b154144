"""`flegel evaluate`, and `flegel data show` in the words of a command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import flegel
from flegel import Algorithm
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.lr import LR
from flegel.cli.main import app
from flegel.errors import UsageError
from flegel.terminal.display import summary


def flegel_(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of one set of labelled rows in several forms, and models of them."""
    place = tmp_path_factory.mktemp("evaluate")
    rows = np.random.default_rng(3).normal(size=(200, 2))
    words = np.where(rows[:, 0] + 0.3 * rows[:, 1] > 0, "yes", "no")
    lines = [f"{a:.5f},{b:.5f},{word}" for (a, b), word in zip(rows, words, strict=True)]
    (place / "named.csv").write_text("\n".join(["a,b,answer", *lines]) + "\n")
    (place / "plain.csv").write_text("\n".join(lines) + "\n")
    np.save(place / "numbers.npy", np.c_[rows.round(5), words == "yes"])
    few: dict[str, Any] = {"workers": 1, "processes": False, "max_iterations": 5}
    flegel.run(LR(), str(place / "named.csv"), label="answer", out=place / "words", **few)
    flegel.run(LR(), str(place / "numbers.npy"), label=-1, out=place / "numbers", **few)
    flegel.run(KMeans(k=2), rows, out=place / "clusters", **few)
    return place


@pytest.mark.parametrize(
    ("model", "data", "label"),
    [
        ("words", "named.csv", "answer"),
        ("words", "plain.csv", "-1"),
        ("words", "plain.csv", "2"),
        ("numbers", "numbers.npy", "-1"),
    ],
)
def test_figures_are_those_of_the_same_rows_by_hand(folder: Path, model: str, data: str, label: str) -> None:
    said = flegel_("evaluate", str(folder / model), "--data", str(folder / data), "--label", label, "--json")
    assert said.exit_code == 0, said.stderr
    figures = json.loads(said.stdout)
    table, loaded = np.load(folder / "numbers.npy"), flegel.load(folder / model)
    right = np.where(table[:, 2] == 1, "yes", "no") if model == "words" else table[:, 2]
    assert figures["accuracy"] == pytest.approx(np.mean(loaded.predict(table[:, :2]) == right))
    assert figures["accuracy"] > 0.9
    assert figures["objective"] == pytest.approx(loaded.evaluate(table[:, :2], right).objective)


def test_models_without_labels_need_none(folder: Path) -> None:
    np.save(folder / "rows.npy", np.load(folder / "numbers.npy")[:, :2])
    said = flegel_("evaluate", str(folder / "clusters"), "--data", str(folder / "rows.npy"))
    assert said.exit_code == 0 and said.stdout.startswith("objective "), said.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("words", "named.csv"), "LR needs labels to evaluate: give --label COLUMN."),
        (("words", "named.csv", "--label", "anser"), "has no column 'anser'; did you mean 'answer'?"),
        (("words", "plain.csv", "--label", "3"), "has no column '3'; its columns are 0 to 2."),
        (("words", "named.csv", "--label", "a"), "No label is a class that the model knows"),
        (("nothing", "plain.csv"), "There is no folder"),
        (("words", "words", "--label", "a"), "words is a saved model, not data; give rows"),
        (("words", "words/model.npz", "--label", "a"), "model.npz is a saved model, not data; give rows"),
    ],
)
def test_wrong_use_is_one_sentence(folder: Path, words: tuple[str, ...], sentence: str) -> None:
    model, data, *rest = words
    said = flegel_("evaluate", str(folder / model), "--data", str(folder / data), *rest)
    assert said.exit_code == 2 and sentence in said.stderr and said.stderr.count("\n") == 1


def test_a_class_without_evaluate_says_so(folder: Path) -> None:
    class Silent(KMeans):
        def evaluate(self, features: object, labels: object, parameter: object) -> None:  # type: ignore[override]
            return None

    rows = np.load(folder / "numbers.npy")[:, :2]
    result = flegel.run(KMeans(k=2), rows, workers=1, processes=False, max_iterations=2)
    result.algorithm = Silent(k=2)
    with pytest.raises(UsageError, match="Silent defines no evaluate; use predict"):
        result.evaluate(rows)
    Silent.predict = Algorithm.predict  # type: ignore[method-assign]
    with pytest.raises(UsageError, match="it needs that hook"):
        result.evaluate(rows)
    result.model = "saved"
    assert "flegel.load('saved').parameters is θ" in summary(result)[-1]


def test_data_show_names_options_as_they_are_typed(tmp_path: Path) -> None:
    (tmp_path / "gaps.csv").write_text("a,b\n1,x\n,y\n3,x\n")
    said = flegel_("data", "show", str(tmp_path / "gaps.csv"))
    assert said.exit_code == 2
    assert "column 1 (a)" in said.stderr and "--missing drop" in said.stderr and 'missing="' not in said.stderr


def test_labels_that_the_model_does_not_know_are_told(folder: Path) -> None:
    (folder / "some.csv").write_text((folder / "named.csv").read_text().replace("yes", "maybe", 1))
    said = flegel_("evaluate", str(folder / "words"), "--data", str(folder / "some.csv"), "--label", "answer")
    assert said.exit_code == 0 and "1 of 200 rows have a label that the model does not know" in said.stderr
