"""From the rows of a trace to something that can be drawn: curve, timeline, reasons. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from flegel.compare.record import Lane, Picture, Timeline
from flegel.compare.stats import thinned

# Sizes of what a report keeps of a run: a page with many runs stays below some MB.
CURVE_POINTS = 200
MAX_SEGMENTS = 1200  # of a timeline; with more, it keeps shares of `TIME_SLICES` slices of time instead
TIME_SLICES = 180  # of a timeline with too many segments
MAX_UPDATES = 120  # of θ; with more, none is drawn: they could not be told apart
MAX_REASONS = 60  # of decisions; of more, some are left out
SPAN_KINDS = ("compute", "respond", "wait")

Span = Sequence[Any]
"""As in a row of the trace: worker, order sent, report here, visits, seconds computing, responding, waiting before."""


def picture(rows: Sequence[dict[str, Any]], workers: list[dict[str, Any]], staleness: dict[Any, int]) -> Picture:
    """Everything of one run that a report draws."""
    spans = [span for row in rows for span in row.get("spans", ())]
    length = float(rows[-1]["seconds"]) if rows else 0.0
    note = "" if spans or not rows else "The trace holds no spans of the workers, so there is no timeline."
    return Picture(
        curve=[(r["seconds"], r["objective"], r["interval"]) for r in thinned(rows, CURVE_POINTS)],
        timeline=timeline(spans, length, moving(rows), [r["seconds"] for r in rows]),
        workers=workers,
        reasons=[(r["seconds"], r["reason"]) for r in _telling(rows)],
        staleness={str(k): v for k, v in staleness.items()},
        costs=[(r["seconds"], r["barrier_cost"]) for r in thinned(rows, CURVE_POINTS)],
        note=note,
    )


def _telling(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows whose reason differs from the one before, in its words and not only in its numbers."""
    found, before = [], ""
    for row in rows:
        words = "".join(c for c in row["reason"] if c.isalpha() or c == " ")
        if words.strip() and words != before:
            found.append(row)
            before = words
    return thinned(found, MAX_REASONS)


def moving(rows: Sequence[dict[str, Any]]) -> list[tuple[float, float]]:
    """When points were under way: rounds at whose end some were, joined where they follow each other closely."""
    close = 0.002 * float(rows[-1]["seconds"]) if rows else 0.0
    found: list[tuple[float, float]] = []
    before = 0.0
    for row in rows:
        if row.get("in_flight"):
            if found and before - found[-1][1] <= close:
                found[-1] = (found[-1][0], row["seconds"])
            else:
                found.append((before, row["seconds"]))
        before = row["seconds"]
    return [(round(a, 6), round(b, 6)) for a, b in found]


def by_worker(spans: Iterable[Span]) -> dict[int, list[Span]]:
    found: dict[int, list[Span]] = {}
    for span in sorted(spans, key=lambda s: (s[0], s[1])):
        found.setdefault(int(span[0]), []).append(span)
    return found


def timeline(
    spans: Iterable[Span], length: float, moving: Sequence[tuple[float, float]] = (), updates: Sequence[float] = ()
) -> Timeline:
    """What each worker did when."""
    lanes = {worker: segments(mine) for worker, mine in by_worker(spans).items()}
    length = max([length, *(lane[-1][1] for lane in lanes.values() if lane)])
    for lane in lanes.values():
        if lane and length - lane[-1][1] > 1e-9:
            lane.append((lane[-1][1], length, "wait"))  # its last report is in, those of others are not
    if sum(map(len, lanes.values())) <= MAX_SEGMENTS:
        short = {w: [(round(a, 6), round(b, 6), k) for a, b, k in lane] for w, lane in lanes.items()}
        found = Timeline(length, [Lane(w, lane) for w, lane in short.items()])
    else:
        found = Timeline(length, [Lane(w, [], shares(lane, length, TIME_SLICES)) for w, lane in lanes.items()])
    found.moving = list(moving)
    found.updates = [round(at, 6) for at in updates] if len(updates) <= MAX_UPDATES else []
    return found


def segments(spans: Sequence[Span]) -> list[tuple[float, float, str]]:
    """What one worker did, in order of time. Between a report and the next order it waits, or trains overtime.

    Computing is drawn first and what remains until the report arrived after it: that is where a worker is late.
    Overtime is computing in excess of the time between order and report; it was done right after the last report.
    """
    found: list[tuple[float, float, str]] = []
    before = 0.0
    for _, sent, here, _, compute, *_ in spans:
        over = min(max(0.0, compute - (here - sent)), max(0.0, sent - before))
        done = min(max(0.0, compute - over), here - sent)
        for begin, end, kind in (
            (before, before + over, "compute"),
            (before + over, sent, "wait"),
            (sent, sent + done, "compute"),
            (sent + done, here, "respond"),
        ):
            if end - begin > 1e-9:
                found.append((begin, end, kind))
        before = max(before, here)
    return found


def shares(lane: Sequence[tuple[float, float, str]], length: float, slices: int) -> list[tuple[float, float, float]]:
    """Per slice of time, which share of it went into what."""
    width = max(length, 1e-12) / slices
    sums = [[0.0, 0.0, 0.0] for _ in range(slices)]
    for begin, end, kind in lane:
        which = SPAN_KINDS.index(kind)
        for i in range(max(0, int(begin / width)), min(slices - 1, int(end / width)) + 1):
            covered = min(end, (i + 1) * width) - max(begin, i * width)
            sums[i][which] += max(0.0, covered) / width
    return [(round(a, 3), round(b, 3), round(c, 3)) for a, b, c in sums]
