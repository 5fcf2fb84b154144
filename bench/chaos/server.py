"""Parameter servers killed and frozen at random moments of real jobs: no job hangs, and under bsp no bit changes.

    python -m bench.chaos.server --kills 100 --freezes 30
    python -m bench.chaos.server --copies                          what one copy of each slice costs a round

Each job trains k-means on three servers with one copy of each slice. Servers are killed (-9) and frozen at random
moments, five faults a job. Lost ones are replaced while training goes on: each replacement is a join, with copies in
the background first. Half of the freezes last longer than `worker_timeout`, so that a server wakes after it was
replaced. θ of each job is compared with that of one coordinator. Exit code 1 where a job failed or a bit differs.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import flegel
from bench.common.large_model import LargeModel
from flegel.algorithms.kmeans import KMeans
from flegel.core import pytree
from flegel.machine.server.care import FIRST_SERVER

SERVERS = 3
FAULTS = 5  # in a job
TIMEOUT = 3.0  # seconds of silence after which a server is lost
FREEZES = (1.0, 5.0)  # seconds: shorter and longer than that


class Tormentor(threading.Thread):
    """Signals one server after the other until the job is over."""

    def __init__(self, cluster: flegel.LocalCluster, draw: random.Random, deeds: list[str], seconds: float) -> None:
        super().__init__(daemon=True)
        self._cluster, self._draw, self._deeds, self._seconds = cluster, draw, deeds, seconds
        self.over = threading.Event()
        self.done: Counter[str] = Counter()

    def run(self) -> None:
        for deed in self._deeds:
            if self.over.wait(self._draw.uniform(0.05, self._seconds)):
                return
            process: Any = None
            while process is None:  # not started yet, or being replaced
                if self.over.wait(0.02):
                    return
                process = self._cluster.registry.processes.get(FIRST_SERVER + self._draw.randrange(SERVERS))
            with contextlib.suppress(ProcessLookupError):
                if deed == "kill":
                    os.kill(process.pid, signal.SIGKILL)
                else:
                    os.kill(process.pid, signal.SIGSTOP)
                    self.over.wait(self._draw.choice(FREEZES))
                    os.kill(process.pid, signal.SIGCONT)
                self.done[deed] += 1


def torment(options: argparse.Namespace) -> dict[str, Any]:
    """Jobs until so many servers were killed and frozen."""
    draw = random.Random(options.seed)
    rng = np.random.default_rng(options.seed)
    rows = rng.normal(size=(20_000, 8)) + rng.integers(0, 5, size=(20_000, 1)) * 3.0
    settings: dict[str, Any] = {
        "sync": "bsp", "seed": 1, "tolerance": 0, "max_iterations": options.iterations, "audit": "off",
    }  # fmt: skip
    sums: Counter[str] = Counter()
    recoveries: list[float] = []
    began = time.perf_counter()
    with flegel.LocalCluster(2) as cluster:
        wanted = pytree.flatten(cluster.run(KMeans(k=16), rows, **settings).parameter)
        while sums["kill"] < options.kills or sums["freeze"] < options.freezes:
            left = ["kill"] * (options.kills - sums["kill"]) + ["freeze"] * (options.freezes - sums["freeze"])
            tormentor = Tormentor(cluster, draw, draw.sample(left, min(FAULTS, len(left))), 0.8)
            tormentor.start()
            try:
                result = cluster.run(KMeans(k=16), rows, servers=SERVERS, worker_timeout=TIMEOUT, **settings)
                found = pytree.flatten(result.parameter)
                same = all(np.array_equal(a, b) for a, b in zip(wanted, found, strict=True))
                sums["joins"] += result.servers["joined"]
                sums["lost"] += result.servers["lost"]
                recoveries += result.servers["recoveries"]
            except flegel.FlegelError as error:
                same = False
                print(f"job {sums['jobs']}: {error}", flush=True)
            tormentor.over.set()
            tormentor.join()
            sums.update(tormentor.done)
            sums["jobs"] += 1
            sums["failed or different"] += not same
            if time.perf_counter() - began > options.seconds:
                break
    return {
        **sums, "seconds": round(time.perf_counter() - began), "recovery_median": round(median(recoveries or [0.0]), 3),
        "recovery_longest": max(recoveries, default=0.0),
    }  # fmt: skip


def copies(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of a round with and without a copy of each slice, jobs in turn; θ has 8 MB, and there is hardly any work
    besides: the copies have nothing to hide behind."""
    rows = np.random.default_rng(0).normal(size=(4, 2))
    found: dict[int, list[float]] = {0: [], 1: []}
    with flegel.LocalCluster(4) as cluster:
        for _ in range(options.repeats):
            for replicas, rounds in found.items():
                result = cluster.run(
                    LargeModel(parameters=1_000_000), rows, servers=SERVERS, replicas=replicas, sync="bsp", seed=1,
                    tolerance=0, max_iterations=10, audit="off",
                )  # fmt: skip
                ends = [row["seconds"] for row in result.rows]
                rounds += [b - a for a, b in itertools.pairwise(ends)]
    without, with_one = (median(found[k]) for k in (0, 1))
    cost = round(with_one / without - 1, 4)
    return {"round_without_copies": round(without, 4), "round_with_one": round(with_one, 4), "cost": cost}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--freezes", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=400, help="of each job")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no job after so long")
    parser.add_argument("--copies", action="store_true", help="measure what a copy of each slice costs instead")
    parser.add_argument("--repeats", type=int, default=3, help="with --copies: jobs of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = copies(options) if options.copies else torment(options)
    print(json.dumps(found))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 1 if found.get("failed or different") else 0


if __name__ == "__main__":
    sys.exit(main())
