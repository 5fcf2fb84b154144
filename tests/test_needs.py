"""What tests need besides the project: a missing program skips, or fails by name where all of them are required."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from tests import conftest, needs

ROOT = Path(__file__).resolve().parents[1]
WANTED = """
from tests import needs


@needs.programs("no-such-program", "sh")
def test_with_a_program():
    raise AssertionError("never reached")


def test_with_a_library():
    needs.library("no_such_library")


def test_with_a_library_of_another_process():
    needs.installed("no_such_library")


@needs.programs("sh")
def test_with_nothing_missing():
    pass
"""


@pytest.fixture
def system_packages() -> ModuleType:
    """The program behind `make system`; the folder `packaging` is no package."""
    spec = importlib.util.spec_from_file_location("system_packages", ROOT / "packaging" / "system_packages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("value", "skipped", "failed"), [("", 3, 0), ("all", 0, 3)])
def test_what_is_missing_skips_or_fails_where_all_is_required(
    value: str, skipped: int, failed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEGEL_REQUIRE", value)
    (tmp_path / "test_wanted.py").write_text(WANTED)
    results = Results()
    options = ["-p", "no:cacheprovider", "-o", "addopts=-q", "--import-mode=importlib"]
    options += ["-c", str(ROOT / "pyproject.toml")]
    pytest.main([*options, "--rootdir", str(tmp_path), str(tmp_path)], plugins=[results])
    assert len(results.of("skipped")) == skipped and len(results.of("failed")) == failed
    assert results.of("passed") == ["test_with_nothing_missing"]
    assert "there is no no-such-program here: make system installs it" in results.said


class Results:
    """What became of each test of a run inside this one."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}
        self.said = ""

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        conftest.pytest_runtest_setup(item)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("::")[2]
        if report.when == "call" or report.outcome != "passed":
            self._found[name] = report.outcome
            self.said += str(report.longrepr)

    def of(self, outcome: str) -> list[str]:
        return [name for name, found in self._found.items() if found == outcome]


def test_another_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEGEL_REQUIRE", "some")
    with pytest.raises(pytest.UsageError, match="FLEGEL_REQUIRE=some is not known; say FLEGEL_REQUIRE=all"):
        needs.required()


def test_every_skip_for_something_missing_goes_through_one_place() -> None:
    elsewhere = re.compile(r"importorskip\(|skip\w*\([^)]*(shutil\.which|find_spec|is not installed)")
    own = {Path(__file__), ROOT / "tests" / "needs.py"}
    found = [path for path in sorted((ROOT / "tests").rglob("*.py")) if path not in own]
    assert not [str(path) for path in found if elsewhere.search(path.read_text(encoding="utf-8"))]


def test_every_package_has_a_program_and_a_sentence(system_packages: ModuleType) -> None:
    listed = system_packages.packages()
    assert {"chromium", "slurm-wlm", "munge", "prometheus", "iproute2"} <= {package.name for package in listed}
    assert all(package.program and package.purpose.endswith(".") for package in listed)


def test_packages_are_installed_together_and_one_by_one_where_that_fails(system_packages: ModuleType) -> None:
    asked: list[list[str]] = []

    def command(words: Sequence[str]) -> tuple[int, str]:
        asked.append(list(words))
        if "gone" in words:
            return 100, "Reading package lists...\nE: Unable to locate package gone\nE: Another\n"
        return 0, ""

    assert system_packages.install(["here"], command, []) == {}
    assert [words[3:] for words in asked] == [["update"], ["install", "--no-install-recommends", "here"]]
    refused = system_packages.install(["gone", "here"], command, ["sudo"])
    assert refused == {"gone": "Unable to locate package gone"}
    assert asked[-1][0] == "sudo" and asked[-1][-1] == "here", "the others are installed all the same"


def test_versions_are_those_of_installed_packages_alone(system_packages: ModuleType) -> None:
    said = "installed munge 0.5.15-2\nconfig-files prometheus 2.42\ndpkg-query: no packages found matching chromium\n"
    assert system_packages.versions(["munge"], lambda words: (1, said)) == {"munge": "0.5.15-2"}


def test_a_package_that_cannot_be_had_is_told_in_one_sentence(
    system_packages: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(system_packages.shutil, "which", lambda name: None if name == "sudo" else f"/usr/bin/{name}")
    monkeypatch.setattr(system_packages.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(system_packages, "run", lambda words: (0, "installed munge 0.5.15-2\n"))
    assert system_packages.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert "munge 0.5.15-2" in lines
    assert "chromium could not be installed: it takes root, and there is no sudo here." in lines
