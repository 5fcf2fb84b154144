# ruff: noqa: E402
"""How fast is one core? Every kernel against its peers and against what the machine can do.

    python -m bench.micro.kernels [--points 200000] [--rounds 5] [--only kmeans,gmm] [--json kernels.json]

All implementations of a comparison take turns in one process, one thread each; figures are medians of CPU seconds
per pass, given for a million points. A peer that is not installed is named and left out. It asserts nothing.

To add an algorithm: write a function that yields `KernelComparison` objects and put it into `SUITES`.
"""

from __future__ import annotations

import os

from flegel.configuration.active import active

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"  # before any of these libraries starts its threads
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import flegel
from bench.common.machine_limits import clock, machine_limits
from flegel.algorithm import Algorithm, Sample
from flegel.algorithms.fcm import FCM
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.simd import registers
from flegel.core import pytree
from flegel.core.shard import TILE, make_shard
from flegel.core.stop_flag import new_flag
from flegel.machine.worker.local_updates import LocalUpdates
from flegel.runtime.worker.shard_loading import growing_part

COLUMNS = 28
LOOKS = 16  # times a pass that the time-to-quality runs look at the objective
NEVER = new_flag()


@dataclass
class KernelComparison:
    """Implementations return seconds for a pass over `points`; `flops` and `bytes` per point give the limits."""

    title: str
    points: int
    implementations: dict[str, Callable[[], float]]
    flops: float = 0.0
    bytes: float = 0.0
    dtype: str = "float32"
    absent: list[str] = field(default_factory=list)


# -- running our algorithms ---------------------------------------------------------------------------------


class Training:
    """One share, trained in this process by the algorithm's kernel."""

    def __init__(self, algorithm: Algorithm, rows: np.ndarray, start: Any = None) -> None:
        self.algorithm, self.rows = algorithm, rows
        self.sample = Sample(rows, None, len(rows), rows.shape[1])
        self.start = algorithm.initParameter(self.sample, np.random.default_rng(0)) if start is None else start
        state = algorithm.initState(len(rows), rows.shape[1], np.random.default_rng(0))
        self.share = make_shard(rows, None, state, algorithm.kernels.layout)
        self.unvisited = self.share.state.copy()
        kernel = algorithm.kernel(self.share)
        assert kernel is not None
        self.kernel = kernel
        self.reset()

    def reset(self) -> None:
        self.share.state[...] = self.unvisited
        self.parameter = pytree.as_doubles(self.start)
        self.statistics = pytree.as_doubles(self.algorithm.initAggregator(self.sample, self.parameter))

    def step(self, first: int, end: int) -> None:
        """Visit some points, then a barrier."""
        self.kernel(self.share, self.parameter, self.statistics, first, end, 0, NEVER)
        self.parameter = self.algorithm.updateParameter(self.statistics, self.parameter)

    def visit(self, first: int, end: int) -> float:
        """The kernel alone; its speed."""
        began = time.process_time()
        self.kernel(self.share, self.parameter, self.statistics, first, end, 0, NEVER)
        return (end - first) / max(time.process_time() - began, 1e-9)

    def update(self, local: LocalUpdates) -> None:
        """θ anew, as a lone worker makes it."""
        began = time.process_time()
        arrays = local.update(pytree.flatten(self.statistics))
        assert arrays is not None
        self.parameter = pytree.unflatten(self.parameter, arrays)
        local.took(time.process_time() - began)

    def objective(self) -> float:
        value = self.algorithm.objective(self.statistics, self.parameter)
        assert value is not None
        return value

    def passes(self, skip: int = 2, count: int = 6) -> float:
        """Seconds per full-batch pass, after the first ones, in which every point changes."""
        self.reset()
        for _ in range(skip):
            self.step(0, self.share.points)
        return clock(lambda: [self.step(0, self.share.points) for _ in range(count)]) / count


def overlapping(points: int, clusters: int, dtype: Any, seed: int = 0, apart: float = 0.8) -> np.ndarray:
    """Gaussian clusters of unit width whose centres lie apart·√56 widths from each other, on average."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(clusters, COLUMNS)) * apart
    rows = rng.standard_normal(size=(points, COLUMNS), dtype=np.float32)
    rows += centres[rng.integers(clusters, size=points)].astype(np.float32)
    return rows.astype(dtype)


def between_fits(fit: Callable[[int], Any], few: int = 2, many: int = 8) -> float:
    """Seconds per iteration of a peer that only offers whole fits: the rest of a fit cancels out."""
    return (clock(lambda: fit(many)) - clock(lambda: fit(few))) / (many - few)


# -- k-means ------------------------------------------------------------------------------------------------


def kmeans_comparisons(points: int) -> Iterator[KernelComparison]:
    for dtype in ("float32", "float64"):
        for k in (10, 100):
            rows = overlapping(points, k, dtype)
            training = Training(KMeans(k=k, init="first"), rows)
            implementations: dict[str, Callable[[], float]] = {"flegel": training.passes}
            absent = []
            try:
                implementations["scikit-learn lloyd"] = lambda k=k, rows=rows: between_fits(_lloyd(rows, k))
            except ImportError:
                absent.append("scikit-learn")
            try:
                implementations["sklearnex lloyd"] = _sklearnex_lloyd(rows, k)
            except ImportError:
                absent.append("sklearnex")
            implementations["chunked GEMM (NumPy)"] = lambda k=k, rows=rows: clock(lambda: _gemm_kmeans(rows, rows[:k]))
            size = np.dtype(dtype).itemsize * COLUMNS
            title = f"KMeans k={k} {dtype}"
            yield KernelComparison(title, points, implementations, 2.0 * k * COLUMNS, size, dtype, absent)


def _lloyd(rows: np.ndarray, k: int) -> Callable[[int], Any]:
    from sklearn.cluster import KMeans as Peer

    def fit(iterations: int) -> Any:
        peer = Peer(k, init=rows[:k], n_init=1, max_iter=iterations, tol=0, algorithm="lloyd", copy_x=False)
        return _quietly(lambda: peer.fit(rows))

    return fit


def _sklearnex_lloyd(rows: np.ndarray, k: int) -> Callable[[], float]:
    from sklearnex.cluster import KMeans as Peer

    def fit(iterations: int) -> Any:
        return _quietly(lambda: Peer(k, init=rows[:k], n_init=1, max_iter=iterations, tol=0).fit(rows))

    return lambda: between_fits(fit)


def _quietly(work: Callable[[], Any]) -> Any:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return work()


def _gemm_kmeans(rows: np.ndarray, centres: np.ndarray, chunk: int = 4096) -> Any:
    half = 0.5 * (centres**2).sum(axis=1)
    sums = np.zeros(centres.shape)
    for at in range(0, len(rows), chunk):
        x = rows[at : at + chunk]
        nearest = (half - x @ centres.T).argmin(axis=1)
        order = np.argsort(nearest, kind="stable")
        firsts = np.searchsorted(nearest[order], np.arange(len(centres)))
        filled = np.flatnonzero(np.diff(np.append(firsts, len(x))))
        sums[filled] += np.add.reduceat(x[order], firsts[filled], axis=0)
    return sums


# -- mixtures and fuzzy clusters ----------------------------------------------------------------------------


def gmm_comparisons(points: int) -> Iterator[KernelComparison]:
    for k, dtype in ((10, "float32"), (100, "float32"), (10, "float64"), (100, "float64")):
        some = max(2048, points // (1 if k == 10 else 8))
        rows = overlapping(some, k, dtype)
        training = Training(GMM(k=k, init="first"), rows)
        implementations: dict[str, Callable[[], float]] = {
            "flegel": lambda training=training: training.passes(1, 2),
            "scikit-learn EM": lambda k=k, rows=rows: between_fits(_mixture(rows, k), 1, 3),
            "chunked GEMM (NumPy)": lambda k=k, rows=rows: clock(lambda: _gemm_gmm(rows, rows[:k])),
        }
        size = np.dtype(dtype).itemsize * (COLUMNS + 2 * (k + 1))
        yield KernelComparison(f"GMM diagonal k={k} {dtype}", some, implementations, 8.0 * k * COLUMNS, size, dtype)


def _mixture(rows: np.ndarray, k: int) -> Callable[[int], Any]:
    from sklearn.mixture import GaussianMixture

    start = {
        "means_init": rows[:k],
        "weights_init": np.full(k, 1 / k),
        "precisions_init": np.ones((k, COLUMNS)),
    }

    def fit(iterations: int) -> Any:
        peer = GaussianMixture(
            k, covariance_type="diag", tol=0, max_iter=iterations, init_params="random_from_data", **start
        )
        return _quietly(lambda: peer.fit(rows))

    return fit


def _gemm_gmm(rows: np.ndarray, means: np.ndarray, chunk: int = 4096) -> Any:
    """An EM pass with unit variances to start from: logits, softmax and moments as matrix products."""
    precision = np.ones_like(means)
    linear, level = means * precision, -0.5 * (means**2 * precision).sum(axis=1)
    counts, sums, squares = np.zeros(len(means)), np.zeros(means.shape), np.zeros(means.shape)
    for at in range(0, len(rows), chunk):
        x = rows[at : at + chunk]
        xx = x * x
        logits = x @ linear.T - 0.5 * (xx @ precision.T) + level
        logits -= logits.max(axis=1, keepdims=True)
        np.exp(logits, out=logits)
        logits /= logits.sum(axis=1, keepdims=True)
        counts += logits.sum(axis=0)
        sums += logits.T @ x
        squares += logits.T @ xx
    return counts, sums, squares


def fcm_comparisons(points: int) -> Iterator[KernelComparison]:
    for k, dtype in ((10, "float32"), (100, "float32"), (10, "float64")):
        some = max(2048, points // (1 if k == 10 else 8))
        rows = overlapping(some, k, dtype)
        start = rows[:k] + np.asarray(0.01, dtype)  # off the points, where a plain quotient would divide by zero
        training = Training(FCM(k=k, init=start), rows)
        implementations: dict[str, Callable[[], float]] = {
            "flegel": lambda training=training: training.passes(1, 2),
            "scikit-fuzzy": lambda k=k, rows=rows: between_fits(_skfuzzy(rows, k), 1, 3),
            "chunked GEMM (NumPy)": lambda rows=rows, start=start: clock(lambda: _gemm_fcm(rows, start)),
        }
        size = np.dtype(dtype).itemsize * (COLUMNS + 2 * k)
        yield KernelComparison(f"FCM m=2 k={k} {dtype}", some, implementations, 6.0 * k * COLUMNS, size, dtype)


def _skfuzzy(rows: np.ndarray, k: int) -> Callable[[int], Any]:
    from skfuzzy.cluster import cmeans

    columns = np.ascontiguousarray(rows.T)
    return lambda iterations: cmeans(columns, k, 2.0, error=0.0, maxiter=iterations, seed=0)


def _gemm_fcm(rows: np.ndarray, centres: np.ndarray, chunk: int = 4096) -> Any:
    half = (centres**2).sum(axis=1)
    counts, sums, value = np.zeros(len(centres)), np.zeros(centres.shape), 0.0
    for at in range(0, len(rows), chunk):
        x = rows[at : at + chunk]
        squared = np.maximum((x * x).sum(axis=1, keepdims=True) - 2 * (x @ centres.T) + half, 1e-12)
        w = 1.0 / squared
        w /= w.sum(axis=1, keepdims=True)
        w *= w
        counts += w.sum(axis=0)
        sums += w.T @ x
        value += float((w * squared).sum())
    return counts, sums, value


# -- time to quality ----------------------------------------------------------------------------------------


def time_to_quality(points: int, k: int, apart: float, seeds: int) -> dict[str, Any]:
    """Time to within 0.1 % of Lloyd's final inertia, from the same start, and how often we reach it."""
    runs = []
    for seed in range(seeds):
        rows = overlapping(points, k, np.float32, seed, apart)
        algorithm = KMeans(k=k, init="k-means++")
        sample = Sample(rows[:50_000], None, points, COLUMNS)
        start = algorithm.initParameter(sample, np.random.default_rng(seed))
        training = Training(algorithm, rows, start)
        trail = lloyd_trail(training)
        target = 1.001 * trail[-1]
        needed = next(i for i, value in enumerate(trail) if value <= target) + 1
        whole = clock(lambda training=training, needed=needed: _full_batch(training, needed))
        seconds, passes = incremental(training, target)
        job = flegel.run(KMeans(k=k, init=start.centroids), rows, workers=1, target=target, max_passes=200)
        runs.append(
            {
                "seed": seed,
                "lloyd_passes": needed,
                "flegel_full_batch_s": whole,
                "flegel_incremental_s": seconds,
                "flegel_incremental_passes": passes,
                "flegel_job_s": job.seconds,
                "flegel_job_passes": job.rows[-1]["passes"][0],
                "flegel_job_reached": job.objective is not None and job.objective <= target,
                "scikit_learn_s": _lloyd_seconds(rows, start.centroids, k, needed),
            }
        )
    reached = [run for run in runs if run["flegel_incremental_s"] is not None]
    ratios = [run["scikit_learn_s"] / run["flegel_incremental_s"] for run in reached if run["scikit_learn_s"]]
    return {
        "k": k,
        "apart": apart,
        "points": points,
        "runs": runs,
        "reached": f"{len(reached)} of {len(runs)}",
        "median_ratio": statistics.median(ratios) if ratios else None,
    }


def lloyd_trail(training: Training, most: int = 300) -> list[float]:
    """The objective after each full-batch pass until nothing moves: scikit-learn's path, by our kernel."""
    training.reset()
    trail = [np.inf]
    while len(trail) <= most:
        training.step(0, training.share.points)
        trail.append(training.objective())
        if trail[-2] - trail[-1] <= 1e-6 * trail[-1]:
            break
    return trail[1:]


def _full_batch(training: Training, passes: int) -> None:
    training.reset()
    for _ in range(passes):
        training.step(0, training.share.points)


def incremental(training: Training, target: float, most: int = 60) -> tuple[float | None, float | None]:
    """Visits and updates as a lone worker makes them; None where it settles in a worse optimum than Lloyd's."""
    training.reset()
    points, algorithm = training.share.points, training.algorithm
    local = LocalUpdates(training.parameter, training.statistics, lambda hook, *args: getattr(algorithm, hook)(*args))
    local.begin(pytree.flatten(training.parameter))
    begin = time.process_time()
    first, visits, speed = _on_parts(training, local)
    whole = False  # every point has been visited
    looked = visits
    while visits < most * points:
        reached = min(
            first + local.limit(points - first, speed, active().training.fewest_points_per_call, TILE), points
        )
        speed = training.visit(first, reached)
        training.update(local)
        visits, first, whole = visits + reached - first, reached % points, whole or reached == points
        if whole and (visits - looked >= points // LOOKS or not first):
            looked = visits
            if training.objective() <= target:
                return time.process_time() - begin, visits / points
    return None, None


def _on_parts(training: Training, local: LocalUpdates) -> tuple[int, int, float]:
    """A growing part of the points, until it would be everything: points seen by then, visits, and the speed."""
    part = growing_part(training.algorithm, training.share, training.parameter)
    seen, visits, speed = 0, 0, 0.0
    while part is not None and not part.over:
        run = part.next(local.limit(part.size, speed, active().training.fewest_points_per_call, TILE))
        speed = training.visit(run.start, run.end)
        part.advance(run, run.end)
        visits, seen = visits + run.end - run.start, max(seen, run.end)
        if part.update_due(enough=True):
            training.update(local)
        if part.complete and (theta := part.follow(local)):
            training.parameter = pytree.unflatten(training.parameter, theta)
    return seen, visits, speed


def _lloyd_seconds(rows: np.ndarray, start: np.ndarray, k: int, iterations: int) -> float | None:
    try:
        from sklearn.cluster import KMeans as Peer
    except ImportError:
        return None
    peer = Peer(k, init=start.astype(rows.dtype), n_init=1, max_iter=iterations, tol=0, algorithm="lloyd")
    return clock(lambda: _quietly(lambda: peer.fit(rows)))


# -- the run ------------------------------------------------------------------------------------------------

SUITES: dict[str, Callable[[int], Iterator[KernelComparison]]] = {
    "kmeans": kmeans_comparisons,
    "gmm": gmm_comparisons,
    "fcm": fcm_comparisons,
}


def measure(comparison: KernelComparison, rounds: int, limits: dict[str, float]) -> dict[str, Any]:
    """All implementations in turn, `rounds` times, after one round that only warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in comparison.implementations}
    absent = list(comparison.absent)
    for turn in range(rounds + 1):
        for name, run in list(comparison.implementations.items()):
            try:
                taken = run()
            except ImportError:
                absent.append(name)
                del comparison.implementations[name], seconds[name]
                continue
            if turn:
                seconds[name].append(taken)
    medians = {name: statistics.median(s) * 1e6 / comparison.points for name, s in seconds.items()}
    ours = medians.get("flegel", float("nan"))
    compute = comparison.flops * 1e6 / limits[f"gflops_{comparison.dtype}"] / 1e9
    memory = comparison.bytes * 1e6 / limits["read_gb_per_s"] / 1e9
    return {
        "title": comparison.title,
        "seconds_per_pass_of_a_million": medians,
        "best": {name: min(s) * 1e6 / comparison.points for name, s in seconds.items()},
        "ratio": {name: value / ours for name, value in medians.items() if name != "flegel"},
        "limit_compute_s": compute,
        "limit_memory_s": memory,
        "share_of_limit": max(compute, memory) / ours,
        "absent": absent,
    }


def show(result: dict[str, Any]) -> None:
    medians = result["seconds_per_pass_of_a_million"]
    limits = f"{result['limit_compute_s']:.4f} multiply-add, {result['limit_memory_s']:.4f} memory"
    print(f"\n{result['title']}: s per pass of 10⁶ points ({limits}; we reach {result['share_of_limit']:.0%})")
    for name, value in medians.items():
        ratio = "" if name == "flegel" else f"{result['ratio'][name]:7.2f}×"
        print(f"  {name:28s} {value:9.4f} {1 / value:9.2f} Mpoints/s {ratio}")
    for name in result["absent"]:
        print(f"  {name:28s}    absent")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--points", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=5, help="of the time-to-quality runs; 0 leaves them out")
    parser.add_argument("--quality-points", type=int, default=500_000)
    parser.add_argument("--only", default="", help="suites, with commas between; quality: time to quality alone")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    options = parser.parse_args(arguments)
    limits = machine_limits()
    machine = {
        "machine": platform.machine(),
        "vector_bytes": registers.VECTOR_BYTES,
        "registers": registers.REGISTERS,
        "python": platform.python_version(),
        "limits": limits,
    }
    print(f"{machine['machine']}, vectors of {registers.VECTOR_BYTES} bytes; one core: "
          + ", ".join(f"{name} {value:.1f}" for name, value in limits.items()))  # fmt: skip
    wanted = [name for name in options.only.split(",") if name] or list(SUITES)
    results = []
    for name in wanted:
        for comparison in SUITES[name](options.points) if name in SUITES else ():
            results.append(measure(comparison, options.rounds, limits))
            show(results[-1])
    quality = []
    if {"kmeans", "quality"} & set(wanted) and options.seeds:
        for k, apart in ((10, 0.8), (100, 0.8), (100, 0.5)):
            quality.append(time_to_quality(options.quality_points, k, apart, options.seeds))
            show_quality(quality[-1])
    if options.json:
        report = {"machine": machine, "contests": results, "time_to_quality": quality}
        options.json.write_text(json.dumps(report, indent=1))


def show_quality(quality: dict[str, Any]) -> None:
    ratio = quality["median_ratio"] or float("nan")
    print(f"\nTime to within 0.1 % of Lloyd's end, k={quality['k']}, apart {quality['apart']}, "
          f"{quality['points']} points: "
          f"reached {quality['reached']}, median ratio to scikit-learn {ratio:.1f}×")  # fmt: skip
    for run in quality["runs"]:
        shown = {name: f"{value:.3f}" if isinstance(value, float) else value for name, value in run.items()}
        print("  " + ", ".join(f"{name} {value}" for name, value in shown.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
