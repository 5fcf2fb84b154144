"""`flegel simulate`: the same seed, the same bytes; runs are read by report and replay; mistakes get a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flegel.cli.main import app

SMALL = ["--set", "init=random", "--data", "higgs:4000", "--set", "k=4", "--pass", "100ms"]


def flegel(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, done.output + str(done.exception or "")
    return done.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("simulated") / "out"
    told = flegel("simulate", "kmeans", "--workers", "8", "--sync", "fsp,bsp", "--stragglers", "25%", *SMALL,
                  "--out", str(out), "--json", str(out.parent / "first.json"))  # fmt: skip
    assert "fsp reached the target first" in told
    return out


def test_the_same_seed_gives_the_same_bytes(folder: Path) -> None:
    again, other = folder.parent / "second.json", folder.parent / "third.json"
    words = ["simulate", "kmeans", "--workers", "8", "--sync", "fsp,bsp", "--stragglers", "25%", *SMALL]
    flegel(*words, "--json", str(again))
    flegel(*words, "--seed", "1", "--json", str(other))
    assert again.read_bytes() == (folder.parent / "first.json").read_bytes() != other.read_bytes()


def test_a_team_is_a_worker_that_is_so_many_times_as_fast(tmp_path: Path) -> None:
    reached = []
    for threads in (1, 4):
        out = tmp_path / f"{threads}.json"
        told = flegel("simulate", "kmeans", "--workers", "2", "--sync", "bsp", "--threads", str(threads), *SMALL,
                      "--json", str(out))  # fmt: skip
        assert ("teams of 4 threads" in told + out.read_text()) == (threads == 4)
        reached.append(json.loads(out.read_text())["attempts"][0]["reached"])
    assert reached[0] == pytest.approx(4 * reached[1], rel=0.1)


def test_a_simulated_run_is_reported_as_a_real_one(folder: Path) -> None:
    page = folder.parent / "one.html"
    flegel("report", str(folder / "fsp"), "--out", str(page))
    assert "Where the time went" in page.read_text(encoding="utf-8")
    assert "Simulated, on virtual time" in (folder / "report.html").read_text(encoding="utf-8")


def test_a_replay_of_its_own_model_agrees_with_the_recording(folder: Path) -> None:
    out = folder.parent / "replay.json"
    flegel("simulate", "--replay", str(folder / "fsp"), "--sync", "fsp,bsp", "--json", str(out))
    found = json.loads(out.read_text())
    times = {a["contender"]: a["reached"] for a in found["attempts"]}
    assert found["contenders"] == ["recorded", "fsp", "bsp"]
    assert times["fsp"] == pytest.approx(times["recorded"], rel=0.15)
    assert times["bsp"] > 3 * times["recorded"], "what if: bsp would have waited for the slow quarter"


def test_a_recorded_bsp_predicts_fsp(folder: Path) -> None:
    out = folder.parent / "other.json"
    flegel("simulate", "--replay", str(folder / "bsp"), "--sync", "fsp", "--json", str(out))
    times = {a["contender"]: a["reached"] for a in json.loads(out.read_text())["attempts"]}
    assert times["fsp"] < times["recorded"] / 3


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--workers", "3"], "omit --workers"),
        (["--pass", "3s", "--seed", "1"], "omit --pass"),
        (["--data", "higgs:2000"], "4,000 × 28 values, higgs has 2,000 × 28; its objective is no target"),
    ],
)
def test_a_replay_refuses_what_the_recording_says_already(folder: Path, words: list[str], sentence: str) -> None:
    assert sentence in flegel("simulate", "--replay", str(folder / "fsp"), *words, code=2)


def test_a_folder_with_runs_is_refused_before_anything_is_simulated(folder: Path) -> None:
    words = ["simulate", "kmeans", "--workers", "8", "--sync", "ssp,fsp", *SMALL, "--out", str(folder)]
    told = flegel(*words, code=2)
    assert "exists already" in told and len(told.splitlines()) == 1


def test_the_objective_of_another_algorithm_is_no_target(folder: Path) -> None:
    told = flegel("simulate", "gmm", "--replay", str(folder / "fsp"), "--set", "k=2", code=2)
    assert "trained kmeans; its objective is no target for GMM: give a --target" in told


def test_a_run_without_its_trace_names_the_file_that_is_missing(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_bytes((folder / "fsp" / "result.json").read_bytes())
    assert "trace.msgpack: No such file" in flegel("report", str(tmp_path), code=2)


def test_thousands_of_workers_follow_a_curve() -> None:
    told = flegel("simulate", "kmeans", "--workers", "400", "--sync", "fsp", "--spread", "lognormal:0.3", "--data",
                  "higgs:4000", "--set", "k=4", "--racks", "20", "--within", "0.02")  # fmt: skip
    assert "reached" in told


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["simulate"], "Name an algorithm"),
        (["simulate", "kmeans", "--workers", "0"], "must be 1 to 200,000"),
        (["simulate", "kmeans", "--spread", "odd"], "--spread"),
        (["simulate", "kmeans", "--bandwidth", "fast"], "not a bandwidth"),
        (["simulate", "kmeans", "--racks", "0"], "--racks 0 must be 1 or more"),
        (["simulate", "kmeans", "--learning", "wild"], "must be auto, real or curve"),
        (["simulate", "kmeans", "--workers", "999", "--sync", "fsp:balance=async"], "no points that could move"),
        (["simulate", "kmeans", "--workers", "500", "--learning", "real"], "too few to be trained for real"),
        (["simulate", "--replay", "nowhere"], "is no saved run"),
    ],
)
def test_mistakes_get_a_sentence(words: list[str], sentence: str) -> None:
    extra = ["--data", "higgs:2000"] if "kmeans" in words else []
    assert sentence in flegel(*words, *extra, code=2)


@pytest.mark.parametrize("balance", ["off", "async"])
def test_a_job_that_diverges_steps_back_whether_points_move_or_not(balance: str, tmp_path: Path) -> None:
    out = tmp_path / "one.json"
    flegel("simulate", "lr-gradient", "--data", "higgs:1000", "--workers", "4", "--set", "rate=1e6",
           "--target", "0.5", "--sync", f"fsp:balance={balance}", "--json", str(out))  # fmt: skip
    assert json.loads(out.read_text())["attempts"][0]["outcome"] in ("stalled", "diverged")
