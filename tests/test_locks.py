"""The files of packaging/locks hold a version of everything that an environment installs, and one that is allowed."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS = [match[1] for text in PROJECT["classifiers"] if (match := re.search(r":: (3\.\d+)$", text))]
TOGETHER = {"dev": ("dev", "docs"), "extras": ("dev", "extras")}
"""Environments of the tests; every other extra has a file of its own."""

OF_ONE_EXTRA = sorted({*PROJECT["optional-dependencies"]}.difference(*TOGETHER.values()))
LOCKS = {**TOGETHER, **{extra: (extra,) for extra in OF_ONE_EXTRA}}


def wanted(extra: str) -> Iterator[Requirement]:
    """What an extra asks for; those of its own that it names are followed."""
    for text in PROJECT["optional-dependencies"][extra]:
        requirement = Requirement(text)
        if requirement.name == "flegel":
            for other in sorted(requirement.extras):
                yield from wanted(other)
        else:
            yield requirement


def pins(lock: str) -> list[Requirement]:
    lines = (ROOT / "packaging" / "locks" / f"{lock}.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line.partition("  #")[0]) for line in lines if line and not line.startswith("#")]


def applicable(requirement: Requirement, python: str, machine: str) -> bool:
    environment = {**default_environment(), "platform_machine": machine, "sys_platform": "linux"}
    environment |= {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    return requirement.marker is None or requirement.marker.evaluate(environment)


def pinned(lock: str, python: str, machine: str) -> dict[str, str]:
    """Versions by name, one of each, that this Python on this processor gets."""
    found: dict[str, str] = {}
    for pin in pins(lock):
        if applicable(pin, python, machine):
            assert canonicalize_name(pin.name) not in found, f"two versions of {pin.name}"
            (only,) = pin.specifier
            assert only.operator == "==" and "+" not in only.version, f"{pin}: a version that PyPI has"
            found[canonicalize_name(pin.name)] = only.version
    return found


def test_every_extra_has_a_file_and_every_file_an_extra() -> None:
    files = {path.stem for path in (ROOT / "packaging" / "locks").glob("*.txt")}
    assert files == {"held", *LOCKS}, "run `make lock`; remove the file of an extra that is gone"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("lock", LOCKS)
def test_everything_has_one_version_that_is_allowed(lock: str, python: str, machine: str) -> None:
    asked = [Requirement(text) for text in PROJECT["dependencies"]]
    asked += [requirement for extra in LOCKS[lock] for requirement in wanted(extra)]
    found = pinned(lock, python, machine)
    for requirement in asked:
        if applicable(requirement, python, machine):
            version = found.get(canonicalize_name(requirement.name), "")
            assert version and version in requirement.specifier, f"{requirement}: {version or 'none'}; run `make lock`"
    tested = pinned("extras", python, machine)
    others = {name for name, version in found.items() if tested.get(name, version) != version}
    assert not others, "versions of one extra are those that `make test-extras` installs; run `make lock`"


def test_versions_that_are_held_are_those_of_the_locks() -> None:
    held = {pin.name: str(pin.specifier) for pin in pins("held")}
    assert held and held.items() <= {pin.name: str(pin.specifier) for pin in pins("extras")}.items()


def test_each_python_gets_an_environment_of_its_own(tmp_path: Path) -> None:
    """Two programs called `python` of different versions: one environment for both would test the first one twice."""
    environments = []
    for version in ("3.12.1", "3.13.0"):
        program = tmp_path / version / "python"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\necho {version}\n")
        program.chmod(0o755)
        words = ["make", "--dry-run", "test-python", f"PYTHON={program}"]
        told = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        environments += re.findall(r"-m venv (\S+)", told)
    assert environments == ["build/python-3.12.1", "build/python-3.13.0"]
