"""Tables and ratios from attempts; records that survive a trip through a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.common.record import read
from flegel.compare import write
from flegel.compare.table import cells, seconds, text, verdict
from flegel.errors import StorageError
from tests.compare.samples import attempt, bench, comparison


def test_lines_hold_medians_and_the_ratio_to_the_best() -> None:
    bsp, fsp, asp = comparison().lines()
    assert bsp.time and fsp.time and (bsp.time.median, fsp.time.median) == (9.0, 0.6)
    assert bsp.ratio == pytest.approx(15.0) and fsp.ratio == 1.0
    assert asp.time is None and asp.outcome == "diverged" and asp.ratio is None
    assert bsp.confirmed and bsp.objective == 10.0


def test_a_run_that_was_given_up_gives_a_lower_bound() -> None:
    held = comparison([attempt("bsp", 0, None), attempt("fsp", 0, 0.5)], ("bsp", "fsp"))
    assert held.ratio("bsp", "fsp") == (18.0, True)
    assert cells(held.lines()[0])[2] == "> 18.00"
    assert "more than 18.0 times" in verdict(held)


def test_disturbed_runs_do_not_count_where_there_are_others() -> None:
    held = comparison([attempt("fsp", 0, 5.0, disturbed="busy"), attempt("fsp", 0, 1.0, again=True)], ("fsp",))
    (line,) = held.lines()
    assert line.time and line.time.median == 1.0 and not line.disturbed


def test_where_all_runs_were_disturbed_the_table_says_so() -> None:
    held = comparison([attempt("fsp", r, 5.0, disturbed="busy") for r in range(2)], ("fsp",))
    assert held.lines()[0].disturbed and "disturbed" in text(held)


def test_a_target_reached_in_half_of_the_runs_is_not_reached() -> None:
    held = comparison([attempt("asp", 0, 1.0), attempt("asp", 1, None)], ("asp",))
    assert held.times("asp") is None
    assert "No candidate reached" in verdict(held)


def test_the_verdict_names_the_winner_and_the_rest() -> None:
    said = verdict(comparison())
    assert said.startswith("fsp reached the target first, in 600 ms")
    assert "bsp took 15.0 times as long" in said and "asp diverged" in said


@pytest.mark.parametrize("record", [comparison(), bench()], ids=["comparison", "bench"])
def test_records_come_back_from_a_file_as_they_were(record: object, tmp_path: Path) -> None:
    write(record, tmp_path / "new" / "record.json")  # type: ignore[arg-type]
    assert read(tmp_path / "new" / "record.json") == record
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["record.json"]


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"kind": "compare"}))
    with pytest.raises(StorageError, match=r"x\.json"):
        read(path)
    with pytest.raises(StorageError, match="Could not read"):
        read(tmp_path / "absent.json")


def test_durations_have_a_unit_that_suits() -> None:
    assert [seconds(v) for v in (123.4, 1.234, 0.0123, 0.0000123)] == ["123 s", "1.23 s", "12.3 ms", "12.3 µs"]
