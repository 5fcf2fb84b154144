"""What a barrier costs with thousands of workers and dozens of parameter servers: the real machines on virtual time.

    python -m bench.micro.served_scaling --workers 100,1000,10000 --servers 16,64

The setting is that of `scaling_simulated`: `fsp` with a fixed interval, workers unequal by 20 %, costs of messages and
bytes as measured. φ is the time per barrier in which the average worker does not compute.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

from bench.common.served_simulation import ServedSimulation, VisitLearner, served_job, worker_numbers
from flegel.job import Criteria, SyncSpec
from flegel.sim.coordinator_cost import MEASURED
from flegel.sim.speeds import Speeds, draw
from flegel.sim.trainer import Pace

PASS = 60.0  # seconds
POINTS = 8192  # of a worker
SIZES = {"2 kB": 2_000, "1 MB": 1_000_000, "64 MB": 64_000_000}


def barrier(workers: int, servers: int, size: int, barriers: int, replicas: int) -> dict[str, Any]:
    """φ, the median of the rounds after the first."""
    numbers = list(worker_numbers(workers))
    factors, courses = draw(Speeds("lognormal:0.2"), workers, 0)
    paces = {
        number: Pace(POINTS / PASS * factors[at], worker=number, workers=workers, course=courses.get(at))
        for at, number in enumerate(numbers)
    }
    sync = SyncSpec("fsp", PASS / 8)
    job = served_job(sync, Criteria(max_iterations=barriers, tolerance=0.0), workers, servers, replicas)
    began = time.process_time()
    world = ServedSimulation(job, paces, {n: VisitLearner(POINTS, servers) for n in numbers}, MEASURED, size)
    world.run()
    costs = [row.barrier_cost for row in job.trace[1:] if row.barrier_cost is not None]
    return {
        "workers": workers, "servers": servers, "bytes": size, "phi": round(median(costs), 4),
        "events": world.events.count, "processor_seconds": round(time.process_time() - began, 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", default="100,1000")
    parser.add_argument("--servers", default="16,64")
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--barriers", type=int, default=3)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = []
    for servers in map(int, given.servers.split(",")):
        for workers in map(int, given.workers.split(",")):
            for name in given.sizes.split(","):
                rows.append({"size": name, **barrier(workers, servers, SIZES[name], given.barriers, given.replicas)})
                print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
    if given.out:
        given.out.write_text(json.dumps({"pass": PASS, "rows": rows}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
