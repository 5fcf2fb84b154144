"""What would several GPUs of one host gain? Simulated, because no host with more than one GPU was at hand.

Each GPU is a worker of the real engine on virtual time. Its speed, the size of θ and the speed of the bus are those
that were measured on one GPU (docs/results/gpu-shapes.md): k-means with 384 columns and 1,024 clusters. θ and
statistics of all GPUs pass one bus, and one coordinator's thread; where rows do not fit into the memory of the devices,
they come over the same bus in each pass. A few rows are trained for real and stand for many.

    python -m bench.micro.host_gpus --gpus 1,2,4,8 --out runs/host_gpus.json
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from bench.common.virtual_runs import CLUSTERS, COLUMNS, clustered_rows, compare_virtually
from flegel.compare.simulation import ClusterModel
from flegel.sim.coordinator_cost import MEASURED
from flegel.sim.network import NetworkSpec

RATE = 500_000 / 5.842e-3
"""Rows a second of one GPU in later passes."""
ROW_BYTES = 384 * 4
THETA_BYTES = 1024 * 384 * 8
BUS = 55e9  # bytes a second, from the host to devices or back
COPY_SECONDS = 20e-6  # of a copy besides its bytes
SYNC = "fsp,bsp"


class Host(NamedTuple):
    """GPUs of one host and how they are connected."""

    name: str
    slow_half: float = 1.0
    """How fast every second GPU is, of the others' speed."""
    own_links: bool = False
    """Each GPU has a link of that speed to itself, and the host's memory is as fast as all of them."""
    streamed: bool = False
    """Rows come from the host's memory in each pass."""


HOSTS = (
    Host("equal"),
    Host("half of them half as fast", 0.5),
    Host("equal, a link for each", own_links=True),
    Host("equal, rows from the host", streamed=True),
)


def model(host: Host, gpus: int, rows: int, stand_for: int) -> ClusterModel:
    """`rows` are trained, and take as long as `stand_for` would."""
    hub = float("inf") if host.own_links else BUS
    over_bus = BUS / ROW_BYTES / (1 if host.own_links else gpus) if host.streamed else float("inf")
    speeds = [min(RATE * (host.slow_half if gpu % 2 else 1.0), over_bus) for gpu in range(gpus)]
    moved = BUS * (rows * COLUMNS * 4) / (stand_for * ROW_BYTES)  # bytes a second of the few rows that stand for many
    return ClusterModel(
        rates={gpu: speed * rows / stand_for for gpu, speed in enumerate(speeds)},
        network=NetworkSpec(latency=COPY_SECONDS, bandwidth=BUS, hub=hub),
        costs=replace(MEASURED, message=COPY_SECONDS, bandwidth=moved),
        learning="real",
        size=THETA_BYTES,
    )


def race(host: Host, gpus: int, rows: int, stand_for: int, seed: int) -> dict[str, Any]:
    """Virtual seconds to the same objective by model, and what part of their time the GPUs computed."""
    found = compare_virtually(
        "kmeans", clustered_rows(rows, seed), SYNC, seed, gpus, settings={"k": CLUSTERS, "init": "random"},
        model=model(host, gpus, rows, stand_for),
    )  # fmt: skip
    times = {name: found.times(name) for name in SYNC.split(",")}
    return {
        "host": host.name,
        "gpus": gpus,
        **{name: None if time is None else round(time.median, 4) for name, time in times.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpus", default="1,2,4,8")
    parser.add_argument("--rows", type=int, default=40_000, help="that are trained")
    parser.add_argument("--stand-for", type=int, default=40_000_000, help="rows whose time they take")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    lines = []
    for host in HOSTS:
        for gpus in map(int, given.gpus.split(",")):
            for seed in map(int, given.seeds.split(",")):
                lines.append({"seed": seed, **race(host, gpus, given.rows, given.stand_for, seed)})
                print(json.dumps(lines[-1]), flush=True)
    if given.out:
        given.out.write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
