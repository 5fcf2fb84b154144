"""The thirty tasks beside scikit-learn, in small: one tiny task in this process, and what the page says."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.thirty import __main__ as program
from bench.thirty import tables, tasks
from bench.thirty.measure import record
from bench.thirty.report import page, shown, summary
from tests import needs

needs.library("sklearn")

ABOUT = {"command": "python -m bench.thirty", "commit": "0", "machine": "none", "seconds": 1.0, "seeds": "2"}


def test_there_are_thirty_tasks_with_names_of_their_own() -> None:
    assert len(tasks.TASKS) == 30
    assert not {*tasks.TASKS} & {*tasks.MORE}


def test_a_tiny_task_is_as_good_as_the_peer() -> None:
    """In threads of this process: rows so few start no workers."""
    found = record(tasks.known("kmeans-tiny"), range(2))
    assert (found["rows"], found["columns"], found["origin"]) == (300, 2, "generated")
    assert found["as_good"] and abs(found["gap"]) < 1e-6
    assert found["ratio"] > 0 and found["ours_s"] > 0


def test_a_table_without_its_file_is_said_to_be_absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tables, "FOLDER", tmp_path)
    found = record(tasks.known("kmeans-planes"), range(1))
    assert found == {"task": "kmeans-planes", "absent": True}
    assert "absent" in shown(found)
    text = page(summary([found], ABOUT))
    assert "| kmeans-planes |  | absent |" in text and "0 of 0" in text


def test_look_alikes_stand_for_files_that_are_absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tables, "FOLDER", tmp_path)
    rows = tables.htru2.__wrapped__()
    assert rows.origin == "look-alike" and rows.features.shape == (17_898, 8)
    assert np.isfinite(rows.features).all() and 0.05 < rows.labels.mean() < 0.15


class Model:
    """Attributes that a trained model of either side has."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def test_values_are_what_training_minimizes() -> None:
    rows = tables.Rows(np.array([[0.0], [1.0], [4.0]]), np.array([0, 0, 1]))
    centres = Model(cluster_centers_=np.array([[0.5], [4.0]]))
    assert tasks.value(tasks.known("kmeans-tiny"), rows, centres) == pytest.approx(0.5)
    normal = Model(weights_=np.ones(1), means_=np.zeros((1, 1)), covariances_=np.ones((1, 1, 1)))
    expected = 0.5 * math.log(2 * math.pi) + 0.5 * 17 / 3
    assert tasks.value(tasks.known("gmm-full-tiny"), rows, normal) == pytest.approx(expected)
    nothing = Model(coef_=np.array([[0.0]]), intercept_=np.zeros(1))
    assert tasks.value(tasks.known("lr-adult"), rows, nothing) == pytest.approx(math.log(2))
    exact = Model(components_=np.array([[2.0]]))
    assert tasks.value(tasks.known("nmf-jester"), rows, exact) == pytest.approx(0.0)


def test_a_worse_median_is_counted_and_shown() -> None:
    common = {"absent": False, "origin": "real", "rows": 10, "columns": 2, "settings": {}, "ours_s": 0.2}
    worse = {**common, "task": "a", "ours": 1.01, "theirs": 1.0, "gap": 0.01, "worst_gap": 0.02, "as_good": False,
             "theirs_s": 0.1, "ratio": 0.5}  # fmt: skip
    broken = {"task": "b", "absent": False, "failed": "no memory"}
    whole = summary([worse, broken], ABOUT)
    assert (whole["figures"]["tasks"], whole["figures"]["as_good"], whole["figures"]["as_fast"]) == (1, 0, 0)
    assert "**+1.000 %**" in page(whole) and "**0.50**" in page(whole) and "failed: no memory" in page(whole)
    assert "WORSE" in shown(worse) and "SLOWER" in shown(worse) and "no memory" in shown(broken)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system cannot bind processes to cores")
def test_tasks_that_run_at_a_time_have_two_cores_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 4})
    assert program.pairs_of_cores(3) == [{0, 1}, {2, 3}, None]


def test_a_summary_of_another_machine_becomes_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = tmp_path / "given.json"
    given.write_text(json.dumps(summary([{"task": "kmeans-skin", "absent": True}], ABOUT)))
    monkeypatch.setattr(program, "RESULTS", tmp_path)
    monkeypatch.setattr(program, "list_page", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["bench.thirty", "--summary", str(given), "--write"])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 0
    assert json.loads((tmp_path / "thirty.json").read_text()) == json.loads(given.read_text())
    assert "kmeans-skin" in (tmp_path / "thirty.md").read_text()
