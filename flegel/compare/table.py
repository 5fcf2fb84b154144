"""A comparison as text for the terminal and as cells for a page. Pure."""

from __future__ import annotations

from flegel.compare.record import Comparison, TableLine

TABLE_HEADINGS = [
    "model",
    "time to target",
    "× best",
    "barriers",
    "utilization",
    "passes",
    "final objective",
    "outcome",
]


def cells(line: TableLine) -> list[str]:
    """One line of the table."""
    objective = "–" if line.objective is None else f"{line.objective:.6g}" + ("" if line.confirmed else " (engine)")
    return [
        line.candidate,
        duration(line),
        ratio(line),
        f"{line.barriers:.0f}",
        f"{line.utilization:.0%}",
        passes(line),
        objective,
        line.outcome + (", disturbed" if line.disturbed else ""),
    ]


def duration(line: TableLine) -> str:
    """Median and range."""
    if line.time is None:
        return "–"
    if line.time.runs == 1:
        return seconds(line.time.median)
    return f"{seconds(line.time.median)} [{seconds(line.time.low)} – {seconds(line.time.high)}]"


def ratio(line: TableLine) -> str:
    """To the best; `>` where the limit ended the run."""
    if line.ratio is None:
        return "–"
    return ("> " if line.time is None else "") + f"{line.ratio:.2f}"


def passes(line: TableLine) -> str:
    """Of the slowest and of the fastest worker."""
    return f"{line.passes_low:.1f} – {line.passes_high:.1f}"


def seconds(value: float) -> str:
    """Three figures with a unit that suits."""
    if value >= 100:
        return f"{value:.0f} s"
    if value >= 1:
        return f"{value:.3g} s"
    if value >= 1e-3:
        return f"{value * 1e3:.3g} ms"
    return f"{value * 1e6:.3g} µs"


def text(comparison: Comparison) -> str:
    """The whole table."""
    rows = [TABLE_HEADINGS, *(cells(line) for line in comparison.lines())]
    widths = [max(len(row[i]) for row in rows) for i in range(len(TABLE_HEADINGS))]
    left = (0, len(TABLE_HEADINGS) - 1)
    shown = [
        "  ".join(
            cell.ljust(w) if i in left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in (shown[0], "-" * len(shown[0]), *shown[1:]))


def verdict(comparison: Comparison) -> str:
    """The result in one sentence."""
    lines = [line for line in comparison.lines() if line.time is not None]
    if not lines:
        return f"No candidate reached the target within {comparison.limit:g} s."
    ranked = sorted(lines, key=lambda line: line.time.median if line.time else 0.0)
    best = ranked[0]
    assert best.time is not None
    told = f"{best.candidate} reached the target first, in {seconds(best.time.median)}"
    others = [line for line in comparison.lines() if line is not best and line.candidate != best.candidate]
    parts = [_against(line) for line in sorted(others, key=lambda line: line.ratio or float("inf"))]
    return f"{told}; {', '.join(parts)}." if parts else f"{told}."


def _against(line: TableLine) -> str:
    if line.ratio is None:
        return f"{line.candidate} {'diverged' if line.outcome == 'diverged' else 'did not reach it'}"
    return f"{line.candidate} took {'more than ' if line.time is None else ''}{line.ratio:.1f} times as long"
