"""What the page is told: plain records of a run, from snapshots, rows of a trace and results. Pure: no server.

A run's history is bounded, so that a page may be opened after hours. Counters in it are cumulative: where every other
record is dropped, what remains is still right, only coarser.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

import msgspec

from flegel.machine.coordinator.events import TraceRow
from flegel.machine.coordinator.observation import JobSnapshot

# Limits of a history, so that a page may be opened after hours: about 30 MB of memory and of traffic.
MAX_BARRIER_RECORDS = 20_000
MAX_SPANS = 60_000  # of all workers
MAX_SNAPSHOT_BYTES = 12 << 20  # that a page gets when it is opened
MAX_LOG_LINES = 500  # the last ones
MAX_TEXT_CHARACTERS = 2000  # of one name or log line, which user code decides

Frame = dict[str, Any]


def row_record(row: TraceRow, visits: int, reason: str) -> list[Any]:
    """One barrier: seconds, iteration, objective, estimate, interval, visits so far, cost, in flight, moved bytes,
    least, median and most passes, reason (empty where it is that of the barrier before)."""
    passes = sorted(row.passes)
    spread = [passes[0], median(passes), passes[-1]] if passes else [None, None, None]
    return [
        round(row.seconds, 6),
        row.iteration,
        _finite(row.objective),
        _finite(row.estimate),
        _finite(row.interval),
        visits,
        round(row.barrier_cost, 6),
        row.in_flight,
        row.moved_bytes,
        *spread,
        reason[:MAX_TEXT_CHARACTERS],
    ]


def look_frame(run: str, seen: JobSnapshot) -> Frame:
    """The job at one moment, its workers by columns."""
    workers = seen.workers
    hosts = sorted({w.host for w in workers})
    return {
        "kind": "look",
        "run": run,
        "at": round(seen.at, 4),
        "phase": seen.phase,
        "points": seen.points,
        "unseen": seen.unseen,
        "loaded": seen.loaded,
        "loads": seen.loads,
        "verdict": seen.verdict[:MAX_TEXT_CHARACTERS],
        "members": seen.members,
        "resting": seen.resting,
        "iteration": seen.iteration,
        "visits": seen.visits,
        "in_flight": seen.in_flight,
        "moved_bytes": seen.moved_bytes,
        "compute": seen.compute,
        "wait": seen.wait,
        "respond": seen.respond,
        "hosts": hosts,
        "worker": {
            "id": [w.id for w in workers],
            "points": [w.points for w in workers],
            "passes": [round(w.passes, 3) for w in workers],
            "rate": [round(w.rate) for w in workers],
            "compute": [round(w.compute, 4) for w in workers],
            "wait": [round(w.wait, 4) for w in workers],
            "respond": [round(w.respond, 4) for w in workers],
            "visits": [w.visits for w in workers],
            "moving": [w.moving for w in workers],
            "state": "".join(w.state[:1] for w in workers),
            "host": [hosts.index(w.host) for w in workers],
        },
        "waits_for": seen.waits_for[:MAX_TEXT_CHARACTERS],
        "sites": msgspec.to_builtins(seen.sites),
        "flows": [[f.source, f.target, f.points, f.bytes, f.under_way] for f in seen.flows],
        "incidents": [msgspec.to_builtins(i) for i in seen.incidents[-200:]],
    }


class RunHistory:
    """Everything that a page needs to know of one run, from its beginning."""

    def __init__(self, run: str, about: Frame) -> None:
        """`run`: the name of the job on the page; `about`: what the page shows of it from the beginning."""
        self.run = run
        self.about = {"kind": "job", "run": run, **about}
        self._rows: list[list[Any]] = []
        self._spans: deque[Sequence[float]] = deque(maxlen=MAX_SPANS)
        self._looks: list[bytes] = []
        self._look_bytes = 0
        self._lines: deque[list[str]] = deque(maxlen=MAX_LOG_LINES)
        self._end: Frame | None = None
        self._visits, self._reason = 0, ""

    def take(self, seen: JobSnapshot, rows: Iterable[TraceRow]) -> list[bytes]:
        """A look, and the barriers since the last one; returns the new frames."""
        found = self.take_rows(rows)
        frame = msgspec.json.encode(look_frame(self.run, seen))
        self._looks.append(frame)
        self._look_bytes += len(frame)
        if self._look_bytes > MAX_SNAPSHOT_BYTES:
            self._looks = self._looks[-1::-2][::-1]
            self._look_bytes = sum(map(len, self._looks))
        return [*found, frame]

    def take_rows(self, rows: Iterable[TraceRow]) -> list[bytes]:
        """Add barriers; returns the frame that tells pages of them. Of too many barriers every other one of the older
        half is dropped, unless it has a reason."""
        records: list[list[Any]] = []
        spans: list[Any] = []
        for row in rows:
            self._visits += row.visits
            new = row.reason if row.reason != self._reason else ""
            self._reason = row.reason or self._reason
            records.append(row_record(row, self._visits, new))
            spans += row.spans
        if not records:
            return []
        self._rows += records
        self._spans.extend(spans)
        if len(self._rows) > MAX_BARRIER_RECORDS:
            older, newer = self._rows[: MAX_BARRIER_RECORDS // 2], self._rows[MAX_BARRIER_RECORDS // 2 :]
            self._rows = [r for i, r in enumerate(older) if i % 2 or r[-1]] + newer
        return [self._encode({"kind": "rows", "rows": records, "spans": spans[-MAX_SPANS // 8 :]})]

    def log(self, lines: Sequence[tuple[str, str]]) -> list[bytes]:
        """Time and text of each line."""
        cut = [[when, text[:MAX_TEXT_CHARACTERS]] for when, text in lines]
        self._lines.extend(cut)
        return [self._encode({"kind": "log", "lines": cut})] if cut else []

    def end(self, result: dict[str, Any] | None, error: str = "") -> list[bytes]:
        """The figures of the result, without what frames have told already; or why there is none."""
        kept = {k: v for k, v in (result or {}).items() if k != "trace"}
        self._end = {"kind": "end", "result": kept or None, "error": error[:MAX_TEXT_CHARACTERS]}
        return [self._encode(self._end)]

    def frames(self) -> list[bytes]:
        """All of it, for a page that comes now."""
        found = [msgspec.json.encode({**self.about, "reset": True})]
        if self._rows:
            found.append(self._encode({"kind": "rows", "rows": self._rows, "spans": list(self._spans)}))
        found += self._looks
        if self._lines:
            found.append(self._encode({"kind": "log", "lines": list(self._lines)}))
        if self._end is not None:
            found.append(self._encode(self._end))
        return found

    def _encode(self, frame: Frame) -> bytes:
        return msgspec.json.encode({**frame, "run": self.run})


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
