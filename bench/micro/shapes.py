"""K-means over shapes of rows and numbers of clusters, beside the libraries that people use for it.

    python -m bench.micro.shapes pass [--cells 384x1024,768x4096] [--jobs 8] [--seed N] [--isotropic] [--json FILE]
    python -m bench.micro.shapes job [--tables 500000x384x1024] [--only WORDS] [--seed N] [--json FILE]
    python -m bench.micro.shapes page --passes FILE [--runs FILE] [--machine WORDS] [--commit COMMIT]

`pass`: one core for each cell, one start for all, processor time: seconds of a pass from the second on, and of the
first, of each peer that is installed (scikit-learn, sklearnex, faiss, SuperKMeans) divided by ours, in turns, medians;
and how many of our labels differ from those of an exhaustive search in float64. Our first pass includes all that the
kernel makes ready; code is compiled before. Rows are drawn anew from a seed that is printed: clusters that vary along
some directions with a decaying spectrum, as embeddings do, and rows without any structure (`--isotropic`).
`job`: array to model on all cores, default start, to 0.5 % above the objective of scikit-learn after 25 passes, and to
convergence, beside peers that start with random rows; the objective of each is recomputed in float64. `page`: writes
docs/results/shapes.json and shapes.md from the files of the other two. Asserts nothing.
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
from queue import SimpleQueue
from typing import Any

import numpy as np

PEERS = ("scikit-learn", "sklearnex", "faiss", "superkmeans")
COLUMNS, CLUSTERS = (32, 96, 384, 768, 1536), (16, 256, 1024, 4096, 16384)
PASSES, FEW_PASSES = 5, 2  # after the first; few where a pass takes long
REFERENCE_PASSES = 25  # of scikit-learn, whose objective is the target of whole jobs
TURNS = 3  # of all contenders in a cell; one where a pass takes long
WORK = 2e10  # multiplications in a pass of a cell: half a second or so
LONG = 4 * WORK  # multiplications of a long pass
CHECKED_ROWS = 2048  # whose labels are compared with an exhaustive search, in the first pass and the last
ROOT = Path(__file__).parents[2]
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


def wrong_labels(rows: Array, centroids: Array, origin: Array, labels: Array) -> int:
    """Rows that are further from their cluster than from another one, by an exhaustive search in float64; no ties."""
    away, found = centroids - origin, 0
    half = 0.5 * (away**2).sum(axis=1)
    for at in range(0, len(rows), 1024):
        some = rows[at : at + 1024] - origin
        nearest = (half - some @ away.T).argmin(axis=1)
        own, best = (((some - away[which]) ** 2).sum(axis=1) for which in (labels[at : at + 1024], nearest))
        found += int((own > best * (1 + 1e-9)).sum())
    return found


def objective_of(rows: Array, centroids: Array) -> float:
    """Σ ‖x − c‖² in float64: a library's own figure in float32 is off by 1e-4."""
    total, half = 0.0, (0.5 * (centroids.astype(np.float32) ** 2).sum(axis=1)).astype(np.float32)
    short = np.ascontiguousarray(centroids.T, dtype=np.float32)
    for at in range(0, len(rows), 16384):
        some = rows[at : at + 16384]
        found = (half - some @ short).argmin(axis=1)
        total += float(((some - centroids[found]) ** 2).sum(dtype=np.float64))
    return total


def peers() -> dict[str, Callable[[Array, Array, int], tuple[Array, int]]]:
    """By name: centroids after so many passes from a start, and how many passes were made."""
    found: dict[str, Callable[[Array, Array, int], tuple[Array, int]]] = {}

    def plain(rows: Array, start: Array, passes: int) -> tuple[Array, int]:
        from sklearn.cluster import KMeans

        made = KMeans(len(start), init=start, n_init=1, max_iter=passes, tol=0).fit(rows)
        return np.asarray(made.cluster_centers_), int(made.n_iter_)

    def faiss(rows: Array, start: Array, passes: int) -> tuple[Array, int]:
        import faiss

        made = faiss.Kmeans(
            rows.shape[1], len(start), niter=passes, max_points_per_centroid=10**9, min_points_per_centroid=1
        )
        made.train(rows, init_centroids=start)
        return np.asarray(made.centroids), passes

    def superkmeans(rows: Array, start: Array, passes: int) -> tuple[Array, int]:
        from superkmeans import SuperKMeans

        made = SuperKMeans(
            len(start),
            rows.shape[1],
            hierarchical=False,
            iters=passes,
            sampling_fraction=1.0,
            max_points_per_cluster=10**6,
            early_termination=False,
        )
        return np.asarray(made.train(rows)), passes

    def accelerated(rows: Array, start: Array, passes: int) -> tuple[Array, int]:
        from sklearnex.cluster import KMeans

        made = KMeans(len(start), init=start, n_init=1, max_iter=passes, tol=0).fit(rows)
        return np.asarray(made.cluster_centers_), int(made.n_iter_)

    for name, module, peer in (
        ("scikit-learn", "sklearn", plain),
        ("sklearnex", "sklearnex", accelerated),
        ("faiss", "faiss", faiss),
        ("superkmeans", "superkmeans", superkmeans),
    ):
        try:
            __import__(module)
        except ImportError:
            continue
        found[name] = peer
    return found


class OurPasses:
    """Passes of our kernel over one table."""

    def __init__(self, rows: Array, start: Array) -> None:
        from flegel.algorithms.kmeans import KMeans
        from flegel.algorithms.kmeans.kmeans import KMeansSums
        from flegel.core.stop_flag import new_flag

        self._rows, self._start = rows, start.astype(np.float64)
        self._algorithm, self._flag, self._sums = KMeans(k=len(start)), new_flag(), KMeansSums
        self._origin = rows[:8192].mean(axis=0).astype(np.float64)
        self.run(rows[: max(len(start), 2048)], 1, 64)  # code is compiled, or read from the cache
        self.kernel = ""

    def run(self, rows: Array, passes: int, most: int = 10**9) -> tuple[list[float], int]:
        """Processor seconds of each pass, and wrong labels in the first and the last."""
        from flegel.algorithms.kmeans.kmeans import Centroids
        from flegel.core.pytree import protected
        from flegel.core.shard import make_shard

        (k, columns), points = self._start.shape, min(len(rows), most)
        share = make_shard(
            protected(rows), None, np.full((len(rows), 1), -1, np.int32), self._algorithm.layout_for(columns)
        )
        kernel = self._algorithm.kernel(share)
        assert kernel is not None
        self.kernel = self._algorithm.kernel_choice(share)
        total, theta = (
            self._sums(np.zeros((k, columns)), np.zeros(k), np.zeros(k)),
            Centroids(self._start, self._origin),
        )
        seconds, wrong = [], 0
        for turn in range(passes):
            began = time.process_time()
            kernel(share, theta, total, 0, points, 0, self._flag)
            seconds.append(time.process_time() - began)
            if turn in (0, passes - 1) and most > len(rows):
                some = np.random.default_rng(turn).choice(points, min(points, CHECKED_ROWS), replace=False)
                labels = share.state_rows()[some, 0]
                wrong += wrong_labels(rows[some], theta.centroids, self._origin, labels)
            filled = total.counts[:, None] > 0
            moved = np.where(filled, self._origin + total.sums / np.maximum(total.counts, 1)[:, None], theta.centroids)
            theta = Centroids(moved, self._origin)
        return seconds, wrong


def pass_cell(columns: int, k: int, seed: int, isotropic: bool) -> dict[str, Any]:
    """One shape on one core."""
    points = int(np.clip(WORK / (columns * k), 2 * k, 200_000))
    long = points * columns * k > LONG
    turns, passes = (1, FEW_PASSES) if long else (TURNS, PASSES)
    rows = rows_of(points, columns, seed, isotropic)
    start = rows[np.random.default_rng(seed + 1).choice(points, k, replace=False)].copy()
    found: dict[str, Any] = {"columns": columns, "k": k, "points": points, "seed": seed, "isotropic": isotropic}
    ours, known = OurPasses(rows, start), peers()
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ("ours", *known)}
    wrong = 0
    for _ in range(turns):
        own, differ = ours.run(rows, 1 + passes)
        wrong += differ
        seconds["ours"].append((own[0], statistics.median(own[1:])))
        for name, peer in known.items():
            if name not in seconds:
                continue
            try:
                timed, made = [], []
                for count in (1, 1 + passes):
                    began = time.process_time()
                    made.append(peer(rows, start, count)[1])
                    timed.append(time.process_time() - began)
                if made[1] > made[0] and timed[1] > timed[0]:  # it may have converged in the first
                    seconds[name].append((timed[0], (timed[1] - timed[0]) / (made[1] - made[0])))
            except Exception as error:  # noqa: BLE001 - a peer that cannot do a shape is a result
                found[name] = {"error": f"{type(error).__name__}: {error}"[:200]}
                del seconds[name]
    for name, timed in seconds.items():
        if timed:
            found[name] = dict(zip(("first", "later"), map(statistics.median, zip(*timed, strict=True)), strict=True))
    found["ours"] |= {"wrong": wrong, "kernel": ours.kernel.split(" ", 1)[0]}
    return found


def best_peer(cell: dict[str, Any], when: str) -> tuple[str, float]:
    """The fastest peer of a cell, and its seconds divided by ours."""
    known = {name: cell[name][when] for name in PEERS if when in cell.get(name, {})}
    name = min(known, key=lambda peer: known[peer], default="")
    return name, known[name] / cell["ours"][when] if name else float("nan")


def told(cell: dict[str, Any]) -> str:
    """A cell in a line."""
    own = cell["ours"]
    words = [f"{cell['columns']:>5} columns, k={cell['k']:<6} {cell['points']:>7} rows, {own['kernel']}"]
    for when in ("first", "later"):
        name, ratio = best_peer(cell, when)
        words.append(f"{when} {own[when]:.3g} s" + (f", {ratio:.2f} of {name}" if name else ""))
    return "; ".join([*words, f"labels that differ: {own['wrong']}"])


def write_figures(args: argparse.Namespace, found: list[dict[str, Any]]) -> None:
    """All figures so far, after every cell: a run that is ended keeps what it has measured."""
    if args.json:
        machine = {"processor": platform.processor(), "cores": os.cpu_count(), "numpy": np.__version__}
        args.json.write_text(json.dumps({"machine": machine, "cells": found}, indent=1) + "\n", encoding="utf-8")


def run_passes(args: argparse.Namespace) -> None:
    """Each cell in a process of its own, on a core of its own."""
    every = [(columns, k) for columns in COLUMNS for k in CLUSTERS]
    cells = [tuple(map(int, cell.split("x"))) for cell in args.cells.split(",")] if args.cells else every
    free: SimpleQueue[int] = SimpleQueue()
    for core in sorted(os.sched_getaffinity(0))[: args.jobs]:
        free.put(core)

    def one(cell: tuple[int, ...]) -> dict[str, Any]:
        core = free.get()
        command = [sys.executable, "-m", "bench.micro.shapes", "pass", "--one", f"{cell[0]}x{cell[1]}"]
        command += ["--seed", str(args.seed + 7 * cell[0] + cell[1]), *["--isotropic"][: args.isotropic]]
        made = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=1800,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )
        free.put(core)
        if made.returncode:
            return {"columns": cell[0], "k": cell[1], "error": made.stderr[-500:]}
        answer: dict[str, Any] = json.loads(made.stdout.splitlines()[-1])
        return answer

    found: list[dict[str, Any]] = []
    with ThreadPoolExecutor(args.jobs) as pool:
        waiting = [pool.submit(one, cell) for cell in sorted(cells, key=lambda c: (-c[1], -c[0]))]
        for done in as_completed(waiting):
            cell = done.result()
            print(cell["error"] if "error" in cell else told(cell), flush=True)
            found.append(cell)
            write_figures(args, found)


def contenders(k: int, columns: int, seed: int, runs: dict[str, Any]) -> Iterator[tuple[str, Callable[[Array], Array]]]:
    """Whole jobs, array to centroids. The peers come first: ours ends 0.5 % above what `runs` says of scikit-learn."""
    import flegel
    from flegel.algorithms.kmeans import KMeans

    def ours(sync: str, **options: Any) -> Callable[[Array], Array]:
        return lambda rows: np.asarray(
            flegel.run(KMeans(k=k), rows, sync=sync, seed=seed, **options).parameter.centroids
        )

    known = peers()
    for passes in (REFERENCE_PASSES, 10, 15, 20):
        for name in known:
            if passes != REFERENCE_PASSES and name != "superkmeans":
                continue

            def peer(rows: Array, name: str = name, passes: int = passes) -> Array:
                start = rows[np.random.default_rng(seed).choice(len(rows), k, replace=False)].copy()
                return known[name](rows, start, passes)[0]

            yield f"{name}, {passes} passes", peer
    if "superkmeans" in known:

        def hierarchical(rows: Array) -> Array:
            from superkmeans import SuperKMeans

            made = SuperKMeans(
                k, columns, hierarchical=True, iters=10, sampling_fraction=1.0, max_points_per_cluster=10**6
            )
            return np.asarray(made.train(rows))

        yield "superkmeans, hierarchical", hierarchical
    ours("bsp")(np.random.default_rng(0).normal(size=(4 * k, columns)).astype(np.float32))  # code is compiled
    reference = runs.get(f"scikit-learn, {REFERENCE_PASSES} passes")
    if reference:
        target = 1.005 * reference["objective"]
        for sync in ("fsp", "bsp"):
            yield f"flegel {sync}, to 0.5 % above scikit-learn", ours(sync, target=target)
    for sync in ("fsp", "bsp"):
        yield f"flegel {sync}, converged", ours(sync)


def run_jobs(args: argparse.Namespace) -> None:
    found: list[dict[str, Any]] = []
    for table in args.tables.split(","):
        points, columns, k = map(int, table.split("x"))
        rows = rows_of(points, columns, args.seed)
        cell: dict[str, Any] = {"points": points, "columns": columns, "k": k, "seed": args.seed, "runs": {}}
        for name, train in contenders(k, columns, args.seed, cell["runs"]):
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
        write_figures(args, found)


def rounded(value: Any) -> Any:
    """Numbers of a record to three digits."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    return float(f"{value:.3g}") if isinstance(value, float) else value


def write_page(args: argparse.Namespace) -> None:
    """docs/results/shapes.json and shapes.md, from the files of `pass` and `job`."""
    passes = [cell for file in args.passes for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]]
    good = [cell for cell in passes if "ours" in cell]
    for cell in good:
        for when in ("first", "later"):
            cell[f"best peer / ours, {when}"] = best_peer(cell, when)
    runs = json.loads(args.runs.read_text(encoding="utf-8"))["cells"] if args.runs else []
    record = {
        "title": "K-means on wide rows with many clusters",
        "command": "python -m bench.micro.shapes pass",
        "commit": args.commit,
        "machine": args.machine,
        "figures": {
            "passes": [rounded(_plain(cell)) for cell in passes],
            "jobs": [rounded_job(cell) for cell in runs],
        },
    }
    folder = ROOT / "docs/results"
    (folder / "shapes.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "shapes.md").write_text("\n".join(_page(args, good, runs)) + "\n", encoding="utf-8")


def _plain(cell: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in cell.items()} | {
        name: cell[name][1] for name in cell if name.startswith("best peer")
    }


def rounded_job(cell: dict[str, Any]) -> dict[str, Any]:
    """A table's jobs with seconds to two decimals and objectives to six digits."""
    runs = {
        name: {"seconds": round(run["seconds"], 2), "objective": float(f"{run['objective']:.6g}")}
        for name, run in cell["runs"].items()
    }
    return {**cell, "runs": runs}


def _page(args: argparse.Namespace, cells: list[dict[str, Any]], runs: list[dict[str, Any]]) -> Iterator[str]:
    yield "# K-means on wide rows with many clusters"
    yield ""
    yield f"Machine: {args.machine}."
    yield "Summary: [shapes.json](shapes.json). Rows are drawn anew."
    yield ""
    yield "`python -m bench.micro.shapes pass`: one core for each cell, the same start for all, processor time. The"
    yield "time of the best peer divided by ours, in the first pass (with all that our kernel makes ready) and later."
    for isotropic in (False, True):
        some = [cell for cell in cells if cell["isotropic"] == isotropic]
        if not some:
            continue
        yield ""
        yield (
            "Rows without structure (a normal distribution):"
            if isotropic
            else ("Rows of clusters that vary along 64 directions with a decaying spectrum, and a little noise:")
        )
        yield ""
        yield "| columns | k | rows | kernel | first pass | best peer | later passes | best peer | labels that differ |"
        yield "|---|---|---|---|---|---|---|---|---|"
        for cell in sorted(some, key=lambda one: (one["columns"], one["k"])):
            columns = [f"{cell[name]:,}" for name in ("columns", "k", "points")]
            columns.append(cell["ours"]["kernel"])
            for when in ("first", "later"):
                name, ratio = best_peer(cell, when)
                columns += [f"{float(f'{ratio:.3g}'):g}", name]
            yield f"| {' | '.join(columns)} | {cell['ours']['wrong']} |"
    for cell in runs:
        yield ""
        shape = f"{cell['points']:,} × {cell['columns']:,}, k = {cell['k']:,}"
        yield f"`python -m bench.micro.shapes job`: {shape}, array to model with default settings; ours ends when a"
        yield "pass changes the objective by less than 1e-6, if no other end is named. Objectives are recomputed in"
        yield "float64:"
        yield ""
        yield "| job | seconds | objective |"
        yield "|---|---|---|"
        for name, run in rounded_job(cell)["runs"].items():
            yield f"| {name} | {run['seconds']:g} | {run['objective']:,.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["pass", "job", "page"])
    parser.add_argument("--cells", default="", help="such as 384x1024,768x4096: columns and clusters; all by default")
    parser.add_argument("--tables", default="500000x384x1024,200000x768x4096,2000000x96x1024")
    parser.add_argument("--only", default="", help="contenders whose names contain one of these words")
    parser.add_argument("--isotropic", action="store_true", help="rows without structure")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time, each on a core of its own")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="a file for all figures")
    parser.add_argument("--passes", type=Path, nargs="+", default=[], help="files of `pass`, for the page")
    parser.add_argument("--runs", type=Path, help="the file of `job`, for the page")
    parser.add_argument("--machine", default=platform.processor() or platform.machine(), help="for the page")
    parser.add_argument("--commit", default="", help="for the page")
    args = parser.parse_args()
    if args.one:
        columns, k = map(int, args.one.split("x"))
        print(json.dumps(pass_cell(columns, k, args.seed, args.isotropic)))
        return
    if args.what == "page":
        write_page(args)
        return
    if args.what == "pass":
        run_passes(args)
    else:
        run_jobs(args)


if __name__ == "__main__":
    main()
