"""Reports and pictures from records: collects sections into a page and writes files. Draws nothing itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from flegel.compare.record import Bench, Chart, Comparison, figure_order, read
from flegel.errors import StorageError, UsageError
from flegel.loading.damage import damage_as
from flegel.loading.documents import read_json
from flegel.report import saved_run
from flegel.report.charts import ChartCurve, colours_of, curves, groups
from flegel.report.comparison import comparison_section, timelines, where
from flegel.report.page import details, figure, heading, note, page, paragraph, table
from flegel.report.saved_run import SavedRun
from flegel.report.svg import Canvas

SENTENCE_LETTERS = 28  # a column with longer cells holds sentences, whose lines may be broken
Item = Comparison | Bench | SavedRun


def load(path: Path) -> Item:
    """A comparison, a benchmark, or a single run: whatever the file or folder holds."""
    if path.is_dir():
        if not (path / "result.json").is_file():
            raise UsageError(f"{path} holds no result.json; give a folder that flegel submit made, or a JSON file.")
        return saved_run.read_saved_run(path)
    try:
        found = read_json(path)
    except OSError as error:
        raise UsageError(f"Could not read {path}: {error.strerror or error}.") from None
    if found.get("kind") in ("compare", "bench"):
        return read(path)
    with damage_as(f"{path} is no result of Flegel"):
        return saved_run.of_result(found)


def render(items: Sequence[Item], title: str = "") -> str:
    """One page for all of them."""
    with damage_as("A record cannot be shown"):  # somebody else may have written it
        return _rendered(items, title)


def save_benchmarks(folder: Path, out: Path | None = None, title: str = "") -> Path:
    """One page of all benchmarks in a folder, `report.html` in it unless told otherwise."""
    found: list[Bench | Comparison] = []
    for path in sorted(folder.glob("*.json")):
        try:
            item = load(path)
        except StorageError:
            continue  # figures of a script with a format of its own
        if isinstance(item, Bench | Comparison):
            found.append(item)
    if not found:
        raise UsageError(f"There are no benchmarks in {folder}; run some with flegel bench run NAME.")
    found.sort(key=lambda item: figure_order(item.figure) if isinstance(item, Bench) and item.figure else (9, 0, ""))
    return save(render(found, title or "Flegel: benchmarks"), out or folder / "report.html")


def _rendered(items: Sequence[Item], title: str) -> str:
    names = [_name(item) for item in items]
    anchors = [f"s{i}-{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}" for i, name in enumerate(names)]
    body: list[str] = [_place(items)]
    for item, name, anchor in zip(items, names, anchors, strict=True):
        if len(items) > 1 or title:
            body.append(heading(name, anchor))
        body.append(_section(item))
    return page(title or (names[0] if len(names) == 1 else "Flegel"), body, list(zip(anchors, names, strict=True)))


def _place(items: Sequence[Item]) -> str:
    """Where all benchmarks were measured, where that is one place."""
    benches = [item for item in items if isinstance(item, Bench)]
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


def _name(item: Item) -> str:
    match item:
        case Comparison():
            return item.title
        case Bench():
            return f"{item.figure}: {item.question}" if item.figure else item.question
    return saved_run.title(item)


def _section(item: Item) -> str:
    match item:
        case Comparison():
            place = where(item.environment, [("seed", str(item.seed))]) if item.environment else ""
            return comparison_section(item) + heading("Where and how", level=3) + place
        case Bench():
            return bench_section(item)
    return saved_run.section(item)


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


def save(text: str, path: Path) -> Path:
    """In one step, so that a browser never sees half a page."""
    scratch = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise StorageError(f"Could not write {path}: {error.strerror or error}.") from None
    return path
