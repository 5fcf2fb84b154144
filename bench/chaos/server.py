"""Parameter servers killed and frozen at random moments of real jobs: no job hangs, and under bsp no bit changes.

    python -m bench.chaos.server --jobs 20 --kills 5 --freezes 1

Each job trains k-means on three servers with one copy of each slice. Servers are killed (-9) and frozen for two
seconds at random moments; lost ones are replaced while training goes on. θ of each job is compared with that of one
coordinator. Exit code 1 where a job failed or a bit differs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import threading
import time
from typing import Any

import numpy as np

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.core import pytree
from flegel.machine.server.care import FIRST_SERVER

SERVERS = 3


class Tormentor(threading.Thread):
    """Signals one server after the other until the job is over."""

    def __init__(self, cluster: flegel.LocalCluster, draw: random.Random, deeds: list[str], seconds: float) -> None:
        super().__init__(daemon=True)
        self._cluster, self._draw, self._deeds, self._seconds = cluster, draw, deeds, seconds
        self.over = threading.Event()
        self.done: list[str] = []

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
                    self.over.wait(2.0)
                    os.kill(process.pid, signal.SIGCONT)
                self.done.append(deed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--kills", type=int, default=4, help="in each job")
    parser.add_argument("--freezes", type=int, default=1, help="in each job")
    parser.add_argument("--iterations", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    rng = np.random.default_rng(options.seed)
    rows = rng.normal(size=(20_000, 8)) + rng.integers(0, 5, size=(20_000, 1)) * 3.0
    settings: dict[str, Any] = {
        "sync": "bsp", "seed": 1, "tolerance": 0, "max_iterations": options.iterations, "audit": "off",
    }  # fmt: skip
    deeds, bad = {"kill": 0, "freeze": 0}, 0
    with flegel.LocalCluster(2) as cluster:
        wanted = pytree.flatten(cluster.run(KMeans(k=16), rows, **settings).parameter)
        for job in range(options.jobs):
            todo = ["kill"] * options.kills + ["freeze"] * options.freezes
            draw.shuffle(todo)
            tormentor = Tormentor(cluster, draw, todo, 0.8)
            tormentor.start()
            began = time.perf_counter()
            try:
                found = pytree.flatten(cluster.run(KMeans(k=16), rows, servers=SERVERS, **settings).parameter)
                same = all(np.array_equal(a, b) for a, b in zip(wanted, found, strict=True))
            except flegel.FlegelError as error:
                same = False
                print(f"job {job}: {error}")
            tormentor.over.set()
            tormentor.join()
            for deed in tormentor.done:
                deeds[deed] += 1
            bad += not same
            told = "same bits" if same else "DIFFERENT"
            print(f"job {job}: {len(tormentor.done)} faults, {time.perf_counter() - began:.1f} s, {told}", flush=True)
    print(f"{options.jobs} jobs, {deeds['kill']} kills, {deeds['freeze']} freezes, {bad} failed or different")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
