"""A launched cluster beside `LocalCluster`, on the same data with the same number of workers: start and training.

    python -m bench.micro.launch_overhead --system ray --workers 16 --rows 11e6

Runs alternate; medians of the training seconds, start-up apart. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import flegel
from flegel.algorithms.kmeans import KMeans


def launched(system: str, workers: int) -> Any:
    """A cluster with one slot for each worker."""
    if system == "ray":
        return flegel.ray.Cluster(slaves=workers, init={"num_cpus": workers})
    if system == "mpi":
        return flegel.mpi.Cluster(slaves=workers)
    from flegel.cluster.launch.local import LocalLaunch

    return LocalLaunch(slaves=workers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--system", choices=["ray", "mpi", "local"], default="ray")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rows", type=float, default=1e6)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    job = {"workers": given.workers, "sync": "bsp", "max_iterations": 50, "tolerance": 0.0}
    data = f"higgs:{int(given.rows)}"
    began = time.monotonic()
    with launched(given.system, given.workers) as there:
        start_there = time.monotonic() - began
        began = time.monotonic()
        with flegel.LocalCluster(workers=given.workers) as here:
            start_here = time.monotonic() - began
            seconds: dict[str, list[float]] = {"launched": [], "local": []}
            for _ in range(given.repeats):
                for name, cluster in (("launched", there), ("local", here)):
                    seconds[name].append(flegel.run(KMeans(k=10), data, cluster=cluster, **job).seconds)
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    print(
        json.dumps(
            {
                "system": given.system, "workers": given.workers, "data": data,
                "start_seconds": {"launched": round(start_there, 2), "local": round(start_here, 2)},
                "training_seconds": {name: round(value, 4) for name, value in middle.items()},
                "ratio": round(middle["launched"] / middle["local"], 4),
            }
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
