"""All benchmarks within a time for all: who gets how much, what is kept of one that is cut off, what is left out."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from bench import run_suite
from bench.common import report, suite_runner
from bench.common.record import Bench, read
from bench.common.scripts import choose, read_script, scripts
from bench.common.suite_runner import SuiteRunner
from flegel.cli import comparisons as command
from flegel.cli.main import app
from flegel.compare import write
from tests.compare.samples import bench
from tests.source_trees import nodes, parse

BENCH = Path(__file__).resolve().parents[2] / "bench"
NAMES = {
    "runtime_stragglers", "runtime_even", "skew", "utilization", "optimizations", "passes", "coordination",
    "convergence", "intervals", "scaling", "bandwidth", "psp", "peers",
}  # fmt: skip


def test_all_is_every_figure_of_the_papers_and_the_peers() -> None:
    assert {script.name for script in choose(scripts(BENCH), ["all"])} >= NAMES


def test_what_benchmarks_take_from_each_other_is_there() -> None:
    """They are run rarely, so a name that has gone would be noticed late."""
    for path in BENCH.rglob("*.py"):
        modules = {
            (alias.asname or alias.name): file
            for node in nodes(path)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bench.")
            for alias in node.names
            if (file := BENCH.parent.joinpath(*(node.module or "").split("."), f"{alias.name}.py")).exists()
        }
        for node in nodes(path):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                assert node.attr in _defined(modules[node.value.id]), f"{path}:{node.lineno}: {node.attr}"


def _defined(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(parse(path)):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.alias(name=name, asname=other):
                found.add(other or name)
    return found


@pytest.mark.processes
@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_an_interrupted_suite_ends_its_benchmark_and_keeps_what_was_measured(
    number: int, code: int, word: str, tmp_path: Path
) -> None:
    words = [
        sys.executable,
        "-P",
        "-m",
        "bench.run_suite",
        "run",
        "004-fig2",
        "--scale",
        "paper",
        "--out",
        str(tmp_path),
    ]
    environment = {**os.environ, "PYTHONPATH": str(BENCH.parent)}
    running = subprocess.Popen(words, cwd=BENCH.parent, env=environment, stderr=subprocess.PIPE, text=True)
    kept = tmp_path / "linearity.json"
    try:
        while not kept.exists():  # written when the benchmark begins
            assert running.poll() is None
            time.sleep(0.05)
        running.send_signal(number)
        said = running.communicate(timeout=600)[1]
    finally:
        running.kill()
    assert running.returncode == code and f"flegel: {word}; what was measured so far is in {tmp_path}." in said, said
    found = read(kept)
    assert isinstance(found, Bench) and found.unfinished.startswith("it was ended after")


def test_the_suite_is_found_beside_the_package_or_where_one_says(tmp_path: Path) -> None:
    assert command.suite_folder() == BENCH == command.suite_folder(BENCH)
    with pytest.raises(Exception, match="holds no benchmark suite"):
        command.suite_folder(tmp_path)


def test_the_command_becomes_the_program_of_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    become: list[list[str]] = []
    monkeypatch.setattr(
        "os.execve", lambda program, words, environment: become.append([*words, environment["PYTHONPATH"]])
    )
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for words in (f"bench list --suite {BENCH}", f"bench run skew fig7 --scale smoke --only kmeans --suite {BENCH}"):
        CliRunner().invoke(app, words.split(), catch_exceptions=False)
    listed, ran = become
    assert listed[1:] == ["-P", "-m", "bench.run_suite", "list", str(BENCH.parent)]
    assert ran[4:-1] == ["run", "skew", "fig7", "--scale", "smoke", "--only", "kmeans"]


def test_wrong_words_for_the_suite_are_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, told in (("--only kmean", "did you mean 'kmeans'?"), ("--scale large", "must be one of smoke, laptop")):
        monkeypatch.setattr("sys.argv", ["run_suite", "run", "skew", *words.split()])
        with pytest.raises(SystemExit) as ended:
            run_suite.main()
        assert ended.value.code == 2 and told in capsys.readouterr().err
    for words in ("", "nonsense", "run", "run skew --workers many", "run skew --worker"):
        monkeypatch.setattr("sys.argv", ["run_suite", *words.split()])
        with pytest.raises(SystemExit) as ended:
            run_suite.main()
        told = capsys.readouterr().err
        assert ended.value.code == 2 and told.startswith("flegel: ") and told.count("\n") == 1


def test_the_help_of_the_command_names_every_option_of_a_run() -> None:
    told = CliRunner().invoke(app, ["bench", "--help"]).output
    asked = re.findall(r'several\.add_argument\(\s*"(--\w+)"', Path(run_suite.__file__).read_text(encoding="utf-8"))
    assert len(asked) == 8 and not [option for option in asked if option not in told]


def test_the_race_with_stragglers_gets_the_largest_part() -> None:
    weights = {script.name: script.weight for script in choose(scripts(BENCH), ["all"])}
    assert max(weights, key=lambda name: weights[name]) == "runtime_stragglers" and weights["skew"] > 1


@given(left=st.floats(0.0, 1e4), weights=st.lists(st.floats(0.5, 10), min_size=1, max_size=20), start=st.floats(0, 20))
def test_parts_of_the_time_add_up_to_all_of_it(left: float, weights: list[float], start: float) -> None:
    rest = left
    for i in range(len(weights)):
        mine = suite_runner.part(rest, weights[i:], start)
        assert -1e-9 <= mine <= rest + 1e-6
        rest -= mine
    assert rest == pytest.approx(0.0, abs=1e-6 * max(left, 1))


def test_who_weighs_more_gets_more_and_what_is_not_used_goes_on() -> None:
    assert suite_runner.part(100, [3, 1], start=10) == pytest.approx(10 + 80 * 3 / 4)
    assert suite_runner.part(90, [1], start=10) == pytest.approx(90)  # the first one took only ten seconds
    assert suite_runner.part(10, [5, 1], start=10) == pytest.approx(5)  # not even time for both to start


def script(folder: Path, name: str, body: str, needs: str = "()") -> Path:
    """A benchmark that needs no engine."""
    head = f'"""Is {name} fine?"""\nfrom bench.common import suite\nimport argparse, json, sys, time\n'
    head += f'FIGURE = "Fig. 1"\nNEEDS = {needs}\n'
    parse = textwrap.dedent("""
        parser = argparse.ArgumentParser()
        for flag in ("--scale", "--workers", "--repeat", "--out", "--seed", "--budget", "--cache", "--only"):
            parser.add_argument(flag)
        options = parser.parse_args()
    """)
    path = folder / "figures" / f"{name}.py"
    path.write_text(head + parse + textwrap.dedent(body) + '\n# "__main__"\n')
    return path


@pytest.fixture
def suite_folder(tmp_path: Path) -> Path:
    suite = tmp_path / "bench"
    (suite / "common").mkdir(parents=True)
    (suite / "figures").mkdir()
    for name in ("__init__.py", "common/__init__.py", "figures/__init__.py", "common/suite.py"):
        (suite / name).write_text("")  # a package, so that none of this name elsewhere on the path comes before it
    return suite


class EndedWhenItHasWritten(subprocess.Popen[bytes]):
    """A process whose time is over as soon as this file is there, and not before, however slow the machine is."""

    awaited: Path | None = None

    def wait(self, timeout: float | None = None) -> int:
        if timeout is None or self.awaited is None:
            return super().wait(timeout)
        while not self.awaited.exists():
            assert self.poll() is None, "it ended by itself"
            time.sleep(0.01)
        self.awaited = None
        raise subprocess.TimeoutExpired(self.args, timeout)


def test_a_script_that_is_cut_off_leaves_what_it_had(
    suite_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(suite_runner.subprocess, "Popen", EndedWhenItHasWritten)
    monkeypatch.setattr(EndedWhenItHasWritten, "awaited", tmp_path / "out" / "slow.json")
    written = bench()
    written.name, written.unfinished = "slow", "it was still running when this was written"
    write(written, suite_folder / "made.json")
    body = f"""
        import pathlib, shutil
        copy = shutil.copy({str(suite_folder / "made.json")!r}, options.out + "/part")
        pathlib.Path(copy).rename(options.out + "/slow.json")
        time.sleep(6000)
    """
    path = script(suite_folder, "slow", body)
    assert SuiteRunner([read_script(path)], tmp_path / "out", {"--scale": "smoke"}, budget=4.0).run() == []
    kept = read(tmp_path / "out" / "slow.json")
    assert isinstance(kept, Bench) and kept.comparisons and "ended after" in kept.unfinished
    page = report.page([read(tmp_path / "out" / "slow.json")], "All")
    assert "Unfinished: it was ended after" in page


def test_what_cannot_run_or_fails_is_in_the_report_with_a_sentence(suite_folder: Path, tmp_path: Path) -> None:
    lacks = read_script(script(suite_folder, "lacks", "", needs='("package:no_such_package",)'))
    breaks = read_script(script(suite_folder, "breaks", "sys.exit(3)"))
    said: list[str] = []
    failed = SuiteRunner([lacks, breaks], tmp_path / "out", {"--scale": "smoke"}, 600.0, said.append).run()
    assert failed == ["breaks"] and any("no_such_package is not installed" in text for text in said)
    page = report.page([read(path) for path in sorted((tmp_path / "out").glob("*.json"))], "All")
    assert "no_such_package is not installed" in page and "exit code 3" in page


@pytest.mark.parametrize(("unfinished", "measured"), [("", True), ("the 9 s were over", True), ("", False)])
def test_where_all_must_be_complete_a_benchmark_that_is_not_has_failed(
    suite_folder: Path, tmp_path: Path, unfinished: str, measured: bool
) -> None:
    made = bench()
    made.name, made.unfinished = "part", unfinished
    if not measured:
        made.comparisons, made.tables, made.charts, made.skipped = [], [], [], []
    write(made, suite_folder / "made.json")
    lacks = read_script(script(suite_folder, "lacks", "", needs='("package:no_such_package",)'))
    copy = f"import shutil; shutil.copy({str(suite_folder / 'made.json')!r}, options.out + '/part.json')"
    part, said = read_script(script(suite_folder, "part", copy)), list[str]()
    runner = SuiteRunner([lacks, part], tmp_path / "out", {"--scale": "smoke"}, say=said.append, complete=True)
    assert runner.run() == ([] if measured and not unfinished else ["part"])
    assert "lacks: left out: all of it (no_such_package is not installed)" in said
    assert f"{int(measured)} of 2 benchmarks measured something" in said


def test_an_earlier_record_is_not_lost_when_there_is_no_time_now(suite_folder: Path, tmp_path: Path) -> None:
    quick = read_script(script(suite_folder, "skew", ""))
    write(bench(), tmp_path / "skew.json")
    SuiteRunner([quick], tmp_path, {"--scale": "smoke"}, budget=0.5).run()
    kept = read(tmp_path / "skew.json")
    assert isinstance(kept, Bench) and kept.comparisons


def test_the_time_is_passed_on_and_a_cache_that_is_removed(suite_folder: Path, tmp_path: Path) -> None:
    path = script(suite_folder, "asks", f"json.dump(vars(options), open({str(tmp_path / 'got.json')!r}, 'w'))")
    assert SuiteRunner([read_script(path)], tmp_path / "out", {"--scale": "smoke", "--workers": 3}, 600.0).run() == []
    import json

    got = json.loads((tmp_path / "got.json").read_text())
    assert got["workers"] == "3" and 300 < float(got["budget"]) <= 600 and not Path(got["cache"]).exists()
