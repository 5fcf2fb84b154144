"""How long does `flegel.run` take for small tables, beside scikit-learn on the same rows?

Wall time of the whole call, the best and the median of several, after one call that compiles and starts workers
(imports excluded). Both with their defaults, except that k-means has 10 clusters. Processor seconds of this process
stand beside it: a busy machine distorts them less. A ratio above 1 says that Flegel takes longer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.lr import LR
from flegel.runtime.processes import host

COLUMNS = 28
GOAL = 1.5


def rows(count: int) -> tuple[Any, Any]:
    """Ten overlapping clusters, and labels that a plane explains in part."""
    rng = np.random.default_rng(0)
    centres = 1.5 * rng.normal(size=(10, COLUMNS))
    features = (centres[rng.integers(0, 10, count)] + rng.normal(size=(count, COLUMNS))).astype(np.float32)
    labels = features @ rng.normal(size=COLUMNS) + rng.logistic(size=count) > 0
    return features, labels.astype(int)


def timed(call: Callable[[], Any], repeat: int) -> tuple[dict[str, float], Any]:
    """Seconds of a call that was made once before."""
    call()
    walls, cpus, last = [], [], None
    for _ in range(repeat):
        wall, cpu = time.perf_counter(), time.process_time()
        last = call()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return {"best_s": min(walls), "median_s": statistics.median(walls), "cpu_s": statistics.median(cpus)}, last


def compare(count: int, repeat: int) -> dict[str, Any]:
    from sklearn.cluster import KMeans as PeerKMeans
    from sklearn.linear_model import LogisticRegression

    features, labels = rows(count)
    cases: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "kmeans": (
            lambda: flegel.run(KMeans(k=10), features),
            lambda: PeerKMeans(10, random_state=0).fit(features),
        ),
        "lr": (lambda: flegel.run(LR(), (features, labels)), lambda: LogisticRegression().fit(features, labels)),
    }
    found: dict[str, Any] = {}
    for name, (ours, theirs) in cases.items():
        own, result = timed(ours, repeat)
        peer, _ = timed(theirs, repeat)
        found[name] = {
            "flegel": {k: round(v, 4) for k, v in own.items()},
            "scikit-learn": {k: round(v, 4) for k, v in peer.items()},
            "ratio": round(own["median_s"] / peer["median_s"], 2),
            "ratio_cpu": round(own["cpu_s"] / peer["cpu_s"], 2),
            "placement": result.placement,
            "workers": result.workers,
            "training_s": round(result.seconds, 4),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="1000,20000,200000,2000000", help="comma-separated numbers of rows")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the summary to this JSON file")
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # scikit-learn tells of iterations that ran out
    before = host.reading()
    figures = {str(count): compare(count, given.repeat) for count in map(int, given.rows.split(","))}
    load = host.load_since(before)
    print("rows      algorithm  flegel ms  scikit-learn ms  ratio  processor ratio  where")
    for count, cases in figures.items():
        for name, case in cases.items():
            own, peer = (case[who]["median_s"] * 1e3 for who in ("flegel", "scikit-learn"))
            where = f"{case['workers']} {case['placement']}"
            print(
                f"{count:9s} {name:9s} {own:10.1f} {peer:16.1f} {case['ratio']:6.2f} {case['ratio_cpu']:16.2f}  {where}"
            )
    print(f"goal: ratio at most {GOAL}, below 1 from 200,000 rows on; {load.disturbance or 'machine was quiet'}")
    if given.out:
        summary = {
            "title": "flegel.run beside scikit-learn on small tables, whole call, seconds",
            "command": f"python -m bench.micro.small_jobs --rows {given.rows} --repeat {given.repeat}",
            "commit": host.commit(),
            "machine": ", ".join(f"{v}" for v in host.machine().values()) + f" ({load.disturbance or 'quiet'})",
            "figures": figures,
        }
        given.out.write_text(json.dumps(summary, indent=1) + "\n")


if __name__ == "__main__":
    main()
