"""Poisonous user code, kind by kind, on a real cluster: does the job fail with its cause, and does anybody else notice?

    python -m bench.chaos.poison [--kinds 60] [--out FILE]

One neighbour trains all the time; after each kind it must still train in its first attempt, both slaves must live, and
no process of the job may be left. Resumable: kinds that the output file has are not tried again.

`seconds` is from submission to FAILED. Code that fails by itself has 10 seconds for that. Code that never returns is
ended by a limit that was configured; there the 10 seconds count from the submission plus that `limit`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

from bench.chaos.result_log import ResultLog, quantile
from flegel.algorithms.kmeans import KMeans
from tests.cluster.daemon_cluster import DaemonCluster
from tests.cluster.poison import DEEDS, EXPECTED, HOOKS, LIMITS, LIMITS_OF_LOOPS, poison

WORKERS_HOOKS = ("initState", "updateDataPoint", "aggregate")
PROMISE = 10.0
SILENCE = 3 * 10.0
"""A worker that says nothing is lost after --worker-timeout; the third in a row that loads its share ends the job."""


def limit_of(hook: str, deed: str, where: str) -> float:
    """Seconds until a limit strikes that the job was given; none for code that fails by itself."""
    if deed == "hog" and where == "worker":
        return SILENCE
    return LIMITS_OF_LOOPS[1] if deed == "loop" else LIMITS[1] if deed == "hog" else 0.0


def kinds() -> list[tuple[str, str, str]]:
    """The five classic deeds in every hook; the odd ones in one hook each; the classics on a worker alone."""
    classic = ("raise", "exit", "segfault", "loop", "bomb")
    found = [(hook, deed, "anywhere") for hook, deed in product(HOOKS, classic)]
    found += [("initParameter", deed, "anywhere") for deed in DEEDS if deed not in classic]
    found += [(hook, deed, "worker") for hook, deed in product(WORKERS_HOOKS, classic)]
    found += [("initState", "hog", "worker")]
    found += [("updateDataPoint", deed, "worker") for deed in ("abort", "system-exit", "daemon", "threads")]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("chaos/poison.jsonl"))
    options = parser.parse_args()
    lines = ResultLog(options.out)
    with tempfile.TemporaryDirectory() as folder, DaemonCluster(Path(folder)) as cluster, cluster.client() as client:
        neighbour = cluster.submit(
            KMeans(k=4, init="first"), "blobs:4000", client, workers=1, tolerance=0.0, max_seconds=1e6
        )
        cluster.training(client, neighbour)
        for kind in kinds()[: options.kinds]:
            name = " ".join(kind)
            if lines.done(name):
                continue
            began = time.monotonic()
            job = client.submit(*poison(*kind))
            view = client.job(job)
            while view.state in ("queued", "running") and time.monotonic() - began < 120:
                time.sleep(0.1)
                view = client.job(job)
            seconds = (view.ended or view.submitted + 120) - view.submitted
            if view.state in ("queued", "running"):
                client.cancel(job)
            beside = client.job(neighbour)
            try:
                cluster.until(lambda: len(cluster.processes()) <= 2, "only the neighbour is left", 20.0)
                orphans = 0
            except AssertionError:
                orphans = len(cluster.processes()) - 2
            lines.add(
                name, state=view.state, why=view.reason[:200], seconds=round(seconds, 2), limit=limit_of(*kind),
                cause=EXPECTED[kind[1]] in view.reason, orphans=orphans,
                neighbour=beside.state == "running" and beside.attempt == 1,
                slaves=sum(p.poll() is None for p in cluster.slaves.values()), load=round(os.getloadavg()[0], 1),
            )  # fmt: skip
            for slave in [name for name, process in cluster.slaves.items() if process.poll() is not None]:
                print(cluster.logs(), flush=True)
                cluster.slaves.pop(slave)
                cluster.start_slave(slave)
        client.cancel(neighbour)
        cluster.no_orphans()
    rows = lines.rows
    failed = [r for r in rows if r["state"] == "failed"]
    times = [r["seconds"] - r["limit"] for r in failed]
    good = [r for r in failed if r["cause"] and r["neighbour"] and not r["orphans"] and r["slaves"] == 2]
    in_time = [seconds for seconds in times if seconds <= PROMISE]
    print(
        f"{len(rows)} kinds: {len(failed)} failed as they should, {sum(r['cause'] for r in rows)} with the cause, "
        f"seconds (beyond limits) p50 {quantile(times, 0.5):.1f} p90 {quantile(times, 0.9):.1f} "
        f"max {max(times, default=0):.1f}, {len(in_time)} within {PROMISE:.0f} s, "
        f"neighbour unharmed {sum(r['neighbour'] for r in rows)}, "
        f"orphans {sum(r['orphans'] for r in rows)}"
    )
    sys.exit(not len(rows) == len(good) == len(in_time))


if __name__ == "__main__":
    main()
