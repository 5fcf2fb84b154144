"""Is a probe of the interval fair? Three ways to compare rounds of n and of 2n points with what two whole passes say.

    python -m bench.micro.interval_probes [--points 24000] [--seeds 4]

K-means in one process, without a clock: for each n, at several moments of the training, the ratio g(2n)/g(n) of
progress per visit. `truth`: two passes each from the same state. `full`: two rounds of n, all rolled back, one of
2n. `cursor`: only the position is rolled back. `bracket`: nothing is; 2n stands between two pairs of n.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from flegel.algorithm import Sample
from flegel.algorithms.kmeans import KMeans
from flegel.core import pytree
from flegel.core.shard import make_shard
from flegel.core.stop_flag import new_flag
from flegel.runtime.backends.numba.kernels import build_kernel

NAMES = ("truth", "full", "cursor", "bracket")


class Training:
    """K-means with a barrier after each `round`."""

    def __init__(self, points: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        centres = rng.normal(size=(14, 10)) * 0.8
        rows = (centres[rng.integers(14, size=points)] + rng.normal(size=(points, 10))).astype(np.float32)
        self.algorithm = KMeans(k=10, init="random")
        sample = Sample(rows, None, points, 10)
        self.theta: Any = pytree.as_doubles(self.algorithm.initParameter(sample, rng))
        self.zero = pytree.zeros_like(self.algorithm.initAggregator(sample, self.theta))
        self.share = make_shard(rows, None, self.algorithm.initState(points, 10, rng), self.algorithm.kernels.layout)
        self.kernel = build_kernel(self.algorithm, self.share, self.theta, self.zero).kernel
        self.total, self.flag = pytree.copy(self.zero), new_flag()
        self.cursor = self.visits = 0
        self.value = 0.0

    def round(self, n: int) -> float:
        """Train n points, make θ new; how much better the objective (scaled to all points) became."""
        change, left, size = pytree.copy(self.zero), n, self.share.points
        while left > 0:
            end = min(self.cursor + left, size)
            reached = self.kernel(self.share, self.theta, change, self.cursor, end, 0, self.flag)
            left -= reached - self.cursor
            self.cursor = reached % size
        pytree.add(self.total, change)
        self.theta = pytree.as_doubles(self.algorithm.updateParameter(self.total, self.theta))
        self.visits += n
        before = self.value
        self.value = self.algorithm.objective(self.total, self.theta) * size / min(self.visits, size)
        return before - self.value

    def mark(self) -> tuple[Any, ...]:
        return (
            pytree.copy(self.total), pytree.copy(self.theta), self.cursor, self.visits, self.value,
            self.share.state.copy(),
        )  # fmt: skip

    def back(self, mark: tuple[Any, ...]) -> None:
        self.total, self.theta = pytree.copy(mark[0]), pytree.copy(mark[1])
        self.cursor, self.visits, self.value = mark[2:5]
        self.share.state[...] = mark[5]


def probe(job: Training, n: int, parts: int) -> tuple[float, float, float, float]:
    start = job.mark()
    often = sum(job.round(n) for _ in range(2 * parts))
    job.back(start)
    seldom = sum(job.round(2 * n) for _ in range(parts))
    job.back(start)
    pair = job.round(n) + job.round(n)
    middle = job.mark()
    long = job.round(2 * n)
    bracket = long / np.sqrt(max(pair * (job.round(n) + job.round(n)), 1e-30))
    job.back(middle)
    job.cursor = start[2]
    cursor = job.round(2 * n) / pair
    job.back(start)
    full = job.round(2 * n) / pair
    job.back(start)
    return seldom / often, full, cursor, bracket


def main() -> None:
    """Print means and standard deviations over seeds."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--points", type=int, default=24_000)
    options.add_argument("--seeds", type=int, default=4)
    chosen = options.parse_args()
    for parts in (2, 4, 8, 16, 32):
        found: dict[int, list[tuple[float, ...]]] = {}
        for seed in range(chosen.seeds):
            job, n = Training(chosen.points, seed), chosen.points // parts
            job.round(n)
            for done in range(1, 13):
                for _ in range(parts):
                    job.round(n)
                if done in (1, 2, 4, 8, 12):
                    found.setdefault(done, []).append(probe(job, n, parts))
        means = np.mean([np.mean(each, axis=0) for each in found.values()], axis=0)
        spreads = np.mean([np.std(each, axis=0) for each in found.values()], axis=0)
        shown = "  ".join(f"{a} {m:.2f} ({s:.2f})" for a, m, s in zip(NAMES, means, spreads, strict=True))
        print(f"n = N/{parts}: {shown}", flush=True)


if __name__ == "__main__":
    main()
