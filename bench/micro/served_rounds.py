"""Rounds of real jobs with parameter servers behind limited links: cheaper than with the coordinator alone?

    python -m bench.micro.served_rounds barrier                  64 MB of θ, 8 workers: coordinator against 4 servers
    python -m bench.micro.served_rounds barrier --megabytes 512 --servers 8 --only servers
    python -m bench.micro.served_rounds unequal                  12 hosts, 20 to 220 Mbit/s: even against network

Coordinator, workers and servers are processes in network namespaces behind token-bucket links, the same in both
directions. The algorithm does hardly any work, so that a round is communication. Takes root, `ip` and `tc` on Linux.
The first round compiles and does not count.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

from bench.common.namespaces import Network, unavailable
from bench.common.placement_bounds import gain_bound
from bench.common.served_job import ServedJob, run_in

TIMEOUT = 600.0
"""Seconds of silence that are no loss: heartbeats wait behind large messages on slow links."""


def barrier(options: argparse.Namespace) -> dict[str, Any]:
    """The coordinator alone against some servers, every process behind a link of its own."""
    found: dict[str, Any] = {}
    counts = {"coordinator": 0, "servers": options.servers}
    for name, servers in counts.items():
        if options.only and name != options.only:
            continue
        with Network(1 + options.workers + servers) as network:
            network.limit(options.rate, receiving=True)
            names = network.names
            job = ServedJob(
                network.address(0), tuple(names[1 : 1 + options.workers]), tuple(names[1 + options.workers :]),
                options.megabytes * 1_000_000 // 8, options.rounds, {"servers": servers, "worker_timeout": TIMEOUT},
            )  # fmt: skip
            found[name] = _figures(run_in(network, 0, job, options.limit))
    if len(found) == 2:
        found["ratio"] = round(found["coordinator"]["median"] / found["servers"]["median"], 2)
    return found


def unequal(options: argparse.Namespace) -> dict[str, Any]:
    """A worker and a server on each host; the coordinator behind the fastest link."""
    hosts = 12
    found: dict[str, Any] = {"bound": round(gain_bound(hosts), 3)}
    speeds = [20 + 200 * i / (hosts - 1) for i in range(hosts)]
    for load in ("even", "network"):
        with Network(1 + hosts) as network:
            for node, speed in enumerate([max(speeds), *speeds]):
                network.limit(speed, [node], receiving=True)
            nodes = tuple(network.names[1:])
            job = ServedJob(
                network.address(0), nodes, nodes, options.megabytes * 1_000_000 // 8, options.rounds,
                {"servers": "colocated", "server_load": load, "replicas": 0, "worker_timeout": TIMEOUT},
            )  # fmt: skip
            found[load] = _figures(run_in(network, 0, job, options.limit))
    found["ratio"] = round(found["even"]["median"] / found["network"]["median"], 2)
    return found


def _figures(ran: dict[str, Any]) -> dict[str, Any]:
    """Medians of the later half: the plan is made in the first rounds."""
    return {**ran, "median": round(median(ran["rounds"][len(ran["rounds"]) // 2 :]), 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["barrier", "unequal"])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--megabytes", type=int, default=64, help="of θ")
    parser.add_argument("--rate", type=float, default=200.0, help="Mbit/s of each link")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--only", choices=["coordinator", "servers"], default="")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for one job")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    if why := unavailable():
        print(f"left out: {why}")
        return
    found = barrier(options) if options.what == "barrier" else unequal(options)
    text = json.dumps(found, indent=1, ensure_ascii=False)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
