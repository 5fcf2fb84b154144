"""From an array in memory to a model: k-means on all cores, Flegel's workers beside scikit-learn's Lloyd with threads.

    python -m bench.rivals.in_memory [--points 11000000] [--workers 16] [--k 10] [--rounds 3] [--json FILE]

Both begin with the same centroids. Lloyd ends by its own default tolerance; Flegel ends when its objective is within
0.1 % of Lloyd's inertia. Wall-clock seconds of the whole call, in turn, in one process, after a small job of each that
loads the code; a round of Flegel includes starting workers and handing the points out. Then the same job once more with
its phases timed (`bench.common.phases`), and once more for the memory that it takes beside the array. Asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import flegel
from bench.common.phases import timed_phases
from bench.common.process_memory import most_held
from flegel.algorithms.kmeans import KMeans

COLUMNS = 28
SLACK = 1.001


def points_of(count: int, k: int) -> np.ndarray:
    """Overlapping Gaussian clusters, float32, made in pieces."""
    rng = np.random.default_rng(0)
    centres = (rng.normal(size=(k, COLUMNS)) * 0.8).astype(np.float32)
    rows = np.empty((count, COLUMNS), np.float32)
    for at in range(0, count, 500_000):
        part = rows[at : at + 500_000]
        rng.standard_normal(out=part, dtype=np.float32)
        part += centres[rng.integers(k, size=len(part))]
    return rows


def lloyd(rows: np.ndarray, start: np.ndarray) -> tuple[float, float, int]:
    """Seconds, inertia, iterations."""
    from sklearn.cluster import KMeans as Peer

    began = time.perf_counter()
    found = Peer(len(start), init=start, n_init=1, algorithm="lloyd", copy_x=False).fit(rows)
    return time.perf_counter() - began, float(found.inertia_), int(found.n_iter_)


def ours(rows: np.ndarray, start: np.ndarray, workers: int, target: float) -> tuple[float, Any]:
    began = time.perf_counter()
    found = flegel.run(KMeans(k=len(start), init=start), rows, workers=workers, target=target)
    return time.perf_counter() - began, found


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    for name, default in (("points", 11_000_000), ("workers", 16), ("k", 10), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path, help="where to write all figures")
    options = parser.parse_args(arguments)
    rows = points_of(options.points, options.k)
    start = rows[: options.k].copy()
    few = rows[:50_000]
    ours(few, start, options.workers, SLACK * lloyd(few, start)[1])
    runs = []
    for _ in range(options.rounds):
        theirs, inertia, iterations = lloyd(rows, start)
        mine, found = ours(rows, start, options.workers, SLACK * inertia)
        runs.append(
            {"lloyd_s": theirs, "lloyd_iterations": iterations, "flegel_s": mine, "flegel_training_s": found.seconds,
             "flegel_loading_s": found.load_seconds, "ratio": theirs / mine,
             "objective_over_inertia": found.objective / inertia}
        )  # fmt: skip
        print(", ".join(f"{name} {value:.4g}" for name, value in runs[-1].items()), flush=True)
    with timed_phases() as phases:
        whole, found = ours(rows, start, options.workers, SLACK * inertia)
    with most_held() as most:
        ours(rows, start, options.workers, SLACK * inertia)
    memory = most[0] / rows.nbytes
    phases |= {"loading": found.load_seconds, "training": found.seconds, "whole": whole}
    print("phases: " + ", ".join(f"{name} {value:.3f}" for name, value in phases.items()), flush=True)
    print(f"memory beside the array: {memory:.2f} times its size; workers are {found.placement}")
    ratio = statistics.median(run["ratio"] for run in runs)
    print(
        f"{options.points} x {COLUMNS}, k={options.k}, {options.workers} workers: Lloyd takes {ratio:.2f} times as long"
    )
    if options.json:
        sizes = {name: getattr(options, name) for name in ("points", "workers", "k")}
        report = {
            **sizes,
            "placement": found.placement,
            "median_ratio": ratio,
            "runs": runs,
            "phases": phases,
            "memory": memory,
        }
        options.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
