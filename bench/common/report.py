"""Pages of benchmarks: their answers, charts and tables, and the comparisons behind them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.common.record import Bench, Chart, figure_order, read
from flegel.compare.record import Comparison
from flegel.errors import StorageError, UsageError
from flegel.loading.damage import damage_as
from flegel.report.charts import (
    LETTER_WIDTH,
    ChartCurve,
    colours_of,
    curves,
    cut_label,
    draw_legend,
    legend_places,
    not_empty,
    nothing_drawn,
    round_down,
)
from flegel.report.comparison import comparison_section, timelines, where
from flegel.report.page import details, figure, heading, note, paragraph, table
from flegel.report.svg import AxisScale, Canvas, axes, short
from flegel.report.write import page_of, render, save

SENTENCE_LETTERS = 28  # a column with longer cells holds sentences, whose lines may be broken


def save_benchmarks(folder: Path, out: Path | None = None, title: str = "") -> Path:
    """One page of all benchmarks in a folder, `report.html` in it unless told otherwise."""
    found: list[Bench | Comparison] = []
    for path in sorted(folder.glob("*.json")):
        try:
            item = read(path)
        except StorageError:
            continue  # figures of a script with a format of its own
        found.append(item)
    if not found:
        raise UsageError(f"There are no benchmarks in {folder}; run some with python -m bench.run_suite run NAME.")
    found.sort(key=lambda item: figure_order(item.figure) if isinstance(item, Bench) and item.figure else (9, 0, ""))
    return save(page(found, title or "Flegel: benchmarks"), out or folder / "report.html")


def page(items: Sequence[Bench | Comparison], title: str = "") -> str:
    """One page for all of them."""
    if len(items) == 1 and isinstance(items[0], Comparison):
        return render([items[0]], title)
    with damage_as("A record cannot be shown"):
        sections = [
            (f"{item.figure}: {item.question}" if item.figure else item.question, bench_section(item))
            if isinstance(item, Bench)
            else (item.title, comparison_section(item))
            for item in items
        ]
        return page_of(sections, title, _place([item for item in items if isinstance(item, Bench)]))


def _place(benches: Sequence[Bench]) -> str:
    """Where all benchmarks were measured, where that is one place."""
    places = {tuple(sorted(b.environment.machine.items())) for b in benches}
    if len(benches) < 2 or len(places) > 1:
        return ""
    machine, first = benches[0].environment.machine, benches[0].environment
    commits = " and ".join(sorted({b.environment.commit for b in benches if b.environment.commit})) or "unknown"
    scales = " and ".join(sorted({b.scale for b in benches if b.scale}))
    return paragraph(
        f"Measured on {machine.get('processor', 'an unknown processor')}, {machine.get('cores', '?')} cores, "
        f"{machine.get('memory', '?')} of memory, {first.date[:10]}, commit {commits}, scale {scales}. All time is "
        "training time unless a figure says otherwise; ratios are taken inside one run.",
        "soft",
    )


def bench_section(record: Bench) -> str:
    """Answers first, then figures, then the comparisons behind them."""
    parts = [note(f"Unfinished: {record.unfinished}")] if record.unfinished else []
    parts += [note(text) for text in _disturbance(record)]
    parts += [paragraph(text, "lead") for text in record.answer]
    parts += [note(f"Left out: {what} ({why})") for what, why in record.skipped if why != record.unfinished]
    for chart in record.charts:
        parts.append(heading(chart.title, level=3))
        parts.append(figure(lambda w, c=chart: draw(c, w), chart.text))  # type: ignore[misc]
    for listed in record.tables:
        parts.append(heading(listed.title, level=3))
        wordy = {i for row in listed.rows for i, cell in enumerate(row) if i and len(cell) > SENTENCE_LETTERS}
        parts.append(table(listed.columns, listed.rows, words=wordy))
        if listed.text:
            parts.append(paragraph(listed.text, "soft"))
    parts.append(_where_time_went(record))
    for comparison in record.comparisons:
        parts.append(details(comparison.title, comparison_section(comparison, brief=len(record.comparisons) > 2)))
    seeds = sorted({str(c.seed) for c in record.comparisons})
    more = [("scale", record.scale), ("seeds", ", ".join(seeds)), ("took", f"{record.seconds:.0f} s")]
    parts.append(details("Where and how", where(record.environment, more)))
    return "".join(parts)


def _disturbance(record: Bench) -> list[str]:
    """A note that comes first if most runs were disturbed by other programs."""
    runs = [a for comparison in record.comparisons for a in comparison.attempts]
    disturbed = sum(1 for a in runs if a.disturbed)
    if 2 * disturbed <= len(runs):
        return []
    return [f"{disturbed} of {len(runs)} runs were disturbed by other programs: these figures are unreliable."]


def _where_time_went(record: Bench) -> str:
    """Workers of the first comparison with stragglers, under bsp, bsp-mini and fsp, or its first three candidates."""
    for comparison in record.comparisons:
        if comparison.straggler and len(comparison.pictures) > 1:
            preferred = [name for name in ("bsp", "bsp-mini", "fsp") if name in comparison.pictures]
            names = preferred if len(preferred) > 1 else list(comparison.pictures)[:3]
            return timelines(comparison, names, f"Where the time went: {comparison.title}")
    return ""


def draw(chart: Chart, width: float) -> Canvas:
    """A chart of a benchmark."""
    if chart.bars:
        return groups(chart, width)
    colours = colours_of([s.name for s in chart.series])
    lines = [ChartCurve(s.name, list(s.points), colours[s.name]) for s in chart.series]
    few = all(len(s.points) < 40 for s in chart.series)
    return curves(lines, width, chart.x, chart.y, log_x=chart.log_x, log_y=chart.log_y, marks=few)


def groups(chart: Chart, width: float, height: float = 280) -> Canvas:
    """Standing bars, a group for each name, one colour a series."""
    colours = colours_of([s.name for s in chart.series])
    legend, rows = legend_places([(s.name, colours[s.name]) for s in chart.series], width)
    top, left, right, bottom = 28 + 18 * rows, 62.0, width - 10, height + 18 * rows - 46
    values = [v for s in chart.series for _, v in s.points if not chart.log_y or v > 0]
    if not values:
        return nothing_drawn(width, chart.y)
    low = round_down(min(values) / 1.5) if chart.log_y else min(0.0, *values)
    high = 1 / round_down(1 / max(values)) if chart.log_y else max(values)
    y = AxisScale(low, not_empty(high, low), bottom, top, chart.log_y)
    canvas = Canvas(width, height + 18 * rows, chart.title)
    axes(canvas, AxisScale(0, 1, left, right), y, "", chart.y, ticks=False)
    slot = (right - left) / max(len(chart.groups), 1)
    thick = min(slot * 0.8 / max(len(chart.series), 1), 44.0)
    margin = (slot - thick * len(chart.series)) / 2
    for i, series in enumerate(chart.series):
        for place, value in series.points:
            x = left + slot * place + margin + thick * i
            if not chart.log_y or value > 0:
                canvas.add(
                    "rect",
                    x=x,
                    y=y(value),
                    width=max(thick - 1, 0.8),
                    height=max(bottom - y(value), 0.5),
                    class_=f"f{colours[series.name]}",
                    title=f"{series.name}: {short(value)}",
                )
    for i, name in enumerate(chart.groups):
        every = max(1, int(-(-len(name) * LETTER_WIDTH // slot))) if len(chart.groups) > 8 else 1
        if i % every == 0:
            lines = name.split("-", 1) if len(name) * LETTER_WIDTH > slot and "-" in name else [name]
            for j, line in enumerate(lines):
                canvas.text(
                    left + slot * (i + 0.5), bottom + 17 + 13 * j, cut_label(line, slot + 10), "middle", "soft small"
                )
    canvas.text((left + right) / 2, bottom + 34, chart.x, "middle", "small")
    draw_legend(canvas, legend, solid=True)
    return canvas
