"""`make slowest`: which tests took longest by the clock, and which kept processors busy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import conftest, slowest

BUSY = """
import subprocess
import sys


def test_here():
    sum(range(2_000_000))


def test_in_a_process():
    subprocess.run([sys.executable, "-c", "sum(range(20_000_000))"], check=True)
"""


class SameHooks:
    """Those of tests/conftest.py, for a run inside this one."""

    pytest_runtest_protocol = staticmethod(conftest.pytest_runtest_protocol)
    pytest_runtest_teardown = staticmethod(conftest.pytest_runtest_teardown)


def test_processor_time_of_a_test_and_of_what_it_started_is_in_the_report_and_in_the_table(tmp_path: Path) -> None:
    (tmp_path / "test_busy.py").write_text(BUSY)
    report = tmp_path / "tests.xml"
    words = ["-p", "no:cacheprovider", "-o", "addopts=-q", f"--junitxml={report}", "--rootdir", str(tmp_path)]
    assert pytest.main([*words, "-c", "/dev/null", str(tmp_path)], plugins=[SameHooks()]) == 0
    found = {name: took for (_, name), took in slowest.times(report).items()}
    assert found["test_in_a_process"].processor > found["test_here"].processor > 0.0
    told = "\n".join(slowest.table(slowest.times(report)))
    assert told.partition("tests that take most of processors\n")[2].splitlines()[0].endswith("test_in_a_process")


def test_what_was_written_of_a_folder_stays_until_it_has_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, files = tmp_path / "tests-extras.xml", tmp_path / "slow_files.txt"
    report.write_text('<t><testcase classname="tests.extras.test_new" name="x" time="70"/></t>')
    files.write_text("# head\n90 tests/test_one.py\n80 tests/extras/test_gone.py\n")
    monkeypatch.setattr(slowest, "REPORTS", {"tests/extras/": report, "tests/": tmp_path / "tests.xml"})
    monkeypatch.setattr(slowest, "SLOW_FILES", files)
    monkeypatch.setattr("sys.argv", ["slowest", "--write"])
    slowest.main()
    assert slowest.slow_files() == ["tests/test_one.py", "tests/extras/test_new.py"]


def test_files_are_sums_of_their_tests() -> None:
    first, second = slowest.Time(1.0, 0.5), slowest.Time(2.0, 1.0)
    tests = {("a.py", "one"): first, ("a.py", "two"): second, ("b.py", "x"): slowest.Time(2.5)}
    assert slowest.by_file(tests) == [("a.py", slowest.Time(3.0, 1.5)), ("b.py", slowest.Time(2.5, 0.0))]
