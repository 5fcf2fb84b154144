"""How programs of `bench` start each other (the command, its environment, the words of one that is started), and what
they note beside their figures: commit, machine, a line in the table of results."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from pathlib import Path

from flegel.runtime.processes import host

ROOT = Path(__file__).resolve().parents[2]


def command(module: str, *words: str) -> list[str]:
    """For instance `command("bench.rivals.run", "config.json")`; needs `environment()`."""
    return [sys.executable, "-P", "-m", module, *words]


def environment(**more: str) -> dict[str, str]:
    """The environment of this process, the checkout's root first on the path for imports."""
    inherited = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), inherited])), **more}


def words_of(doc: str | None, *names: str) -> list[str]:
    """The words of a program that has no options: those that another program starts, and those that take nothing. With
    --help it says what it is for."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in names:
        parser.add_argument(name)
    given = parser.parse_args()
    return [getattr(given, name) for name in names]


def commit() -> str:
    """The commit that is measured, with + where files of the checkout differ from it: a summary of docs/results may not
    have that mark. Outside a checkout the value of FLEGEL_COMMIT."""
    return host.commit() or "unknown"


def machine() -> str:
    name = platform.processor() or platform.machine()
    cpu = Path("/proc/cpuinfo")
    if cpu.exists():
        models = [line for line in cpu.read_text().splitlines() if line.startswith("model name")]
        name = models[0].partition(":")[2].strip() if models else name
    return f"{name}, {os.cpu_count()} cores"


def list_page(name: str, question: str) -> None:
    """A line for a page of docs/results in the table of results, where there is none yet."""
    index = ROOT / "docs" / "results" / "README.md"
    text = index.read_text(encoding="utf-8")
    if f"({name}.md)" not in text:
        row = f"| [{name}]({name}.md) | {question} | [{name}]({name}.json) |"
        lines = text.splitlines(keepends=True)
        after = max(i for i, line in enumerate(lines) if line.startswith("| ["))
        index.write_text("".join([*lines[: after + 1], row + "\n", *lines[after + 1 :]]), encoding="utf-8")
