"""A small comparison on real workers, start to page."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from flegel.algorithms.kmeans import KMeans
from flegel.compare import Comparison, compare, read
from flegel.compare.candidate import parse_candidates
from flegel.compare.comparison import ComparisonRunner, ComparisonSettings, in_memory
from flegel.datasets import open_data
from flegel.runtime.processes import host


@pytest.fixture(scope="module")
def held(cluster: Any, points: np.ndarray) -> Comparison:
    return compare(
        KMeans(k=4), points, "bsp,fsp", workers=2, repeat=2, cluster=cluster, straggler="0:2x", max_seconds=600.0
    )


@pytest.mark.processes
def test_everybody_starts_alike_and_reaches_the_same_target(held: Comparison) -> None:
    assert {a.candidate for a in held.attempts} == {"bsp", "fsp"}
    for attempt in held.attempts:
        assert attempt.outcome == "reached", attempt
        assert attempt.objective is not None and attempt.objective <= held.target
    assert "without stragglers" in held.target_note


@pytest.mark.processes
def test_the_final_objective_is_evaluated_on_the_data(held: Comparison, points: np.ndarray) -> None:
    for attempt in held.attempts:
        assert attempt.checked is not None and attempt.objective is not None
        assert attempt.checked <= attempt.objective * (1 + 1e-9)  # a fresh assignment is never worse
        assert attempt.metrics["clusters"] == 4


@pytest.mark.processes
def test_each_candidate_has_a_picture_with_a_lane_for_each_worker(held: Comparison) -> None:
    for shown in held.pictures.values():
        assert [lane.worker for lane in shown.timeline.lanes] == [0, 1]
        assert shown.curve and len(shown.workers) == 2


@pytest.mark.processes
def test_a_target_that_nobody_can_reach_ends_all_the_same(cluster: Any, points: np.ndarray) -> None:
    lost = compare(KMeans(k=4), points, "bsp", workers=2, repeat=1, cluster=cluster, target=0.0, max_seconds=600.0)
    assert [a.outcome for a in lost.attempts] == ["stalled"]
    assert lost.times("bsp") is None


@pytest.mark.processes
def test_the_command_prints_a_table_and_writes_a_page(tmp_path: Path, points: np.ndarray) -> None:
    from flegel.cli.main import app

    np.save(tmp_path / "points.npy", points)
    words = ["compare", "kmeans", "--data", str(tmp_path / "points.npy"), "--sync", "bsp,fsp", "--workers", "2"]
    words += ["--repeat", "1", "--max-seconds", "600", "--set", "k=3"]
    words += ["--out", str(tmp_path / "out"), "--json", str(tmp_path / "all.json")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "time to target" in done.output and "reached the target first" in done.output
    kept = read(tmp_path / "all.json")
    assert isinstance(kept, Comparison) and kept.hyperparameters["k"] == 3
    assert (tmp_path / "out" / "report.html").read_text().startswith("<!DOCTYPE html>")


def test_rows_that_are_read_once_for_all_runs_keep_their_weights(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b,often\n" + "".join(f"{i},{i % 7},{1 + i % 3}\n" for i in range(40)))
    rows = in_memory(open_data(str(tmp_path / "rows.csv"), weight="often")).read()
    assert rows.weights is not None and rows.weights.tolist() == [1 + i % 3 for i in range(40)]
    assert rows.features.shape == (40, 2)


def test_loads_are_known_or_said_to_be_unknown() -> None:
    before = host.reading()
    load = host.load_since(before)
    assert load.other_programs_share is None or load.other_programs_share >= 0
    assert host.load_since(None).other_programs_share is None
    assert host.HostLoad(0.5, 0.0, 1.0).disturbance and not host.HostLoad(0.01, 0.0, 1.0).disturbance
    assert "hypervisor" in host.HostLoad(0.0, 0.2, 1.0).disturbance


def test_the_machine_has_a_description() -> None:
    assert {"processor", "cores", "python"} <= host.machine().keys()
    assert host.versions()["flegel"]


@pytest.mark.processes
def test_a_comparison_that_runs_out_of_time_keeps_what_it_has_and_says_so(cluster: Any, points: np.ndarray) -> None:
    asked = iter(range(1000))

    def left() -> float:  # asked before each run, and for the limit of each rival's
        return 1000.0 if next(asked) < 3 else 0.0

    lost = compare(
        KMeans(k=4),
        points,
        "bsp,fsp",
        workers=2,
        repeat=2,
        cluster=cluster,
        reference="fsp",
        give_up_after={"": 1e6},
        max_seconds=600.0,
        seconds_left=left,
    )
    assert [a.candidate for a in lost.attempts] == ["fsp", "bsp"]  # the reference runs first
    (told,) = [note for note in lost.notes if note.startswith("The time for this comparison was over")]
    assert "bsp 2" in told and "fsp 2" in told


def test_other_runs_are_stopped_after_a_multiple_of_the_reference(points: np.ndarray) -> None:
    from flegel.compare.comparison import LEAST_RUN_SECONDS
    from tests.compare.samples import attempt

    bsp, mini, fsp = parse_candidates("bsp,bsp-mini,fsp")
    settings = ComparisonSettings(
        KMeans(k=4), open_data(points), [bsp, mini, fsp], 2, reference="fsp", give_up_after={"bsp": 13.0, "": 4.0}
    )
    runner = ComparisonRunner(settings, None)
    runner.limit = 60.0
    assert runner._limit(bsp) == 60.0  # nothing is known of fsp yet
    runner.attempts = [attempt("fsp", 0, 2.0)]
    assert (
        runner._limit(bsp) == 26.0 + LEAST_RUN_SECONDS
        and runner._limit(mini) == 8.0 + LEAST_RUN_SECONDS
        and runner._limit(fsp) == 60.0
    )
    settings.seconds_left = lambda: 5.0
    assert runner._limit(bsp) == 5.0 and runner._limit(fsp) == 60.0


@pytest.mark.processes
def test_a_gap_is_a_share_of_what_bsp_gains_after_its_first_pass(cluster: Any, points: np.ndarray) -> None:
    found = compare(
        KMeans(k=4, init="random"), points, "bsp", workers=2, repeat=1, cluster=cluster, gap=0.5, max_passes=20,
        max_seconds=600.0,
    )  # fmt: skip
    first, last = found.pictures["bsp"].curve[0][1], found.attempts[0].objective
    assert first is not None and last is not None and last <= found.target < first
    assert "50 % short of all that bsp" in found.target_note


@pytest.mark.parametrize("gap", [None, 0.5])
def test_a_bsp_that_is_ended_in_its_first_pass_leaves_its_estimate_as_target(
    gap: float | None, points: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"objective": None}]
    ended = SimpleNamespace(name="kmeans", objective=7.0, converged=False, rows=rows, seconds=0.5, iterations=1)
    settings = ComparisonSettings(KMeans(k=4), open_data(points), parse_candidates("bsp"), 2, gap=gap, max_seconds=0.5)
    runner = ComparisonRunner(settings, None)
    monkeypatch.setattr(runner, "_run", lambda *_, **__: ended)
    target, note, limit = runner._target()
    assert (target, limit) == (7.0, 0.5) and "an estimate: it did not visit all points" in note
