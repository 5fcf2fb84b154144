"""Does `fsp` end in worse optima than `bsp`? Pairs of runs from the same random starts, on six tables.

    python -m bench.figures.optima --workers 16 --runs 200 --out optima.json

k-means, mixtures and fuzzy c-means have many optima. For each table and start both models train until they have
converged; counted are the runs in which `fsp` ends more than 1 % worse, and more than 1 % better. Noise makes both
counts alike; updates that rest on too few points make the first one larger. `--busy N` starts N processes that
compute beside, so that workers start and run unevenly.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import flegel
from flegel import Algorithm, LocalCluster
from flegel.algorithms.fcm import FCM
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans import KMeans

APART = 0.01  # relative: optima that differ by less count as the same


def tables(rows: int) -> dict[str, tuple[np.ndarray, type[Algorithm], int]]:
    """By name: rows, algorithm and k."""
    rng = np.random.default_rng(7)
    means = rng.normal(scale=2.0, size=(12, 8))
    clouds = means[rng.integers(12, size=rows)] + rng.normal(size=(rows, 8))
    tails = rng.standard_t(2.0, size=(rows, 6))
    smooth = rng.normal(size=(rows, 28)) * np.geomspace(1.5, 0.2, 28)
    outliers = clouds.copy()
    outliers[rng.integers(rows, size=rows // 500)] *= 20.0
    return {
        "kmeans clouds": (clouds, KMeans, 12),
        "kmeans tails": (tails, KMeans, 10),
        "kmeans smooth": (smooth, KMeans, 10),
        "kmeans outliers": (outliers, KMeans, 12),
        "gmm clouds": (clouds, GMM, 8),
        "fcm clouds": (clouds, FCM, 8),
    }


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that compute beside."""
    started = [multiprocessing.get_context("spawn").Process(target=_spin, daemon=True) for _ in range(processes)]
    for process in started:
        process.start()
    try:
        yield
    finally:
        for process in started:
            process.terminate()


def _spin() -> None:
    while True:
        sum(range(100_000))


def pair(
    make: type[Algorithm], k: int, rows: np.ndarray, start: np.ndarray, model: str, cluster: LocalCluster
) -> float:
    """By how much, relatively, the model ends worse than bsp from the same start."""
    ends = {}
    for sync in ("bsp", model):
        result = flegel.run(make(k=k, init=start), rows, sync=sync, cluster=cluster, max_iterations=3000)
        assert result.objective is not None
        ends[sync] = -result.objective if make.learning.maximize else result.objective
    return float((ends[model] - ends["bsp"]) / abs(ends["bsp"]))


def measure(given: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    chosen = {name: case for name, case in tables(given.rows).items() if given.only in name}
    with LocalCluster(given.workers) as cluster, busy(given.busy):
        for name, (rows, make, k) in chosen.items():
            rng = np.random.default_rng(given.seed)
            apart = []
            for _ in range(max(given.runs // len(chosen), 1)):
                start = rows[rng.choice(len(rows), k, replace=False)]
                apart.append(pair(make, k, rows, start, given.model, cluster))
            worse, better = sum(a > APART for a in apart), sum(a < -APART for a in apart)
            found[name] = {"runs": len(apart), "worse": worse, "better": better, "worst": max(apart)}
            print(f"{name:16s} {len(apart)} pairs: {worse} worse, {better} better, worst {max(apart):+.3%}", flush=True)
    worse, better = (sum(each[side] for each in found.values()) for side in ("worse", "better"))
    print(f"all: {worse} worse, {better} better; {'fine' if worse <= better + 2 else 'too many worse'}")
    return {"model": given.model, "busy": given.busy, "tables": found, "worse": worse, "better": better}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--runs", type=int, default=200, help="pairs over all tables")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--model", default="fsp")
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--only", default="", help="tables whose name holds this")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    record = measure(given)
    if given.out:
        given.out.write_text(json.dumps(record, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
