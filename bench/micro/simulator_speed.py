"""How long does it take to simulate ten thousand workers?

Runs FSP on virtual time, the whole machinery with a progress curve, for a number of barriers, and prints the processor
time of this process: one core.

    python -m bench.micro.simulator_speed --workers 1000,10000 --barriers 1000 --out runs/simulator.json
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from pathlib import Path
from typing import Any

from flegel.api.jobs import resolve
from flegel.compare.candidate import parse_candidate
from flegel.compare.simulation import ClusterModel, JobSimulator, SimulationSettings
from flegel.datasets import open_data
from flegel.job import Criteria
from flegel.runtime.processes import host
from flegel.sim.learning_curve import FittedProgress
from flegel.sim.speeds import Speeds

PROGRESS = FittedProgress(tuple(float(p) for p in range(4001)), tuple(1e6 / (1 + p) for p in range(4001)), 0.5)
"""Never converges, so that the number of barriers ends the job."""


def measure(workers: int, barriers: int, sync: str, stragglers: str, spread: str) -> dict[str, Any]:
    settings = SimulationSettings(
        algorithm=resolve("kmeans"), data=open_data("higgs:4000"), candidates=[], workers=workers, repeat=1
    )
    model = ClusterModel(pass_seconds=20.0, speeds=Speeds(spread), learning="curve", progress=PROGRESS)
    simulator = JobSimulator(settings, model)
    began, wall = time.process_time(), time.monotonic()
    result = simulator.run(parse_candidate(sync), Criteria(max_iterations=barriers, tolerance=0.0), stragglers, 0)
    took = time.process_time() - began
    updates = result.iterations
    return {
        "workers": workers, "sync": sync, "barriers": updates, "processor_seconds": round(took, 1),
        "wall_seconds": round(time.monotonic() - wall, 1), "virtual_seconds": round(result.seconds, 1),
        "us_per_report": round(took * 1e6 / sum(result.staleness.values()), 1),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", default="1000,10000")
    parser.add_argument("--barriers", type=int, default=1000)
    parser.add_argument("--sync", default="fsp")
    parser.add_argument("--stragglers", default="5%:8x")
    parser.add_argument("--spread", default="lognormal:0.3")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = []
    for workers in map(int, given.workers.split(",")):
        rows.append(measure(workers, given.barriers, given.sync, given.stragglers, given.spread))
        print(rows[-1], flush=True)
    if given.out:
        found = {"commit": host.commit(), "machine": host.machine(), "load": os.getloadavg(), "rows": rows}
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
