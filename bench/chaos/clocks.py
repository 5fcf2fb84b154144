"""Clocks of real daemons are set while a job trains: by an hour, forwards, backwards, and there and back.

    python -m bench.chaos.clocks --out clocks.jsonl        needs libfaketime (apt-get install faketime)
        --cells 12                                         the first twelve only

Master and slaves run under libfaketime, each with a clock of its own; the processes of a job have the clock of their
slave. With `wall` only the time of day is set, as an administrator or a time server does it; with `every` the monotonic
clock jumps, too, forwards only: the system promises that it never goes back. A cell is a model, whose clock, how it is
set, and which clocks. Judged: the job ends in time and in its first attempt, a pass over all points at its end says the
objective that its statistics say, which is near that of a calm job, and the cluster takes the next job. Interrupted, it
goes on where its file ends. Exit code 1 where a promise was broken.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

from bench.chaos.result_log import ResultLog
from flegel.algorithms.kmeans import KMeans
from tests.cluster.daemon_cluster import DaemonCluster

LIBRARIES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib/faketime/libfaketimeMT.so.1")
MODELS = ("bsp", "fsp", "ssp", "psp")
TRAINED = (
    4.0  # seconds by the job's own clock: one whose clock jumps by an hour is over at once, and k-means done by then
)
WHOSE = (("master",), ("s0",), ("s1",), ("master", "s0", "s1"))
STEPS = {"ahead": (3600,), "back": (-3600,), "ahead and back": (3600, 0), "back and ahead": (-3600, 0)}
"""Seconds by which clocks are wrong, one step after the other."""
BETWEEN = 1.5  # seconds between two steps; clocks look at their files once a second
NEAR = 1.2  # times the objective of a calm job: one that is over at once has made fewer passes
LONGEST = 90.0  # seconds after which a job hangs; a calm one takes about five


def library() -> str:
    """Where libfaketime is; empty where it is not."""
    found = [path for pattern in LIBRARIES for path in Path("/").glob(pattern[1:])]
    return str(found[0]) if found else ""


class ClockedCluster(DaemonCluster):
    """Every daemon has a clock that can be set."""

    def __init__(self, folder: Path, library: str, monotonic: bool) -> None:
        super().__init__(folder)
        self._true = dict(self.environment)
        self._faked = {"LD_PRELOAD": library, "FAKETIME_CACHE_DURATION": "1"}
        if not monotonic:
            self._faked |= {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"}

    def start_daemon(self, what: str, *words: str) -> subprocess.Popen[bytes]:
        self.set(what, 0)
        self.environment = {**self._true, **self._faked, "FAKETIME_TIMESTAMP_FILE": str(self._clock(what))}
        try:
            return super().start_daemon(what, *words)
        finally:
            self.environment = self._true

    def _clock(self, what: str) -> Path:
        return self.folder / f"{what}.clock"

    def set(self, what: str, seconds: int) -> None:
        """From now on this daemon's clock, and that of its jobs, is so wrong. Written whole: it is read at any time."""
        scratch = self._clock(what).with_suffix(".part")
        scratch.write_text(f"{seconds:+d}\n")
        scratch.replace(self._clock(what))


def train(cluster: ClockedCluster, client: Any, model: str) -> str:
    return cluster.submit(
        KMeans(k=3), "blobs:3000", client, workers=2, sync=model, tolerance=0.0,
        max_seconds=TRAINED,
    )  # fmt: skip


def cell(
    cluster: ClockedCluster, client: Any, model: str, whose: tuple[str, ...], steps: tuple[int, ...], calm: float
) -> dict[str, Any]:
    job = train(cluster, client, model)
    cluster.training(client, job)
    began, during = time.monotonic(), 0
    for seconds in steps:
        for daemon in whose:
            cluster.set(daemon, seconds)
        during += client.job(job).state == "running"
        time.sleep(BETWEEN)
    try:
        view = cluster.wait(client, job, seconds=LONGEST)
        took, state, attempt, why = time.monotonic() - began, view.state, view.attempt, view.reason[:200]
        figures = client.figures(view) if state == "done" else {}
    except AssertionError:
        view = client.job(job)
        took, state, attempt, why = LONGEST, "hangs", view.attempt, f"{view.state}: {view.reason[:200]}"
        figures = {}
        client.cancel(job)
    for daemon in whose:
        cluster.set(daemon, 0)
    found, audit = float(figures.get("objective", "nan")), figures.get("audit") or {}
    return {
        "model": model, "seconds": round(took, 1), "state": state, "attempts": attempt, "why": why,
        "steps_while_it_ran": during, "objective": found, "calm": calm,
        "problems": audit.get("problems"),
        "holds": state == "done" and attempt == 1 and found <= NEAR * calm and audit.get("problems") == [],
    }  # fmt: skip


def cells(monotonic: bool) -> list[tuple[str, str, tuple[str, ...], str]]:
    """Name, model, whose clock and how, models in turn."""
    ways = [way for way in STEPS if not monotonic or way == "ahead"]
    models, clocks = list(MODELS), "every" if monotonic else "wall"
    turns = product(ways, WHOSE)
    chosen = [(model, whose, way) for at, (way, whose) in enumerate(turns) for model in _two(models, at)]
    return [(f"{clocks} {model} {'+'.join(whose)} {way}", model, whose, way) for model, whose, way in chosen]


def _two(models: list[str], at: int) -> list[str]:
    return [models[at % len(models)], models[(at + 1) % len(models)]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=1000, help="so many at most, of each kind of clock")
    parser.add_argument("--out", type=Path, default=Path("chaos/clocks.jsonl"))
    options = parser.parse_args()
    if not (found := library()):
        parser.error("libfaketime is not installed; on Debian and Ubuntu: apt-get install faketime.")
    lines = ResultLog(options.out)
    for monotonic in (False, True):
        with (
            tempfile.TemporaryDirectory() as folder,
            ClockedCluster(Path(folder), found, monotonic) as cluster,
            cluster.client() as client,
        ):
            calm: dict[str, float] = {}
            for name, model, whose, way in cells(monotonic)[: options.cells]:
                if lines.done(name):
                    continue
                if model not in calm:
                    view = cluster.wait(client, train(cluster, client, model), "done")
                    calm[model] = float(client.figures(view)["objective"])
                lines.add(name, **cell(cluster, client, model, whose, STEPS[way], calm[model]))
            cluster.no_orphans()
    rows = [row for row in lines.rows if "holds" in row]
    broken = [row["name"] for row in rows if not row["holds"]]
    print(f"{len(rows)} cells, {len(broken)} broke a promise{': ' + ', '.join(broken) if broken else ''}")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
