"""Time to the same quality on starts that nobody chose: k-means to within 0.1 % of Lloyd's end, beside scikit-learn.

    python -m bench.rivals.quality [--points 300000] [--k 100] [--starts 16] [--threads 1] [--out quality.json]

Seeds are drawn when the program starts and recorded; `--seeds` repeats a run. Each seed makes other rows and another
start, from which both train. Lloyd runs to its end by scikit-learn's default tolerance; the target is 0.1 % above that.
scikit-learn is then timed for as many iterations as it needs to the target, Flegel for a job with this target, both
with the same number of threads, in turn. Reported: median and worst of the ratio of times, wall-clock and processor
time of the whole call, and every run that misses its target; one that does so and still says that it converged is
counted as silent, and the command then exits with 1. `--seconds` ends the program before it begins a start that would
not fit any more.
"""

from __future__ import annotations

import argparse
import json
import secrets
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import flegel
from bench.micro.kernels import COLUMNS, overlapping
from flegel.algorithm import Sample
from flegel.algorithms.kmeans import KMeans

SLACK = 1.001
APART = 0.8  # distance of the true centres, as in docs/results/kernels.md
SAMPLE_ROWS = 50_000  # from which a start is chosen
MOST_ITERATIONS = 300  # of Lloyd
SMALL_ROWS = 20_000  # of the job by which both load their code
KINDS = ("wall", "processor")


def timed(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """What it returns, and its seconds on the wall and of processors (all threads of this process)."""
    wall, used = time.perf_counter(), time.process_time()
    found = work()
    return found, {"wall": time.perf_counter() - wall, "processor": time.process_time() - used}


def lloyd(rows: np.ndarray, start: np.ndarray, iterations: int, tolerance: float) -> Any:
    from sklearn.cluster import KMeans as Peer

    peer = Peer(len(start), init=start, n_init=1, max_iter=iterations, tol=tolerance, algorithm="lloyd")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it has not converged within these iterations
        return peer.fit(rows)


def needed_iterations(rows: np.ndarray, start: np.ndarray, target: float, most: int) -> int:
    """Iterations after which Lloyd is within the target, by bisection: its inertia never grows."""
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if lloyd(rows, start, middle, 0.0).inertia_ <= target else (middle, high)
    return high


def inertia(rows: np.ndarray, centroids: np.ndarray) -> float:
    """In float64, block by block: what the model is worth, whatever anybody says of it."""
    total, half = 0.0, 0.5 * (centroids**2).sum(axis=1)
    for at in range(0, len(rows), 16_384):
        block = rows[at : at + 16_384].astype(np.float64)
        nearest = centroids[(half - block @ centroids.T).argmin(axis=1)]
        total += float(((block - nearest) ** 2).sum())
    return total


def one_start(seed: int, points: int, k: int, threads: int) -> dict[str, Any]:
    from threadpoolctl import threadpool_limits

    rows = overlapping(points, k, np.float32, seed, APART)
    sample = Sample(rows[:SAMPLE_ROWS], None, points, COLUMNS)
    start = np.asarray(KMeans(k=k).initParameter(sample, np.random.default_rng(seed)).centroids, np.float32)
    end = lloyd(rows, start, MOST_ITERATIONS, 1e-4)  # with all cores: nothing is timed yet
    target = SLACK * inertia(rows, end.cluster_centers_.astype(np.float64))
    needed = needed_iterations(rows, start, target, int(end.n_iter_))
    with threadpool_limits(threads):
        _, theirs = timed(lambda: lloyd(rows, start, needed, 0.0))
    found, ours = timed(lambda: flegel.run(KMeans(k=k, init=start), rows, threads=threads, target=target))
    true = inertia(rows, np.asarray(found.parameter.centroids, np.float64))
    missed = true > target * (1.0 + 1e-6)  # float32 rows: sums differ in their last digits
    return {
        "seed": seed, "lloyd_iterations": int(end.n_iter_), "needed_iterations": needed,
        "passes": found.rows[-1]["passes"][0], "outcome": found.outcome, "reason": found.reason,
        "inertia_over_target": true / target, "missed": missed, "silent": bool(missed and found.converged),
        "scikit_learn": theirs, "flegel": {**ours, "training": found.seconds},
        "ratio": {kind: theirs[kind] / ours[kind] for kind in KINDS},
    }  # fmt: skip


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """A run that missed its target has no ratio: it counts as the worst."""
    reached = [run for run in runs if not run["missed"]]
    ratios = {kind: sorted(run["ratio"][kind] for run in reached) for kind in KINDS}
    every = {kind: [0.0] * (len(runs) - len(reached)) + ratios[kind] for kind in KINDS}
    return {
        "starts": len(runs), "reached": len(reached), "silent": sum(run["silent"] for run in runs),
        "median_ratio": {kind: statistics.median(every[kind]) for kind in KINDS},
        "worst_ratio": {kind: every[kind][0] for kind in KINDS},
        "worst_ratio_of_those_that_reached": {kind: (ratios[kind] or [None])[0] for kind in KINDS},
    }  # fmt: skip


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    for name, default in (("points", 300_000), ("k", 100), ("starts", 16), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seeds", help="those of an earlier run, with commas between; drawn anew by default")
    parser.add_argument("--seconds", type=float, default=220.0, help="after which no further start is begun")
    parser.add_argument("--out", type=Path, help="where to write all figures as JSON")
    options = parser.parse_args(arguments)
    drawn = [secrets.randbits(31) for _ in range(options.starts)]
    seeds = [int(word) for word in options.seeds.split(",")] if options.seeds else drawn
    began, runs, longest = time.monotonic(), [], 0.0
    one_start(seeds[0], min(SMALL_ROWS, options.points), options.k, options.threads)
    for seed in seeds:
        if runs and time.monotonic() - began + longest > options.seconds:
            print(f"{len(seeds) - len(runs)} starts are left out: {options.seconds:g} s are over", flush=True)
            break
        entered = time.monotonic()
        runs.append(run := one_start(seed, options.points, options.k, options.threads))
        longest = max(longest, time.monotonic() - entered)
        told = ", ".join(f"{kind} {ratio:.1f}" for kind, ratio in run["ratio"].items())
        print(f"seed {seed}: ratio {told}; {run['passes']:.1f} passes, {run['outcome']}: {run['reason']}", flush=True)
    record = {
        **{name: getattr(options, name) for name in ("points", "k", "threads")},
        "summary": summary(runs), "seeds": seeds, "runs": runs,
    }  # fmt: skip
    print(json.dumps(record["summary"], indent=1))
    if options.out:
        options.out.write_text(json.dumps(record, indent=1), encoding="utf-8")
    return 1 if record["summary"]["silent"] else 0  # type: ignore[index]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
