"""Which model is fastest on jobs of a tenth of a second, one second and five seconds?

    python -m bench.figures.short_jobs --workers 16 --out short_jobs.json

The papers' algorithms on data whose size gives `bsp` about that long, without stragglers and with a quarter of the
workers slowed eight times. Every model trains from the same start to the same objective, in turns; a cell is the median
time divided by that of the best model in it. `--virtual` does the same on virtual time, where nothing disturbs.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.common.problems import SIZE, Problem, Problems
from bench.common.suite import quarter
from flegel import LocalCluster
from flegel.compare.candidate import parse_candidates
from flegel.compare.comparison import ComparisonRunner, ComparisonSettings
from flegel.compare.record import Comparison
from flegel.compare.simulation import ClusterModel, SimulationSettings, simulation_runner

LENGTHS = (0.1, 1.0, 5.0)  # seconds of bsp
PASSES = 20.0  # that such a job takes, roughly
PROBE = 20_000  # rows from which the speed is measured
MODELS = "fsp,auto,fsp-binary,ssp,asp,psp,bsp-mini,bsp"


def compared(problem: Problem, straggler: str, length: float, given: argparse.Namespace, cluster: Any) -> Comparison:
    common: dict[str, Any] = {
        "algorithm": problem.algorithm, "data": problem.data, "candidates": parse_candidates(given.models),
        "workers": given.workers, "repeat": given.repeat, "straggler": straggler, "partition": problem.partition,
        "within": 0.002, "max_seconds": 20.0 * length,
    }  # fmt: skip
    if given.virtual:
        model = ClusterModel(pass_seconds=length / PASSES)
        return simulation_runner(SimulationSettings(**common, model=model)).run()
    return ComparisonRunner(ComparisonSettings(**common), cluster).run()


def rows_for(name: str, length: float, given: argparse.Namespace, problems: Problems, cluster: Any) -> int:
    """Rows with which `bsp` takes about so long; on virtual time the length of a pass is given instead."""
    import flegel

    if given.virtual:
        return int(given.rows * SIZE[name])
    probe = problems.get(name, PROBE)
    flegel.run(probe.algorithm, probe.data, sync="bsp", max_iterations=3, tolerance=0, cluster=cluster)
    timed = flegel.run(probe.algorithm, probe.data, sync="bsp", max_iterations=10, tolerance=0, cluster=cluster)
    return max(int(PROBE * length / PASSES / (timed.seconds / 10)), 50 * given.workers)


def cells(given: argparse.Namespace) -> Iterator[tuple[str, dict[str, float | None]]]:
    with LocalCluster(given.workers if not given.virtual else 1) as cluster, Problems() as problems:
        for name in given.only.split(","):
            for length in LENGTHS:
                problem = problems.get(name, rows_for(name, length, given, problems, cluster))
                for straggler in ("", f"{quarter(given.workers)}:8x"):
                    found = compared(problem, straggler, length, given, cluster)
                    times = {c: found.times(c) for c in given.models.split(",")}
                    label = f"{name} {length:g} s {'stragglers' if straggler else 'even'}"
                    yield label, {c: None if t is None else float(t.median) for c, t in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--only", default="kmeans,gmm,fcm,lr,nmf", help="algorithms, with commas between")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--rows", type=int, default=16_384, help="with --virtual")
    parser.add_argument("--virtual", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    record: dict[str, Any] = {}
    behind = []
    for label, times in cells(given):
        best = min((t for t in times.values() if t is not None), default=None)
        record[label] = times
        shown = {c: "–" if t is None or best is None else f"{t / best:.2f}" for c, t in times.items()}
        print(f"{label:24s}", " ".join(f"{c} {ratio}" for c, ratio in shown.items()), flush=True)
        mine = times.get("fsp")
        if best is not None and (mine is None or mine > 1.05 * best):
            behind.append(label)
        if given.out:
            given.out.write_text(json.dumps(record, indent=1), encoding="utf-8")
    print(f"fsp is more than 5 % behind in {len(behind)} of {len(record)} cells: {', '.join(behind) or 'none'}")


if __name__ == "__main__":
    main()
