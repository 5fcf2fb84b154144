"""k-means on Ray with a slow worker: Flegel beside a hand-written Ray program and Ray's parameter-server pattern.

    python -m bench.micro.ray_peers --workers 16 --rows 4e6 --slow 4 --factor 8

All three have the same rows, the same first centres and the same number of actors, of which `--slow` take `--factor`
times as long for each row. The time is that until the objective of all rows is within `--within` of the one that
full passes reach after `--passes`; it begins when all actors hold their rows. The hand-written program is the usual
one: each pass, all actors assign their rows to the centres (NumPy, a matrix product) and the driver waits for all sums.
The parameter server is the asynchronous example of Ray's documentation: an actor holds centres and counts, workers send
sums of a mini-batch as soon as they have one, and `ray.wait` takes whichever is first. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.datasets import open_data

BATCH = 4096
"""Rows of a mini-batch."""


def assigned(rows: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Sums and numbers of rows by their nearest centre, and the objective."""
    sums, counts, objective = np.zeros(centres.shape), np.zeros(len(centres)), 0.0
    norms = (centres**2).sum(axis=1)
    for start in range(0, len(rows), BATCH):
        part = rows[start : start + BATCH]
        distances = norms - 2.0 * part @ centres.T.astype(part.dtype)
        nearest = distances.argmin(axis=1)
        objective += float(distances[np.arange(len(part)), nearest].sum(dtype=np.float64))
        objective += float((part.astype(np.float64) ** 2).sum())
        np.add.at(sums, nearest, part)
        counts += np.bincount(nearest, minlength=len(centres))
    return sums, counts, objective


class RowHolder:
    """An actor: a share of the rows, perhaps slow."""

    def __init__(self, data: str, share: int, shares: int, factor: float) -> None:
        rows = np.asarray(open_data(data).load()[0])
        self._rows = np.ascontiguousarray(rows[share * len(rows) // shares : (share + 1) * len(rows) // shares])
        self._factor, self._next = factor, 0

    def ready(self) -> int:
        return len(self._rows)

    def work(self, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        began = time.perf_counter()
        found = assigned(self._rows, centres)
        time.sleep((self._factor - 1.0) * (time.perf_counter() - began))
        return found

    def mini_batch(self, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        began = time.perf_counter()
        start, self._next = self._next, (self._next + BATCH) % len(self._rows)
        sums, counts, _ = assigned(self._rows[start : start + BATCH], centres)
        time.sleep((self._factor - 1.0) * (time.perf_counter() - began))
        return sums, counts

    def objective(self, centres: np.ndarray) -> float:
        return assigned(self._rows, centres)[2]


class CentreServer:
    """Ray's parameter server: what arrives is applied at once, and the newest centres are handed out."""

    def __init__(self, centres: np.ndarray) -> None:
        self._centres, self._counts = np.array(centres, np.float64), np.zeros(len(centres))

    def apply(self, update: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        sums, counts = update
        self._counts += counts
        hit = counts > 0
        step = (sums[hit] - counts[hit, None] * self._centres[hit]) / self._counts[hit, None]
        self._centres[hit] += step
        return self._centres

    def centres(self) -> np.ndarray:
        return self._centres


def full_passes(ray: Any, actors: list[Any], first: np.ndarray, target: float | None, limit: float, passes: int) -> Any:
    """The hand-written program; seconds until the target, and the objective after the last pass."""
    centres, best = first, np.inf
    began = time.monotonic()
    for _ in range(passes):
        parts = ray.get([actor.work.remote(centres) for actor in actors])
        best = sum(part[2] for part in parts)
        if (target is not None and best <= target) or time.monotonic() - began > limit:
            break
        counts = sum(part[1] for part in parts)
        centres = sum(part[0] for part in parts) / np.maximum(counts, 1.0)[:, None]
    return time.monotonic() - began, best


def served(ray: Any, actors: list[Any], first: np.ndarray, target: float, limit: float) -> Any:
    """Ray's asynchronous parameter server. Looks at the objective once a second; that time is not counted."""
    server = ray.remote(CentreServer).remote(first)
    centres = ray.put(first)
    waiting = {actor.mini_batch.remote(centres): actor for actor in actors}
    spent, best, looked = 0.0, np.inf, time.monotonic()
    while spent < limit and best > target:
        (done,), _ = ray.wait(list(waiting), num_returns=1)
        actor = waiting.pop(done)
        waiting[actor.mini_batch.remote(server.apply.remote(done))] = actor
        if time.monotonic() - looked >= 1.0:
            spent += time.monotonic() - looked
            now = ray.get(server.centres.remote())
            best = min(best, sum(ray.get([actor.objective.remote(now) for actor in actors])))
            looked = time.monotonic()
    return spent, best


def ours(data: str, first: np.ndarray, target: float, given: argparse.Namespace) -> Any:
    """Flexible barriers on actors of the same Ray."""
    with flegel.ray.Cluster(slaves=given.workers, strategy="PACK") as cluster:
        result = flegel.run(
            KMeans(k=given.k, init="first"), data, cluster=cluster, workers=given.workers, sync="fsp", target=target,
            tolerance=0.0, max_seconds=given.limit, straggler=f"0-{given.slow - 1}:{given.factor:g}x",
        )  # fmt: skip
    return result.seconds, result.objective


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rows", type=float, default=2e5)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--slow", type=int, default=1)
    parser.add_argument("--factor", type=float, default=8.0)
    parser.add_argument("--passes", type=int, default=20, help="after which the reference objective is taken")
    parser.add_argument("--within", type=float, default=0.002)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for each program")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    import ray

    data = f"higgs:{int(given.rows)}"
    first = np.asarray(open_data(data).load()[0][: given.k], np.float64)
    ray.init(num_cpus=given.workers + 1, include_dashboard=False, log_to_driver=False)
    seconds: dict[str, list[float]] = {"flegel": [], "ray_full_passes": [], "ray_parameter_server": []}
    reached: dict[str, float] = {}
    for turn in range(given.repeats):
        factors = [given.factor if number < given.slow else 1.0 for number in range(given.workers)]
        holders = ray.remote(RowHolder)
        actors = [holders.remote(data, n, given.workers, factor) for n, factor in enumerate(factors)]
        ray.get([actor.ready.remote() for actor in actors])
        if turn == 0:
            equal = [holders.options(num_cpus=0).remote(data, n, given.workers, 1.0) for n in range(given.workers)]
            target = full_passes(ray, equal, first, None, 1e9, given.passes)[1] * (1 + given.within)
            for actor in equal:
                ray.kill(actor)
        took, reached["ray_full_passes"] = full_passes(ray, actors, first, target, given.limit, 10**6)
        seconds["ray_full_passes"].append(took)
        took, reached["ray_parameter_server"] = served(ray, actors, first, target, given.limit)
        seconds["ray_parameter_server"].append(took)
        for actor in actors:
            ray.kill(actor)
        took, reached["flegel"] = ours(data, first, target, given)
        seconds["flegel"].append(took)
    ray.shutdown()
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    print(
        json.dumps(
            {
                "workers": given.workers, "slow": given.slow, "factor": given.factor, "data": data, "k": given.k,
                "target": target, "seconds": {name: round(value, 3) for name, value in middle.items()},
                "ratio": {name: round(value / middle["flegel"], 2) for name, value in middle.items()},
                "reached": {name: bool(value <= target) for name, value in reached.items()}, "limit": given.limit,
            }
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
