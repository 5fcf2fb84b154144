"""Curves and bars for a given width. Pure: figures in, a picture out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from flegel.compare.table import seconds
from flegel.report.svg import COLOUR_COUNT, DASHES, AxisScale, Canvas, axes, short

LOG_AXIS_RATIO = 30.0  # of the largest to the smallest value; above it a linear axis would show only the largest
LETTER_WIDTH = 6.4  # pixels, on average


FIXED_COLOURS = {"flegel": 0, "fsp": 0, "bsp": 1, "psp": 2, "ssp": 3, "bsp-mini": 4, "fsp-binary": 5, "asp": 7}
"""Colours that synchronization models, and Flegel among its peers, keep in every report."""


def colours_of(names: Sequence[str]) -> dict[str, int]:
    """A colour for each: its own where it has one, else one that is free."""
    found = {name: FIXED_COLOURS[name] for name in names if name in FIXED_COLOURS}
    free = [c for c in (6, 2, 4, 3, 1, 5, 7, 0) if c not in found.values()] or list(range(COLOUR_COUNT))
    others = [name for name in names if name not in found]
    return found | {name: free[i % len(free)] for i, name in enumerate(others)}


class Bar(NamedTuple):
    """A bar with an interval; `low` and `high` may equal `value`."""

    label: str
    value: float | None
    low: float
    high: float
    text: str
    colour: int


def bars(rows: Sequence[Bar], width: float, axis: str, show: Callable[[float], str] = seconds) -> Canvas:
    """Lying bars, one a row, with whiskers and the figure at the end."""
    names = max((len(row.label) for row in rows), default=4) * LETTER_WIDTH + 14
    left, line, top = min(names, width * 0.42), 26.0, 8.0
    known = [v for row in rows if row.value is not None for v in (row.value, row.high, row.low) if v > 0]
    largest, least = max(known, default=1.0), min(known, default=1.0)
    log = largest / least > LOG_AXIS_RATIO
    room = max(len(row.text) for row in rows) * LETTER_WIDTH + 12 if rows else 60
    inside = max(width - left - room, width * 0.25)
    scale = AxisScale(least / 2 if log else 0.0, largest, left, left + inside, log)
    canvas = Canvas(width, top + line * len(rows) + 40, axis)
    bottom = top + line * len(rows)
    for tick in scale.ticks(max(2, int(inside / 80))):
        canvas.add("line", x1=scale(tick), x2=scale(tick), y1=top, y2=bottom, class_="grid")
        canvas.text(scale(tick), bottom + 15, show(tick) if tick else "0", "middle", "soft small")
    for i, row in enumerate(rows):
        y = top + i * line
        canvas.text(left - 8, y + 17, cut_label(row.label, left), "end")
        if row.value is None:
            canvas.text(left + 4, y + 17, row.text, "start", "soft")
            continue
        end = scale(row.value)
        canvas.add("rect", x=left, y=y + 5, width=max(end - left, 1.0), height=line - 10, class_=f"f{row.colour}")
        if row.high > row.low:
            low, high, middle = scale(row.low), scale(row.high), y + line / 2
            canvas.add("line", x1=low, x2=high, y1=middle, y2=middle, class_="whisker")
            for at in (low, high):
                canvas.add("line", x1=at, x2=at, y1=middle - 4, y2=middle + 4, class_="whisker")
        canvas.text(max(end, scale(row.high)) + 7, y + 17, row.text)
    canvas.text(left, bottom + 33, axis + (" (logarithmic)" if log else ""), "start", "small")
    return canvas


def cut_label(label: str, room: float) -> str:
    most = max(4, int((room - 10) / LETTER_WIDTH))
    return label if len(label) <= most else label[: most - 1] + "…"


class ChartCurve(NamedTuple):
    """A line with a name; colours and dashes come by number."""

    name: str
    points: list[tuple[float, float]]
    colour: int


def curves(
    lines: Sequence[ChartCurve],
    width: float,
    x_label: str,
    y_label: str,
    *,
    log_x: bool = False,
    log_y: bool = False,
    level: tuple[float, str] | None = None,
    steps: bool = False,
    show_x: Callable[[float], str] = short,
    show_y: Callable[[float], str] = short,
    height: float = 280,
    marks: bool = False,
) -> Canvas:
    """Lines over a common pair of axes, with a legend above and, where given, a level across."""
    lines = [
        line._replace(points=[(x, y) for x, y in line.points if (x > 0 or not log_x) and (y > 0 or not log_y)])
        for line in lines
    ]
    lines = [line for line in lines if line.points]
    if not lines:
        return nothing_drawn(width, y_label)
    legend, rows = legend_places([(line.name, line.colour) for line in lines], width)
    top, left, right, bottom = 28 + 18 * rows, 62.0, width - 14, height + 18 * rows - 46
    canvas = Canvas(width, height + 18 * rows, y_label)
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    ys += [level[0]] if level else []
    x = AxisScale(min(xs) if log_x else min(0.0, *xs), not_empty(max(xs), min(xs)), left, right, log_x)
    margin = 0.04 * (max(ys) - min(ys))
    low, high = (round_down(min(ys)), 1 / round_down(1 / max(ys))) if log_y else (min(ys) - margin, max(ys) + margin)
    y = AxisScale(low, not_empty(high, low), bottom, top, log_y)
    axes(canvas, x, y, x_label, y_label, show_x, show_y)
    if level:
        canvas.add("line", x1=left, x2=right, y1=y(level[0]), y2=y(level[0]), class_="axis", stroke_dasharray="3 3")
        canvas.text(right, y(level[0]) - 5, level[1], "end", "soft small")
    for line in lines:
        canvas.add(
            "path",
            d=_path(line.points, x, y, steps),
            class_=f"line s{line.colour}",
            stroke_dasharray=DASHES[line.colour] or None,
            title=line.name,
        )
        last = line.points[-1]
        canvas.add("circle", cx=x(last[0]), cy=y(last[1]), r=3.5, class_=f"f{line.colour}", title=line.name)
        for px, py in line.points if marks else ():
            canvas.add("circle", cx=x(px), cy=y(py), r=2.6, class_=f"f{line.colour}", title=f"{line.name}: {short(py)}")
    draw_legend(canvas, legend)
    return canvas


def nothing_drawn(width: float, label: str) -> Canvas:
    """An empty picture: nothing was measured that could be drawn."""
    canvas = Canvas(width, 60, label)
    canvas.text(width / 2, 34, "nothing was measured that could be drawn", "middle", "soft")
    return canvas


def not_empty(high: float, low: float) -> float:
    """A range that is not empty."""
    return high if high > low else low + (abs(low) or 1.0)


def _path(points: Sequence[tuple[float, float]], x: AxisScale, y: AxisScale, steps: bool) -> str:
    """An SVG path through these points; `steps`: horizontal up to the next point, then vertical."""
    words: list[str] = []
    before = 0.0
    for i, (px, py) in enumerate(points):
        at, height = x(px), y(py)
        if i and steps:
            words.append(f"L{at:.1f} {before:.1f}")
        words.append(f"{'L' if i else 'M'}{at:.1f} {height:.1f}")
        before = height
    return "".join(words)


def legend_places(names: Sequence[tuple[str, int]], width: float) -> tuple[list[tuple[float, float, str, int]], int]:
    """Places of the names, in as many rows as it takes."""
    placed: list[tuple[float, float, str, int]] = []
    at, row = 8.0, 0
    for name, colour in names:
        need = 34 + len(name) * LETTER_WIDTH
        if at + need > width and at > 8:
            at, row = 8.0, row + 1
        placed.append((at, 14.0 + 18 * row, name, colour))
        at += need
    return placed, row + 1 if names else 0


def draw_legend(canvas: Canvas, placed: Sequence[tuple[float, float, str, int]], solid: bool = False) -> None:
    """Names beside samples of their lines, or of their bars where `solid`."""
    for x, y, name, colour in placed:
        if solid:
            canvas.add("rect", x=x, y=y - 9, width=16, height=10, class_=f"f{colour}")
        else:
            canvas.add(
                "line",
                x1=x,
                x2=x + 20,
                y1=y - 4,
                y2=y - 4,
                class_=f"line s{colour}",
                stroke_dasharray=DASHES[colour] or None,
            )
        canvas.text(x + 25, y, name, "start", "small")


def round_down(value: float) -> float:
    """1, 2 or 5 times a power of ten, not above the value."""
    power = 10.0 ** math.floor(math.log10(value) + 1e-12)
    return max(m * power for m in (1, 2, 5) if m * power <= value * (1 + 1e-9))
