"""Commands with which a program of `bench` starts another one as a module. Starts nothing itself."""

from __future__ import annotations

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
