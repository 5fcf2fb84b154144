"""Does the simulator predict real runs: the time to the target within 15 %, and the ranking of the models?

Workers of this host are throttled by sleeps, so that many of them fit on few cores, and some are slowed further. Speeds
and costs are taken from a short run without slow workers before each scenario; everything else is predicted. Each
prediction is set against the median of real runs of the same job: same rows, same start, same stragglers, same target.

With `--data clouds` (the default) k-means comes down to one optimum without a plateau on its way, so that time is what
differs. With `--data plateau` it passes a saddle, and how long it stays there depends on the smallest differences
between two runs; with `--data higgs` the order of updates decides between optima.

On a machine that is busy with other things, `--realtime` gives coordinator and workers, which sleep most of the time,
precedence over everything else (needs the right to do so).

    python -m bench.micro.simulator_accuracy --workers 4 --repeat 3 --realtime --out runs/calibrate
    python -m bench.micro.simulator_accuracy --workers 16 --out runs/calibrate
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np

import flegel
from flegel.api.jobs import LocalCluster, resolve
from flegel.compare.candidate import Candidate, parse_candidates
from flegel.compare.comparison import in_memory
from flegel.compare.simulation import ClusterModel, JobSimulator, SimulationSettings
from flegel.compare.stats import first_reaching, loosened
from flegel.datasets import open_data
from flegel.errors import FlegelError
from flegel.job import Criteria
from flegel.runtime.processes import host
from flegel.sim.network import NetworkSpec
from flegel.sim.replay import record

PAUSE, EVERY = 0.002, 1000  # every worker sleeps so long after so many points
POINTS = 28_000  # of a worker: a pass takes about 60 ms
LIMIT = 40.0
AIM = 0.15
DRAWS = 3  # predictions of each job: the order in which reports come is a matter of luck, there as here


class Line(msgspec.Struct, kw_only=True):
    """One job, measured and predicted."""

    scenario: str
    straggler: str
    model: str
    real: list[float]
    """Seconds to the target; a run that did not reach it is left out and counted."""
    missed: int
    draws: list[float]
    """Predicted seconds, each with other seed for the ways of messages."""
    predicted: float | None
    """Their median; None unless most reach the target."""
    barriers_real: float
    barriers_predicted: int

    @property
    def error(self) -> float | None:
        """Predicted over measured, less one."""
        return self.predicted / median(self.real) - 1 if self.predicted is not None and self.real else None


class Findings(msgspec.Struct, kw_only=True):
    """All of it."""

    workers: int
    rows: int
    cores: int
    machine: dict[str, str]
    commit: str
    load_average: float
    target: float
    realtime: bool
    models: dict[str, dict[str, float]] = {}
    """By scenario: points a second without sleeps, and what messages cost, as measured right before."""
    lines: list[Line] = []
    rankings: dict[str, list[list[str]]] = {}
    """By scenario: models from fast to slow, as measured and as predicted."""
    within: float = 0.0
    """Share of the predictions within 15 %."""


@dataclass
class Bench:
    """One machine, one set of workers."""

    cluster: LocalCluster
    data: Any
    algorithm: Any
    workers: int
    seed: int
    realtime: bool

    def real(self, candidate: Candidate, straggler: str, **criteria: Any) -> Any:
        _precedence(self.realtime)
        try:
            return flegel.run(
                self.algorithm, self.data, workers=self.workers, sync=candidate.sync, cluster=self.cluster,
                seed=self.seed, straggler=straggler, **candidate.options, **criteria,
            )  # fmt: skip
        finally:
            _precedence(False)


def _precedence(wanted: bool) -> None:
    """Over other programs, or none."""
    if wanted:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(5))
    elif os.sched_getscheduler(0) != os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def scenarios(workers: int) -> dict[str, str]:
    """Everybody sleeps a little; some sleep more."""
    base, slow = f"all:{PAUSE * 1e3:g}ms/{EVERY}", max(workers // 4, 1)
    who = f"0-{slow - 1}" if slow > 1 else "0"
    return {
        "even": base,
        "a quarter 8 times slower": f"{base},{who}:{7 * PAUSE * 1e3:g}ms/{EVERY}",
        "a quarter 3 times slower": f"{base},{who}:{2 * PAUSE * 1e3:g}ms/{EVERY}",
        "a moving quarter, 6 times": f"{base},moving{slow}:{5 * PAUSE * 1e3:g}ms/{EVERY}~700ms",
    }


def model_of(bench: Bench, base: str) -> ClusterModel:
    """Speeds and costs of these workers now."""
    fixed = bench.real(
        Candidate("fsp", "fsp", {"interval": 0.02, "balance": "off"}), base, tolerance=0, max_iterations=60
    )
    heard = record(fixed.rows, bench.workers)
    bare = []
    for rate in heard.rates.values():
        bare.append(1.0 / max(1.0 / rate - PAUSE / EVERY, 1e-9))
    rate = median(bare)
    return ClusterModel(
        rates=dict.fromkeys(range(bench.workers), rate), costs=heard.costs, learning="real",
        network=NetworkSpec(latency=heard.costs.message, jitter=heard.jitter),
    )  # fmt: skip


def _figures(model: ClusterModel) -> dict[str, float]:
    costs = {k: v for k, v in vars(model.costs).items() if k in ("message", "react", "wake", "merge", "send")}
    return {"rate": round((model.rates or {0: 0.0})[0], 1), "jitter": model.network.jitter, **costs}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--sync", default="bsp,ssp,fsp:balance=off,fsp,fsp-binary,asp")
    parser.add_argument("--data", choices=["clouds", "plateau", "higgs"], default="clouds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--realtime", action="store_true", help="real runs take precedence over other programs")
    parser.add_argument("--out", type=Path, default=Path("runs/calibrate"), help="folder for calibrate-WORKERS.json")
    given = parser.parse_args()
    data, algorithm, within, tolerance = problem(given.data, POINTS * given.workers)
    _precedence(given.realtime)  # workers inherit it
    with LocalCluster(given.workers) as cluster:
        bench = Bench(cluster, data, algorithm, given.workers, given.seed, given.realtime)
        found = measure(bench, parse_candidates(given.sync), given.repeat, within, tolerance)
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / f"calibrate-{given.data}-{given.workers}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    print(told(found))
    print(path)


def problem(name: str, rows: int) -> tuple[Any, Any, float, float]:
    """Rows, algorithm, how far from the optimum the target lies, and when bsp counts as converged."""
    if name == "higgs":
        return in_memory(open_data(f"higgs:{rows}")), resolve("kmeans"), 0.002, 1e-4
    rng, (apart, off) = np.random.default_rng(0), (1.5, 1.0) if name == "plateau" else (1.0, 0.4)
    means = rng.normal(scale=apart, size=(6, 6))
    clouds = (means[rng.integers(6, size=rows)] + rng.normal(size=(rows, 6))).astype(np.float32)
    start = means + rng.normal(scale=off, size=means.shape)
    return open_data(clouds), type(resolve("kmeans"))(k=6, init=start), 0.0005, 1e-5


def measure(bench: Bench, candidates: list[Candidate], repeat: int, within: float, tolerance: float) -> Findings:
    cases = scenarios(bench.workers)
    base = cases["even"]
    bench.real(Candidate("bsp", "bsp"), base, max_iterations=3, tolerance=0)  # warm
    reference = bench.real(Candidate("bsp", "bsp"), base, tolerance=tolerance)
    target = loosened(reference.objective, within, bench.algorithm.learning.maximize)
    settings = SimulationSettings(
        algorithm=bench.algorithm, data=bench.data, candidates=candidates, workers=bench.workers, seed=bench.seed
    )
    simulator = JobSimulator(settings, model_of(bench, base))
    found = Findings(
        workers=bench.workers, rows=bench.data.rows, cores=os.cpu_count() or 1, machine=host.machine(),
        commit=host.commit(), load_average=os.getloadavg()[0], target=target, realtime=bench.realtime,
    )  # fmt: skip
    for name, straggler in cases.items():
        simulator.model = model_of(bench, base)
        found.models[name] = _figures(simulator.model)
        lines = {c.label: _line(name, straggler, c) for c in candidates}
        for turn in range(repeat):
            for candidate in candidates[turn % len(candidates) :] + candidates[: turn % len(candidates)]:
                _run(bench, candidate, straggler, target, lines[candidate.label])
        for candidate in candidates:
            line = lines[candidate.label]
            _predict(simulator, candidate, straggler, target, line, bench.algorithm.learning.maximize)
            _say(f"{name:28} {candidate.label:18} real {_shown(line.real)}, predicted {line.predicted}")
            found.lines.append(line)
        found.rankings[name] = [
            [m for _, m in sorted((median(x.real), x.model) for x in lines.values() if x.real)],
            [
                m
                for _, m in sorted((x.predicted, x.model) for x in lines.values() if x.predicted is not None and x.real)
            ],
        ]
    errors = [abs(x.error) for x in found.lines if x.error is not None]
    found.within = sum(e <= AIM for e in errors) / max(len(errors), 1)
    return found


def _line(scenario: str, straggler: str, candidate: Candidate) -> Line:
    return Line(
        scenario=scenario, straggler=straggler, model=candidate.label, real=[], missed=0, draws=[],
        predicted=None, barriers_real=0, barriers_predicted=0,
    )  # fmt: skip


def _run(bench: Bench, candidate: Candidate, straggler: str, target: float, line: Line) -> None:
    try:
        result = bench.real(candidate, straggler, target=target, tolerance=0, max_seconds=LIMIT)
    except FlegelError as error:
        _say(f"{candidate.label}: {error}")
        line.missed += 1
        return
    reached = first_reaching(
        [(r["seconds"], r["objective"]) for r in result.rows], target, bench.algorithm.learning.maximize
    )
    if reached is None:
        line.missed += 1
    else:
        line.real.append(reached)
    line.barriers_real = result.iterations


def _predict(
    simulator: JobSimulator, candidate: Candidate, straggler: str, target: float, line: Line, maximize: bool
) -> None:
    criteria = Criteria(target=target, tolerance=0.0, max_seconds=LIMIT)
    for seed in range(DRAWS):
        result = simulator.run(candidate, criteria, straggler, simulator.settings.seed + seed)
        when = first_reaching([(r["seconds"], r["objective"]) for r in result.rows], target, maximize)
        if when is not None:
            line.draws.append(when)
    line.predicted = median(line.draws) if 2 * len(line.draws) > DRAWS else None
    line.barriers_predicted = result.iterations


def told(found: Findings) -> str:
    """A table for people."""
    head = (
        f"{found.workers} workers, {found.rows:,} rows, {found.cores} cores, load {found.load_average:.1f} at the start"
    )
    rows = [head, "", "| scenario | model | real, median [range] s | predicted, median [range] s | error | barriers |",
            "|---|---|---|---|---|---|"]  # fmt: skip
    for x in found.lines:
        error = "–" if x.error is None else f"{x.error:+.0%}"
        predicted = "–" if x.predicted is None else _shown(x.draws)
        rows.append(
            f"| {x.scenario} | {x.model} | {_shown(x.real)} | {predicted} | {error} | "
            f"{x.barriers_real:.0f} / {x.barriers_predicted} |"
        )
    rows += ["", "| scenario | measured, from fast to slow | predicted |", "|---|---|---|"]
    for name, (measured, predicted) in found.rankings.items():
        same = "the same" if measured == predicted else ", ".join(predicted)
        rows.append(f"| {name} | {', '.join(measured)} | {same} |")
    rows += ["", f"{found.within:.0%} of the predictions are within {AIM:.0%}."]
    return "\n".join(rows)


def _shown(values: list[float]) -> str:
    if not values:
        return "–"
    return f"{median(values):.3g} [{min(values):.3g} – {max(values):.3g}]"


def _say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
