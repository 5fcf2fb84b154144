"""Where the time went: a lane for each worker, coloured by what it did. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flegel.compare.picture import SPAN_KINDS
from flegel.compare.record import Lane, Timeline
from flegel.compare.table import seconds
from flegel.report.svg import AxisScale, Canvas

FILL_CLASSES = {"compute": "f0", "respond": "f4", "wait": "idle", "move": "f2"}
KIND_WORDS = {"compute": "computing", "respond": "responding", "wait": "waiting", "move": "moving"}
BOLD_LETTER_WIDTH = 7.4  # pixels, on average
MOVING_STRIP_HEIGHT = 8.0  # pixels, for the strip that shows when points move
MAX_UPDATE_LINES = 40  # of updates of θ; more would hide the lanes
MAX_SLICES_PER_PANEL = 1440  # of time, in all lanes together; of more, neighbours are drawn as one: pages stay small
LEAST_SLICES_PER_LANE = 24  # however many lanes there are
LONGEST_PANEL_RATIO = 3.0  # of a panel to the shortest one; longer runs are cut, so that the shortest can be read

Panel = tuple[str, Timeline]


def draw(
    panels: Sequence[Panel],
    width: float,
    title: str = "",
    window: float | None = None,
    axis: str = "time since training began",
) -> Canvas:
    """One panel per run, all on the same axis of time; a run that goes on beyond it ends in an arrow.

    A panel without a name is a moment of a run: it says neither how long it took nor that it was done.
    """
    lanes = max((len(t.lanes) for _, t in panels), default=0)
    thick = 14.0 if lanes <= 8 else 10.0 if lanes <= 16 else max(3.0, 160 / lanes)
    gap = 3.0 if thick >= 10 else 1.0
    left, right, top = 34.0, width - 46, 44.0 if title else 26.0
    span = window or common_window([t.seconds for _, t in panels])
    scale = AxisScale(0.0, span, left, right)
    heights = [
        (28 if name else 8) + len(t.lanes) * (thick + gap) + (MOVING_STRIP_HEIGHT if t.moving else 0)
        for name, t in panels
    ]
    canvas = Canvas(width, top + sum(heights) + 40, title or "What each worker did, over time")
    if title:
        canvas.text(8, 18, title, "start", "strong")
    _legend(canvas, 8, top - 8, any(t.moving for _, t in panels))
    y = top
    for (name, timeline), height in zip(panels, heights, strict=True):
        _panel(canvas, name, timeline, scale, y, thick, gap)
        y += height
    for tick in scale.ticks(max(3, int((right - left) / 90))):
        canvas.add("line", x1=scale(tick), x2=scale(tick), y1=y, y2=y + 4, class_="axis")
        canvas.text(scale(tick), y + 17, seconds(tick) if tick else "0", "middle", "soft small")
    canvas.add("line", x1=left, x2=right, y1=y, y2=y, class_="axis")
    canvas.text((left + right) / 2, y + 33, axis, "middle", "small")
    return canvas


def common_window(lengths: Sequence[float]) -> float:
    """All of it, unless one run is much shorter: then so much that it can still be seen."""
    known = [length for length in lengths if length > 0] or [1.0]
    return min(max(known), LONGEST_PANEL_RATIO * min(known)) if len(known) > 1 else known[0]


def _legend(canvas: Canvas, x: float, y: float, moves: bool) -> None:
    for kind in (*SPAN_KINDS, "move") if moves else SPAN_KINDS:
        canvas.add("rect", x=x, y=y - 9, width=16, height=10, class_=FILL_CLASSES[kind])
        canvas.text(x + 20, y, KIND_WORDS[kind], "start", "small")
        x += 31 + 6.2 * len(KIND_WORDS[kind])


def _panel(canvas: Canvas, name: str, timeline: Timeline, scale: AxisScale, y: float, thick: float, gap: float) -> None:
    """One run: its name, a lane for each worker, updates of θ as dashed lines, moves of points as a strip below."""
    goes_on = timeline.seconds > scale.high * (1 + 1e-9)
    took = f": {seconds(timeline.seconds)}" + (", goes on" if goes_on else "")
    if name:
        most = int((canvas.width - 20) / BOLD_LETTER_WIDTH) - len(took)
        short = name if len(name) <= most else f"…{name[1 - most :]}"  # what tells candidates apart stands at the end
        canvas.text(8, y + 18, short + took, "start", "strong")
    y += 26 if name else 6
    every = 1 if thick >= 10 else max(1, len(timeline.lanes) // 8)
    for i, lane in enumerate(timeline.lanes):
        at = y + i * (thick + gap)
        if i % every == 0:
            canvas.text(scale.begin - 6, at + min(thick, 12) - 1, str(lane.worker), "end", "soft small")
        _lane(canvas, lane, timeline.seconds, scale, at, thick, len(timeline.lanes))
    bottom = y + len(timeline.lanes) * (thick + gap) - gap
    seen = [at for at in timeline.updates if at <= scale.high]
    for at in seen if len(seen) <= MAX_UPDATE_LINES else ():
        canvas.add("line", x1=scale(at), x2=scale(at), y1=y - 2, y2=bottom + 1, class_="mark", title="θ was made")
    for begin, end in timeline.moving:
        if begin < scale.high:
            x, stop = scale(begin), scale(min(end, scale.high))
            canvas.add(
                "rect",
                x=x,
                y=bottom + 2.5,
                width=max(stop - x, 0.6),
                height=4,
                class_=FILL_CLASSES["move"],
                title="points move between workers",
            )
    if goes_on:
        canvas.text(scale.end + 5, (y + bottom) / 2 + 5, "⋯", "start", "strong")
    elif name:
        end = scale(timeline.seconds)
        canvas.add("line", x1=end, x2=end, y1=y - 4, y2=bottom + 2, class_="whisker")
        if end < scale.end - 40 or end <= scale.end:
            canvas.text(end + 5, (y + bottom) / 2 + 4, "done", "start", "small")


def _lane(canvas: Canvas, lane: Lane, length: float, scale: AxisScale, y: float, thick: float, lanes: int) -> None:
    """Draw what one worker did over time: as coloured segments, or as shares of slices of time where segments are too
    many."""
    if lane.shares:
        _slices(canvas, lane, length, scale, y, thick, lanes)
        return
    by_kind: dict[str, list[str]] = {}
    for begin, end, kind in lane.segments:
        if begin < scale.high:
            x, stop = scale(begin), scale(min(end, scale.high))
            wide = f"{max(stop - x, 0.2):.1f}"
            by_kind.setdefault(kind, []).append(f"M{x:.1f} {y:.1f}h{wide}v{thick:g}h-{wide}z")
    for kind in ("wait", "respond", "compute"):
        if kind in by_kind:
            canvas.add("path", d="".join(by_kind[kind]), class_=FILL_CLASSES[kind], title=_told(lane, kind))


def _slices(canvas: Canvas, lane: Lane, length: float, scale: AxisScale, y: float, thick: float, lanes: int) -> None:
    """Stacked shares of each slice: as much of its height as it has of the time. One outline for what lies up to a
    kind, the highest drawn first, so that the lower ones cover it: a page has hundreds of lanes with many slices."""
    group = max(
        1, min(round(len(lane.shares) * lanes / MAX_SLICES_PER_PANEL), len(lane.shares) // LEAST_SLICES_PER_LANE)
    )
    shares = [
        tuple(sum(kind) / len(part) for kind in zip(*part, strict=True))
        for part in (lane.shares[i : i + group] for i in range(0, len(lane.shares), group))
    ]
    width, floor = max(length, 1e-12) / len(lane.shares) * group, y + thick
    shown = min(len(shares), math.ceil(scale.high / width - 1e-9))
    ends = [scale(min((i + 1) * width, length, scale.high)) for i in range(shown)]
    for upto in range(len(SPAN_KINDS), 0, -1):
        path, last = [f"M{scale(0.0):.1f} {floor:.1f}"], floor
        for i, amounts in enumerate(shares[:shown]):
            top = round(floor - min(sum(amounts[:upto]), 1.0) * thick, 1)
            path.append(f"V{top:.1f}H{ends[i]:.1f}" if top != last else f"H{ends[i]:.1f}")
            last = top
        if any(amounts[upto - 1] > 0 for amounts in shares[:shown]):
            kind = SPAN_KINDS[upto - 1]
            canvas.add("path", d="".join(path) + f"V{floor:.1f}z", class_=FILL_CLASSES[kind], title=_told(lane, kind))


def _told(lane: Lane, kind: str) -> str:
    if lane.shares:
        share = sum(s[SPAN_KINDS.index(kind)] for s in lane.shares) / len(lane.shares)
    else:
        total = sum(b - a for a, b, _ in lane.segments)
        share = sum(b - a for a, b, k in lane.segments if k == kind) / max(total, 1e-12)
    return f"worker {lane.worker}: {share:.0%} {KIND_WORDS[kind]}"
