# ruff: noqa: E402
"""How fast is a user's own class? K-means written per point and compiled, against the hand-tuned block kernel.

    python -m bench.micro.user_class [--points 40000] [--columns 28] [--k 10] [--rounds 21] [--json user_class.json]

All implementations take turns in one process on one thread, over float32 rows that no longer change clusters; figures
are CPU nanoseconds a point, medians and minima. `share` is the ratio of the two times. Asserts nothing.
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"  # before any of these libraries starts its threads

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from flegel.algorithm import Algorithm, Sample
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.points import squared_distance
from flegel.core import pytree
from flegel.core.shard import make_shard
from flegel.core.stop_flag import new_flag
from flegel.declarations.kernels import Kernels
from flegel.runtime.backends.numba.kernels import build_kernel

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs" / "examples"))
from clusters import Clusters, Move


class FullTheta(Clusters):
    kernels = Kernels(narrow_parameter=False)


class RowByRow(Clusters):
    def updateDataPoint(self, dataPoint, parameter, iterationNum):
        x, last = dataPoint.features, dataPoint.state[0]
        best, least = 0, np.inf
        for j in range(self.k):
            distance = squared_distance(x, parameter[j])
            if distance < least:
                best, least = j, distance
        dataPoint.state[0] = best
        return Move(x, last, best)


class PlainLoops(Clusters):
    kernels = Kernels(narrow_parameter=False)

    def updateDataPoint(self, dataPoint, parameter, iterationNum):
        x, last = dataPoint.features, dataPoint.state[0]
        best, least = 0, np.inf
        for j in range(self.k):
            distance = 0.0
            for t in range(x.shape[0]):
                difference = x[t] - parameter[j, t]
                distance += difference * difference
            if distance < least:
                best, least = j, distance
        dataPoint.state[0] = best
        return Move(x, last, best)


def prepare(algorithm: Algorithm, rows: np.ndarray) -> tuple[Callable[[], float], float, str]:
    """A function that times one pass, after the pass in which all points enter; CPU seconds to build it; its kind."""
    sample = Sample(rows, None, *rows.shape)
    parameter = pytree.as_doubles(algorithm.initParameter(sample, np.random.default_rng(0)))
    total = pytree.zeros_like(algorithm.initAggregator(sample, parameter))
    share = make_shard(rows, None, algorithm.initState(*rows.shape, np.random.default_rng(0)), algorithm.kernels.layout)
    flag = new_flag()
    begin = time.process_time()
    built = build_kernel(algorithm, share, parameter, total)
    building = time.process_time() - begin

    def one_pass() -> float:
        begin = time.process_time()
        built.kernel(share, parameter, total, 0, share.points, 0, flag)
        return time.process_time() - begin

    one_pass()
    return one_pass, building, built.kind


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    for name, default in (("points", 40_000), ("columns", 28), ("k", 10), ("rounds", 21)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path, help="where to write all figures")
    options = parser.parse_args(arguments)
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(options.k, options.columns))
    rows = centres[rng.integers(options.k, size=options.points)] + rng.normal(size=(options.points, options.columns))
    rows = rows.astype(np.float32)
    implementations: dict[str, Algorithm] = {
        "block kernel": KMeans(k=options.k),
        "nearest": Clusters(k=options.k),
        "nearest, float64 θ": FullTheta(k=options.k),
        "squared_distance": RowByRow(k=options.k),
        "plain loops": PlainLoops(k=options.k),
    }
    ready = {name: prepare(algorithm, rows) for name, algorithm in implementations.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ready}
    for _ in range(options.rounds):
        for name, (one_pass, _, _) in ready.items():
            seconds[name].append(one_pass())
    print(f"{platform.machine()}: k={options.k}, {options.columns} columns, float32, ns a point")
    print(f"  {'':22s} {'median':>8s} {'least':>8s} {'share':>7s} {'build s':>8s}")
    results: dict[str, Any] = {}
    for name, (_, building, kind) in ready.items():
        median, least = (f(seconds[name]) * 1e9 / options.points for f in (statistics.median, min))
        share = statistics.median(seconds["block kernel"]) / statistics.median(seconds[name])
        results[name] = {"median_ns": median, "least_ns": least, "share": share, "build_s": building, "kind": kind}
        print(f"  {name:22s} {median:8.1f} {least:8.1f} {share:7.0%} {building:8.2f}  {kind}")
    if options.json:
        setting = {n: getattr(options, n) for n in ("points", "columns", "k", "rounds")}
        options.json.write_text(json.dumps({"machine": platform.machine(), **setting, "results": results}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
