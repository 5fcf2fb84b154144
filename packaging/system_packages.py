"""Installs the Debian packages of system-packages.txt that are missing here, as root or through sudo; prints versions.

`make system` runs it. A package that cannot be installed is named in one sentence and the others are installed: tests
that need its program then skip, or fail by name where FLEGEL_REQUIRE=all is set. Debian starts the services that some
of the packages bring (prometheus, ssh); the tests use none of these, but start daemons of their own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

LIST = Path(__file__).with_name("system-packages.txt")
SECONDS_FOR_APT = 900.0
"""For the lists, and for all packages together: Chromium with what it needs is 300 MB."""


class Package(NamedTuple):
    """A line of the list."""

    name: str
    program: str
    purpose: str


Command = Callable[[Sequence[str]], tuple[int, str]]
"""Runs a command; its status, and what it printed."""


def packages() -> list[Package]:
    """All lines of the list."""
    lines = [line for line in LIST.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return [Package(*line.split(maxsplit=2)) for line in lines]


def run(words: Sequence[str]) -> tuple[int, str]:
    """A command without a terminal and without questions, in English."""
    told = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            words, env=told, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=SECONDS_FOR_APT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 1, f"it took longer than {SECONDS_FOR_APT:.0f} s"
    return done.returncode, done.stdout


def versions(names: Sequence[str], command: Command) -> dict[str, str]:
    """The versions of those packages that are installed."""
    _, said = command(["dpkg-query", "--show", "--showformat=${db:Status-Status} ${Package} ${Version}\n", *names])
    found = [line.split() for line in said.splitlines() if line.startswith("installed ")]
    return {words[1]: words[2] for words in found if len(words) == 3}


def reason(said: str) -> str:
    """What apt says is wrong: its first error, without its mark; else its last line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("E:").strip() for line in lines if line.startswith("E:")]
    return (errors or lines[-1:] or ["apt-get gave no reason"])[0].rstrip(".")


def install(missing: Sequence[str], command: Command, prefix: Sequence[str]) -> dict[str, str]:
    """Packages that cannot be installed, with the reasons; each is tried alone where all together fail."""
    apt = [*prefix, "apt-get", "--quiet", "--yes"]
    command([*apt, "update"])  # where that fails, the lists that are there may do
    add = [*apt, "install", "--no-install-recommends"]
    if command([*add, *missing])[0] == 0:
        return {}
    tried = {name: command([*add, name]) for name in missing}
    return {name: reason(said) for name, (status, said) in tried.items() if status}


def prefix_for_root() -> list[str] | None:
    """What stands before a command that needs root; None where there is no way to become root."""
    if os.geteuid() == 0:
        return []
    return ["sudo", "--non-interactive", "--preserve-env=DEBIAN_FRONTEND"] if shutil.which("sudo") else None


def main() -> int:
    """Always 0 on Debian, so that one missing package does not end a run of CI; its tests fail by name there."""
    wanted = packages()
    names = [package.name for package in wanted]
    if shutil.which("apt-get") is None or shutil.which("dpkg-query") is None:
        print(f"This is no Debian: install by hand what holds {', '.join(package.program for package in wanted)}.")
        return 1
    missing = [name for name in names if name not in versions(names, run)]
    prefix = prefix_for_root() if missing else []
    if prefix is None:
        refused = dict.fromkeys(missing, "it takes root, and there is no sudo here")
    else:
        refused = install(missing, run, prefix) if missing else {}
    found = versions(names, run)
    for package in wanted:
        if package.name in found:
            print(f"{package.name} {found[package.name]}")
        else:
            print(f"{package.name} could not be installed: {refused.get(package.name, 'apt-get gave no reason')}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
