"""Synchronization models against each other, on warm workers: who reaches the same objective first.

    python -m bench.figures.sync --workers 16 --out sync.json
    python -m bench.figures.sync --workers 4 --parts race --algorithms kmeans --stragglers 8x --repeats 1

Parts: `race` (every model, with and without stragglers, same target, each repeat from another start), `sweep`
(fixed intervals against the one that fsp finds, whatever the first), `semi` (synchronization cost with own clocks and
with the coordinator's signal), `psp` (utilization with speeds 1:2:3), `passes` (how far apart the workers' passes are
in the course of a job of `--seconds` seconds, with and without moving points). Ratios are medians over pairs of runs
from the same start; times that hit the limit are lower bounds and marked with >.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import flegel
from bench.common.paired_ratio import paired_ratio
from bench.common.problems import ALGORITHMS, FROM_ZERO, SIZE, WITHIN, Problem, Problems
from flegel.api.jobs import LocalCluster
from flegel.errors import FlegelError
from flegel.runtime.job.find_algorithm import find_algorithm

MODELS = ("bsp", "bsp-mini", "ssp", "asp", "psp", "fsp-binary", "fsp")


@dataclass
class Bench:
    """Warm workers, a limit for each run, and all that was measured."""

    cluster: LocalCluster
    problems: Problems
    limit: float
    repeats: int
    within: float | None
    deadline: float
    targets: dict[tuple[str, int], float] = field(default_factory=dict)

    def run(self, on: Problem, **options: Any) -> flegel.Result:
        options.setdefault("max_seconds", self.limit)
        options.setdefault("partition", on.partition)
        options["settings"] = {**FROM_ZERO, **options.get("settings", {})}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return flegel.run(on.algorithm, on.data, cluster=self.cluster, **options)

    def target(self, on: Problem) -> float:
        """What bsp converges to, less a small part of all that it gained after its first pass."""
        key = on.name, on.data.rows
        if key not in self.targets:
            done = self.run(on, sync="bsp", tolerance=1e-6, max_iterations=60)
            first = next(row["objective"] for row in done.rows if row["objective"] is not None)
            within = self.within if self.within is not None else WITHIN[on.name]
            self.targets[key] = done.objective + within * (first - done.objective)
        return self.targets[key]

    @property
    def late(self) -> bool:
        return time.monotonic() > self.deadline


def figures(result: flegel.Result, limit: float) -> dict[str, Any]:
    costs = [row["barrier_cost"] for row in result.rows]
    return {
        "seconds": result.seconds,
        "reached": result.converged,
        "iterations": result.iterations,
        "passes": sum(w["visits"] for w in result.worker) / sum(w["points"] for w in result.worker),
        "utilization": result.utilization,
        "spread": result.balance["spread"],
        "barrier_ms": 1e3 * statistics.median(costs),
        "barrier_sum": sum(costs),
        "interval_ms": 1e3 * (statistics.median([r["interval"] or 0 for r in result.rows])),
        "reason": result.reason,
        "decisions": [[row["iteration"], row["seconds"], row["reason"]] for row in result.rows if row["reason"]][:60],
        "limit": limit,
    }


def middle(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run with the median time; one that hit the limit is the slowest."""
    ordered = sorted(runs, key=lambda r: (not r["reached"], r["seconds"]))
    return {**ordered[len(ordered) // 2], "all": [round(r["seconds"], 4) for r in runs]}


def show(label: str, found: dict[str, Any], times: float | None = None) -> None:
    sign = " " if found["reached"] else ">"
    ratio = f"{times:7.2f}x fsp" if times else ""
    print(
        f"  {label:22} {sign}{found['seconds']:8.3f} s {ratio:12} rounds {found['iterations']:5d} "
        f"passes {found['passes']:6.1f} util {found['utilization']:.2f} φ {found['barrier_ms']:.2f} ms "
        f"η {found['interval_ms']:.1f} ms spread {found['spread']:.2f}",
        flush=True,
    )


ENOUGH = {"bsp": 13.0, "bsp-mini": 4.0}  # times the seconds of fsp, after which a rival is cut off
CLEAR = 2.0  # times the seconds of fsp: a rival that needed so much is not asked again


def race(bench: Bench, name: str, rows: int, straggler: str, models: list[str]) -> dict[str, Any]:
    began = time.monotonic()
    on = bench.problems.get(name, rows)
    target = bench.target(on)
    print(f"{name}, {rows} points, straggler {straggler or 'none'}, target {target:.6g}", flush=True)
    order = sorted(models, key=lambda model: model != "fsp")  # fsp first: what it needs is the measure for the others
    runs: dict[str, list[dict[str, Any]]] = {model: [] for model in order}
    for seed in range(bench.repeats):
        for model in order:
            best = runs["fsp"][-1]["seconds"] if runs.get("fsp") else bench.limit
            last = runs[model][-1] if runs[model] else None
            if bench.late or (last and (not last["reached"] or last["seconds"] > CLEAR * best)):
                continue
            limit = bench.limit if model == "fsp" else min(bench.limit, ENOUGH.get(model, 1.6) * best + 0.1)
            sync, _, more = model.partition("+")
            result = bench.run(
                on, sync=sync, target=target, tolerance=0, straggler=straggler, max_seconds=limit, seed=seed,
                **({"balance" if more in ("async", "sync", "off") else "coordination": more} if more else {}),
            )  # fmt: skip
            runs[model].append(figures(result, limit))
    found = {model: middle(each) for model, each in runs.items() if each}
    for model, each in found.items():
        show(model, each, paired_ratio(found, model)[0] if "fsp" in found else None)
    print(f"  all in {time.monotonic() - began:.0f} s", flush=True)
    return {"rows": rows, "target": target, "straggler": straggler, "models": found}


def sweep(bench: Bench, name: str, rows: int, straggler: str) -> dict[str, Any]:
    on = bench.problems.get(name, rows)
    target = bench.target(on)
    options = {"sync": "fsp", "target": target, "tolerance": 0, "straggler": straggler}
    print(f"{name}, {rows} points, straggler {straggler or 'none'}: fixed intervals against the adjuster", flush=True)
    fixed: dict[str, list[dict[str, Any]]] = {}
    free: dict[str, list[dict[str, Any]]] = {}
    for turn in range(bench.repeats):
        firsts = deque((0.0, 0.01, 0.2, 5.0))
        firsts.rotate(turn)  # the first run after the long ones of the sweep is slower than others
        for first in firsts:
            if not bench.late:
                result = bench.run(on, settings={"interval.first_seconds": first}, **options)
                label = f"first {first:g} s" if first else "first measured"
                free.setdefault(label, []).append(figures(result, bench.limit))
        limit = min(bench.limit, 2 * min(runs[-1]["seconds"] for runs in free.values()))
        for eta in np.geomspace(0.001, 0.5, 14):
            if not bench.late:
                result = bench.run(on, interval=float(eta), max_seconds=limit, **options)
                fixed.setdefault(f"{eta * 1e3:.3g} ms", []).append(figures(result, limit))
    found = {"fixed": {k: middle(v) for k, v in fixed.items()}, "adjuster": {k: middle(v) for k, v in free.items()}}
    best = min((each["seconds"] for each in found["fixed"].values() if each["reached"]), default=float("nan"))
    for kind in found.values():
        for label, each in kind.items():
            show(label, each)
    for label, each in found["adjuster"].items():
        each["to_best"] = each["seconds"] / best
        print(f"  {label}: {each['to_best']:.2f} of the best fixed interval")
    return {"rows": rows, "straggler": straggler, "best_fixed": best, **found}


def semi(bench: Bench, rows: int, straggler: str) -> dict[str, Any]:
    """No points move: moves cost rounds as much as what is measured here, and some have more of them than others."""
    on = bench.problems.get("kmeans", rows)
    found: dict[str, Any] = {"straggler": straggler}
    print(f"kmeans, {rows} points, straggler {straggler or 'none'}: cost of synchronization", flush=True)
    for eta in ("20ms", "50ms", "100ms"):
        for coordination in ("centralized", "semi"):
            runs = []
            for _ in range(bench.repeats):
                result = bench.run(
                    on, sync="fsp", interval=eta, coordination=coordination, straggler=straggler, balance="off",
                    tolerance=0, max_iterations=40,
                )  # fmt: skip
                used = list(result.rows[10:])
                runs.append(sum(row["barrier_cost"] for row in used) / max(len(used), 1))
            found[f"{eta} {coordination}"] = statistics.median(runs)
        saved = 1 - found[f"{eta} semi"] / found[f"{eta} centralized"]
        print(
            f"  η {eta}: centralized {1e3 * found[f'{eta} centralized']:.2f} ms, "
            f"semi {1e3 * found[f'{eta} semi']:.2f} ms a barrier: {saved:.0%} saved",
            flush=True,
        )
    return found


def psp(bench: Bench, rows: int, workers: int) -> dict[str, Any]:
    """Speeds 1 : ½ : ⅓ in three groups."""
    on = bench.problems.get("kmeans", rows)
    third = max(workers // 3, 1)
    middle_, slow = f"{third}-{2 * third - 1}", f"{2 * third}-{3 * third - 1}"
    straggler = f"{middle_}:2x,{slow}:3x"
    found, runs = {}, {}
    for model in ("bsp", "ssp", "psp", "fsp"):
        result = bench.run(on, sync=model, straggler=straggler, workers=3 * third, tolerance=0, max_seconds=4.0)
        runs[model] = figures(result, 4.0) | {"workers": result.worker}
        found[model] = result.utilization
        print(f"  {model:8} utilization {result.utilization:.1%} with {straggler}", flush=True)
        show(model, runs[model])
    return {"straggler": straggler, "rows": rows, "utilization": found, "runs": runs}


def passes(bench: Bench, name: str, rows: int, straggler: str, seconds: float, balances: list[str]) -> dict[str, Any]:
    """max − min of the workers' passes at every tenth of a job that only the time limit ends."""
    on = bench.problems.get(name, rows)
    print(f"{name}, {rows} points, straggler {straggler or 'none'}: max - min of passes, {seconds:g} s", flush=True)
    found: dict[str, Any] = {"rows": rows, "straggler": straggler, "seconds": seconds}
    for balance in balances:
        result = bench.run(
            on, sync="fsp", balance=balance, straggler=straggler, tolerance=0, max_iterations=None, max_seconds=seconds
        )
        course = []
        for tenth in range(1, 11):
            row = [row for row in result.rows if row["seconds"] <= tenth / 10 * result.seconds][-1]
            course.append(round(max(row["passes"]) - min(row["passes"]), 3))
        within = next((i for i in range(10) if max(course[i:]) <= 1), None)
        found[balance] = figures(result, seconds) | {"course": course, "moves": result.balance.get("moves", 0)}
        since = f"at most 1 from {within + 1}/10 of the time on" if within is not None else "more than 1 at the end"
        print(f"  {balance:6} {found[balance]['passes']:6.1f} passes: {course}, {since}", flush=True)
    return found


class Report(dict[str, Any]):
    """What was found, kept in a file after each entry, so that a run that is cut off loses nothing."""

    def __init__(self, path: str, **start: Any) -> None:
        super().__init__(start)
        self.path = path

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        if self.path:
            Path(self.path).write_text(json.dumps(self, indent=1))


def words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def main() -> None:
    """Run the parts that were asked for."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--workers", type=int, default=16)
    options.add_argument("--out", default="")
    options.add_argument("--parts", type=words, default=["race", "sweep", "semi", "psp", "passes"])
    options.add_argument("--algorithms", type=words, default=list(ALGORITHMS))
    more = "also with +semi, +centralized; or, for balance, +async, +sync, +off"
    options.add_argument("--models", type=words, default=list(MODELS), help=more)
    options.add_argument("--stragglers", type=words, default=["none", "8x", "32ms/1000"])
    options.add_argument("--without", type=words, default=[], help="models left out: bsp@32ms/1000,ssp@8x")
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--rows", type=int, default=800_000, help="points a worker, for k-means")
    options.add_argument("--limit", type=float, default=30.0, help="seconds that one run may take")
    options.add_argument("--seconds", type=float, default=8.0, help="length of a job of the part `passes`")
    options.add_argument("--balances", type=words, default=["async", "off"], help="of the part `passes`")
    options.add_argument("--within", type=float, help="of what bsp gains after pass 1: target's distance")
    options.add_argument("--minutes", type=float, default=6.0, help="no new run after that")
    shares = "sorted: k-means alone, each share knows a part of the clusters"
    options.add_argument("--shares", choices=("shuffled", "sorted"), default="shuffled", help=shares)
    chosen = options.parse_args()
    if chosen.shares == "sorted" and set(chosen.algorithms) != {"kmeans"}:
        options.error("--shares sorted is for k-means: add --algorithms kmeans")
    slow = f"0-{max(chosen.workers // 4, 1) - 1}"
    patterns = ["" if s == "none" else f"{slow}:{s}" for s in chosen.stragglers]
    report = Report(
        chosen.out, workers=chosen.workers, python=sys.version.split()[0], repeats=chosen.repeats, shares=chosen.shares
    )
    with LocalCluster(chosen.workers) as cluster, Problems(chosen.shares) as problems:
        deadline = time.monotonic() + 60 * chosen.minutes
        bench = Bench(cluster, problems, chosen.limit, chosen.repeats, chosen.within, deadline)
        for name in chosen.algorithms:
            try:
                find_algorithm(name)
            except FlegelError as error:
                print(f"{name}: left out ({error})")
                continue
            for kind, pattern in zip(chosen.stragglers, patterns, strict=True):
                rows = int(chosen.rows * SIZE.get(name, 1.0)) * chosen.workers
                models = [model for model in chosen.models if f"{model}@{kind}" not in chosen.without]
                if "race" in chosen.parts and models and not bench.late:
                    report[f"race {name} {pattern}"] = race(bench, name, rows, pattern, models)
                if "passes" in chosen.parts and pattern and not bench.late:
                    report[f"passes {name} {pattern}"] = passes(
                        bench, name, rows, pattern, chosen.seconds, chosen.balances
                    )
                if "sweep" in chosen.parts and not bench.late and "/" not in pattern:
                    report[f"sweep {name} {pattern}"] = sweep(bench, name, rows, pattern)
        for pattern in patterns:
            if "semi" in chosen.parts and not bench.late:
                report[f"semi {pattern}"] = semi(bench, chosen.rows * chosen.workers, pattern)
        if "psp" in chosen.parts and not bench.late:
            report["psp"] = psp(bench, chosen.rows * chosen.workers, chosen.workers)


if __name__ == "__main__":
    main()
