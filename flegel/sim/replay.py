"""A real job's trace as a world to simulate: each worker's speed over time, what a barrier took, how fast it learned.

Everything comes from the spans of the trace (`TraceSpan`).
The coordinator sent the order and got the report, so what is not computing in between is the way there and back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from flegel.errors import UsageError
from flegel.machine.coordinator.events import TraceSpan
from flegel.sim.coordinator_cost import Costs
from flegel.sim.learning_curve import FittedProgress
from flegel.sim.speeds import Course, recorded

UNKNOWN_WAY_SECONDS = 6e-4  # there and back, where the trace does not tell: twice `NetworkSpec.latency`
SHORTEST_COMPUTING_SECONDS = 1e-5  # seconds of computing: shorter spans say nothing about speed


@dataclass(frozen=True)
class Recording:
    """What a trace says."""

    workers: int
    rates: dict[int, float]
    """Points a second of each worker, in the middle of all its spans."""
    courses: dict[int, Course]
    """How that changed."""
    costs: Costs
    jitter: float
    """By how much the way of a message usually differs from the usual one, in seconds."""
    seconds: float


def record(rows: Sequence[Mapping[str, Any]], workers: int) -> Recording:
    """Speeds and costs of the job whose trace this is."""
    by_worker: dict[int, list[TraceSpan]] = {w: [] for w in range(workers)}
    for row in rows:
        for span in _spans(row):
            if span.worker in by_worker and span.visits > 0 and span.computing > SHORTEST_COMPUTING_SECONDS:
                by_worker[span.worker].append(span)
    silent = [w for w, spans in by_worker.items() if not spans]
    if silent:
        raise UsageError(
            f"The trace holds no spans of worker {silent[0]}, so its speed is not known; a trace has spans of jobs of "
            "up to 256 workers, in which every worker has trained."
        )
    rates: dict[int, float] = {}
    courses: dict[int, Course] = {}
    for worker, spans in by_worker.items():
        spans.sort(key=lambda s: s.order_sent)
        usual = sum(s.visits for s in spans) / sum(s.computing for s in spans)
        rates[worker] = usual
        factors = [s.visits / s.computing / usual for s in spans]
        courses[worker] = recorded([s.order_sent for s in spans], factors)
    seconds = float(rows[-1]["seconds"]) if rows else 0.0
    return Recording(workers, rates, courses, _costs(rows, workers), _jitter(rows), seconds)


def _spans(row: Mapping[str, Any]) -> list[TraceSpan]:
    return [TraceSpan(*span) for span in row.get("spans") or ()]


def _ways(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Of each order: there and back, without computing."""
    return [max(s.report_here - s.order_sent - s.computing, 0.0) for row in rows for s in _spans(row)]


def _jitter(rows: Sequence[Mapping[str, Any]]) -> float:
    ways = _ways(rows)
    return median(abs(way - median(ways)) for way in ways) / 2 if ways else 0.0


def _costs(rows: Sequence[Mapping[str, Any]], workers: int) -> Costs:
    """Half of the way there and back is a message; what the last of a round waits for is merging and sending.

    The spread of arrivals within a round, beyond the first, is the coordinator taking in one report after the other.
    """
    ways, merges = _ways(rows), []
    for row in rows:
        waits = [s.waiting for s in _spans(row) if s.waiting > 0]
        if waits:
            merges.append(min(waits))
    way = median(ways) if ways else UNKNOWN_WAY_SECONDS
    merge = median(merges) if merges else 0.0
    each = max(merge - way / 2, 0.0) / max(workers, 1)
    return Costs(message=way / 4, react=way / 4, wake=way / 8, merge=each / 2, send=each / 2)


def progress(rows: Sequence[Mapping[str, Any]], points: int, maximize: bool) -> FittedProgress:
    """The job's own course, where its data are not at hand: visits to objective. What staleness costs is not known."""
    passes, values, done = [], [], 0
    for row in rows:
        done += row["visits"]
        if row["estimate"] is not None:
            passes.append(done / points)
            values.append(float(row["estimate"]))
    if len(passes) < 2:
        raise UsageError("The trace knows fewer than two objectives; there is no progress to go by. Give --data.")
    return FittedProgress(tuple(passes), tuple(values), 0.0, maximize)
