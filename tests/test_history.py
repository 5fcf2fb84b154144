"""Performance by commit: what counts as slower, and what is measured again before it does. No time is measured here."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench import history
from bench.common import program
from bench.common.history_page import write_page
from flegel.errors import UsageError
from flegel.runtime.processes import host


def record(commit: str, processor: str = "one", **ratios: float) -> dict[str, Any]:
    return {"commit": commit, "at": "2026-01-01", "processor": processor, "ratios": ratios}


def test_a_commit_is_compared_with_the_median_of_the_last_five_of_its_processor() -> None:
    old = [record(str(n), job=9.0) for n in range(4)]
    new = [record(str(n), job=value) for n, value in enumerate((1.0, 1.2, 3.0, 1.1, 1.3))]
    assert history.recent_ratios([*old, record("x", "two", job=50.0), *new], "one") == {"job": 1.2}
    assert history.recent_ratios(old, "three") == {}


def test_a_tenth_slower_is_fallen_and_a_new_measure_is_not() -> None:
    recent = {"job": 1.0, "start": 2.0}
    assert history.fallen(recent, {"job": 0.91, "start": 1.79, "new": 0.1}) == ["start"]


def test_what_seems_slower_is_measured_three_times_and_the_least_times_count() -> None:
    """Of both sides: a moment that slowed the peer alone makes nothing of ours fast."""
    asked: list[list[str]] = []
    each = history.Least
    answers = iter(
        [
            {"job": each(2.0, 1.0), "start": each(2.0, 1.0), "pass": each(1.0, 1.0)},
            {"job": each(1.05, 1.5), "start": each(1.6, 1.4)},
            {"start": each(1.25, 2.0)},
        ]
    )

    def again(names: list[str]) -> dict[str, history.Least]:
        asked.append(names)
        return next(answers)

    best, slow = history.check({"job": 1.0, "start": 1.0, "pass": 1.0}, again)
    assert asked == [[], ["job", "start"], ["start"]]
    assert best == {"job": 0.952, "start": 0.8, "pass": 1.0} and slow == ["start"]


def test_the_page_shows_the_processor_with_most_records(tmp_path: Path) -> None:
    records = [record("a" * 12, job=1.5), record("b" * 12, "two", job=7.0), record("c" * 12, job=1.25, start=2.0)]
    write_page(records, tmp_path)
    page = (tmp_path / "history.md").read_text(encoding="utf-8")
    assert "| job | 1.500 | 1.250 |" in page and "| start |  | 2.000 |" in page and "7.000" not in page
    summary = json.loads((tmp_path / "history.json").read_text(encoding="utf-8"))
    assert list(summary["figures"].values()) == [{"job": 1.5}, {"job": 1.25, "start": 2.0}]
    assert "<svg" in (tmp_path / "history.svg").read_text(encoding="utf-8")


def test_what_was_measured_in_a_changed_tree_is_shown_and_compared_with_nothing(tmp_path: Path) -> None:
    records = [record("a" * 12, job=1.0), record("b" * 12 + "+", job=5.0)]
    assert history.recent_ratios(records, "one") == {"job": 1.0}
    write_page(records, tmp_path)
    assert "| `aaaaaaaa` | `bbbbbbbb+` |" in (tmp_path / "history.md").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "history.json").read_text(encoding="utf-8"))["commit"] == "a" * 12
    with pytest.raises(UsageError, match="No record of one is of a commit"):
        write_page(records[1:], tmp_path)


def test_a_record_names_the_commit_that_was_measured_from_begin_to_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kept.jsonl"
    assert history.keep("aa", "ab", "one", {"job": 1.0}, path) == 1 and not path.exists()
    assert history.keep("aa", "aa+", "one", {"job": 1.0}, path) == 1 and not path.exists(), "edited meanwhile"
    assert history.keep("", "", "one", {"job": 1.0}, path) == 1 and not path.exists(), "no checkout"
    assert capsys.readouterr().err.count("Nothing was kept: measured from commit") == 3
    assert history.keep("aa+", "aa+", "one", {"job": 2.0}, path) == history.keep("aa", "aa", "one", {"job": 1.0}, path)
    assert "Kept as aa+: files differ from that commit" in capsys.readouterr().err
    assert [(r["commit"], r["ratios"]) for r in history.kept_records(path)] == [
        ("aa+", {"job": 2.0}),
        ("aa", {"job": 1.0}),
    ]


def test_the_commit_is_marked_where_code_differs_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a file that was not added; not by pages or records, which are written after a measurement."""
    monkeypatch.setenv("FLEGEL_COMMIT", "told")

    def git(*words: str) -> None:
        told = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *told, *words], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "flegel").mkdir(), (tmp_path / "bench").mkdir()
    module = tmp_path / "flegel" / "host.py"
    module.write_text("1")
    assert host.commit(module) == "told", "no checkout"
    git("init"), git("add", "."), git("commit", "-m", "first")
    clean = host.commit(module)
    assert len(clean) == 12 and not clean.endswith("+")
    (tmp_path / "page.md").write_text("1"), (tmp_path / "bench" / "history.jsonl").write_text("{}")
    assert host.commit(module) == clean
    (tmp_path / "flegel" / "new.py").write_text("1")
    assert host.commit(module) == f"{clean}+", "a file that was not added"
    (tmp_path / "flegel" / "new.py").unlink(), (tmp_path / "bench" / "case.py").write_text("1")
    assert host.commit(module) == f"{clean}+"
    (tmp_path / "bench" / "case.py").unlink(), module.write_text("2")
    assert host.commit(module) == f"{clean}+"
    (tmp_path / ".gitignore").write_text("environment")
    (tmp_path / "environment").mkdir()
    installed = tmp_path / "environment" / "host.py"
    installed.write_text("1")
    assert host.commit(installed) == "told", "an environment in the working copy of another project"


def test_summaries_say_that_the_tree_was_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All programs of bench ask for the commit in the same place."""
    monkeypatch.setattr(host, "commit", lambda: "a" * 12 + "+")
    assert program.commit() == "a" * 12 + "+"
    monkeypatch.setattr(host, "commit", lambda: "")
    assert program.commit() == "unknown", "no checkout"
    programs = Path(program.__file__).resolve().parents[1].rglob("*.py")
    assert not [path.name for path in programs if "rev-parse" in path.read_text(encoding="utf-8")]
