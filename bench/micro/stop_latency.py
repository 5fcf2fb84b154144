"""How fast a kernel obeys: from raising the stop flag to the kernel's return, for k-means with d=28 and k=10.

The loop compiled from the per-point hooks, and the hand-written kernel, each in a second thread as in a worker.
Prints a table of microseconds; --out writes the same as JSON.

    python -m bench.micro.stop_latency --stops 2000
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from flegel.algorithm import Algorithm, Sample
from flegel.algorithms.kmeans import KMeans
from flegel.core import pytree
from flegel.core.shard import make_shard
from flegel.core.stop_flag import new_flag
from flegel.runtime import clock
from flegel.runtime.backends.numba.kernels import build_kernel

ROWS, COLUMNS, K = 400_000, 28, 10


def prepare(algorithm: Algorithm, rows: np.ndarray, layout: str) -> tuple[str, Any]:
    """The kernel's kind, and a function that runs it until the flag is up."""
    sample = Sample(rows, None, len(rows), COLUMNS)
    parameter = pytree.as_doubles(algorithm.initParameter(sample, np.random.default_rng(0)))
    zero = pytree.zeros_like(algorithm.initAggregator(sample, parameter))
    state = algorithm.initState(len(rows), COLUMNS, np.random.default_rng(0))
    share = make_shard(rows, None, state, layout)
    built = build_kernel(algorithm, share, parameter, zero)

    def run(flag: np.ndarray) -> None:
        at = 0
        while not flag[0]:
            at = built.kernel(share, parameter, zero, at, share.points, 0, flag) % share.points

    return built.kind, run


def reactions(run: Any, stops: int) -> np.ndarray:
    """Seconds from flag to return, stopped at random moments."""
    flag, go, returned = new_flag(), threading.Event(), threading.Event()
    ended = [0.0]

    def trainer() -> None:
        for _ in range(stops):
            go.wait()
            go.clear()
            run(flag)
            ended[0] = clock.now()
            returned.set()

    thread = threading.Thread(target=trainer, daemon=True)
    thread.start()
    found = np.empty(stops)
    pauses = np.random.default_rng(0).uniform(0.5e-3, 3e-3, size=stops)
    for i in range(stops):
        flag[0] = 0
        go.set()
        time.sleep(pauses[i])
        asked = clock.now()
        flag[0] = 1
        returned.wait()
        returned.clear()
        found[i] = ended[0] - asked
    thread.join()
    return found[stops // 20 :]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--stops", type=int, default=1000)
    options.add_argument("--out", type=Path, help="write the figures as JSON")
    given = options.parse_args()
    rng = np.random.default_rng(1)
    found = {}
    print(f"{os.cpu_count()} cores; microseconds from flag to return, d={COLUMNS}, k={K}")
    print(f"{'kernel':>24} {'p50':>8} {'p90':>8} {'p99':>8}")
    for dtype in ("float32", "float64"):
        rows = rng.normal(size=(ROWS, COLUMNS)).astype(dtype)
        for layout in ("rows", "tiles"):
            kind, run = prepare(KMeans(k=K, init="first"), rows, layout)
            p50, p90, p99 = np.percentile(reactions(run, given.stops), [50, 90, 99]) * 1e6
            name = f"{kind} {dtype}"
            found[name] = {"p50_us": p50, "p90_us": p90, "p99_us": p99, "stops": given.stops}
            print(f"{name:>24} {p50:8.0f} {p90:8.0f} {p99:8.0f}")
    if given.out:
        machine = {"cores": os.cpu_count(), "machine": platform.machine()}
        given.out.write_text(json.dumps({**machine, "reaction": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
