"""How programs of `bench` start each other: the command, its environment, the words of one that is started."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

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
