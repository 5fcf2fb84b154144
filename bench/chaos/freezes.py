"""Real processes frozen, and links between daemons cut: no job is lost, no attempt is wasted, objectives are the same.

    python -m bench.chaos.freezes --cells 40 --partitions 20 --out freezes.jsonl

A cell is a model, a process (master, slave, coordinator, worker, the whole host, pairs) and a length of 1 to 20 s; of
60 s an attempt may be lost, the job not. A partition cuts the link of a slave in one or both directions for 5 to 20 s.
Interrupted, it goes on where its file ends. Exit code 1 where a promise was broken.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.chaos.disturbances import LinkedCluster, freeze, victims
from bench.chaos.result_log import ResultLog
from bench.faults.scenarios import SEVEN
from flegel.algorithms.kmeans import KMeans

WHO = (
    ("master",),
    ("slave",),
    ("coordinator",),
    ("worker",),
    ("host",),
    ("master", "worker"),
    ("slave", "coordinator"),
)
LENGTHS = (1.0, 5.0, 9.0, 20.0, 60.0)
WAYS = (("up",), ("down",), ("up", "down"))
CUTS = (5.0, 10.0, 20.0)


def train(cluster: LinkedCluster, client: Any, model: str, seconds: float) -> str:
    """A job that trains for so long, once it is under way."""
    job = cluster.submit(
        KMeans(k=3, init="first"), "blobs:3000", client, workers=2, sync=model, tolerance=0.0, max_seconds=seconds
    )
    cluster.training(client, job)
    return job


def objective(client: Any, view: Any) -> float:
    return float(client.figures(view)["objective"])


def cell(cluster: LinkedCluster, client: Any, number: int, calm: dict[str, float]) -> dict[str, Any]:
    model, who = SEVEN[number % 7], WHO[number % len(WHO) if number % 2 else number // 7 % len(WHO)]
    seconds = LENGTHS[number // 2 % 4] if number % 10 else LENGTHS[-1]
    job = train(cluster, client, model, 4.0)
    freeze(sorted({pid for each in who for pid in victims(cluster, each)}), seconds)
    return _judged(cluster, client, job, model, f"{'+'.join(who)} {seconds:g} s", seconds <= 20.0, calm)


def partition(cluster: LinkedCluster, client: Any, number: int, calm: dict[str, float]) -> dict[str, Any]:
    model, ways, seconds = SEVEN[number % 7], WAYS[number % 3], CUTS[number // 3 % 3]
    job = train(cluster, client, model, 4.0)
    link = cluster.links[number % len(cluster.links)]
    link.stopped.update(ways)
    time.sleep(seconds)
    link.stopped.clear()
    return _judged(cluster, client, job, model, f"cut {'+'.join(ways)} {seconds:g} s", True, calm)


def _judged(
    cluster: LinkedCluster, client: Any, job: str, model: str, what: str, strict: bool, calm: dict[str, float]
) -> dict[str, Any]:
    view = cluster.wait(client, job, seconds=200.0)
    found = objective(client, view) if view.state == "done" else float("nan")
    holds = view.state == "done" and found <= calm[model] * 1.05 and (view.attempt == 1 or not strict)
    return {
        "model": model, "fault": what, "state": view.state, "attempts": view.attempt, "why": view.reason[:200],
        "objective": found, "calm": calm[model], "holds": holds,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=40)
    parser.add_argument("--partitions", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("chaos/freezes.jsonl"))
    options = parser.parse_args()
    lines = ResultLog(options.out)
    with tempfile.TemporaryDirectory() as folder, LinkedCluster(Path(folder)) as cluster, cluster.client() as client:
        wanted = {SEVEN[n % 7] for n in range(max(options.cells, options.partitions))}
        calm = {}
        for model in sorted(wanted):
            view = cluster.wait(client, train(cluster, client, model, 3.0))
            calm[model] = objective(client, view)
        for kind, count, run in (("cell", options.cells, cell), ("partition", options.partitions, partition)):
            for number in range(count):
                if not lines.done(f"{kind} {number}"):
                    lines.add(f"{kind} {number}", **run(cluster, client, number, calm))
        cluster.no_orphans()
    rows = [row for row in lines.rows if "holds" in row]
    broken = [row["name"] for row in rows if not row["holds"]]
    print(f"{len(rows)} faults, {len(broken)} broke a promise{': ' + ', '.join(broken) if broken else ''}")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
