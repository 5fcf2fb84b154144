"""Does moving points pay, and does training notice? Answers in one JSON file.

    python -m bench.micro.migration --workers 16 --out migration.json

Two kinds of figures. On *virtual* time (exact, the same on every machine): k-means trained for real by `--workers`
workers of which a quarter are slow, with the data shuffled and with each share knowing only some clusters; spread of
passes and time to the same objective for balance off, async and sync, and, for reference, for shares that fit the
speeds from the beginning. `--scatter 0.15`: the same with speeds that vary by so much from round to round, in jobs that
end at their target. On *real* processes (`common/scripted_moves.py`): bandwidth of a migration through
shared memory and through sockets, against a plain socket in the same run; training throughput while points move, and
what moving takes of the processors; the bytes of the way back.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.common.scripted_moves import real_moves
from flegel.algorithm import Sample
from flegel.algorithms.kmeans import KMeans
from flegel.core import pytree
from flegel.core.shard import make_shard
from flegel.core.stop_flag import new_flag
from flegel.job import AlgorithmRef, Criteria, SyncSpec
from flegel.machine.balance.balance_control import BalanceControl
from flegel.machine.balance.part import BalancePart
from flegel.machine.coordinator.coordinator import Coordinator
from flegel.machine.coordinator.events import Timeouts
from flegel.messages import LoadShard, TreeLayout
from flegel.params.local import LocalStore
from flegel.plan.stragglers import Stragglers, parse_stragglers
from flegel.runtime.backends.numba.kernels import build_kernel
from flegel.sim.simulation import Costs, simulate
from flegel.sim.speeds import Course
from flegel.sim.trainer import KernelLearner, Pace
from flegel.sync import make_policy

MODES = ("off", "async", "sync", "ideal")
RATE = 2e6  # points a second of a worker that nobody slows


# -- virtual time ------------------------------------------------------------------------------------------


def clouds(rows: int, columns: int, clustered: bool) -> np.ndarray:
    rng = np.random.default_rng(0)
    which = rng.integers(20, size=rows)
    which = np.sort(which) if clustered else which
    return rng.normal(scale=1.2, size=(20, columns))[which] + rng.normal(size=(rows, columns))


def even_shares(rows: int, workers: int) -> list[np.ndarray]:
    return [np.arange(rows * w // workers, rows * (w + 1) // workers) for w in range(workers)]


def fitting_shares(rows: int, workers: int, slow: Stragglers) -> list[np.ndarray]:
    """Shares in proportion to the speeds: slow workers have given the end of theirs to the fast ones, before anything
    was trained. A reference, not a bound: speeds are those of computing, without what waiting at barriers takes."""
    shares, spare = even_shares(rows, workers), 1_000_000
    speeds = [spare / Pace(RATE, slow, w, workers).seconds_for(spare, 0.0) for w in range(workers)]
    fast = [w for w in range(workers) if speeds[w] == max(speeds)]
    given = []
    for w in range(workers):
        keep = int(rows * speeds[w] / sum(speeds))
        if w not in fast:
            shares[w], rest = shares[w][:keep], shares[w][keep:]
            given.append(rest)
    parts = np.array_split(np.concatenate(given), len(fast)) if given else []
    for w, part in zip(fast, parts, strict=False):
        shares[w] = np.concatenate([shares[w], part])
    return shares


def unsteady(scatter: float, seed: int, worker: int) -> Iterator[tuple[float, float]]:
    """A speed that varies by so much, every few milliseconds, about one that differs a little from those of others."""
    rng = np.random.default_rng([seed, worker])
    usual, at = float(np.exp(rng.normal(0, 0.03))), 0.0
    while True:
        yield at, usual * float(np.exp(rng.normal(0, scatter)))
        at += 2.5e-3 * rng.uniform(0.5, 1.5)


def virtual_job(
    mode: str,
    data: np.ndarray,
    workers: int,
    straggler: str,
    seconds: float,
    bandwidth: float,
    seed: int = 0,
    target: float | None = None,
    scatter: float = 0.0,
) -> Coordinator:
    """`mode`: one of `--balance`, or "ideal": nothing moves, because shares fit the speeds from the beginning."""
    algorithm, rng = KMeans(k=10, init="random"), np.random.default_rng(seed)
    sample = Sample(data, None, len(data), data.shape[1])
    theta = pytree.as_doubles(algorithm.initParameter(sample, rng))
    zero = pytree.zeros_like(algorithm.initAggregator(sample, theta))
    learners, slow = {}, parse_stragglers(straggler, workers)
    shares = fitting_shares(len(data), workers, slow) if mode == "ideal" else even_shares(len(data), workers)
    for w, ids in enumerate(shares):
        share = make_shard(
            data[ids], None, algorithm.initState(len(ids), data.shape[1], rng), algorithm.kernels.layout, ids
        )
        kernel = build_kernel(algorithm, share, theta, zero).kernel
        learners[w] = KernelLearner(algorithm, kernel, share, zero, new_flag())
    criteria, form = Criteria(max_seconds=seconds, tolerance=0, target=target), TreeLayout("array", ())
    for_ever = Timeouts(load=float("inf"), silence=float("inf"), report=float("inf"))
    job = Coordinator(
        algorithm, make_policy(SyncSpec("fsp")), criteria, LocalStore(algorithm, theta, zero),
        {w: LoadShard(AlgorithmRef("x", {}), {}, w, workers, 0, form, form) for w in range(workers)},
        timeouts=for_ever, attribute=True,
        parts=[BalancePart(BalanceControl(mode, criteria))] if mode in ("async", "sync") else [],
    )  # fmt: skip
    courses = {w: Course(unsteady(scatter, seed, w)) if scatter else None for w in range(workers)}
    paces = {w: Pace(RATE, slow, w, workers, courses[w]) for w in range(workers)}
    return simulate(job, paces, dict(learners), Costs(bandwidth=bandwidth))


SEEDS = 5
SECONDS = 0.4


def compare(
    workers: int,
    straggler: str,
    clustered: bool,
    bandwidth: float,
    modes: tuple[str, ...] = MODES,
    seeds: int = SEEDS,
) -> dict[str, Any]:
    """Medians over several starting points; the objective to reach is one that every mode does reach."""
    data = clouds(6_000 * workers, 8, clustered)
    ratios: dict[str, list[float]] = {mode: [] for mode in modes if mode != "off"}
    spreads: dict[str, list[float]] = {mode: [] for mode in modes}
    rows: dict[str, Any] = {}
    for seed in range(seeds):
        jobs = {mode: virtual_job(mode, data, workers, straggler, SECONDS, bandwidth, seed) for mode in modes}
        curves = {m: [(r.seconds, r.objective) for r in j.trace if r.objective is not None] for m, j in jobs.items()}
        goal = max(curve[-1][1] for curve in curves.values()) * 1.0002
        reached = {m: next(s for s, f in curve if f <= goal) for m, curve in curves.items()}
        for mode, found in ratios.items():
            found.append(reached["off"] / reached[mode])
        rows = {mode: describe(job, reached[mode]) for mode, job in jobs.items()}
        for mode, row in rows.items():
            spreads[mode].append(row["spread_at_end"])
    for mode, found in ratios.items():
        rows[f"off_over_{mode}"] = statistics.median(found)
        rows[f"off_over_{mode}_each"] = found
    rows["spreads_at_end"] = spreads
    return rows


def describe(job: Coordinator, reached: float) -> dict[str, Any]:
    workers = list(job.view.workers.values())
    half = job.trace[len(job.trace) // 2 :]
    balance = job.part(BalancePart)
    moves = balance.control.migrations if balance is not None else None
    return {
        "spread_at_end": max(w.passes for w in workers) - min(w.passes for w in workers),
        "largest_spread_in_second_half": max(max(r.passes) - min(r.passes) for r in half),
        "seconds_to_objective": reached,
        "visits": sum(w.visits for w in workers),
        "gain_by_worker": [w.gain for w in workers],
        "passes_by_worker": [w.passes for w in workers],
        "points_by_worker": [w.points for w in workers],
        "moves": moves.count if moves else 0,
        "points_moved": moves.points if moves else 0,
        "bytes_moved": moves.bytes if moves else 0,
    }


def virtual(workers: int) -> dict[str, Any]:
    """Off, async and sync on virtual time: two kinds of slowness, two kinds of shares, slow links."""
    slow = max(workers // 4, 1) - 1
    cases = {"factor": f"0-{slow}:8x", "paused": f"0-{slow}:2ms/1000"}
    found: dict[str, Any] = {}
    for name, straggler in cases.items():
        for clustered in (True, False):
            key = f"{name} {straggler}, {'clustered' if clustered else 'shuffled'}"
            found[key] = row = compare(workers, straggler, clustered, 1e9)
            print(
                f"{key}: off/async {row['off_over_async']:.2f}, off/sync {row['off_over_sync']:.2f}, "
                f"off/ideal {row['off_over_ideal']:.2f}, "
                + ", ".join(f"largest spread {m} {max(row['spreads_at_end'][m]):.2f}" for m in MODES),
                flush=True,
            )
    key = "no stragglers, shuffled"
    found[key] = row = compare(workers, "", False, 1e9)
    print(f"{key}: off/async {row['off_over_async']:.2f}, moves {row['async']['moves']}", flush=True)
    key = f"factor {cases['factor']}, clustered, links of 6 MB/s"
    found[key] = row = compare(workers, cases["factor"], True, 6.25e6)
    print(
        f"{key}: off/async {row['off_over_async']:.2f}, off/sync {row['off_over_sync']:.2f}, "
        f"visits async/off {row['async']['visits'] / row['off']['visits']:.3f}",
        flush=True,
    )
    return found


def scattered(workers: int, scatter: float) -> dict[str, Any]:
    """Off and async where speeds vary: short jobs, each to two targets from each of several starting points."""
    slow = max(workers // 4, 1) - 1
    found: dict[str, Any] = {}
    for straggler in (f"0-{slow}:8x", f"0-{slow}:2ms/1000", ""):
        for clustered in (False, True):
            data = clouds(6_000 * workers, 8, clustered)
            ratios, spreads = [], []
            for within, seed in itertools.product((0.05, 0.005), range(SEEDS)):
                long = virtual_job("off", data, workers, straggler, SECONDS, 1e9, seed, scatter=scatter)
                course = [r.objective for r in long.trace if r.objective is not None]
                target = course[-1] + within * (course[0] - course[-1])
                off, on = (
                    virtual_job(mode, data, workers, straggler, 1.0, 1e9, seed, target, scatter)
                    for mode in ("off", "async")
                )
                ratios.append(off.trace[-1].seconds / on.trace[-1].seconds)
                spreads.append(describe(on, 0.0)["spread_at_end"])
            key = f"{straggler or 'nobody slow'}, {'clustered' if clustered else 'shuffled'}"
            found[key] = {"off_over_async": ratios, "spread": spreads}
            print(
                f"{key}: off/async {statistics.geometric_mean(ratios):.2f}, spread {statistics.median(spreads):.2f}, "
                f"largest {max(spreads):.2f}",
                flush=True,
            )
    return found


LENGTHS = (1, 2, 3, 4, 5, 7, 10, 20, 40)
"""Passes after which a job might end."""


def by_length(workers: int) -> dict[str, Any]:
    """The spread that a job has when it ends after so many passes and did not know so: read off one long job."""
    slow, data = max(workers // 4, 1) - 1, clouds(6_000 * workers, 8, False)
    found: dict[str, Any] = {}
    for straggler, mode in itertools.product((f"0-{slow}:8x", f"0-{slow}:2ms/1000"), ("off", "async")):
        spreads: dict[int, list[float]] = {length: [] for length in LENGTHS}
        for seed in range(3):
            trace = virtual_job(mode, data, workers, straggler, SECONDS, 1e9, seed).trace
            for length in LENGTHS:
                row = next((row for row in trace if sum(row.passes) >= length * workers), None)
                if row is not None:
                    spreads[length].append(max(row.passes) - min(row.passes))
        found[f"{straggler}, {mode}"] = {
            str(length): round(statistics.median(of_job), 2) for length, of_job in spreads.items() if of_job
        }
        print(f"{straggler}, {mode}: {found[f'{straggler}, {mode}']}", flush=True)
    return found


def paced(workers: int) -> dict[str, Any]:
    """What if moving kept to a part of the processors? A point costs as many visits as lent and sent ones do on real
    processors, and arrives as fast as that part of the time of both ends pays for."""
    slow, size = max(workers // 4, 1) - 1, 8 * 8 + 8 + 8 + 4 + 1
    found: dict[str, Any] = {}
    for kind, visits in (("lent", 1), ("sent", 13)):
        for part in (0.03, 0.1, 0.3):
            bandwidth = 2 * part * RATE / visits * size
            row = compare(workers, f"0-{slow}:8x", False, bandwidth, ("off", "async"), seeds=3)
            found[f"{kind}, {part:.0%} of the processors"] = row
            print(
                f"{kind}, {part:.0%}: off/async {row['off_over_async']:.2f}, largest spread "
                f"{max(row['spreads_at_end']['async']):.2f}, moves {row['async']['moves']}",
                flush=True,
            )
    return found


REAL = (  # transport, mode, clusters, rows as a part, moves, interval, memory that the host has provided before
    ("memory", "async", 10, 4.0, 20, "100ms", False),
    ("memory", "async", 32, 1.0, 20, "100ms", False),
    ("memory", "async", 10, 1.0, 20, "25ms", False),
    ("socket", "async", 10, 1.0, 6, "25ms", False),
    ("socket", "async", 100, 0.5, 6, "25ms", False),
    ("memory", "sync", 10, 1.0, 3, "25ms", False),
    ("socket", "sync", 10, 1.0, 3, "25ms", False),
    ("socket", "sync", 10, 1.0, 3, "25ms", True),
)


def real(rows: int, only: str) -> Iterator[dict[str, Any]]:
    """One pair of workers: lent points and points that travel, light and heavy visits, and nobody training."""
    for transport, mode, k, part, moves, interval, warm in REAL:
        if only not in ("", f"{transport} {mode}"):
            continue
        seconds = 6.0 + moves * (1.3 if interval == "100ms" else 0.8)
        made = real_moves(int(rows * part), 1, transport, mode, k, moves, seconds, warm=warm, interval=interval)
        print(json.dumps(made, indent=1), flush=True)
        yield made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows of the real-process part")
    parser.add_argument("--virtual-only", action="store_true")
    parser.add_argument("--real-only", action="store_true")
    parser.add_argument("--paced-only", action="store_true", help="what if moving kept to a part of the processors?")
    parser.add_argument("--lengths-only", action="store_true", help="how far apart passes are by length of the job")
    parser.add_argument("--scatter", type=float, default=0.0, help="only: speeds that vary by so much, 0.15 say")
    parser.add_argument("--only", default="", help="of the real-process part: 'memory async', 'socket sync', …")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {"workers": options.workers, "cores": os.cpu_count()}
    if options.scatter:
        found["scattered"] = scattered(options.workers, options.scatter)
    elif options.lengths_only:
        found["lengths"] = by_length(options.workers)
    elif options.paced_only:
        found["paced"] = paced(options.workers)
    elif not options.real_only:
        found["virtual"] = virtual(options.workers)
    if not (options.virtual_only or options.paced_only or options.lengths_only or options.scatter):
        found["real"] = []
        for made in real(options.rows, options.only):
            found["real"].append(made)
            _keep(found, options.out)  # what is known is kept if somebody has to stop
    _keep(found, options.out)


def _keep(found: dict[str, Any], out: Path | None) -> None:
    if out:
        out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
