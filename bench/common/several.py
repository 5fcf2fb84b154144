"""Several benchmarks in one process, one after the other: imports, warm workers and loaded kernels are had once.

    python -m bench.common.several PLAN.json

PLAN.json lists name, question, file and words of each; `PLAN.json.told` gets a line with name and exit code when one
has ended, so that whoever started this process knows which one it died of. For cases that show that figures can be
made. Those whose times count have a process each: nothing that another one left may disturb them.
"""

from __future__ import annotations

import json
import runpy
import sys
import traceback
from pathlib import Path

from bench.common.program import words_of
from bench.common.scripts import TOLD
from bench.common.suite import TERMINATED, Suite
from flegel.terminal.reporting import say


def run_one(path: str, words: list[str]) -> int:
    """Its exit code; a figure that fails does not keep the others from being made."""
    sys.argv = [path, *words]
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        if end.code == TERMINATED:
            raise
        if isinstance(end.code, str):
            say(end.code)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:  # noqa: BLE001 - told, and this figure has failed
        traceback.print_exc()
        return 1
    return 0


def main(plan: Path) -> None:
    told = plan.with_name(plan.name + TOLD)
    with Suite.warm():
        for name, question, path, words in json.loads(plan.read_text(encoding="utf-8")):
            say(f"{name}: {question}")
            code = run_one(path, words)
            with told.open("a", encoding="utf-8") as lines:
                lines.write(f"{name} {code}\n")


if __name__ == "__main__":
    main(Path(words_of(__doc__, "plan")[0]))
