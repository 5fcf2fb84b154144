"""Memory of each process of a job whose θ lies on parameter servers: does a large θ train, and who holds how much?

    python -m bench.micro.served_memory --megabytes 512

The job runs in this process, which is its coordinator; workers and servers are processes of their own. Printed for each
process: its largest resident size (VmHWM), less that of the same job with hardly any θ, and the bound beside it, both
in sizes of θ. A server may hold its slices and copies, θ·(1 + k)/S, and what comes and goes for its slices: the parts
of W reports and the next θ, θ·(W + 1)/S. The coordinator may hold θ·(1 + k)/S. A worker computes with all of θ: it may
hold θ and the next one, the sums, two reports until copies hold them, and two sizes of θ on their way.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bench.common import program
from bench.common.large_model import Gradient, LargeModel
from bench.common.process_memory import peak_of
from flegel import LocalCluster
from flegel.machine.server.care import FIRST_SERVER

SMALL = 1 << 17
"""Bytes of θ in the job that shows what processes take anyway."""


class FlatModel(LargeModel):
    """The same with a kernel that needs no memory of its own."""

    def initAggregator(self, sample: Any, parameter: Any) -> Any:
        return Gradient(np.zeros(self.parameters))

    def kernel(self, shard: Any) -> Any:
        def pull(shard: Any, parameter: Any, aggregator: Any, start: int, end: int, iteration: int, flag: Any) -> int:
            size = 1 << 16
            for point in range(start, end):
                if flag[0]:
                    return point
                goal = float(shard.features[point, 0])
                for at in range(0, aggregator.gradient.size, size):
                    aggregator.gradient[at : at + size] += goal - parameter.weights[at : at + size]
            return end

        return pull


def peaks(size: int, options: argparse.Namespace) -> dict[str, Any]:
    """One job in a new process."""
    words = program.command("bench.micro.served_memory", "--job", str(size), "--workers", str(options.workers))
    words += ["--servers", str(options.servers), "--copies", str(options.copies), "--rounds", str(options.rounds)]
    done = subprocess.run(
        words, capture_output=True, text=True, env=program.environment(), check=False, timeout=options.limit
    )
    if done.returncode:
        raise RuntimeError(f"the job failed: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def job(options: argparse.Namespace) -> dict[str, Any]:
    """Train, and look at every process several times a second."""
    rows = np.random.default_rng(0).normal(size=(options.workers, 2))
    seen: dict[str, int] = {}
    with LocalCluster(options.workers) as cluster:

        def look(_: Any) -> None:
            found = {"coordinator": os.getpid()}
            for process, handle in list(cluster.registry.processes.items()):
                server, pid = process >= FIRST_SERVER, getattr(handle, "pid", 0)
                found[f"server {process - FIRST_SERVER}" if server else f"worker {process}"] = pid
            seen.update({name: max(seen.get(name, 0), peak_of(pid)) for name, pid in found.items()})

        result = cluster.run(
            FlatModel(parameters=options.job // 8), rows, workers=options.workers, servers=options.servers,
            replicas=options.copies, sync="bsp", max_iterations=options.rounds, tolerance=0.0, balance="off",
            audit="off", watch=look, worker_timeout=120.0, seed=1,
        )  # fmt: skip
        look(None)
    ends = [row["seconds"] for row in result.rows]
    first, last = float(result.parameter.weights[0]), float(result.parameter.weights[-1])
    wanted = _expected(rows[:, 0], options.rounds)
    return {"peaks": seen, "rounds": ends, "right": max(abs(first - wanted), abs(last - wanted)) < 1e-12}


def _expected(goals: Any, rounds: int) -> float:
    weight = 0.0
    for _ in range(rounds):
        weight += 0.01 * float(np.sum(goals - weight))
    return weight


def bounds(theta: int, options: argparse.Namespace) -> dict[str, float]:
    share = theta * (1 + options.copies) / options.servers
    passing = theta * (options.workers + 1) / options.servers
    return {"coordinator": share, "server": share + passing, "worker": 7 * theta}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=512, help="of θ")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one job")
    parser.add_argument("--job", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    if options.job:
        print(json.dumps(job(options)))
        return 0
    theta = options.megabytes << 20
    small, large = peaks(SMALL, options), peaks(theta, options)
    allowed = bounds(theta, options)
    table = {}
    for name, peak in sorted(large["peaks"].items()):
        more = (peak - small["peaks"].get(name, 0)) / theta
        bound = allowed[name.split()[0]] / theta
        table[name] = {"resident_mb": round(peak / 2**20), "in_theta": round(more, 2), "bound": round(bound, 2)}
    found = {"theta_mb": options.megabytes, "right": large["right"], "rounds": large["rounds"], "processes": table}
    text = json.dumps(found, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    return 0 if large["right"] and all(row["in_theta"] <= row["bound"] for row in table.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
