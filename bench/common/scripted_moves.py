"""Points that move between real workers: how fast, what it costs, and whether training notices.

A job in which points move as a script says, with quiet rounds between the moves, so that each move is compared with
what lies before and behind it. What the threads of the workers used is read at each barrier (`processor_time.py`): on a
machine without an idle core, processor time that moving takes is taken from training, and the figures say how much.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bench.common.processor_time import Used, used
from bench.micro.raw_transport import raw_socket, raw_zeromq, warm_memory
from flegel import LocalCluster, Result
from flegel.algorithms.kmeans import KMeans
from flegel.configuration.balance import BalanceSettings
from flegel.core.shard import TILE, make_shard
from flegel.datasets import open_data
from flegel.job import Criteria, Job, SyncSpec
from flegel.machine.balance.balance_control import BalanceControl
from flegel.machine.balance.part import BalancePart
from flegel.machine.worker.window_codec import bytes_per_point
from flegel.options import parse_seconds
from flegel.plan.balance.planner import BalancePlan, Proposal
from flegel.runtime.job.request import Request
from flegel.runtime.job.run import execute


class Script:
    """A plan that makes these moves one after the other, in every pair of workers at once, with pauses between."""

    GAP = 8

    def __init__(self, pairs: int, *moves: tuple[int, int, int], before: Callable[[], None] = lambda: None) -> None:
        self.pairs, self.left, self.rules, self._before = pairs, list(moves), BalanceSettings(), before
        self._quiet = -10

    def due(self, now: float) -> bool:
        return True

    def plan(self, loads: Any, left: Any, now: float, carriage: Any = None) -> BalancePlan:
        self._quiet = 0 if any(w.busy for w in loads) else self._quiet + 1
        if not self.left or self._quiet < self.GAP or min(w.passes for w in loads) < 2:
            return BalancePlan((), "scripted")
        self._quiet = 0
        source, target, points = self.left.pop(0)
        self._before()
        made = [Proposal(2 * i + source, 2 * i + target, points, "scripted") for i in range(self.pairs)]
        return BalancePlan(tuple(made), "scripted")


class Watched(BalanceControl):
    """Notes when each window arrives, and what the workers have used: at each barrier, and, where nobody trains
    meanwhile, before and after a move. To look takes half a millisecond, which no round should have to bear."""

    def __init__(self, mode: str, criteria: Criteria, script: Script, processes: list[int]) -> None:
        super().__init__(mode, criteria, plan=script)  # type: ignore[arg-type]
        self._alone = mode == "sync"
        self._processes = processes
        self.arrivals: list[tuple[int, float, int, int]] = []
        self.used: list[Used] = []
        self.opened: dict[int, Used] = {}
        self.done: dict[int, Used] = {}

    def on_answer(self, job: Any, worker: int, body: Any, now: float) -> Any:
        if hasattr(body, "bytes"):
            self.arrivals.append((body.move, now, body.points, body.bytes))
        elif hasattr(body, "address"):
            self.arrivals.append((body.move, now, 0, 0))
            if self._alone:
                self.opened[body.move] = used(self._processes)
        elif hasattr(body, "windows") and self._alone:
            self.done[body.move] = used(self._processes)
        return super().on_answer(job, worker, body, now)

    def note(self, *args: Any, **more: Any) -> None:
        self.used.append(used(self._processes))
        super().note(*args, **more)


def scripted(
    cluster: LocalCluster,
    data: np.ndarray,
    script: Script,
    mode: str,
    seconds: float,
    k: int = 10,
    interval: str = "25ms",
    rounds: int | None = None,
) -> tuple[Result, Watched]:
    """A k-means job of so many seconds, or `rounds` where they end before, in which points move as the script says."""
    cluster.start()
    processes = [p.pid for p in cluster.registry.processes.values()]
    criteria = Criteria(max_seconds=seconds, max_iterations=rounds, tolerance=0)
    watched = Watched(mode, criteria, script, processes)
    spec = SyncSpec("fsp", parse_seconds(interval), balance=mode)
    job = Job(workers=2 * script.pairs, sync=spec, criteria=criteria)
    request = Request(KMeans(k=k, init="random"), open_data(data), job, cluster, balance=BalancePart(watched))
    return execute(request), watched


def point_bytes(data: np.ndarray) -> float:
    """What a point of k-means takes, with label, number and state."""
    return bytes_per_point(make_shard(data[:TILE], None, np.zeros((TILE, 1), np.int32), "tiles"))


# -- what training notices ---------------------------------------------------------------------------------


class Span(NamedTuple):
    """Rounds that belong together."""

    moving: bool
    rounds: int
    seconds: float
    visits: int
    used: Used

    @property
    def pace(self) -> float:
        """Visits a second."""
        return self.visits / max(self.seconds, 1e-9)

    @property
    def each(self) -> float:
        """Processor time of a visit, of the trainer alone: caches and memory show there, a busy machine does not."""
        return self.used.training / max(self.visits, 1)


def spans(rows: list[dict[str, Any]], usage: list[Used]) -> list[Span]:
    """The course of a job, quiet and moving by turns. The first rounds, before every point was seen, are left out."""
    found: list[Span] = []
    for before, after, had, has in zip(rows, rows[1:], usage, usage[1:], strict=False):
        if before["objective"] is None:
            continue
        moving, took, gone = bool(after["in_flight"]), after["seconds"] - before["seconds"], has.since(had)
        if found and found[-1].moving == moving:
            last = found.pop()
            found.append(
                Span(moving, last.rounds + 1, last.seconds + took, last.visits + after["visits"], last.used.plus(gone))
            )
        else:
            found.append(Span(moving, 1, took, after["visits"], gone))
    return found


def noticed(course: list[Span]) -> dict[str, Any]:
    """Each move beside the quiet rounds before and behind it; medians over the moves."""
    pace, work, other, share = [], [], [], []
    for before, move, behind in zip(course, course[1:], course[2:], strict=False):
        if not move.moving or before.rounds < 2 or behind.rounds < 2:
            continue
        calm = Span(
            False, before.rounds + behind.rounds, before.seconds + behind.seconds, before.visits + behind.visits,
            before.used.plus(behind.used),
        )  # fmt: skip
        pace.append(move.pace / calm.pace)
        work.append(move.each / calm.each)
        idle = calm.used.other / calm.seconds
        other.append(move.used.other - idle * move.seconds)
        share.append(other[-1] / (move.used.training + move.used.other))
    if not pace:
        return {"moves": 0}
    return {
        "moves": len(pace),
        "rounds_while_moving": sum(s.rounds for s in course if s.moving),
        "visits_a_second_moving_over_quiet": statistics.median(pace),
        "each": [round(p, 3) for p in pace],
        "trainer_seconds_a_visit_moving_over_quiet": statistics.median(work),
        "processor_seconds_of_a_move": statistics.median(other),
        "part_of_the_workers_processor_time": statistics.median(share),
        "nanoseconds_a_visit": 1e9 * statistics.median(s.each for s in course if not s.moving),
    }


def real_moves(
    rows: int,
    pairs: int,
    transport: str,
    mode: str = "async",
    k: int = 10,
    parts: int = 6,
    seconds: float = 12.0,
    warm: bool = False,
    interval: str = "25ms",
) -> dict[str, Any]:
    """Fresh points go over in so many moves, three quarters of a share in all; then an eighth of it comes back.

    `transport`: "memory", where neighbours lend each other their points, or "socket", where every byte travels. Under
    `mode` "sync" nobody trains while points move, so that the bandwidth is that of the transport alone. `warm`: the
    host of a virtual machine has provided the memory for what arrives before (see `raw_transport.warm_memory`).
    """
    data = np.random.default_rng(0).standard_normal((rows, 28), dtype=np.float32)
    share = rows // (2 * pairs)
    each = point_bytes(data)
    size = max(int(3 * share // 4 // parts * each), 1 << 20)
    before = (lambda: warm_memory(2 * pairs * size)) if warm else (lambda: None)
    script = Script(pairs, *[(0, 1, 3 * share // 4 // parts)] * parts, (1, 0, share // 8), before=before)
    os.environ["FLEGEL_MOVE"] = "socket" if transport == "socket" else ""
    raws: dict[str, list[float]] = {"drop": [], "keep": [], "zeromq_drop": [], "zeromq_keep": []}
    try:
        with LocalCluster(workers=2 * pairs) as cluster:
            _measure(raws, size)
            result, watched = scripted(cluster, data, script, mode, seconds, k, interval)
            _measure(raws, size)
    finally:
        os.environ.pop("FLEGEL_MOVE")
    out = [moves_of(watched.arrivals, range(i * pairs, (i + 1) * pairs)) for i in range(parts)]
    out = [m for m in out if m["points"]]
    back = moves_of(watched.arrivals, range(parts * pairs, (parts + 1) * pairs))
    carried = [m["points"] * each / max(m["seconds"], 1e-9) / 1e6 for m in out]
    costs = [watched.done[i].since(watched.opened[i]) for i in range(parts * pairs) if i in watched.done]
    raw = {kind: statistics.median(found) for kind, found in raws.items()}
    middle = statistics.median(carried) if carried else 0.0
    return {
        "transport": transport,
        "mode": mode,
        "warm": warm,
        "k": k,
        "interval": interval,
        "pairs": pairs,
        "bytes_a_point": each,
        "megabytes_of_a_move": out[0]["points"] * each / 1e6 if out else 0.0,
        "bytes_sent_over_bytes_of_points": sum(m["bytes"] for m in out) / max(sum(m["points"] for m in out) * each, 1),
        "bytes_sent_back_over_bytes_of_points": back["bytes"] / max(back["points"] * each, 1),
        "megabytes_of_points_a_second": middle,
        "megabytes_of_points_a_second_each": [round(c) for c in carried],
        "plain_megabytes_a_second": raw,
        "plain_each": {kind: [round(f) for f in found] for kind, found in raws.items()},
        "over_plain": {kind: middle / speed for kind, speed in raw.items()},
        "over_plain_best": {kind: max(carried, default=0.0) / max(found) for kind, found in raws.items()},
        "faults_a_megabyte": statistics.median(c.faults for c in costs) * pairs / (size / 1e6) if costs else None,
        "other_processor_nanoseconds_a_byte": statistics.median(c.other for c in costs) / size * 1e9 if costs else None,
        "windows_of_a_move": statistics.median([m["windows"] for m in out]) if out else 0,
        "moves_left_over": len(script.left),
        "load": os.getloadavg()[0],
        **({} if mode == "sync" else noticed(spans(result.rows, watched.used))),
    }


def _measure(raws: dict[str, list[float]], size: int) -> None:
    """Plain transports, three times each, in memory that is warm: the second and third time it would be anyway."""
    for kind, found in raws.items():
        for _ in range(3):
            warm_memory(2 * size)
            plain = raw_zeromq if kind.startswith("zeromq") else raw_socket
            found.append(plain(size, kind.removeprefix("zeromq_")))


def moves_of(arrivals: list[tuple[int, float, int, int]], numbers: range) -> dict[str, float]:
    """Of moves that were made side by side."""
    mine = [(at, points, size) for number, at, points, size in arrivals if number in numbers]
    if not mine:
        return {"points": 0, "bytes": 0, "windows": 0, "seconds": 0.0}
    times = [at for at, _, _ in mine]
    return {
        "points": sum(points for _, points, _ in mine),
        "bytes": sum(size for _, _, size in mine),
        "windows": sum(points > 0 for _, points, _ in mine),
        "seconds": max(times) - min(times),
    }


def visits_a_second(rows: list[dict[str, Any]], part: list[dict[str, Any]]) -> float:
    at = {r["iteration"]: r["seconds"] for r in rows}
    spans = [(r["visits"], r["seconds"] - at[r["iteration"] - 1]) for r in part if r["iteration"] - 1 in at]
    return sum(v for v, _ in spans) / max(sum(s for _, s in spans), 1e-9)
