"""Messages name options and positions as the reader would type them: arguments in Python, options at a command line."""

from __future__ import annotations

import re
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
from flegel.datasets.rows.partition import plan_rows
from flegel.errors import FlegelError, nearest
from flegel.job import Job
from flegel.options import options_of
from flegel.wording import counted, listener, number, option, speak_to, wording_for

ROOT = Path(__file__).resolve().parents[1]
RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(60, 3))
LABELS = (ROWS[:, 0] > 0).astype(int)
GAP = ROWS.copy()
GAP[7, 1] = np.nan


@pytest.mark.parametrize(
    ("name", "value", "typed", "called"),
    [
        ("missing", "drop", "--missing drop", 'missing="drop"'),
        ("max_iterations", 5, "--max-iterations 5", "max_iterations=5"),
        ("tolerance", 1e-4, "--tolerance 0.0001", "tolerance=0.0001"),
        ("drop", "a b", "--drop 'a b'", 'drop="a b"'),
        ("drop", ["a", "b"], "--drop a,b", "drop=['a', 'b']"),
        ("processes", False, "--processes no", "processes=False"),
        ("attribute", True, "--attribute", "attribute=True"),
    ],
)
def test_one_option_in_both_voices(name: str, value: Any, typed: str, called: str) -> None:
    assert option(name, value) == called and option(name) == f"{name}="
    with wording_for("command-line"):
        assert option(name, value) == typed and option(name) == typed.split()[0]
        assert number(0) == 1
    assert number(0) == 0 and listener() == "python"


def test_what_is_counted_is_one_thing_or_several() -> None:
    assert [counted(n, "worker") for n in (0, 1, 2, 3000)] == ["0 workers", "1 worker", "2 workers", "3,000 workers"]
    one = flegel.run(KMeans(k=2), ROWS, workers=1, max_passes=1, processes=False, progress=False)
    assert "1 worker in threads" in one.summary() and "1 workers" not in one.summary()
    with pytest.raises(FlegelError, match="use at most 1 worker\\."):
        plan_rows(1, 0, 2)


def test_no_sentence_puts_a_number_in_front_of_several_workers() -> None:
    """`counted` knows that one is no plural; "2 of 4 workers" needs no care."""
    trees = [path for top in ("flegel", "datasets", "algorithms") for path in sorted((ROOT / top).rglob("*.py"))]
    found = [(str(p), m[0]) for p in trees for m in re.finditer(r"(?<!of )\{[^{}]+\} workers\b", p.read_text("utf-8"))]
    assert not found, "write {counted(n, 'worker')}"


def test_a_list_of_names_is_cut_where_it_is_long() -> None:
    many = [f"colour={k:02d}" for k in range(37)]
    assert nearest("zzz", many) == f"; known are: {', '.join(many[:30])} and 7 more"
    assert nearest("zzz", many[:31]).endswith("colour=30")


def test_who_is_unknown_is_a_python_program() -> None:
    with wording_for("command-line"):
        speak_to("")
        assert listener() == "python"


WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (GAP, {}, r'column 1 has no value in 1 of 60 rows \(first: row 7\); use missing="drop"'),
    (ROWS, {"missing": "dorp"}, 'missing="dorp" is not known'),
    (ROWS, {"max_iterations": 0}, "max_iterations=0 must be at least 1"),
    (ROWS, {"tolerance": 0}, "give max_iterations=, max_seconds= or tolerance="),
    (ROWS, {"sync": "bsp", "staleness": 2}, "bsp has no staleness=; it is an option of ssp"),
    (ROWS, {"topology": "allreduce", "attribute": True}, 'use topology="coordinator"'),
    (ROWS, {"hook_timeout": 0.5}, "hook_timeout=0.5 must be 2 seconds or more"),
    (ROWS, {"gpus": 9, "workers": 1}, "gpus=9 must be 0 or more"),
    (np.where(np.isnan(GAP), np.inf, GAP), {}, r"row 7, column 1 is inf.*leave the column out with drop="),
]


@pytest.mark.parametrize(("rows", "options", "said"), WRONG)
def test_messages_of_flegel_run_name_arguments_and_count_from_0(rows: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(FlegelError, match=said) as caught:
        flegel.run(KMeans(k=2), rows, processes=False, **options)
    flags = [known.flag for known in options_of(Job).values() if f"{known.flag} " in f"{caught.value} "]
    assert not flags, f"{flags} in {caught.value}"


def test_a_supervised_algorithm_without_labels_names_the_argument() -> None:
    with pytest.raises(FlegelError, match=r"needs labels.*third argument.*name their column with label="):
        flegel.run(LR(), ROWS)


def test_the_same_mistakes_at_a_command_line_name_options(tmp_path: Path) -> None:
    pd.DataFrame(GAP, columns=list("abc")).to_csv(tmp_path / "gap.csv", index=False)
    runner = CliRunner()
    told = runner.invoke(app, ["submit", "kmeans", "--data", str(tmp_path / "gap.csv"), "--no-save", "--workers", "1"])
    assert told.exit_code == 2 and "column 2 (b)" in told.stderr and "--missing drop" in told.stderr
    told = runner.invoke(app, ["submit", "kmeans", "--data", "blobs:100", "--no-save", "--scale", "standart"])
    assert told.exit_code == 2 and "--scale standart is not known; did you mean 'standard'?" in told.stderr
    told = runner.invoke(app, ["submit", "kmeans", "--data", "blobs:100", "--no-save", "--max-iterations", "0"])
    assert told.exit_code == 2 and "--max-iterations 0 must be at least 1" in told.stderr
    assert listener() == "python"  # the command is over


# -- rows and labels from Python -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.asarray, list, pd.Series, lambda y: np.asarray(y).reshape(-1, 1)])
def test_labels_are_the_third_argument(kind: Any) -> None:
    pair = flegel.run(LR(l2=0.01), (ROWS, LABELS), workers=1, sync="bsp")
    apart = flegel.run(LR(l2=0.01), ROWS, kind(LABELS), workers=1, sync="bsp")
    assert np.array_equal(pair.parameters["weights"], apart.parameters["weights"])


@pytest.mark.parametrize(
    ("data", "y", "said"),
    [
        ((ROWS, LABELS), LABELS, "Labels are given twice"),
        ("rows.csv", LABELS, "name it with label="),
        (ROWS[:, 0], LABELS, r"x.reshape\(-1, 1\) for one column"),
        (ROWS.reshape(60, 3, 1), LABELS, r"has 3 dimensions, 60 × 3 × 1; .*x.reshape\(len\(x\), -1\)"),
        (ROWS, np.ones((60, 2)), r"The labels have the shape \(60, 2\)"),
        (ROWS, LABELS[:9], "60 rows but 9 labels"),
    ],
)
def test_what_is_no_table_or_no_labels_is_one_sentence(data: Any, y: Any, said: str) -> None:
    with pytest.raises(FlegelError, match=said):
        flegel.run(LR(), data, y)
