"""The only recorded-test file that knows modules of the engine: simulated jobs in, plain numbers out.

A refactoring that renames modules, classes or fields changes this file and no record. It never hashes and never
compares. Reasons, notes and error texts are left out, because their wording may change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.faults.faulty_job import FaultyJob
from bench.faults.scenarios import anything, losing
from flegel.algorithms.kmeans import KMeans
from flegel.compare.candidate import parse_candidates
from flegel.compare.simulation import ClusterModel, SimulationSettings, simulation_runner
from flegel.datasets import open_data
from flegel.sim.learning_curve import FittedProgress
from flegel.sim.network import NetworkSpec
from flegel.sim.speeds import Speeds, parse_drift, parse_spot

Numbers = dict[str, Any]
"""By part of a job: numbers, nested in lists and tuples."""
SCENARIOS = {"anything": anything, "losing": losing}


def fault_job(kind: str, seed: int) -> Numbers:
    """One job under the faults that `kind` draws for this seed."""
    job = FaultyJob(SCENARIOS[kind](seed))
    found = job.run()
    coordinator = job.machine
    return {
        **_trace([vars(row) for row in coordinator.trace]),
        "end": [
            found.seconds, found.commits, found.moved, found.incidents, bool(found.error),
            np.frombuffer(found.theta).tolist(), sorted(coordinator.commits.staleness.items()),
            [(w.id, w.points, w.visits, w.passes) for w in coordinator.view.workers.values()],
        ],
        "traffic": [found.events, found.packets, found.lost, found.again, found.stale],
    }  # fmt: skip


def _trace(rows: list[dict[str, Any]]) -> Numbers:
    """Apart from each other: what was learnt, when, and what moved."""
    return {
        "learnt": [(row["iteration"], row["objective"], row["estimate"], row["visits"]) for row in rows],
        "times": [(row["seconds"], row["interval"], row["barrier_cost"], row["spans"]) for row in rows],
        "moves": [(row["passes"], row["in_flight"], row["moved_bytes"]) for row in rows],
    }


@dataclass(frozen=True)
class Simulated:
    """A comparison on virtual time."""

    sync: str
    workers: int
    stragglers: str = ""
    model: ClusterModel = field(default_factory=lambda: ClusterModel(pass_seconds=0.1))
    target: float | None = None
    seed: int = 0


COMPARISONS = {
    "stragglers": Simulated("bsp,bsp-mini,ssp,asp,psp,fsp,fsp-binary", 8, "0-1:8x"),
    "pauses": Simulated(
        "fsp:interval=5ms:coordination=semi,fsp:interval=5ms:coordination=centralized,fsp", 8, "0-1:12ms/100",
        ClusterModel(pass_seconds=0.01),
    ),
    "unequal": Simulated(
        "bsp,fsp:balance=async,fsp:balance=sync,fsp:balance=off", 6,
        model=ClusterModel(
            pass_seconds=0.2, speeds=Speeds("lognormal:0.5", parse_drift("0.2~500ms")),
            network=NetworkSpec(latency=2e-4, jitter=1e-4, racks=2, rack_latency=3e-4, bandwidth=1e8, hub=1e9, uplink=5e8),  # noqa: E501
        ),
        seed=3,
    ),
    "revoked": Simulated(
        "bsp,fsp,psp,ssp:staleness=3:batches=4", 4,
        model=ClusterModel(pass_seconds=0.1, speeds=Speeds("uniform:0.5-2", spot=parse_spot("3600/h:300ms"))), seed=5,
    ),
    "curve": Simulated(
        "bsp,fsp,ssp", 300, "5%:8x",
        ClusterModel(
            pass_seconds=1.0, size=20_000,
            progress=FittedProgress(tuple(range(1, 21)), tuple(100 + 900 / 2**n for n in range(20)), loss=0.3),
        ),
        target=104.0,
    ),
}  # fmt: skip


def comparison(name: str) -> Numbers:
    """All candidates of one comparison: their attempts, and the trace of each, by candidate and part."""
    chosen = COMPARISONS[name]
    held = simulation_runner(
        SimulationSettings(
            algorithm=KMeans(k=5, init="random"), data=open_data(_integer_clouds(4000)),
            candidates=parse_candidates(chosen.sync),
            workers=chosen.workers, repeat=1, straggler=chosen.stragglers, target=chosen.target, seed=chosen.seed,
            model=chosen.model,
        )
    )  # fmt: skip
    found = held.run()
    parts: Numbers = {"target": [found.target, found.limit]}
    for label, result in held.runs.items():
        parts |= {f"{label} {part}": numbers for part, numbers in _trace(result.rows).items()}
        workers = [[v for v in row.values() if isinstance(v, int | float)] for row in result.worker]
        parts[f"{label} end"] = [result.objective, result.iterations, result.seconds, result.utilization, workers]
    for attempt in found.attempts:
        parts[f"{attempt.candidate} attempt"] = [
            attempt.reached, attempt.objective, attempt.checked, attempt.passes_low, attempt.passes_high,
        ]  # fmt: skip
    return parts


def _integer_clouds(rows: int) -> np.ndarray[Any, Any]:
    """Sums over integers are exact, in whatever order a processor's vectors add them."""
    rng = np.random.default_rng(11)
    centres = rng.integers(-12, 13, size=(8, 4))
    return (centres[rng.integers(8, size=rows)] + rng.integers(-9, 10, size=(rows, 4))) * 1.0
