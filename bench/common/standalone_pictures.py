"""Pictures of their own for pages: a chart of a benchmark, timelines of candidates, a window of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.common.record import Bench
from bench.common.report import draw
from flegel.compare.picture import by_worker, moving, segments
from flegel.compare.record import Comparison, Lane, Timeline
from flegel.errors import UsageError
from flegel.report import timeline


def excerpt(rows: Sequence[dict[str, Any]], begin: float, end: float) -> Timeline:
    """A window of a run, its beginning as time zero."""
    spans = [s for row in rows for s in row.get("spans", ()) if s[2] > begin and s[1] < end]

    def clipped(a: float, b: float) -> tuple[float, float]:
        return max(a, begin) - begin, min(b, end) - begin

    lanes = []
    for worker, mine in by_worker(spans).items():
        inside = [(*clipped(a, b), kind) for a, b, kind in segments(mine) if a < end and b > begin]
        if inside and end - begin - inside[-1][1] > 1e-9:
            inside.append((inside[-1][1], end - begin, "wait"))
        lanes.append(Lane(worker, inside))
    updates = [r["seconds"] - begin for r in rows if begin <= r["seconds"] <= end]
    return Timeline(end - begin, lanes, [clipped(a, b) for a, b in moving(rows) if a < end and b > begin], updates)


def chart_picture(record: Bench, title: str = "", width: float = 820) -> str:
    """A picture of its own: a chart of a benchmark, the first or the one with that title."""
    chart = next((c for c in record.charts if not title or c.title == title), None)
    if chart is None:
        known = "; ".join(c.title for c in record.charts) or "none"
        raise UsageError(f"{record.name} has no chart {title!r}; it has: {known}.")
    canvas = draw(chart, width)
    place = record.environment
    cores = place.machine.get("cores", "?")
    canvas.origin = f"{chart.title}: {record.question} {place.date}, commit {place.commit}, {cores} cores."
    return canvas.svg(standalone=True)


def timeline_picture(comparison: Comparison, names: Sequence[str], title: str, width: float = 820) -> str:
    """A picture of its own: the timelines of some candidates on a common axis."""
    panels = [(name, comparison.pictures[name].timeline) for name in names]
    canvas = timeline.draw(panels, width, title)
    canvas.origin = _origin(comparison, names)
    return canvas.svg(standalone=True)


def _origin(comparison: Comparison, names: Sequence[str]) -> str:
    """Which runs are drawn, in a sentence for whoever opens the file."""
    runs = [a for name in names for a in comparison.of(name)]
    quiet = "disturbed by other programs" if any(a.disturbed for a in runs) else "undisturbed"
    place = comparison.environment
    where = f" {place.date}, commit {place.commit}, {place.machine.get('cores', '?')} cores." if place else ""
    data = f"{comparison.dataset['rows']:,} rows of {comparison.dataset['name']}"
    return (
        f"A real run of {comparison.algorithm} on {data}, straggler {comparison.straggler or 'none'}, {quiet}.{where}"
    )
