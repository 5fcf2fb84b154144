# ruff: noqa: E402
"""Where does a pass of k-means go? Its block kernel by where the points lie, how many change, and in which shape.

    python -m bench.micro.kmeans_kernel [--points 1000000] [--rounds 5] [--shapes] [--json kmeans_kernel.json]

CPU nanoseconds a point, medians of rounds in which all cases take turns, one thread, 28 columns: points in the second
and third cache level and in memory where none changes its cluster; in memory where some do; the first pass, in which
all enter; with `--shapes`, other register tiles. Asserts nothing.
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

from bench.micro.kernels import NEVER, Training, overlapping
from flegel.algorithms.kmeans import KMeans, kernel
from flegel.algorithms.simd.registers import REGISTERS, register_lanes, tile_shape

IN_CACHE = {"second level": 4096, "third level": 40_960}
SHARES = (0.02, 0.05, 0.1)
OTHERS = {10: ((1, 10), (2, 10), (4, 5)), 100: ((1, 25), (2, 10), (4, 5))}  # registers of points, rows of a group
Kernel = Callable[[int], Any]


class Cases:
    """One kernel, and states of its points to begin from."""

    def __init__(self, points: int, k: int, dtype: str) -> None:
        self.k, self.points = k, points
        self.training = Training(KMeans(k=k, init="first"), overlapping(points, k, dtype))
        for _ in range(3):
            self.training.step(0, points)
        self.run(self.built(None), points)
        self.settled = self.training.share.state.copy()
        self.states = {0.0: self.settled, 1.0: np.full_like(self.settled, -1)}
        rng = np.random.default_rng(1)
        for share in SHARES:
            moved = (self.settled + 1 + rng.integers(k - 1, size=self.settled.shape)) % k
            self.states[share] = np.where(rng.random(self.settled.shape) < share, moved, self.settled).astype(np.int32)

    def built(self, shape: tuple[int, int] | None) -> Kernel:
        """The engine's kernel, or the one of this shape; up to some point."""
        t = self.training
        if shape is None:
            return lambda end: t.kernel(t.share, t.parameter, t.statistics, 0, end, 0, NEVER)
        train = kernel.build(*shape)
        return lambda end: train(t.share.features, t.share.state, None, t.parameter, t.statistics, 0, end, NEVER)

    def run(self, train: Kernel, points: int, share: float = 0.0, repeat: int = 1) -> float:
        """Nanoseconds a point."""
        if hasattr(self, "states"):
            self.training.share.state[...] = self.states[share]
        begin = time.process_time()
        for _ in range(repeat):
            train(points)
        return (time.process_time() - begin) * 1e9 / points / repeat

    def all(self, shapes: bool) -> dict[str, Callable[[], float]]:
        own = self.built(None)
        cases: dict[str, Callable[[], float]] = {}
        for level, few in IN_CACHE.items():
            few = min(few, self.points)
            cases[f"in the {level}"] = lambda few=few: self.run(own, few, repeat=max(1, 200_000 // few))
        cases["in memory"] = lambda: self.run(own, self.points)
        for share in SHARES:
            cases[f"{share:.0%} change"] = lambda share=share: self.run(own, self.points, share)
        cases["first pass"] = lambda: self.run(own, self.points, 1.0)
        dtype = self.training.rows.dtype
        for registers, group in OTHERS[self.k] if shapes and REGISTERS == 32 else ():
            shape = registers * register_lanes(dtype), group
            if shape != tile_shape(dtype, self.k):
                other = self.built(shape)
                cases[f"{shape[0]} points by {group}"] = lambda other=other: self.run(other, self.points)
        return cases


def measured(cases: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(rounds + 1):
        for name, case in cases.items():
            value = case()
            if turn:
                found[name].append(value)
    return {name: round(statistics.median(values), 2) for name, values in found.items()}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shapes", action="store_true", help="other register tiles too")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    options = parser.parse_args(arguments)
    results: dict[str, dict[str, float]] = {}
    for dtype in ("float32", "float64"):
        for k in (10, 100):
            points = options.points // (1 if k == 10 else 5) // 64 * 64
            title = f"k={k} {dtype}"
            results[title] = measured(Cases(points, k, dtype).all(options.shapes), options.rounds)
            print(f"{title}: " + ", ".join(f"{name} {value}" for name, value in results[title].items()), flush=True)
    if options.json:
        options.json.write_text(json.dumps({"machine": platform.machine(), "ns_a_point": results}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
