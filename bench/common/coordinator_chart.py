"""The curves of coordinator_load.py as a picture: before and after, by workers and by size. Draws, nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flegel.report.svg import DASHES, AxisScale, Canvas, axes

Row = dict[str, Any]
Line = tuple[str, int, list[tuple[float, float]]]
"""Name, number of its colour, and points."""

WIDE, HIGH = 400, 300
AIM = (1024, 50.0)
"""Workers, and milliseconds that a barrier may take with them."""


def barrier_chart(before: Sequence[Row], after: Sequence[Row], size: int, origin: str) -> str:
    """By the number of workers. Left: a barrier by the clock. Right: processor time of the coordinator's thread."""
    canvas = Canvas(2 * WIDE + 190, HIGH + 150, "Barriers of one coordinator, before and after", origin)
    sides = (("before", 7, before), ("after", 0, after))
    told = f"θ and statistics of {size // 1000} kB"
    canvas.text(60, 24, f"Barrier by the clock, {told}", class_="strong")
    clock = [(name, colour, _points(rows, "median_ms", size)) for name, colour, rows in sides]
    x, y = _panel(canvas, 60, clock, "workers", "ms, median (log)", AIM[1])
    canvas.add("line", x1=x.begin, x2=x.end, y1=y(AIM[1]), y2=y(AIM[1]), class_="s1", stroke_dasharray="2 3")
    canvas.text(x.begin + 4, y(AIM[1]) - 5, f"aim at {AIM[0]:,} workers: {AIM[1]:g} ms", "start", "soft small")
    canvas.text(WIDE + 150, 24, "Processor time of the coordinator's thread", class_="strong")
    thread = [(name, colour, _points(rows, "thread_us", size)) for name, colour, rows in sides]
    _panel(canvas, WIDE + 150, thread, "workers", "µs for each worker and barrier (log)")
    canvas.text(60, HIGH + 118, origin, class_="soft small")
    canvas.text(60, HIGH + 136, _disturbed(sides), class_="soft small")
    return canvas.svg(standalone=True)


def _disturbed(sides: Sequence[tuple[str, int, Sequence[Row]]]) -> str:
    """How far the clock can be trusted."""
    told = []
    for name, _, rows in sides:
        shares = [r["others"] for r in rows if "others" in r]
        known = f"{min(shares):.0%} to {max(shares):.0%}" if shares else "an unknown part"
        told.append(f"{name}: {known}")
    return f"Other programs took of the machine meanwhile, {', '.join(told)}."


def _points(rows: Sequence[Row], field: str, size: int) -> list[tuple[float, float]]:
    return sorted((r["workers"], r[field]) for r in rows if r["theta"] == size)


def _panel(
    canvas: Canvas, left: int, lines: Sequence[Line], x_label: str, y_label: str, more: float | None = None
) -> tuple[AxisScale, AxisScale]:
    points = [p for _, _, line in lines for p in line]
    heights = [h for _, h in points] + ([more] if more else [])
    x = AxisScale(min(p[0] for p in points), max(p[0] for p in points), left, left + WIDE, log=True)
    y = AxisScale(min(heights) * 0.7, max(heights) * 1.3, HIGH + 50, 60, log=True)
    axes(canvas, x, y, x_label, y_label, show_x=lambda v: f"{v:,.0f}", ticks=False)
    for at in sorted({p[0] for p in points}):
        canvas.add("line", x1=x(at), x2=x(at), y1=y.begin, y2=y.begin + 4, class_="axis")
        canvas.text(x(at), y.begin + 17, f"{at:,.0f}", "middle", "soft small")
    for name, colour, line in lines:
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in line)
        dash = DASHES[1] if name == "before" else None
        canvas.add("polyline", points=path, class_=f"line s{colour}", stroke_dasharray=dash)
        for a, b in line:
            canvas.add("circle", cx=x(a), cy=y(b), r=3, class_=f"f{colour}", title=f"{name}, {a:,.0f}: {b:.3g}")
        if line:
            a, b = line[-1]
            canvas.text(x(a) + 7, y(b) + 4, name, class_=f"small f{colour}")
    return x, y
