"""A second real job on the same machine, whose workers take processors from those of the measured one.

The FSP paper's Natural scenario: a job of sixteen workers is followed by another one on some of its machines, and the
workers there become stragglers for as long as both run. Here both run on one machine, and where the second job's
workers run is the operating system's choice. With as many workers as the measured job it disturbs all of them alike.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.common.program import environment

LAST_LINES = 5  # of what the second job wrote before it failed
LONGEST_SECONDS = 3600.0
"""It ends by itself after that, should this process be killed."""
JOB = """
import sys
import flegel
from flegel.algorithms import KMeans

class Started:
    told = False

    def __call__(self, snapshot):
        if not self.told:
            self.told = True
            print("trains", flush=True)

flegel.run(
    KMeans(k=50), "higgs:200000", workers=int(sys.argv[1]), processes=True, tolerance=0.0, audit="off", resting="off",
    max_seconds=float(sys.argv[2]), watch=Started(), progress=False,
)
"""


def workers_beside(workers: int) -> int:
    """A quarter as many as those of the measured job, as in the paper."""
    return max(1, workers // 4)


@contextmanager
def second_job(workers: int) -> Iterator[None]:
    """A k-means of so many workers trains until the block is left; entered when it has begun to train."""
    with tempfile.TemporaryDirectory(prefix="second-job-") as folder:
        script, log = Path(folder) / "second_job.py", Path(folder) / "errors"
        script.write_text(JOB, encoding="utf-8")
        command = [sys.executable, str(script), str(workers), str(LONGEST_SECONDS)]
        with log.open("w", encoding="utf-8") as errors:
            beside = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder, env=environment()
            )
        try:
            assert beside.stdout is not None
            if beside.stdout.readline().strip() != "trains":
                raise RuntimeError(f"The second job ended with {beside.wait(60)} before it trained: {_last_lines(log)}")
            yield
            if (code := beside.poll()) is not None:
                raise RuntimeError(
                    f"The second job ended with {code} before the measured one, whose times are those of a job without "
                    f"another beside it for a part: {_last_lines(log)}"
                )
        finally:
            beside.terminate()
            try:
                beside.wait(10)
            except subprocess.TimeoutExpired:
                beside.kill()
                beside.wait(10)


def _last_lines(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return "\n".join(lines[-LAST_LINES:]) or "it wrote nothing."
