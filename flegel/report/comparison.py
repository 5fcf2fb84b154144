"""A comparison as a section of a page. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flegel.compare.record import Comparison, Picture, RunEnvironment
from flegel.compare.table import TABLE_HEADINGS, cells, seconds, verdict
from flegel.report import timeline
from flegel.report.charts import LOG_AXIS_RATIO, Bar, ChartCurve, bars, colours_of, curves
from flegel.report.page import details, figure, heading, note, pairs, paragraph, table
from flegel.report.svg import Canvas, short
from flegel.wording import counted

ATTEMPT_COLUMNS = (
    ("round", False),
    ("model", True),
    ("to target", False),
    ("outcome", True),
    ("engine's objective", False),
    ("evaluated", False),
    ("other programs", False),
    ("steal", False),
    ("disturbed", True),
    ("ended", True),
)
"""Of the table of all runs: the title, and whether the column holds text."""


def comparison_section(comparison: Comparison, brief: bool = False) -> str:
    """Verdict, table, times, curves, timelines; `brief` omits what a benchmark of many comparisons repeats."""
    lines = comparison.lines()
    best = {i for i, line in enumerate(lines) if line.ratio == 1.0 and line.time}
    colours = colours_of(comparison.candidates)
    parts = [paragraph(verdict(comparison), "lead")]
    parts += [note(text) for text in comparison.notes]
    parts.append(table(TABLE_HEADINGS, [cells(line) for line in lines], best, {len(TABLE_HEADINGS) - 1}))
    parts.append(paragraph(_reading(comparison), "soft"))
    rows = [
        Bar(
            line.candidate,
            line.time.median if line.time else None,
            line.time.low if line.time else 0.0,
            line.time.high if line.time else 0.0,
            seconds(line.time.median) if line.time else _why(line.outcome, line.ran),
            colours[line.candidate],
        )
        for line in lines
    ]
    parts.append(figure(lambda w: bars(rows, w, "seconds to the target"), "Medians; whiskers as in the table."))
    parts.append(objective(comparison))
    if not brief:
        parts.append(timelines(comparison))
        parts.append(intervals(comparison.pictures))
    parts.append(workers(comparison.pictures))
    if not brief:
        parts.append(reasons(comparison.pictures))
    parts.append(attempts(comparison))
    return "".join(parts)


def _why(outcome: str, ran: float) -> str:
    """Why a run did not reach the target, in words. `ran`: seconds after which it was stopped."""
    words = {
        "diverged": "diverged",
        "stalled": "stalled short of it",
        "failed": "failed",
        "limit": f"not within {seconds(ran)}",
    }
    return words.get(outcome, outcome)


def _reading(comparison: Comparison) -> str:
    """What the reader of the table must know: target, data, stragglers, and what its numbers are."""
    counts = [line.time for line in comparison.lines() if line.time]
    runs = max((c.runs for c in counts), default=0)
    cover = f" [ – ] holds the true median with {max(c.coverage for c in counts):.0%} probability." if runs > 1 else ""
    slow = f" Slowed on purpose: {comparison.straggler}." if comparison.straggler else " No stragglers."
    return (
        f"Target {comparison.target:.6g}: {comparison.target_note}. {counted(comparison.workers, 'worker')}, "
        f"{comparison.dataset['rows']:,} × {comparison.dataset['columns']:,} values"
        f"{' (a stand-in)' if comparison.dataset.get('stand_in') else ''}.{slow} Time is training time; medians of "
        f"{counted(runs or 1, 'interleaved run')}.{cover} Passes are those of the slowest and the "
        "fastest worker. The final objective comes from an evaluation of the model on the data from scratch."
    )


def objective(comparison: Comparison) -> str:
    """F against time, for all candidates."""
    lines, times, colours = [], [], colours_of(comparison.candidates)
    for name in comparison.candidates:
        shown = comparison.pictures.get(name)
        points = [(t, v) for t, v, _ in shown.curve if v is not None] if shown else []
        if points:
            lines.append(ChartCurve(name, points, colours[name]))
            times += [points[0][0], points[-1][0]]
    if not lines:
        return ""
    log = max(times) / max(min(times), 1e-9) > LOG_AXIS_RATIO

    def draw(width: float) -> Canvas:
        return curves(
            lines,
            width,
            "seconds" + (" (logarithmic)" if log else ""),
            "objective",
            log_x=log,
            level=(comparison.target, "target"),
            show_x=seconds if log else short,
        )

    return heading("Objective against time", level=3) + figure(
        draw, "One run each, the one in the middle. A curve begins when every point has been visited once."
    )


def timelines(comparison: Comparison, names: Sequence[str] = (), title: str = "Where the time went") -> str:
    """What workers did, one panel a candidate on a common axis; all candidates, or those named."""
    shown = {name: p for name, p in comparison.pictures.items() if p.timeline.lanes}
    panels = [(name, shown[name].timeline) for name in names or comparison.candidates if name in shown]
    if not panels:
        return "".join(note(p.note) for p in comparison.pictures.values() if p.note)
    return heading(title, level=3) + figure(
        lambda w: timeline.draw(panels, w),
        "A lane for each worker. Waiting: the report is in, the next order has not come. Responding: from being told "
        "to having done it, including the way of the messages. The pauses of a worker that is slowed on purpose count "
        "as computing. Moving: points were on their way between workers. Dashed lines: θ was made. Where barriers are "
        "too dense to draw, the height of a colour is its share of the time.",
    )


def intervals(pictures: dict[str, Picture]) -> str:
    """η over time, of those that have one."""
    lines, colours = [], colours_of(list(pictures))
    for name, shown in pictures.items():
        points = [(t, eta) for t, _, eta in shown.curve if eta]
        if len(points) > 1:
            lines.append(ChartCurve(name, points, colours[name]))
    if not lines:
        return ""

    def draw(width: float) -> Canvas:
        return curves(
            lines, width, "seconds", "interval η (logarithmic)", log_y=True, steps=True, show_y=seconds, height=220
        )

    return heading("The interval between barriers", level=3) + figure(draw)


def _busy(worker: dict[str, Any]) -> float:
    computing = float(worker["compute_seconds"])
    return computing / max(computing + float(worker["wait_seconds"]) + float(worker["barrier_seconds"]), 1e-12)


def workers(pictures: dict[str, Picture]) -> str:
    """Passes and time of each worker."""
    parts = []
    for name, shown in pictures.items():
        rows = [
            [
                str(w["id"]),
                f"{w['points']:,}",
                f"{w['passes']:.2f}",
                seconds(w["compute_seconds"]),
                seconds(w["wait_seconds"]),
                seconds(w["barrier_seconds"]),
                f"{_busy(w):.0%}",
            ]
            for w in shown.workers
        ]
        columns = ["worker", "points", "passes", "computing", "waiting", "responding", "utilization"]
        inside = table(columns, rows)
        if any(k != "0" for k in shown.staleness):
            ages = sorted(((int(k), v) for k, v in shown.staleness.items()))
            inside += paragraph("Reports by the age of their θ, in updates: " + ", ".join(f"{k}: {v}" for k, v in ages))
        parts.append(details(f"Workers under {name}", inside))
    return "".join(parts)


def reasons(pictures: dict[str, Picture]) -> str:
    """Why the barriers were where they were."""
    return "".join(
        details(f"Decisions of {name}", table(["at", "why"], [[seconds(t), why] for t, why in p.reasons], words={1}))
        for name, p in pictures.items()
        if p.reasons
    )


def attempts(comparison: Comparison) -> str:
    """Every run, also those that do not count."""
    rows = [
        [
            f"{a.round + 1}{' again' if a.again else ''}",
            a.candidate,
            seconds(a.reached) if a.reached is not None else "–",
            a.outcome,
            "–" if a.objective is None else f"{a.objective:.8g}",
            "–" if a.checked is None else f"{a.checked:.8g}",
            "?" if a.other_programs_share is None else f"{a.other_programs_share:.0%}",
            "?" if a.steal is None else f"{a.steal:.1%}",
            a.disturbed or "",
            a.reason,
        ]
        for a in comparison.attempts
    ]
    titles = [title for title, _ in ATTEMPT_COLUMNS]
    texts = {at for at, (_, is_text) in enumerate(ATTEMPT_COLUMNS) if is_text}
    return details(f"All {len(rows)} runs", table(titles, rows, words=texts))


def where(environment: RunEnvironment, more: list[tuple[str, str]]) -> str:
    """Machine, versions, commit, date."""
    return pairs(
        [
            ("date", environment.date),
            ("commit", environment.commit),
            *environment.machine.items(),
            ("versions", ", ".join(f"{k} {v}" for k, v in environment.versions.items())),
            ("command", environment.command),
            *more,
        ]
    )
