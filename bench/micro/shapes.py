"""K-means over shapes of rows and numbers of clusters, beside the libraries that people use for it.

    python -m bench.micro.shapes pass [--cells 384x1024,768x4096] [--jobs 8] [--seed N] [--json shapes.json]
    python -m bench.micro.shapes job [--tables 500000x384x1024] [--seed N] [--json jobs.json]

`pass`: one core, one start for all: seconds of a pass from the second on, and of the first, of the best peer that is
installed (scikit-learn, faiss, SuperKMeans, sklearnex) divided by ours, and how many of our labels differ from those
of an exhaustive search in float64. Rows are drawn anew from a seed that is printed: clusters that vary along some
directions with a decaying spectrum, as embeddings do, and rows without any structure (`--isotropic`).
`job`: array to model on all cores, default start, beside peers that start with random rows, and the objective of each
recomputed in float64. Asserts nothing.
"""

from __future__ import annotations

import os
import sys

if "pass" in sys.argv:
    for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[_name] = "1"  # before any of these libraries starts its threads

import argparse
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

COLUMNS, CLUSTERS = (32, 96, 384, 768, 1536), (16, 256, 1024, 4096, 16384)
PASSES = 5
WORK = 2e10  # multiplications in a pass of a cell: half a second or so
Array = np.ndarray[Any, np.dtype[Any]]


def rows_of(points: int, columns: int, seed: int, isotropic: bool = False) -> Array:
    """Rows in float32: 2,000 clusters along 64 directions and a little noise, or a normal distribution."""
    rng = np.random.default_rng(seed)
    if isotropic:
        return rng.normal(size=(points, columns)).astype(np.float32)
    directions = min(64, columns)
    centres = rng.normal(size=(2000, directions)).astype(np.float32) * np.float32(1.2)
    turn = rng.normal(size=(directions, columns)) / np.sqrt(directions) * (np.arange(directions)[:, None] + 1.0) ** -0.5
    found = np.empty((points, columns), np.float32)
    for at in range(0, points, 65536):
        size = min(65536, points - at)
        inside = centres[rng.integers(0, 2000, size)] + rng.normal(size=(size, directions)).astype(np.float32)
        found[at : at + size] = inside @ turn.astype(np.float32) + 0.05 * rng.normal(size=(size, columns))
    return found


def nearest_of(rows: Array, centroids: Array, origin: Array) -> Array:
    """Exhaustive, in float64."""
    away = centroids - origin
    half, found = 0.5 * (away**2).sum(axis=1), []
    for at in range(0, len(rows), 2048):
        found.append((half - (rows[at : at + 2048] - origin) @ away.T).argmin(axis=1))
    return np.concatenate(found)


def objective_of(rows: Array, centroids: Array) -> float:
    """Σ ‖x − c‖² in float64: a library's own figure in float32 is off by 1e-4."""
    total, half = 0.0, (0.5 * (centroids.astype(np.float32) ** 2).sum(axis=1)).astype(np.float32)
    short = np.ascontiguousarray(centroids.T, dtype=np.float32)
    for at in range(0, len(rows), 16384):
        some = rows[at : at + 16384]
        found = (half - some @ short).argmin(axis=1)
        total += float(((some - centroids[found]) ** 2).sum(dtype=np.float64))
    return total


def peers() -> dict[str, Callable[[Array, Array, int], Array]]:
    """By name: centroids after so many passes from a start."""
    found: dict[str, Callable[[Array, Array, int], Array]] = {}

    def plain(rows: Array, start: Array, passes: int) -> Array:
        from sklearn.cluster import KMeans

        return np.asarray(KMeans(len(start), init=start, n_init=1, max_iter=passes, tol=0).fit(rows).cluster_centers_)

    def faiss(rows: Array, start: Array, passes: int) -> Array:
        import faiss

        made = faiss.Kmeans(
            rows.shape[1], len(start), niter=passes, max_points_per_centroid=10**9, min_points_per_centroid=1
        )
        made.train(rows, init_centroids=start)
        return np.asarray(made.centroids)

    def superkmeans(rows: Array, start: Array, passes: int) -> Array:
        from superkmeans import SuperKMeans

        made = SuperKMeans(
            len(start), rows.shape[1], hierarchical=False, iters=passes, sampling_fraction=1.0,
            max_points_per_cluster=10**6, early_termination=False,
        )  # fmt: skip
        return np.asarray(made.train(rows))

    def accelerated(rows: Array, start: Array, passes: int) -> Array:
        from sklearnex.cluster import KMeans

        return np.asarray(KMeans(len(start), init=start, n_init=1, max_iter=passes, tol=0).fit(rows).cluster_centers_)

    for name, module, peer in (
        ("scikit-learn", "sklearn", plain), ("faiss", "faiss", faiss), ("superkmeans", "superkmeans", superkmeans),
        ("sklearnex", "sklearnex", accelerated),
    ):  # fmt: skip
        try:
            __import__(module)
        except ImportError:
            continue
        found[name] = peer
    return found


def pass_cell(columns: int, k: int, seed: int, isotropic: bool) -> dict[str, Any]:
    """One shape on one core."""
    from flegel.algorithms.kmeans import KMeans
    from flegel.algorithms.kmeans.kmeans import Centroids, KMeansSums
    from flegel.core.pytree import protected
    from flegel.core.shard import make_shard
    from flegel.core.stop_flag import new_flag

    points = int(np.clip(WORK / (columns * k), k + 1000, 200_000))
    rows = rows_of(points, columns, seed, isotropic)
    start = rows[np.random.default_rng(seed + 1).choice(points, k, replace=False)].copy()
    found: dict[str, Any] = {"columns": columns, "k": k, "points": points, "seed": seed, "isotropic": isotropic}
    algorithm, origin = KMeans(k=k), rows[:8192].mean(axis=0).astype(np.float64)
    share = make_shard(protected(rows), None, np.full((points, 1), -1, np.int32), algorithm.layout_for(columns))
    kernel = algorithm.kernel(share)
    assert kernel is not None
    total, flag = KMeansSums(np.zeros((k, columns)), np.zeros(k), np.zeros(k)), new_flag()
    theta, seconds, wrong = Centroids(start.astype(np.float64), origin), [], 0
    flag[0] = 1
    kernel(share, theta, total, 0, points, 0, flag)
    flag[0] = 0
    for turn in range(1 + PASSES):
        began = time.perf_counter()
        kernel(share, theta, total, 0, points, 0, flag)
        seconds.append(time.perf_counter() - began)
        if turn in (0, PASSES):
            some = np.random.default_rng(turn).choice(points, min(points, 4096), replace=False)
            wrong += int((nearest_of(rows[some], theta.centroids, origin) != share.state_rows()[some, 0]).sum())
        filled = total.counts[:, None] > 0
        moved = np.where(filled, origin + total.sums / np.maximum(total.counts, 1)[:, None], theta.centroids)
        theta = Centroids(moved, origin)
    found["ours"] = {"first": seconds[0], "later": statistics.median(seconds[1:]), "wrong": wrong}
    for name, peer in peers().items():
        try:
            timed = []
            for passes in (1, 1 + PASSES):
                began = time.perf_counter()
                peer(rows, start, passes)
                timed.append(time.perf_counter() - began)
            found[name] = {"first": timed[0], "later": (timed[1] - timed[0]) / PASSES}
        except Exception as error:  # noqa: BLE001 - a peer that cannot do a shape is a result
            found[name] = {"error": f"{type(error).__name__}: {error}"[:200]}
    return found


def told(cell: dict[str, Any]) -> str:
    known = {name: cell[name] for name in peers() if name in cell and "later" in cell[name]}
    own = cell["ours"]
    words = [f"{cell['columns']:>5} columns, k={cell['k']:<6} {cell['points']:>7} rows: {own['later']:.3f} s a pass"]
    for when in ("later", "first"):
        best = min(known, key=lambda name: known[name][when], default=None)
        if best is not None:
            words.append(f"{when} {known[best][when] / own[when]:.2f} of {best}")
    return ", ".join([*words, f"labels that differ: {own['wrong']}"])


def run_passes(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Each cell in a process of its own, on a core of its own."""
    cells = [tuple(map(int, cell.split("x"))) for cell in args.cells.split(",")] if args.cells else [
        (columns, k) for columns in COLUMNS for k in CLUSTERS
    ]  # fmt: skip
    cores = sorted(os.sched_getaffinity(0))
    free = iter(range(10**9))

    def one(cell: tuple[int, ...]) -> dict[str, Any]:
        core = cores[next(free) * 2 % len(cores)] if args.jobs > 1 else cores[0]
        command = [sys.executable, "-m", "bench.micro.shapes", "pass", "--one", f"{cell[0]}x{cell[1]}"]
        command += ["--seed", str(args.seed + 7 * cell[0] + cell[1]), *["--isotropic"][: args.isotropic]]
        made = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=1800,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )  # fmt: skip
        if made.returncode:
            return {"columns": cell[0], "k": cell[1], "error": made.stderr[-500:]}
        answer: dict[str, Any] = json.loads(made.stdout.splitlines()[-1])
        return answer

    found = []
    with ThreadPoolExecutor(args.jobs) as pool:
        waiting = [pool.submit(one, cell) for cell in sorted(cells, key=lambda c: -c[0] * c[1])]
        for done in as_completed(waiting):
            cell = done.result()
            print(cell["error"] if "error" in cell else told(cell), flush=True)
            found.append(cell)
    return found


def contenders(k: int, columns: int, seed: int) -> Iterator[tuple[str, Callable[[Array], Array]]]:
    """Whole jobs, array to centroids."""
    import flegel
    from flegel.algorithms.kmeans import KMeans

    def ours(sync: str) -> Callable[[Array], Array]:
        return lambda rows: np.asarray(flegel.run(KMeans(k=k), rows, sync=sync, seed=seed).parameter.centroids)

    yield "flegel fsp", ours("fsp")
    yield "flegel bsp", ours("bsp")
    known = peers()
    for passes in (10, 25):
        for name in known:

            def peer(rows: Array, name: str = name, passes: int = passes) -> Array:
                start = rows[np.random.default_rng(seed).choice(len(rows), k, replace=False)].copy()
                return known[name](rows, start, passes)

            yield f"{name}, {passes} passes", peer
    if "superkmeans" in known:

        def hierarchical(rows: Array) -> Array:
            from superkmeans import SuperKMeans

            made = SuperKMeans(
                k, columns, hierarchical=True, iters=10, sampling_fraction=1.0, max_points_per_cluster=10**6
            )
            return np.asarray(made.train(rows))

        yield "superkmeans, hierarchical", hierarchical


def run_jobs(args: argparse.Namespace) -> list[dict[str, Any]]:
    found = []
    for table in args.tables.split(","):
        points, columns, k = map(int, table.split("x"))
        rows = rows_of(points, columns, args.seed)
        cell: dict[str, Any] = {"points": points, "columns": columns, "k": k, "seed": args.seed, "runs": {}}
        for name, train in contenders(k, columns, args.seed):
            if args.only and not any(word in name for word in args.only.split(",")):
                continue
            try:
                began = time.perf_counter()
                centroids = train(rows)
                seconds = time.perf_counter() - began
                cell["runs"][name] = {"seconds": seconds, "objective": objective_of(rows, centroids)}
                print(f"{table} {name}: {seconds:.2f} s, objective {cell['runs'][name]['objective']:.6g}", flush=True)
            except Exception as error:  # noqa: BLE001 - a peer that cannot do a shape is a result
                print(f"{table} {name}: {type(error).__name__}: {error}", flush=True)
        found.append(cell)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["pass", "job"])
    parser.add_argument("--cells", default="", help="such as 384x1024,768x4096: columns and clusters; all by default")
    parser.add_argument("--tables", default="500000x384x1024,200000x768x4096,2000000x96x1024")
    parser.add_argument("--only", default="", help="contenders whose names contain one of these words")
    parser.add_argument("--isotropic", action="store_true", help="rows without structure")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time, each on a core of its own")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.one:
        columns, k = map(int, args.one.split("x"))
        print(json.dumps(pass_cell(columns, k, args.seed, args.isotropic)))
        return
    found = run_passes(args) if args.what == "pass" else run_jobs(args)
    if args.json:
        machine = {"processor": platform.processor(), "cores": os.cpu_count(), "numpy": np.__version__}
        args.json.write_text(json.dumps({"machine": machine, "cells": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
