"""Does moving points pay, and does training notice? Answers in one JSON file.

    python bench/migration.py --workers 16 --out migration.json

Two kinds of figures. On *virtual* time (exact, the same on every machine): k-means trained for real by `--workers`
workers of which a quarter are slow, with the data shuffled and with each share knowing only some clusters; spread of
passes and time to the same objective for balance off, async and sync. On *real* processes: bandwidth of a migration
against a plain socket, training throughput while points move, and the bytes of the way back.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from flegel import LocalCluster, run, tree
from flegel.algorithm import Sample
from flegel.algorithms.kmeans import KMeans
from flegel.machine.balancing import Balancing
from flegel.machine.coordinator import Coordinator
from flegel.machine.events import Patience
from flegel.machine.ledger import Ledger
from flegel.messages import Form, Load
from flegel.plan.balance import Plan, Proposal
from flegel.plan.straggler import parse_stragglers
from flegel.runtime.compile import build_kernel
from flegel.runtime.flag import new_flag
from flegel.share import make_share
from flegel.sim.cluster import Costs, simulate
from flegel.sim.trainer import KernelLearner, Pace
from flegel.spec import AlgorithmRef, Criteria, SyncSpec
from flegel.sync import make_policy

MODES = ("off", "async", "sync")


# -- virtual time ------------------------------------------------------------------------------------------


def clouds(rows: int, columns: int, clustered: bool) -> np.ndarray:
    rng = np.random.default_rng(0)
    which = rng.integers(20, size=rows)
    which = np.sort(which) if clustered else which
    return rng.normal(scale=1.2, size=(20, columns))[which] + rng.normal(size=(rows, columns))


def virtual_job(
    mode: str, data: np.ndarray, workers: int, straggler: str, seconds: float, bandwidth: float, seed: int = 0
) -> Coordinator:
    algorithm, rng = KMeans(k=10, init="random"), np.random.default_rng(seed)
    sample = Sample(data, None, len(data), data.shape[1])
    theta = tree.as_float64(algorithm.initParameter(sample, rng))
    zero = tree.zeros_like(algorithm.initAggregator(sample, theta))
    learners = {}
    for w in range(workers):
        ids = np.arange(len(data) * w // workers, len(data) * (w + 1) // workers)
        share = make_share(data[ids], None, algorithm.initState(len(ids), data.shape[1], rng), algorithm.layout, ids)
        kernel = build_kernel(algorithm, share, theta, zero).kernel
        learners[w] = KernelLearner(algorithm, kernel, share, zero, new_flag())
    criteria, form = Criteria(max_seconds=seconds, tolerance=0), Form("array", ())
    for_ever = Patience(load=float("inf"), silence=float("inf"), report=float("inf"))
    job = Coordinator(
        algorithm, make_policy(SyncSpec("fsp")), criteria, theta, Ledger(algorithm, zero),
        {w: Load(AlgorithmRef("x", {}), {}, w, workers, 0, form, form) for w in range(workers)},
        patience=for_ever, balancing=None if mode == "off" else Balancing(mode, criteria), attribute=True,
    )  # fmt: skip
    slow = parse_stragglers(straggler, workers)
    paces = {w: Pace(2e6, slow, w, workers) for w in range(workers)}
    return simulate(job, paces, dict(learners), Costs(bandwidth=bandwidth))


SEEDS = 3
SECONDS = 0.4


def compare(workers: int, straggler: str, clustered: bool, bandwidth: float) -> dict[str, Any]:
    """Medians over several starting points; the objective to reach is one that every mode does reach."""
    data = clouds(6_000 * workers, 8, clustered)
    ratios: dict[str, list[float]] = {"async": [], "sync": []}
    rows: dict[str, Any] = {}
    for seed in range(SEEDS):
        jobs = {mode: virtual_job(mode, data, workers, straggler, SECONDS, bandwidth, seed) for mode in MODES}
        curves = {m: [(r.seconds, r.objective) for r in j.trace if r.objective is not None] for m, j in jobs.items()}
        goal = max(curve[-1][1] for curve in curves.values()) * 1.0002
        reached = {m: next(s for s, f in curve if f <= goal) for m, curve in curves.items()}
        for mode, found in ratios.items():
            found.append(reached["off"] / reached[mode])
        rows = {mode: describe(job, reached[mode]) for mode, job in jobs.items()}
    for mode, found in ratios.items():
        rows[f"off_over_{mode}"] = statistics.median(found)
        rows[f"off_over_{mode}_each"] = found
    return rows


def describe(job: Coordinator, reached: float) -> dict[str, Any]:
    workers = list(job.view.workers.values())
    half = job.trace[len(job.trace) // 2 :]
    return {
        "spread_at_end": max(w.passes for w in workers) - min(w.passes for w in workers),
        "largest_spread_in_second_half": max(max(r.passes) - min(r.passes) for r in half),
        "seconds_to_objective": reached,
        "visits": sum(w.visits for w in workers),
        "gain_by_worker": [w.gain for w in workers],
        "passes_by_worker": [w.passes for w in workers],
        "points_by_worker": [w.points for w in workers],
        "moves": job.balancing.moves.count if job.balancing else 0,
        "points_moved": job.balancing.moves.points if job.balancing else 0,
        "bytes_moved": job.balancing.moves.bytes if job.balancing else 0,
    }


# -- real processes ----------------------------------------------------------------------------------------


class Script:
    """A plan that makes these moves one after the other, and notes when windows come."""

    def __init__(self, *moves: tuple[int, int, int]) -> None:
        self.left = list(moves)
        self.rules = None

    def due(self, now: float) -> bool:
        return True

    def plan(self, loads: Any, remaining: float, now: float) -> Plan:
        if not self.left or any(w.busy for w in loads) or loads[0].passes < 5:
            return Plan((), "scripted")
        return Plan((Proposal(*self.left.pop(0), "scripted"),), "scripted")


class Watched(Balancing):
    """Notes when each window arrives."""

    def __init__(self, criteria: Criteria, script: Script) -> None:
        super().__init__("async", criteria)
        script.rules = self._balance.rules  # type: ignore[assignment]
        self._balance = script  # type: ignore[assignment]
        self.arrivals: list[tuple[int, float, int]] = []

    def answer(self, worker: int, body: Any, now: float) -> Any:
        if hasattr(body, "bytes"):
            self.arrivals.append((body.move, now, body.bytes))
        elif hasattr(body, "address"):
            self.arrivals.append((body.move, now, 0))
        return super().answer(worker, body, now)


def real_moves(rows: int) -> dict[str, Any]:
    """Two workers; most of one share goes over, comes back, and training is watched meanwhile."""
    import flegel.runtime.run as engine

    data = np.random.default_rng(0).normal(size=(rows, 28)).astype(np.float32)
    share = rows // 2
    criteria = Criteria(max_seconds=12, tolerance=0)
    watched = Watched(criteria, Script((0, 1, share // 2), (1, 0, share // 2)))
    before, engine._balancing = engine._balancing, lambda request: watched
    try:
        with LocalCluster(workers=2) as cluster:
            result = run(
                "kmeans",
                data,
                cluster=cluster,
                workers=2,
                tolerance=0,
                max_seconds=12,
                interval="50ms",
                balance="async",
            )
    finally:
        engine._balancing = before
    quiet = [r for r in result.rows[5:] if not r["in_flight"]]
    moving = [r for r in result.rows[5:] if r["in_flight"]]
    speed = {name: _visits_a_second(result.rows, part) for name, part in (("quiet", quiet), ("moving", moving))}
    out, back = (_move(watched.arrivals, number) for number in (0, 1))
    return {
        "bytes_out": out["bytes"],
        "bytes_back": back["bytes"],
        "back_over_out": back["bytes"] / max(out["bytes"], 1),
        "megabytes_a_second": out["bytes"] / max(out["seconds"], 1e-9) / 1e6,
        "raw_socket_megabytes_a_second": raw_socket(max(out["bytes"], 1 << 20)),
        "visits_a_second_quiet": speed["quiet"],
        "visits_a_second_while_moving": speed["moving"],
        "rounds_while_moving": len(moving),
        "moving_over_quiet": speed["moving"] / speed["quiet"] if moving and speed["quiet"] else None,
    }


def _move(arrivals: list[tuple[int, float, int]], move: int) -> dict[str, float]:
    mine = [(at, size) for number, at, size in arrivals if number == move]
    if not mine:
        return {"bytes": 0, "seconds": 0.0}
    return {"bytes": sum(size for _, size in mine), "seconds": mine[-1][0] - mine[0][0]}


def _visits_a_second(rows: list[dict[str, Any]], part: list[dict[str, Any]]) -> float:
    at = {r["iteration"]: r["seconds"] for r in rows}
    spans = [(r["visits"], r["seconds"] - at[r["iteration"] - 1]) for r in part if r["iteration"] - 1 in at]
    return sum(v for v, _ in spans) / max(sum(s for _, s in spans), 1e-9)


def raw_socket(size: int, window: int = 4 << 20) -> float:
    """Megabytes a second of one plain TCP connection on loopback, received into fresh memory."""
    server = socket.create_server(("127.0.0.1", 0))
    payload = os.urandom(window)

    def send() -> None:
        with socket.create_connection(server.getsockname()) as link:
            for _ in range(-(-size // window)):
                link.sendall(payload)

    threading.Thread(target=send, daemon=True).start()
    link, _ = server.accept()
    began, got = time.monotonic(), 0
    while got < -(-size // window) * window:
        room = bytearray(window)
        filled = 0
        while filled < window:
            filled += link.recv_into(memoryview(room)[filled:])
        got += filled
    took = time.monotonic() - began
    link.close()
    server.close()
    return got / took / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of the real-process part")
    parser.add_argument("--virtual-only", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    slow = max(options.workers // 4, 1) - 1
    cases = {"factor": f"0-{slow}:8x", "paused": f"0-{slow}:2ms/1000"}
    found: dict[str, Any] = {"workers": options.workers, "cores": os.cpu_count(), "virtual": {}}
    for name, straggler in cases.items():
        for clustered in (True, False):
            key = f"{name} {straggler}, {'clustered' if clustered else 'shuffled'}"
            found["virtual"][key] = row = compare(options.workers, straggler, clustered, 1e9)
            print(
                f"{key}: off/async {row['off_over_async']:.2f}, off/sync {row['off_over_sync']:.2f}, "
                + ", ".join(f"spread {m} {row[m]['spread_at_end']:.2f}" for m in MODES),
                flush=True,
            )
    key = "no stragglers, shuffled"
    found["virtual"][key] = row = compare(options.workers, "", False, 1e9)
    print(f"{key}: off/async {row['off_over_async']:.2f}, moves {row['async']['moves']}", flush=True)
    key = f"factor {cases['factor']}, clustered, links of 6 MB/s"
    found["virtual"][key] = row = compare(options.workers, cases["factor"], True, 6.25e6)
    print(
        f"{key}: off/async {row['off_over_async']:.2f}, off/sync {row['off_over_sync']:.2f}, "
        f"visits async/off {row['async']['visits'] / row['off']['visits']:.3f}",
        flush=True,
    )
    if not options.virtual_only:
        found["real"] = real_moves(options.rows)
        print(json.dumps(found["real"], indent=1), flush=True)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
