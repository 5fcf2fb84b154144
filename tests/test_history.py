"""Performance by commit: what counts as slower, and what is measured again before it does. No time is measured here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench import history
from bench.common.history_page import write_page


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


def test_what_seems_slower_is_measured_three_times_and_the_best_counts() -> None:
    asked: list[list[str]] = []
    answers = iter([{"job": 0.5, "start": 0.5, "pass": 1.0}, {"job": 0.95, "start": 0.6}, {"start": 0.7}])

    def again(names: list[str]) -> dict[str, float]:
        asked.append(names)
        return next(answers)

    best, slow = history.check({"job": 1.0, "start": 1.0, "pass": 1.0}, again)
    assert asked == [[], ["job", "start"], ["start"]]
    assert best == {"job": 0.95, "start": 0.7, "pass": 1.0} and slow == ["start"]


def test_the_page_shows_the_processor_with_most_records(tmp_path: Path) -> None:
    records = [record("a" * 12, job=1.5), record("b" * 12, "two", job=7.0), record("c" * 12, job=1.25, start=2.0)]
    write_page(records, tmp_path)
    page = (tmp_path / "history.md").read_text(encoding="utf-8")
    assert "| job | 1.500 | 1.250 |" in page and "| start |  | 2.000 |" in page and "7.000" not in page
    summary = json.loads((tmp_path / "history.json").read_text(encoding="utf-8"))
    assert list(summary["figures"].values()) == [{"job": 1.5}, {"job": 1.25, "start": 2.0}]
    assert "<svg" in (tmp_path / "history.svg").read_text(encoding="utf-8")
