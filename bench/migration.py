"""Does moving points pay, and does training notice? Answers in one JSON file.

    python bench/migration.py --workers 16 --out migration.json

Two kinds of figures. On *virtual* time (exact, the same on every machine): k-means trained for real by `--workers`
workers of which a quarter are slow, with the data shuffled and with each share knowing only some clusters; spread of
passes and time to the same objective for balance off, async and sync. On *real* processes: bandwidth of a migration
through shared memory and through sockets, against a plain socket in the same run; training throughput while points
move; the bytes of the way back. Once with one pair of workers and once with a worker on every core.
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

from flegel import LocalCluster, Result, run, tree
from flegel.algorithm import Sample
from flegel.algorithms.kmeans import KMeans
from flegel.machine.balancing import Balancing
from flegel.machine.coordinator import Coordinator
from flegel.machine.events import Patience
from flegel.machine.ledger import Ledger
from flegel.machine.parcels import bytes_per_point
from flegel.messages import Form, Load
from flegel.plan.balance import Plan, Proposal, Rules
from flegel.plan.straggler import parse_stragglers
from flegel.runtime.compile import build_kernel
from flegel.runtime.flag import new_flag
from flegel.share import TILE, make_share
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


LIMIT = 12  # seconds of the real-process jobs
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
    """A plan that makes these moves one after the other, in every pair of workers at once, with pauses between."""

    GAP = 4

    def __init__(self, pairs: int, *moves: tuple[int, int, int]) -> None:
        self.pairs, self.left, self.rules = pairs, list(moves), Rules()
        self._quiet = -10

    def due(self, now: float) -> bool:
        return True

    def plan(self, loads: Any, remaining: float, now: float, carriage: Any = None) -> Plan:
        self._quiet = 0 if any(w.busy for w in loads) else self._quiet + 1
        if not self.left or self._quiet < self.GAP or min(w.passes for w in loads) < 3:
            return Plan((), "scripted")
        self._quiet = 0
        source, target, points = self.left.pop(0)
        made = [Proposal(2 * i + source, 2 * i + target, points, "scripted") for i in range(self.pairs)]
        return Plan(tuple(made), "scripted")


class Watched(Balancing):
    """Notes when each window arrives."""

    def __init__(self, mode: str, criteria: Criteria, script: Script) -> None:
        super().__init__(mode, criteria)
        self._balance = script  # type: ignore[assignment]
        self.arrivals: list[tuple[int, float, int, int]] = []

    def answer(self, worker: int, body: Any, now: float) -> Any:
        if hasattr(body, "bytes"):
            self.arrivals.append((body.move, now, body.points, body.bytes))
        elif hasattr(body, "address"):
            self.arrivals.append((body.move, now, 0, 0))
        return super().answer(worker, body, now)


def scripted(
    cluster: LocalCluster, data: np.ndarray, script: Script, mode: str, seconds: float
) -> tuple[Result, Watched]:
    """A k-means job of so many seconds in which points move as the script says."""
    import flegel.runtime.run as engine

    watched = Watched(mode, Criteria(max_seconds=seconds, tolerance=0), script)
    before, engine._balancing = engine._balancing, lambda request: watched
    options: dict[str, Any] = {"tolerance": 0, "max_seconds": seconds, "interval": "25ms", "balance": mode}
    try:
        return run("kmeans", data, cluster=cluster, workers=2 * script.pairs, **options), watched
    finally:
        engine._balancing = before


def point_bytes(data: np.ndarray) -> float:
    """What a point of k-means takes, with label, number and state."""
    return bytes_per_point(make_share(data[:TILE], None, np.zeros((TILE, 1), np.int32), "tiles"))


def real_moves(rows: int, pairs: int, transport: str, mode: str = "async") -> dict[str, Any]:
    """Pairs of workers: half a share goes over and comes back, then smaller parts; training is watched meanwhile.

    `transport`: "memory", where neighbours lend each other their points, or "socket", where every byte travels. Under
    `mode` "sync" nobody trains while points move, so that the bandwidth is that of the transport alone.
    """
    data = np.random.default_rng(0).standard_normal((rows, 28), dtype=np.float32)
    share = rows // (2 * pairs)
    out = [(0, 1, share // 2), (1, 0, share // 2)]
    parts = [(0, 1, share // 16)] * 6 + [(1, 0, share // 16)] * 6
    script = Script(pairs, *out, *parts)
    os.environ["FLEGEL_MOVE"] = "socket" if transport == "socket" else ""
    try:
        with LocalCluster(workers=2 * pairs) as cluster:
            result, watched = scripted(cluster, data, script, mode, LIMIT)
    finally:
        os.environ.pop("FLEGEL_MOVE")
    each = point_bytes(data)
    rest = result.rows[10:]
    quiet, moving = ([r for r in rest if bool(r["in_flight"]) == moves] for moves in (False, True))
    speed = {name: visits_a_second(result.rows, part) for name, part in (("quiet", quiet), ("moving", moving))}
    there, back = (moves_of(watched.arrivals, range(k * pairs, (k + 1) * pairs)) for k in (0, 1))
    raw = raw_socket(max(int(there["points"] * each), 1 << 20))
    carried = there["points"] * each / max(there["seconds"], 1e-9) / 1e6
    return {
        "transport": transport,
        "mode": mode,
        "pairs": pairs,
        "points_out": there["points"],
        "bytes_a_point": each,
        "bytes_sent_out": there["bytes"],
        "bytes_sent_back": back["bytes"],
        "back_over_out": back["bytes"] / max(there["points"] * each, 1),
        "seconds_out": there["seconds"],
        "megabytes_of_points_a_second": carried,
        "raw_socket_megabytes_a_second": raw,
        "over_raw_socket": carried / raw,
        "visits_a_second_quiet": speed["quiet"],
        "visits_a_second_while_moving": speed["moving"],
        "rounds_quiet": len(quiet),
        "rounds_while_moving": len(moving),
        "moves_left_over": len(script.left),
        "moving_over_quiet": speed["moving"] / speed["quiet"] if moving and speed["quiet"] else None,
    }


def moves_of(arrivals: list[tuple[int, float, int, int]], numbers: range) -> dict[str, float]:
    """Of moves that were made side by side."""
    mine = [(at, points, size) for number, at, points, size in arrivals if number in numbers]
    if not mine:
        return {"points": 0, "bytes": 0, "seconds": 0.0}
    times = [at for at, _, _ in mine]
    return {
        "points": sum(points for _, points, _ in mine),
        "bytes": sum(size for _, _, size in mine),
        "seconds": max(times) - min(times),
    }


def visits_a_second(rows: list[dict[str, Any]], part: list[dict[str, Any]]) -> float:
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
                + ", ".join(f"spread {m} {row[m]['spread_at_end']:.2f}" for m in MODES),
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


def real(rows: int) -> list[dict[str, Any]]:
    """One pair of workers, and a worker on every core; lent points and points that travel."""
    found = []
    for transport in ("memory", "socket"):
        for pairs in sorted({1, max((os.cpu_count() or 2) // 2, 1)}):
            found.append(real_moves(rows, pairs, transport))
            print(json.dumps(found[-1], indent=1), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of the real-process part")
    parser.add_argument("--virtual-only", action="store_true")
    parser.add_argument("--real-only", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {"workers": options.workers, "cores": os.cpu_count()}
    if not options.real_only:
        found["virtual"] = virtual(options.workers)
    if not options.virtual_only:
        found["real"] = real(options.rows)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
