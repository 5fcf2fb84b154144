"""Memory of the driver while it trains on a dask array that is generated lazily on workers of Dask.

    python -m bench.micro.lazy_array --gigabytes 10 --workers 16

The blocks are written by Dask's workers and read by slaves on them (`flegel.dask.Cluster`); this process is the driver.
Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import resource
import time

import flegel
from flegel.algorithms.kmeans import KMeans

COLUMNS = 28


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=5)
    given = parser.parse_args()
    import dask.array as da
    from distributed import Client, LocalCluster

    rows = int(given.gigabytes * 1e9 / (4 * COLUMNS))
    with (
        LocalCluster(n_workers=given.workers, threads_per_worker=1, dashboard_address=None) as hosts,
        Client(hosts) as client,
        flegel.dask.Cluster(client) as cluster,
    ):
        lazy = da.random.default_rng(0).normal(size=(rows, COLUMNS), chunks=(250_000, COLUMNS)).astype("float32")
        began = time.monotonic()
        result = flegel.run(
            KMeans(k=10, init="first"), lazy, cluster=cluster, workers=given.workers, sync="bsp",
            max_iterations=given.iterations, tolerance=0.0, audit="off",
            worker_timeout=300.0,
        )  # fmt: skip
        seconds = time.monotonic() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        json.dumps(
            {
                "rows": rows, "gigabytes": round(rows * COLUMNS * 4 / 1e9, 2), "seconds": round(seconds, 1),
                "training_seconds": round(result.seconds, 2), "iterations": result.iterations,
                "driver_peak_gigabytes": round(peak / 1e9, 3),
            }
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
