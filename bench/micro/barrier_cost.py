"""What a barrier costs the coordinator: from the signal until the last report is folded in, the kernel left out.

Workers of this host run a kernel that does nothing but look at its stop flag, asleep most of the time (or awake
all the time with --busy), and commit statistics of the size of k-means with k=10 on 28 columns. Prints a table of
microseconds for each number of workers; --out writes the same as JSON. --links compares local sockets with what
workers on other hosts use, TCP with CURVE, turn by turn.

    python -m bench.micro.barrier_cost --workers 1,2,4,8,16 --barriers 500
    python -m bench.micro.barrier_cost --workers 1,2,4 --links local,remote --turns 3

--threads measures a team instead (docs/teams.md): a round of k-means with k=10 on 28 columns in which every thread has
one tile of 64 points, so nearly all of it is the barrier: begin together, arrive, sums. Inside compiled code, which is
compiled where it is not in the cache, with and without `updateParameter`; and by calls from the interpreter, as before
that code is there. One thread alone needs no barrier: its call is what the others are compared with.

    python -m bench.micro.barrier_cost --threads 1,2,4,8,16 --out team_barrier.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

import flegel
from bench.common.remote_cluster import RemoteCluster
from flegel import Algorithm, LocalCluster
from flegel.algorithm import Sample
from flegel.algorithms.kmeans import KMeans
from flegel.configuration.active import active
from flegel.core import pytree
from flegel.core.shard import TILE, Shard, make_shard
from flegel.core.stop_flag import new_flag
from flegel.runtime import clock
from flegel.runtime.backends.numba.team import TeamBackend, TeamKernel, compiling_loops
from flegel.runtime.processes import host
from flegel.sync.policy import (
    NOTHING,
    Decision,
    Event,
    Reported,
    Started,
    StopWorkers,
    SyncModel,
    TrainWorkers,
    Update,
    Updated,
    View,
    Wake,
    Woken,
)

K, COLUMNS = 10, 28
GOAL_MICROSECONDS = 50  # of a team's compiled calls with 16 threads
CLUSTERS = {"local": LocalCluster, "remote": RemoteCluster}


class Sums(NamedTuple):
    sums: Any
    counts: Any


class Idle(Algorithm):
    """Trains nothing: its kernel waits for the flag."""

    busy: bool = False

    def initParameter(self, sample: Any, rng: Any) -> Any:
        return np.zeros((10, 28))

    def initAggregator(self, sample: Any, parameter: Any) -> Any:
        return Sums(np.zeros((10, 28)), np.zeros(10))

    def updateDataPoint(self, dataPoint: Any, parameter: Any, iterationNum: int) -> Any:
        return Sums(np.zeros((10, 28)), np.zeros(10))

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return oldParameter + 0.0

    def kernel(self, share: Shard) -> Any:
        import ctypes

        import numba

        from flegel.core.atomic_flag import raised

        usleep = ctypes.CDLL(None).usleep
        usleep.argtypes, usleep.restype = [ctypes.c_uint32], ctypes.c_int
        nap = 0 if self.busy else 50  # microseconds between two looks at the flag

        @numba.njit(nogil=True)
        def wait(flag: Any) -> None:
            while not raised(flag):
                if nap:
                    usleep(nap)

        def kernel(s: Any, parameter: Any, total: Any, start: int, end: int, iteration: int, flag: Any) -> int:
            if end - start <= 1:
                return end  # the one step of a round whose signal came before it began
            wait(flag)
            return start

        return kernel


class Metronome(SyncModel):
    """A signal every so often, and a note of how long each barrier took, read from the clock of this process."""

    name = "metronome"
    summary = "for this benchmark"
    seconds: ClassVar[float] = 0.005
    costs: ClassVar[list[float]] = []
    """Of the last job; the engine makes the model, so its results are found at the class."""

    def __init__(self) -> None:
        self.interval: float | None = self.seconds
        self.costs.clear()
        self._signal = 0.0

    def decide(self, event: Event, view: View, now: float) -> Decision:
        match event:
            case Started() | Updated():
                if isinstance(event, Updated):
                    self.costs.append(clock.now() - self._signal)
                return Decision((TrainWorkers(tuple(view.workers)), Wake(now + (self.interval or 0.0), view.round)))
            case Woken(tag=tag) if tag == view.round:
                self._signal = clock.now()
                return Decision((StopWorkers(view.training()),))
            case Reported() if view.all_reported():
                return Decision((Update(tuple(view.workers)),))
        return NOTHING


def measure(cluster: LocalCluster, workers: int, barriers: int, interval: float, busy: bool) -> np.ndarray:
    """Seconds of each barrier, without the first few."""
    Metronome.seconds = interval
    rows = np.zeros((10_000 * workers, COLUMNS), np.float32)
    flegel.run(
        Idle(busy=busy), rows, workers=workers, sync="metronome", max_iterations=barriers + 20, tolerance=0,
        cluster=cluster,
    )  # fmt: skip
    return np.array(Metronome.costs[10:])


def measure_team(threads: int, rounds: int) -> dict[str, dict[str, float]]:
    """Seconds of a round of a team, with the update of θ and without."""
    rows = np.random.default_rng(0).normal(size=(64 * threads, COLUMNS)).astype(np.float32)
    algorithm, sample = KMeans(k=K), Sample(rows, None, len(rows), COLUMNS)
    theta = pytree.as_doubles(algorithm.initParameter(sample, np.random.default_rng(0)))
    zero = pytree.as_doubles(algorithm.initAggregator(sample, theta))
    shard = make_shard(rows, None, algorithm.initState(len(rows), COLUMNS, np.random.default_rng(0)), "tiles")
    with compiling_loops():
        inside = TeamBackend(threads, False).build(algorithm, shard, theta, zero, False)
    assert isinstance(inside, TeamKernel) and inside.has_compiled_loop == (threads > 1)
    called = TeamKernel([algorithm.kernel(shard)] * threads, "hand-written", "", theta, zero, 0)
    found = {}
    for kernel, name in ((inside, "compiled calls" if threads > 1 else "one thread"), (called, "interpreted calls")):
        rounds_only, with_update = _rounds(kernel, algorithm, shard, theta, zero, rounds)
        found[name] = summary(rounds_only)
        if kernel is inside:
            found["with updateParameter"] = summary(with_update)
    return found


def _rounds(
    kernel: TeamKernel, algorithm: KMeans, shard: Shard, theta: Any, zero: Any, rounds: int
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of each round, without the first few; the same with the update of θ."""
    flag, rounds_only, with_update = new_flag(), [], []
    rules = active().processors
    called = 0.0 if kernel.has_compiled_loop else rules.called_block_seconds_per_thread * shard.tiles
    speed = TILE / max(rules.longest_block_seconds, called)  # blocks of one tile
    for _ in range(rounds):
        kernel.expect_speed(speed)
        began = clock.now()
        kernel.run(shard, 0, shard.points, 0, flag)
        rounds_only.append(clock.now() - began)
        made = algorithm.updateParameter(pytree.unflatten(zero, kernel.statistics()), theta)
        kernel.set_parameter(pytree.flatten(made))
        with_update.append(clock.now() - began)
    kernel.close()
    return np.array(rounds_only[10:]), np.array(with_update[10:])


def team_table(counts: list[int], rounds: int) -> dict[int, Any]:
    found = {threads: measure_team(threads, rounds) for threads in counts}
    print(f"{os.cpu_count()} cores; microseconds of a round of a team")
    print(f"{'threads':>8} {'what':>22} {'median':>9} {'p90':>9} {'p99':>9}")
    for threads, figures in found.items():
        for what, one in figures.items():
            print(f"{threads:8} {what:>22} {one['median_us']:9.0f} {one['p90_us']:9.0f} {one['p99_us']:9.0f}")
    return found


def team_summary(threads: str, rounds: int, found: dict[int, Any]) -> dict[str, Any]:
    return {
        "title": "A round of a team in which every thread has one tile: k-means, k=10, 28 columns; microseconds",
        "command": f"python -m bench.micro.barrier_cost --threads {threads} --barriers {rounds}",
        "commit": host.commit(),
        "machine": ", ".join(str(value) for value in host.machine().values()),
        "cores": os.cpu_count(),
        "goal_us": GOAL_MICROSECONDS,
        "team": found,
    }


def summary(costs: np.ndarray) -> dict[str, float]:
    median, p90, p99 = np.percentile(costs, [50, 90, 99]) * 1e6
    return {"median_us": median, "p90_us": p90, "p99_us": p99, "barriers": len(costs)}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--workers", default="1,2,4,8,16", help="numbers of workers, with commas between")
    options.add_argument("--threads", help="numbers of threads of a team, with commas between; no workers are measured")
    options.add_argument("--barriers", type=int, default=500)
    options.add_argument(
        "--interval", type=float, default=0.005, help="seconds from the start of a round to its signal"
    )
    options.add_argument("--busy", action="store_true", help="kernels never sleep")
    options.add_argument("--links", default="local", help="local (ipc), remote (TCP with CURVE), or both")
    options.add_argument("--turns", type=int, default=1, help="measure all links so often, and take all together")
    options.add_argument("--out", type=Path, help="write the figures as JSON")
    given = options.parse_args()
    if given.threads:
        found_teams = team_table([int(n) for n in given.threads.split(",")], given.barriers)
        if given.out:
            given.out.write_text(json.dumps(team_summary(given.threads, given.barriers, found_teams), indent=1) + "\n")
        return
    counts = [int(n) for n in given.workers.split(",")]
    links = given.links.split(",")
    print(f"{os.cpu_count()} cores, kernels {'busy' if given.busy else 'idle'}; microseconds from signal to folded in")
    print(f"{'link':>8} {'workers':>8} {'median':>9} {'p90':>9} {'p99':>9} {'ratio':>7}")
    costs: dict[tuple[str, int], list[np.ndarray]] = {(link, n): [] for n in counts for link in links}
    with contextlib.ExitStack() as stack:
        clusters = {link: stack.enter_context(CLUSTERS[link](max(counts))) for link in links}
        for _ in range(given.turns):
            for link, workers in costs:
                cost = measure(clusters[link], workers, given.barriers, given.interval, given.busy)
                costs[link, workers].append(cost)
    found: dict[str, dict[int, dict[str, float]]] = {link: {} for link in links}
    for (link, workers), parts in costs.items():
        figures = found[link][workers] = summary(np.concatenate(parts))
        ratio = figures["median_us"] / found[links[0]][workers]["median_us"]
        print(
            f"{link:>8} {workers:8} {figures['median_us']:9.0f} {figures['p90_us']:9.0f} {figures['p99_us']:9.0f} "
            f"{ratio:7.2f}"
        )
    if given.out:
        machine = {"cores": os.cpu_count(), "machine": platform.machine(), "busy": given.busy}
        figures = found[links[0]] if len(links) == 1 else found
        given.out.write_text(json.dumps({**machine, "barrier": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
