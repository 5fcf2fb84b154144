"""What a benchmark of the suite found, as it is written to JSON and read back. Pure data."""

from __future__ import annotations

from pathlib import Path

import msgspec

from flegel.compare import record
from flegel.compare.record import RECORD_FORMAT, Comparison, RunEnvironment


class Series(msgspec.Struct, kw_only=True):
    """A line of a chart."""

    name: str
    points: list[tuple[float, float]]


class Chart(msgspec.Struct, kw_only=True):
    """A figure that a benchmark draws beside its comparisons."""

    title: str
    x: str
    y: str
    series: list[Series]
    log_x: bool = False
    log_y: bool = False
    text: str = ""
    bars: bool = False
    """Points as bars (x counts the groups) instead of lines."""
    groups: list[str] = []
    """Names of the groups of bars."""


class Table(msgspec.Struct, kw_only=True):
    """Rows of text; numbers come formatted."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    text: str = ""


class Bench(
    msgspec.Struct,
    kw_only=True,
    tag_field="kind",
    tag="bench",
    rename={"comparisons": "contests", "environment": "setting"},
):
    """One benchmark of the suite."""

    format: int = RECORD_FORMAT
    name: str
    figure: str
    question: str
    scale: str
    seconds: float
    environment: RunEnvironment
    answer: list[str] = []
    """What came out, in sentences."""
    by_figure: dict[str, list[str]] = {}
    """The sentences about a single figure of a paper (`paper_figures`), where a benchmark measures several."""
    charts: list[Chart] = []
    tables: list[Table] = []
    comparisons: list[Comparison] = []
    skipped: list[tuple[str, str]] = []
    """What was left out, and why."""
    unfinished: str = ""
    """Why this is not all that the benchmark was to measure; empty where it is."""
    ratios: dict[str, float] = {}
    """Named figures for the check against recorded floors."""


def figure_order(figure: str) -> tuple[int, int, str]:
    """To sort benchmarks by: figures of the papers by number, then tables, then the others."""
    digits = "".join(c if c.isdigit() else " " for c in figure).split()
    kind = 0 if figure.startswith("Fig") else 1 if figure.startswith("Table") else 2
    return kind, int(digits[0]) if digits else 99, figure


def read(path: Path) -> Comparison | Bench:
    """A file that `flegel.compare.write` made."""
    found: Comparison | Bench = record.read(path, Comparison | Bench)
    return found
