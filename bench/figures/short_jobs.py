"""Which model is fastest on jobs of a tenth of a second, one second and five seconds?

    python -m bench.figures.short_jobs --workers 16 --out short_jobs.json
    python -m bench.figures.short_jobs --virtual --only fcm

The papers' algorithms from random rows, on data whose size gives `bsp` about that long to its target, without
stragglers and with a quarter of the workers slowed eight times. The target is that of `bench.figures.sync`. (From the
starts that the algorithms search for on a sample, jobs of this size are over after one or two passes; then a figure
shows what a first pass costs and no training.) Every model trains from the same start to the same objective, in turns.
A rival is cut off after 1.5 times the time of `fsp`. A cell is the median time divided by that of the best model in it.
`--virtual` does the same on virtual time, where nothing disturbs; the rows of a job stand for sixteen times as
many: a first pass of so few rows would be one round (docs/adr/first-pass.md). `--explain` adds where the time of each
model went: passes over the data, updates a pass, cost of a barrier, utilization, and the objective by passes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.common.problems import SIZE, WITHIN, Problem, Problems
from bench.common.suite import quarter
from flegel import LocalCluster
from flegel.compare.candidate import parse_candidates
from flegel.compare.simulation import ClusterModel, JobSimulator, SimulationSettings
from flegel.configuration.active import DEFAULTS, using
from flegel.job import Criteria

PASSES = {"kmeans": 10, "gmm": 26, "fcm": 8, "lr": 4, "nmf": 29}  # of bsp to the target, measured
PROBE = 40_000  # rows of each worker from which the speed is measured
STAND_FOR = 16  # rows for which one stands on virtual time
MOST_PASSES = 60  # of bsp, from which the target is taken
CUT_OFF = 1.5  # times the time of fsp, after which a rival is stopped
MODELS = "fsp,auto,fsp-binary,ssp,asp,psp,bsp-mini,bsp"


class Measured:
    """Jobs on real workers."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.cluster = given, LocalCluster(given.workers)

    def train(self, on: Problem, length: float, **options: Any) -> Any:
        import flegel

        return flegel.run(on.algorithm, on.data, cluster=self.cluster, partition=on.partition, **options)

    def rows(self, name: str, length: float, problems: Problems) -> int:
        """With which `bsp` takes about so long."""
        on = begun_at_random(problems.get(name, int(PROBE * self.given.workers * SIZE[name])))
        self.train(on, length, sync="bsp", max_iterations=2, tolerance=0)
        timed = self.train(on, length, sync="bsp", max_iterations=6, tolerance=0)
        return max(int(float(on.data.rows) * length / PASSES[name] / (timed.seconds / 6)), 64 * self.given.workers)

    def close(self) -> None:
        self.cluster.close()


class Simulated:
    """The same on virtual time; the length of a pass is given."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        evidence = DEFAULTS.barriers.first_update_evidence / STAND_FOR
        self._settings = {"barriers.first_update_evidence": evidence}

    def train(self, on: Problem, length: float, **options: Any) -> Any:
        candidate = parse_candidates(options.pop("sync"))[0]
        straggler = options.pop("straggler", "")
        model = ClusterModel(pass_seconds=length / PASSES[on.name])
        settings = SimulationSettings(
            algorithm=on.algorithm, data=on.data, candidates=[candidate], workers=self.given.workers,
            partition=on.partition, model=model,
        )  # fmt: skip
        with using(self._settings):
            return JobSimulator(settings, model).run(candidate, Criteria(**options), straggler, 0)

    def rows(self, name: str, length: float, problems: Problems) -> int:
        return int(self.given.rows * SIZE[name])

    def close(self) -> None:
        """Nothing is held."""


def begun_at_random(on: Problem) -> Problem:
    if hasattr(on.algorithm, "init"):
        on.algorithm.init = "random"
    return on


def target_of(on: Problem, length: float, jobs: Measured | Simulated) -> float:
    """What bsp converges to, less a small part of all that it gained after its first pass."""
    done = jobs.train(on, length, sync="bsp", tolerance=1e-6, max_iterations=MOST_PASSES)
    first = next(row["objective"] for row in done.rows if row["objective"] is not None)
    return float(done.objective + WITHIN[on.name] * (first - done.objective))


def explained(done: Any, points: int, target: float) -> dict[str, Any]:
    """Where the time of a job went. `path`: passes over the data, seconds, and the distance to the target relative to
    it, at eight updates; `intervals`: the same passes and η in milliseconds."""
    rows = done.rows
    passes: list[float] = []
    for row in rows:
        passes.append((passes[-1] if passes else 0.0) + row["visits"] / points)
    known = [i for i, row in enumerate(rows) if row["objective"] is not None]
    some = [known[round(k * (len(known) - 1) / 7)] for k in range(8)] if known else []
    costs = sorted(row["barrier_cost"] for row in rows) or [0.0]
    first = next((i for i, total in enumerate(passes) if total >= 1.0), len(rows) - 1)
    return {
        "outcome": done.outcome, "seconds": done.seconds, "passes": passes[-1] if passes else 0.0,
        "updates": len(rows), "updates a pass": len(rows) / max(passes[-1] if passes else 0.0, 1e-9),
        "first update": [rows[0]["seconds"], passes[0]] if rows else [],
        "first pass": [rows[first]["seconds"], first + 1] if rows else [],
        "utilization": done.utilization, "barrier, median": statistics.median(costs), "barrier, most": costs[-1],
        "path": [[passes[i], rows[i]["seconds"], rows[i]["objective"] / target - 1.0] for i in dict.fromkeys(some)],
        "intervals": [[passes[i], (rows[i]["interval"] or 0.0) * 1e3] for i in dict.fromkeys(some)],
        "reasons": [[rows[i]["seconds"], row["reason"]] for i, row in enumerate(rows) if row["reason"]][:12],
        "audited": done.audit.get("difference"),
    }  # fmt: skip


def raced(
    on: Problem, straggler: str, length: float, target: float, given: argparse.Namespace, jobs: Measured | Simulated,
    notes: dict[str, Any],
) -> dict[str, float | None]:  # fmt: skip
    """Median seconds by model; None where the target was not reached in time in most turns."""
    times: dict[str, list[float]] = {model: [] for model in given.models.split(",")}
    for _ in range(given.repeat):
        limit = 20.0 * length
        for model, seen in times.items():
            done = jobs.train(
                on, length, sync=model, target=target, tolerance=0.0, straggler=straggler, max_seconds=limit
            )
            seen.append(done.seconds if done.converged else float("inf"))
            if given.explain:
                notes[model] = explained(done, int(on.data.rows), target)
            if model == "fsp" and done.converged:
                limit = CUT_OFF * done.seconds + 0.05 * length
    middle = {model: statistics.median(seen) for model, seen in times.items()}
    return {model: None if seconds == float("inf") else seconds for model, seconds in middle.items()}


def cells(given: argparse.Namespace, notes: dict[str, Any]) -> Iterator[tuple[str, dict[str, float | None]]]:
    jobs: Measured | Simulated = Simulated(given) if given.virtual else Measured(given)
    try:
        with Problems() as problems:
            for name in given.only.split(","):
                for length in (float(word) for word in given.lengths.split(",")):
                    on = begun_at_random(problems.get(name, jobs.rows(name, length, problems)))
                    target = target_of(on, length, jobs)
                    for straggler in ("", f"{quarter(given.workers)}:8x")[: 1 if given.even else 2]:
                        label = f"{name} {length:g} s {'stragglers' if straggler else 'even'}"
                        yield label, raced(on, straggler, length, target, given, jobs, notes.setdefault(label, {}))
    finally:
        jobs.close()


def _in_short(note: dict[str, Any]) -> str:
    return (
        f"{note['seconds']:.3f} s ({note['outcome']}): {note['passes']:.2f} passes, "
        f"{note['updates a pass']:.1f} updates a pass, "
        f"barrier {1e3 * note['barrier, median']:.2f} ms, utilization {note['utilization']:.0%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--models", default=MODELS, help="with commas between, fsp first")
    parser.add_argument("--only", default="kmeans,gmm,fcm,lr,nmf", help="algorithms, with commas between")
    parser.add_argument("--lengths", default="0.1,1,5", help="seconds of bsp, with commas between")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--rows", type=int, default=16_384, help="with --virtual")
    parser.add_argument("--virtual", action="store_true")
    parser.add_argument("--even", action="store_true", help="without stragglers only")
    parser.add_argument("--explain", type=Path, help="a file for where the time of each model went")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    record: dict[str, Any] = {}
    behind: dict[str, list[str]] = {"fsp": [], "auto": []}
    notes: dict[str, Any] = {}
    for label, times in cells(given, notes):
        best = min((t for t in times.values() if t is not None), default=None)
        record[label] = times
        shown = {c: "–" if t is None or best is None else f"{t / best:.2f}" for c, t in times.items()}
        print(f"{label:24s}", " ".join(f"{c} {ratio}" for c, ratio in shown.items()), f"best {best:.4f} s", flush=True)
        for mine, found in behind.items():
            took = times.get(mine)
            if mine in times and best is not None and (took is None or took > 1.05 * best):
                found.append(label)
        for model, note in notes[label].items():
            print("   ", model, _in_short(note), flush=True)
        if given.explain:
            given.explain.write_text(json.dumps(notes, indent=1), encoding="utf-8")
        if given.out:
            given.out.write_text(json.dumps(record, indent=1), encoding="utf-8")
    for mine, found in behind.items():
        print(f"{mine} is more than 5 % behind in {len(found)} of {len(record)} cells: {', '.join(found) or 'none'}")


if __name__ == "__main__":
    main()
