"""From an array in memory to a model: k-means on all cores beside scikit-learn and sklearnex with as many threads.

    python -m bench.rivals.in_memory [--points 11000000] [--workers 0] [--k 10] [--rounds 3] [--json FILE]

*Given start*: all begin with the same centroids. Lloyd ends by its own default tolerance; Flegel ends when its
objective is within 0.1 % of Lloyd's inertia. *Default start*: each makes its own start and ends by its own rule, so the
objectives are told as well. Wall-clock seconds of the whole call, in turn, in one process, after a small job of each
that loads the code. `--workers 0` is the default of `flegel.run`, a team of threads; another number starts that many
worker processes, which are part of the call. Then the job with the given start once more with its phases timed
(`bench.common.phases`), and once more for the memory that it takes beside the array. Asserts nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

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


class Run(NamedTuple):
    """One call, array to model."""

    seconds: float
    objective: float
    passes: float
    result: Any = None


def peer(module: str, rows: np.ndarray, k: int, start: np.ndarray | None) -> Run:
    """KMeans of `module` (sklearn.cluster, sklearnex.cluster): from `start`, or from one start of its own."""
    made = importlib.import_module(module).KMeans
    began = time.perf_counter()
    if start is None:
        found = made(k, n_init=1, copy_x=False).fit(rows)
    else:
        found = made(k, init=start, n_init=1, algorithm="lloyd", copy_x=False).fit(rows)
    return Run(time.perf_counter() - began, float(found.inertia_), int(found.n_iter_))


def ours(rows: np.ndarray, k: int, start: np.ndarray | None, workers: int, target: float | None) -> Run:
    began = time.perf_counter()
    options: dict[str, Any] = {"workers": workers} if workers else {}
    if target is not None:
        options["target"] = target
    found = flegel.run(KMeans(k=k) if start is None else KMeans(k=k, init=start), rows, **options)
    return Run(time.perf_counter() - began, float(found.objective or 0.0), float(found.iterations), found)


def installed() -> dict[str, str]:
    """The peers that can be imported: name, module of their KMeans."""
    known = {"scikit-learn": "sklearn.cluster", "sklearnex": "sklearnex.cluster"}
    return {name: module for name, module in known.items() if importlib.util.find_spec(module.partition(".")[0])}


def turn(rows: np.ndarray, k: int, start: np.ndarray | None, workers: int) -> dict[str, Any]:
    """Every peer once, then Flegel; with a given start to within 0.1 % of scikit-learn's inertia."""
    runs = {name: peer(module, rows, k, start) for name, module in installed().items()}
    target = None if start is None else SLACK * runs["scikit-learn"].objective
    mine = ours(rows, k, start, workers, target)
    found: dict[str, Any] = {
        "flegel_s": mine.seconds, "flegel_training_s": mine.result.seconds,
        "flegel_loading_s": mine.result.load_seconds, "threads_or_workers": str(mine.result.placement),
        "objective_over_scikit_learn": mine.objective / runs["scikit-learn"].objective,
    }  # fmt: skip
    for name, run in runs.items():
        found |= {f"{name}_s": run.seconds, f"{name}_passes": run.passes, f"ratio_{name}": run.seconds / mine.seconds}
    return found


def told(found: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {value if isinstance(value, str) else format(value, '.4g')}" for name, value in found.items()
    )


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    for name, default in (("points", 11_000_000), ("workers", 0), ("k", 10), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path, help="where to write all figures")
    options = parser.parse_args(arguments)
    rows = points_of(options.points, options.k)
    start, k, few = rows[: options.k].copy(), options.k, rows[:50_000]
    report: dict[str, Any] = {name: getattr(options, name) for name in ("points", "workers", "k")}
    for name, given in (("given start", start), ("default start", None)):
        turn(few, k, given, options.workers)
        runs = []
        for _ in range(options.rounds):
            runs.append(turn(rows, k, given, options.workers))
            print(f"{name}: {told(runs[-1])}", flush=True)
        ratios = {key: statistics.median(run[key] for run in runs) for key in runs[0] if key.startswith("ratio")}
        print(f"{name}, {options.points} x {COLUMNS}, k={k}: {told(ratios)}", flush=True)
        report[name] = {"runs": runs, "median": ratios}
        if options.json:
            options.json.write_text(json.dumps(report, indent=1))
    target = SLACK * peer("sklearn.cluster", few, k, start).objective * len(rows) / len(few)
    with timed_phases() as phases:
        whole = ours(rows, k, start, options.workers, target)
    with most_held() as most:
        ours(rows, k, start, options.workers, target)
    memory = most[0] / rows.nbytes
    phases |= {"loading": whole.result.load_seconds, "training": whole.result.seconds, "whole": whole.seconds}
    print("phases: " + ", ".join(f"{name} {value:.3f}" for name, value in phases.items()), flush=True)
    print(f"memory beside the array: {memory:.2f} times its size; workers are {whole.result.placement}")
    if options.json:
        options.json.write_text(json.dumps(report | {"phases": phases, "memory": memory}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
