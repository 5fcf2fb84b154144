"""Candidates are read from one word each, and wrong ones are refused before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.common import scripts as suite
from flegel.compare.candidate import parse_candidates
from flegel.errors import UsageError

BENCH = Path(__file__).resolve().parents[2] / "bench"


def test_switches_stand_behind_colons() -> None:
    plain, tuned = parse_candidates("bsp, ssp:staleness=3:batches=16")
    assert (plain.label, plain.sync, plain.options) == ("bsp", "bsp", {})
    assert tuned.sync == "ssp" and tuned.options == {"staleness": 3, "batches": 16}


def test_durations_have_units() -> None:
    (fixed,) = parse_candidates("fsp:interval=200ms")
    assert fixed.options == {"interval": 0.2}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "names no"),
        ("bsp,bsp", "twice"),
        ("bps", "did you mean"),
        ("bsp:staleness=1", "has no staleness="),
        ("ssp:staleness=often", "right type"),
        ("fsp:colour=red", "no switch"),
        ("fsp:interval", "no switch"),
    ],
)
def test_what_is_wrong_is_said(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        parse_candidates(text)


def test_every_benchmark_asks_a_question_and_takes_the_common_options() -> None:
    found = {script.name: script for script in suite.scripts(BENCH)}
    figures = [script for script in found.values() if script.figure]
    assert len(figures) >= 11
    for script in figures:
        assert script.question.endswith("?"), script.name
        assert {"--scale", "--workers", "--out"} <= set(script.flags), script.name
        assert not any("no known requirement" in why for why in script.missing), script.name


def test_benchmarks_are_found_by_name_and_by_figure() -> None:
    scripts = suite.scripts(BENCH)
    assert [s.name for s in suite.choose(scripts, ["skew", "fig9"])] == ["skew"]
    assert suite.choose(scripts, ["all"]) == [script for script in scripts if script.figure]
    with pytest.raises(UsageError, match="skew"):
        suite.choose(scripts, ["skev"])


def test_scripts_with_options_of_their_own_get_only_those(tmp_path: Path) -> None:
    (tmp_path / "micro").mkdir()
    own = tmp_path / "micro" / "own.py"
    own.write_text(
        '"""Why? python -m bench.micro.own --out own.json"""\nadd("--workers")\nadd("--out")\n'
        'if __name__ == "__main__": 1\n'
    )
    (tmp_path / "micro" / "helper.py").write_text('"""Only imported."""\n')
    (script,) = suite.scripts(tmp_path)
    assert script.question == "Why?" and script.flags == ("--workers", "--out FILE")


def test_needs_are_looked_up_in_the_engine() -> None:
    assert suite.lacking("algorithm:kmeans") == suite.lacking("sync:fsp") == suite.lacking("option:straggler") == ""
    assert "not built in" in suite.lacking("algorithm:astrology")
    assert "not installed" in suite.lacking("package:no_such_package")
