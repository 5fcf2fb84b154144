"""Tuned numbers have names, units and bounds, and reach the job, simulation or block that they were given to."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import flegel
from flegel.algorithms import KMeans
from flegel.cli.main import app
from flegel.configuration.active import DEFAULTS, active, all_settings, changed, using
from flegel.configuration.sources import changes_outside, parse_settings
from flegel.errors import UsageError
from flegel.plan.interval.multi_stage import MultiStage

ROWS = np.random.default_rng(4).normal(size=(400, 3))


def test_every_setting_has_a_unit_a_meaning_and_a_default_within_its_bounds() -> None:
    assert len(all_settings()) > 60
    for name, each in all_settings().items():
        assert each.about.unit and each.about.meaning.endswith("."), name
        assert each.about.low <= each.default <= each.about.high, name
        assert changed({name: each.default}) == DEFAULTS


def test_settings_hold_inside_their_block_and_blocks_add_up() -> None:
    with using({"interval.first_measured_part": 0.5}):
        with using({"interval.shortest_seconds": 0.01}):
            assert active().interval.first_measured_part == 0.5
            assert active().interval.shortest_seconds == 0.01
            assert MultiStage().first(0.0).fraction == 0.5
        assert active().interval.shortest_seconds == DEFAULTS.interval.shortest_seconds
    assert active() is DEFAULTS


def test_another_thread_has_its_own() -> None:
    seen = []
    with using({"termination.stall_passes": 3}):
        other = threading.Thread(target=lambda: seen.append(active().termination.stall_passes))
        other.start()
        other.join()
    assert seen == [DEFAULTS.termination.stall_passes]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("interval.first_measured_prt=0.5", "did you mean 'interval.first_measured_part'"),
        ("nothing.at_all=1", "`flegel settings` lists them"),
        ("interval.first_measured_part=2", "at least 0 and at most 1"),
        ("interval.first_measured_part=half", "write name=number"),
        ("termination.stall_passes=1.5", "must be a whole number"),
        ("termination.stall_passes=inf", "at least 1 and at most 1e.06"),
        ("interval.first_pass_leeway=inf", "at least 1 and at most 1e.12"),
        ("interval.speed_rounds=-inf", "at least 1"),
        ("interval.shortest_seconds=nan", "must be a number"),
        ("absent.toml", "There is no file absent.toml with settings; give"),
        (f"{__file__}/x.toml", r"x.toml cannot be read \(Not a directory\); write"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence(given: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence.replace("`", ".")):
        parse_settings(given)


def test_a_long_list_numbers_of_numpy_and_what_is_neither() -> None:
    names = list(all_settings())[:20]
    listed = ",".join(f"{name}={all_settings()[name].default!r}" for name in names)
    assert len(listed) > 400 and list(parse_settings(listed)) == names
    assert parse_settings({"termination.stall_passes": np.int64(3)}) == {"termination.stall_passes": 3}
    for wrong in (
        None,
        3,
        ["interval.speed_rounds=2"],
        {"interval": {"speed_rounds": 2}},
        {"interval.whole_pass": "1"},
    ):
        with pytest.raises(UsageError):
            parse_settings(wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="at most"):
        parse_settings({"interval.speed_rounds": 10**400})


def test_a_toml_file_has_a_table_for_each_subject(tmp_path: Path) -> None:
    place = tmp_path / "tuned.toml"
    place.write_text("[interval]\nstage_ends_below = 0.5\n[termination]\nstall_passes = 20\n")
    expected = {"interval.stage_ends_below": 0.5, "termination.stall_passes": 20}
    assert parse_settings(place) == parse_settings(str(place)) == expected
    for wrong in ("stage_ends_below = 0.5", "[interval\n", "[interval]\nstage_ends_below = 'half'"):
        place.write_text(wrong)
        with pytest.raises(UsageError):
            parse_settings(place)


def test_the_environment_a_block_and_the_option_add_up_with_the_option_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEGEL_SETTINGS", "interval.stage_ends_below=0.1,interval.unchanged_within=1.1")
    with flegel.settings({"interval.stage_ends_below": 0.2}):
        assert changes_outside() == {"interval.stage_ends_below": 0.2, "interval.unchanged_within": 1.1}


def test_a_job_trains_with_its_settings() -> None:
    """Batches of bsp-mini are counted, not timed: a quarter of the rows in the first round."""
    quarter = {"barriers.first_update_evidence": 0.0, "barriers.bsp_mini_first_batches": 4}
    options: Any = {"sync": "bsp-mini", "workers": 2, "max_iterations": 2, "seed": 1}
    usual = flegel.run(KMeans(k=3), ROWS, processes="no", **options)
    given = flegel.run(KMeans(k=3), ROWS, processes="no", settings=quarter, **options)
    assert given.rows[0]["visits"] == len(ROWS) // 4 != usual.rows[0]["visits"]
    with flegel.settings(quarter):
        block = flegel.run(KMeans(k=3), ROWS, processes="no", **options)
        with flegel.LocalCluster(2) as cluster:
            background = cluster.submit(KMeans(k=3), ROWS, **options).result()
    assert block.rows[0]["visits"] == background.rows[0]["visits"] == len(ROWS) // 4


def test_the_command_line_lists_them_and_marks_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEGEL_SETTINGS", "interval.stage_ends_below=0.5")
    shown = CliRunner().invoke(app, ["settings", "interval"])
    assert shown.exit_code == 0 and "interval.stage_ends_below = 0.5 of the prediction (default 0.7)" in shown.output
    assert "termination." not in shown.output
    assert CliRunner().invoke(app, ["settings", "intervall"]).exit_code == 2
