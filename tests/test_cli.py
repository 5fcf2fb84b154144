"""The command line: every wrong word gets one sentence and the right exit code, and the contract of --json holds."""

from __future__ import annotations

import errno
import functools
import io
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

import flegel.api.jobs
from flegel import LocalCluster
from flegel.cli.main import app
from flegel.errors import StorageError, UsageError
from flegel.machine.coordinator.observation import JobSnapshot
from flegel.options import parse_seconds
from flegel.runtime.job.result_store import read_figures
from flegel.terminal.display import PlainDisplay

ROWS = np.random.default_rng(3).normal(size=(60, 5))  # with k=6 the shape of other tests, which is compiled already


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data and an algorithm of one's own, which is also the current folder."""
    monkeypatch.chdir(tmp_path)
    np.save("rows.npy", ROWS)
    np.savetxt("rows.csv", ROWS, delimiter=",", header="a,b,c,d,e", comments="")
    Path("empty.csv").write_text("")
    Path("header.csv").write_text("a,b,c\n")
    Path("ragged.csv").write_text("1,2,3\n4,5\n6,7,8\n")
    Path("nan.csv").write_text("1,2,3\n4,nan,6\n7,8,9\n")
    Path("inf.csv").write_text("1,2,3\n4,inf,6\n7,8,9\n")
    Path("words.csv").write_text("1,2,3\n4,hello,6\n7,8,9\n")
    Path("mine.py").write_text(
        "import numpy as np\nfrom flegel import Algorithm\n\n\n"
        "class Mine(Algorithm):\n"
        '    """Counts."""\n\n'
        "    step: float = 1.0\n\n"
        "    def initParameter(self, sample, rng):\n        return np.zeros(1)\n\n"
        "    def updateDataPoint(self, dataPoint, parameter, iterationNum):\n        return np.ones(1) * self.step\n\n"
        "    def updateParameter(self, aggregator, oldParameter):\n        return aggregator * 1.0\n\n\n"
        "class Raises(Mine):\n"
        "    def updateParameter(self, aggregator, oldParameter):\n        raise ValueError('my own fault')\n"
    )
    return tmp_path


def flegel_(*words: str) -> Any:
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def submit(words: str) -> Any:
    return flegel_("submit", *words.split())


def files(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if "__pycache__" not in str(p)}


@pytest.fixture
def warm(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """`submit` uses workers that are up already."""
    monkeypatch.setattr(flegel.api.jobs, "run", functools.partial(flegel.api.jobs.run, cluster=cluster))


# -- wrong words -------------------------------------------------------------------------------------------

WRONG = [
    ("kmean --data rows.npy", "No algorithm is called 'kmean'; did you mean 'kmeans'?"),
    ("nothing.py:X --data rows.npy", "There is no file nothing.py"),
    ("mine.py --data rows.npy", "mine.py:Mine"),
    ("mine.py:Mein --data rows.npy", "did you mean 'Mine'?"),
    ("kmeans --data higs", "did you mean 'higgs'?"),
    ("kmeans --data missing.csv", "missing.csv"),
    ("kmeans --data higgs:many", "no number of rows"),
    ("kmeans --data empty.csv", "empty.csv"),
    ("kmeans --data header.csv", "header.csv"),
    ("kmeans --data ragged.csv --set k=2", "ragged.csv"),
    ("kmeans --data nan.csv --set k=2", "nan"),
    ("kmeans --data inf.csv --set k=2", "inf"),
    ("kmeans --data words.csv --set k=2", "hello"),
    ("kmeans --data rows.npy --set k=61", "k=61 is more than"),
    ("kmeans --data rows.npy --workers 61", "61 workers are more than the 60 points"),
    ("kmeans --data rows.npy --workers 0", "number of workers"),
    ("kmeans --data rows.npy --set metric=cosin", "metric='cosin' does not fit (it is one of euclidean, cosine)"),
    ("kmeans --data rows.npy --set k=many", "k='many' does not fit"),
    ("kmeans --data rows.npy --set k=2.5", "k='2.5' does not fit"),
    ("kmeans --data rows.npy --set k=0", "k='0' does not fit"),
    ("kmeans --data rows.npy --set kk=2", "no hyper-parameter 'kk'; did you mean 'k'?"),
    ("kmeans --data rows.npy --set k", "not of the form name=value"),
    ("kmeans --data rows.npy --set init=nowhere.npy", "nowhere.npy"),
    ("kmeans --data rows.npy --sync bspp", "did you mean 'bsp'?"),
    ("kmeans --data rows.npy --interval soon", "no duration"),
    ("kmeans --data rows.npy --interval -3ms", "no duration"),
    ("kmeans --data rows.npy --tolerance 0", "Nothing would ever end this job"),
    ("kmeans --data rows.npy --tolerance -1", "--tolerance"),
    ("kmeans --data rows.npy --max-iterations 0", "--max-iterations"),
    ("kmeans --data rows.npy --max-seconds 0", "--max-seconds"),
    ("kmeans --data rows.npy --seed -1", "seed"),
    ("kmeans --data rows.npy --out mine.py", "mine.py exists already"),
    ("kmeans --data rows.npy --out rows.npy/below", "not a folder"),
    ("kmeans --data rows.npy --json no/such/folder.json", "no folder"),
    ("kmeans --data rows.npy --json .", "folder"),
    ("mine.py:Mine --data rows.npy --target 3", "no objective"),
    ("mine.py:Mine --data rows.npy", "Nothing would ever end this job"),
]


@pytest.mark.parametrize(("words", "sentence"), WRONG, ids=[w for w, _ in WRONG])
def test_wrong_use_is_one_sentence_and_exit_code_2(folder: Path, words: str, sentence: str) -> None:
    before = files(folder)
    outcome = submit(words)
    assert outcome.exit_code == 2, outcome.output
    said = [line for line in outcome.stderr.splitlines() if line.startswith("flegel: ")]
    assert len(said) == 1 and sentence in said[0], outcome.stderr
    assert "Traceback" not in outcome.stderr and outcome.stdout == ""
    assert files(folder) == before, "nothing half-written"


@pytest.mark.parametrize("words", ["submit", "submit kmeans", "submit kmeans --data x --workers many", "nonsense"])
def test_words_that_the_parser_refuses_exit_with_2(words: str) -> None:
    outcome = flegel_(*words.split())
    assert outcome.exit_code == 2 and outcome.stdout == ""


def test_a_hook_that_raises_is_a_failure_with_the_users_own_lines(folder: Path, warm: None) -> None:
    before = files(folder)
    outcome = submit("mine.py:Raises --data rows.npy --workers 2 --max-iterations 3")
    assert outcome.exit_code == 1
    assert "raise ValueError('my own fault')" in outcome.stderr
    assert outcome.stderr.splitlines()[-1].startswith("flegel: updateParameter raised ValueError: my own fault")
    assert files(folder) == before


def test_a_full_disk_is_a_failure_after_which_nothing_is_there(
    folder: Path, warm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = files(folder)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setenv("HOME", "/nonexistent")
    outcome = submit("kmeans --data rows.npy --set k=6 --workers 2 --max-iterations 3 --out model")
    assert outcome.exit_code == 1
    assert "flegel: Could not save to model: No space left on device" in outcome.stderr
    assert files(folder) == before


# -- right words -------------------------------------------------------------------------------------------

CONTRACT = {
    "algorithm", "hyperparameters", "dataset", "sync", "workers", "seed", "converged", "reason", "objective",
    "iterations", "seconds", "load_seconds", "trace", "worker", "utilization", "model",
}  # fmt: skip
TRAIN = "kmeans --data rows.npy --set k=6 --workers 2 --sync bsp --seed 7"


@pytest.mark.processes
def test_json_to_standard_output_is_nothing_but_json(folder: Path, warm: None) -> None:
    outcome = submit(f"{TRAIN} --json - --no-save")
    assert outcome.exit_code == 0, outcome.stderr
    said = json.loads(outcome.stdout)
    assert set(said) >= CONTRACT
    assert said["algorithm"] == "kmeans" and said["hyperparameters"]["k"] == 6
    assert said["dataset"] == {"name": "rows.npy", "rows": 60, "columns": 5, "stand_in": False}
    assert (said["sync"], said["workers"], said["seed"], said["model"]) == ("bsp", 2, 7, None)
    assert all(len(row) == 4 for row in said["trace"])
    assert "objective" in outcome.stderr, "people read the other stream"
    assert not (folder / "runs").exists()


@pytest.mark.processes
def test_json_to_a_file_a_saved_model_and_predictions_from_it(folder: Path, warm: None) -> None:
    assert submit(f"{TRAIN} --json result.json --out model --labels own.npy").exit_code == 0
    said = json.loads(Path("result.json").read_text())
    assert said["model"] == "model"
    assert json.loads(Path("model/result.json").read_text())["objective"] == said["objective"]

    printed = flegel_("predict", "model", "--data", "rows.npy")
    assert printed.exit_code == 0
    labels = [int(line) for line in printed.stdout.split()]
    assert len(labels) == 60 and set(labels) <= set(range(6))
    assert flegel_("predict", "model", "--data", "rows.csv", "--out", "p.npy").exit_code == 0
    assert np.load("p.npy", allow_pickle=False).tolist() == labels
    assert np.load("own.npy", allow_pickle=False).tolist() == labels
    assert flegel_("predict", "model", "--data", "rows.csv", "--out", "p.csv").exit_code == 0
    assert np.loadtxt("p.csv").astype(int).tolist() == labels
    np.testing.assert_array_equal(flegel.load("model").predict(ROWS), labels)

    again = submit(f"{TRAIN} --out model")
    assert again.exit_code == 2 and "exists already" in again.stderr


@pytest.mark.processes
def test_without_out_a_new_folder_below_runs_is_made(folder: Path, warm: None) -> None:
    for _ in range(2):
        assert submit(f"{TRAIN} --max-iterations 2").exit_code == 0
    assert sorted(p.name for p in Path("runs").iterdir()) == ["kmeans-rows-001", "kmeans-rows-002"]


@pytest.mark.processes
def test_a_class_from_a_file_trains_saves_and_needs_trust_to_predict(folder: Path, warm: None) -> None:
    outcome = submit("mine.py:Mine --data rows.csv --workers 2 --set step=2.5 --max-iterations 3 --out m")
    assert outcome.exit_code == 0, outcome.stderr
    said = json.loads(Path("m/result.json").read_text())
    assert said["algorithm"] == "Mine" and said["hyperparameters"] == {"step": 2.5}
    assert said["objective"] is None
    distrusted = flegel_("predict", "m", "--data", "rows.csv")
    assert distrusted.exit_code == 2 and "--trust-code" in distrusted.stderr


@pytest.mark.processes
def test_a_stand_in_says_so_in_one_line_and_in_the_result(
    folder: Path, warm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEGEL_DATA", str(folder / "nothing-cached"))
    outcome = submit("mine.py:Mine --data higgs:500 --workers 2 --max-iterations 2 --json - --no-save")
    assert outcome.exit_code == 0, outcome.stderr
    assert json.loads(outcome.stdout)["dataset"]["stand_in"] is True
    assert len([line for line in outcome.stderr.splitlines() if "stand in" in line]) == 1


@pytest.mark.parametrize("words", ["--workers 0", "--hook-timeout soon", "--tolerance 0", "--sync bspp"])
def test_what_is_wrong_is_told_before_what_stands_in(folder: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    monkeypatch.setenv("FLEGEL_DATA", str(folder / "nothing-cached"))
    outcome = submit(f"kmeans --data higgs:500 {words}")
    assert outcome.exit_code == 2
    assert (
        "stand in" not in outcome.stderr
        and len([line for line in outcome.stderr.splitlines() if not line.endswith(" …")]) == 1
    )


def test_a_rate_is_shown_when_there_is_one() -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream, every=0.0)
    seen = JobSnapshot("kmeans", "fsp", "training", 2, 2, visits=1000, seconds=0.1, iteration=3, interval=0.01)
    display.show(seen)
    display.show(msgspec.structs.replace(seen, visits=2000, iteration=4))
    first, second = stream.getvalue().splitlines()
    assert "points/s" not in first and "interval 10 ms" in first
    assert "points/s" in second and " 0 points/s" not in second


def test_a_run_that_is_not_there_is_wrong_use_and_a_damaged_one_a_failure(tmp_path: Path) -> None:
    for missing in (tmp_path / "nowhere", tmp_path / "nowhere" / "result.json"):
        with pytest.raises(UsageError, match=r"Could not read .*nowhere"):
            read_figures(missing)
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(StorageError, match="is no result of Flegel"):
        read_figures(tmp_path)


def test_a_report_of_nothing_is_wrong_use(folder: Path) -> None:
    outcome = flegel_("report", "nowhere")
    assert outcome.exit_code == 2 and "Could not read nowhere" in outcome.stderr


WRONG_PREDICTIONS = [
    ("nowhere --data rows.npy", "There is no folder nowhere", 2),
    (". --data rows.npy", "no saved model", 2),
    ("damaged --data rows.npy", "damaged", 1),
]


@pytest.mark.parametrize(("words", "sentence", "code"), WRONG_PREDICTIONS, ids=[w for w, _, _ in WRONG_PREDICTIONS])
def test_predictions_that_cannot_be_made_are_one_sentence(folder: Path, words: str, sentence: str, code: int) -> None:
    Path("damaged").mkdir()
    Path("damaged/model.json").write_text("{}")
    outcome = flegel_("predict", *words.split())
    assert outcome.exit_code == code and sentence in outcome.stderr


def test_help_begins_with_what_newcomers_need() -> None:
    text = flegel_("--help").stdout
    places = [text.index(f" {command} ") for command in ("submit", "resume", "predict", "compare", "master")]
    assert places == sorted(places)


@pytest.mark.parametrize("command", ["", "submit", "predict", "algorithms", "models", "check", "version"])
def test_help_works_for_every_command(command: str) -> None:
    outcome = flegel_(*command.split(), "--help")
    assert outcome.exit_code == 0 and "Usage" in outcome.stdout


def test_every_option_of_the_contract_is_there() -> None:
    plain = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    text = CliRunner().invoke(app, ["submit", "--help-all"], env=plain).stdout
    for option in ("--data", "--workers", "--sync", "--interval", "--set", "--target", "--tolerance",
                   "--max-iterations", "--max-seconds", "--seed", "--out", "--json"):  # fmt: skip
        assert option in text, option


def test_lists_name_what_there_is() -> None:
    assert "kmeans" in flegel_("algorithms").stdout
    assert "--set k=10" in flegel_("algorithms", "kmeans").stdout
    assert {"bsp", "fsp"} <= {line.split()[0] for line in flegel_("models").stdout.splitlines()}
    assert flegel_("version").stdout.strip() == flegel.__version__


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("200ms", 0.2), ("1.5s", 1.5), ("80us", 8e-5), ("80µs", 8e-5), ("2min", 120.0), ("0.25", 0.25), (" 3 ms ", 0.003)],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "ms", "fast", "-1s", "0", "nan", "inf", "1h", "1.2.3s", "1 2s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no duration"):
        parse_seconds(text)


def test_check_lists_the_promises_of_a_class(folder: Path) -> None:
    outcome = flegel_("check", "kmeans")
    assert outcome.exit_code == 0 and outcome.stdout.count("ok ") >= 6
