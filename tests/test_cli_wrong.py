"""Wrong words to every command but `submit`: one sentence before anything runs, the right exit code, nothing lost."""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner

import flegel.datasets.formats.readers
from flegel.__main__ import run as program
from flegel.algorithms import BUILTINS
from flegel.cli.main import app
from flegel.cluster.transport import keys
from flegel.datasets.catalog.sets import ENTRIES
from flegel.datasets.rows import memory
from flegel.errors import DataError, UsageError
from flegel.runtime.transport.curve import new_key_pair

ROWS = np.random.default_rng(3).normal(size=(60, 5))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.save("rows.npy", ROWS)
    return tmp_path


def said(words: str, code: int = 2) -> str:
    """What a command that fails says on standard error, which is one sentence."""
    outcome = CliRunner().invoke(app, words.split(), catch_exceptions=False)
    assert outcome.exit_code == code, outcome.output
    assert outcome.stdout == "" and "Traceback" not in outcome.stderr
    lines = [line for line in outcome.stderr.splitlines() if not line.endswith(" …")]  # what takes long is told
    assert len(lines) == 1 and lines[0].startswith("flegel: "), outcome.stderr
    return lines[0]


CONTESTS = [
    ("--target nan", "--target nan must be a finite number"),
    ("--within nan", "--within nan must be between 0 and 1"),
    ("--within -1", "--within -1 must be between 0 and 1"),
    ("--tolerance 0", "--tolerance 0 must be between 0 and 1"),
    ("--max-seconds 0", "--max-seconds 0 must be more than 0"),
    ("--max-seconds -1", "--max-seconds -1 must be more than 0"),
    ("--straggler 9:8x", "is not within workers 0 to 0"),
    ("--seed -1", "The seed must be a whole number"),
    ("--repeat 0", "--repeat 0 leaves nothing to compare"),
    ("--json .", "--json . is a folder"),
    ("--json no/such.json", "There is no folder for no/such.json"),
    ("--out rows.npy", "rows.npy is not a folder"),
    (
        "--sync fsp:speed=3",
        "'speed=3' in 'fsp:speed=3' is no switch, such as fsp:coordination=centralized; known are: ",
    ),
]


@pytest.mark.parametrize("command", ["compare", "simulate"])
@pytest.mark.parametrize(("words", "sentence"), CONTESTS, ids=[w for w, _ in CONTESTS])
def test_a_contest_that_cannot_be_held_is_refused_before_it_begins(command: str, words: str, sentence: str) -> None:
    assert sentence in said(f"{command} kmeans --data rows.npy --workers 1 {words}")
    assert [p.name for p in Path().iterdir()] == ["rows.npy"]


@pytest.mark.parametrize("words", ["--target nan", "--target inf"])
def test_a_target_is_a_number(words: str) -> None:
    assert "must be a finite number" in said(f"submit kmeans --data rows.npy --workers 2 {words}")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("x.txt", "should end in .npy, .csv or .parquet"),
        ("no/such.csv", "There is no folder"),
        ("d.csv", "d.csv is a folder"),
    ],
)
def test_predictions_have_a_place_before_the_model_is_read(words: str, sentence: str) -> None:
    Path("d.csv").mkdir()
    assert sentence in said(f"predict nowhere --data rows.npy --out {words}")


def test_an_empty_name_shuts_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEGEL_HOME", str(tmp_path))
    registry = keys.KeyRegistry()
    registry.add(new_key_pair().public, "submit")
    with pytest.raises(UsageError, match="Name the key"):
        registry.revoke("")
    assert len(registry.entries()) == 1


KEY = "ab" * 32


@pytest.mark.parametrize(
    "words", ["jobs --master", "status x --master", "slave --master", f"keys add {KEY} --role master --address"]
)
def test_what_is_no_address_is_told_so(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEGEL_HOME", str(tmp_path / "home"))
    assert "'head' is not an address; write tcp://HOST:PORT" in said(f"{words} head")
    assert not (tmp_path / "home").exists()


def test_a_contest_in_which_every_run_fails_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = SimpleNamespace(outcome="failed", reason="no memory")
    found = SimpleNamespace(notes=[], attempts=[attempt, attempt])
    monkeypatch.setattr("flegel.compare.compare", lambda *_, **__: found)
    monkeypatch.setattr("flegel.compare.table.text", lambda _: "table")
    monkeypatch.setattr("flegel.compare.table.verdict", lambda _: "nobody")
    outcome = CliRunner().invoke(app, ["compare", "kmeans", "--data", "rows.npy"])
    assert outcome.exit_code == 1 and outcome.stdout == "table\nnobody\n"
    assert outcome.stderr == "flegel: Every run failed, the last one so: no memory\n"


def test_sets_suit_algorithms_that_there_are() -> None:
    assert {name for entry in ENTRIES for name in entry.suits} <= set(BUILTINS)


@pytest.mark.parametrize("command", ["info", "fetch", "generate", "path"])
def test_data_sets_that_are_not_there_are_said_like_everything_else(command: str) -> None:
    assert "did you mean 'higgs'?" in said(f"data {command} higs")


def test_the_list_of_data_sets_fits_a_narrow_screen() -> None:
    outcome = CliRunner().invoke(app, ["data", "list"], env={"COLUMNS": "80"})
    lines = outcome.stdout.splitlines()
    assert any(line.startswith("higgs ") and "11,000,000" in line and len(line) <= 80 for line in lines)
    assert any("collisions that make Higgs bosons" in line for line in lines)


def test_a_folder_that_cannot_be_searched_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_file(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    Path("folder").mkdir()
    Path("folder/rows.csv").write_text("1,2\n")
    monkeypatch.setattr(flegel.datasets.formats.readers.Path, "is_file", is_file)
    with pytest.raises(DataError, match=r"cannot be searched \(Permission denied at folder/rows"):
        flegel.datasets.formats.readers.readable_files(Path("folder"), None)  # type: ignore[arg-type]


def test_a_scratch_folder_that_is_not_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEGEL_MEMORY", "1000")
    monkeypatch.setenv("FLEGEL_SCRATCH", "/no/such/folder")
    with pytest.raises(DataError, match="point FLEGEL_SCRATCH to a folder"):
        memory.allocate((1000, 8), np.dtype(np.float64))


def test_what_the_system_refuses_is_a_sentence_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(word: str) -> Any:
        raise PermissionError(13, "Permission denied", "secret")

    monkeypatch.setattr("flegel.runtime.job.find_algorithm.find_algorithm", find)
    assert said("check kmeans", code=1) == "flegel: secret: Permission denied; fix this and retry."


def test_ctrl_c_speaks_of_workers_only_where_there_were_some(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("flegel.cli.cluster_jobs.open_client", stop)
    monkeypatch.setattr("flegel.api.jobs.run", stop)
    assert said("jobs", code=130) == "flegel: interrupted."
    assert "all workers were stopped" in said("submit kmeans --data rows.npy --no-save", code=130)


def test_ctrl_c_while_the_commands_are_made_up_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("flegel.cli.main.main", stop)
    with pytest.raises(SystemExit) as ended:
        program()
    assert ended.value.code == 130 and capsys.readouterr().err == "flegel: interrupted.\n"


def test_ctrl_c_while_the_program_is_imported_is_no_traceback(tmp_path: Path) -> None:
    Path("typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    words = [sys.executable, "-c", "import sys; sys.path.insert(0, '.'); from flegel.__main__ import main; main()"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "flegel: interrupted.\n")


def test_an_interrupted_program_ends_without_taking_its_modules_apart(tmp_path: Path) -> None:
    code = """
import atexit, os, sys
import flegel.cli.main

class Kept:
    def __del__(self, write=os.write):
        write(1, b"taken apart\\n")

def stop():
    print("printed")
    raise SystemExit(int(sys.argv[1]))

kept = Kept()
atexit.register(print, "left")
flegel.cli.main.main = stop
from flegel.__main__ import main
main()
"""
    for ended, said in ((130, "printed\nleft\n"), (143, "printed\nleft\n"), (1, "printed\nleft\ntaken apart\n")):
        words = [sys.executable, "-c", code, str(ended)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
        assert (done.returncode, done.stdout) == (ended, said)


def test_options_that_would_do_nothing_are_refused() -> None:
    assert "say also where, with --checkpoint DIR" in said("submit kmeans --data rows.npy --checkpoint-every 3s")
    assert "omit one of them" in said("submit kmeans --data rows.npy --no-save --out x")
    assert "--labels p.csv writes the class" in said("submit kmeans --data rows.npy --out p.csv")
    assert "should end in .npy, .csv or .parquet" in said("submit kmeans --data rows.npy --labels p.txt")
    assert not Path("x").exists()


def test_the_version_is_an_option_too() -> None:
    outcome = CliRunner().invoke(app, ["--version"])
    assert outcome.exit_code == 0 and outcome.stdout == CliRunner().invoke(app, ["version"]).stdout != ""


def test_a_file_that_is_there_is_not_written_over_by_generated_rows() -> None:
    Path("mine.csv").write_text("1,2\n", encoding="utf-8")
    assert "mine.csv exists already" in said("data generate higgs --rows 100 --out mine.csv")
    assert Path("mine.csv").read_text(encoding="utf-8") == "1,2\n"


def test_options_that_messages_name_exist() -> None:
    known: set[str] = {"--help"}

    def look(command: Any) -> None:
        for option in command.params:
            known.update((*getattr(option, "opts", ()), *getattr(option, "secondary_opts", ())))
        for inner in getattr(command, "commands", {}).values():
            look(inner)

    look(get_command(app))
    flag = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")
    suite = Path(__file__).resolve().parents[1] / "bench" / "run_suite.py"
    known.update(flag.findall(suite.read_text(encoding="utf-8")))  # `flegel bench` passes them on
    named: dict[str, str] = {}
    for folder in ("flegel", "datasets", "algorithms"):
        for path in (Path(__file__).resolve().parents[1] / folder).rglob("*.py"):
            if "launch" in path.parts or path.name in ("page.py", "host.py", "cuda_source.py", "options.py"):
                continue  # options of other programs, and colours of pages
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    named.update(dict.fromkeys(flag.findall(node.value), f"{path}:{node.lineno}"))
    assert {name: place for name, place in named.items() if name not in known} == {}
