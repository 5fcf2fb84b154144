"""Times to the target of several cases under the same candidates, as a chart and a table: Figures 7, 8 and 11."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.common import suite
from bench.common.record import Chart, Series, Table
from flegel.compare import Comparison
from flegel.compare.table import seconds

REFERENCE = suite.REFERENCE


def compare_runtimes(
    bench: suite.Suite,
    cases: Sequence[suite.Case],
    straggler: str,
    scenario: str,
    sync: str = suite.RACE,
    paper: dict[str, str] | None = None,
    called: dict[str, str] | None = None,
    **options: Any,
) -> list[Comparison]:
    """Runs a comparison for each case; after each of them the chart, the table and the ratios are updated.

    `paper` holds the paper's ratios, `called` shorter names for candidates.
    """
    held: list[tuple[suite.Case, Comparison]] = []
    for case in cases:
        found = bench.compare(case, sync, straggler, title=f"{case.name}, {scenario}", **options)
        if found is not None:
            held.append((case, found))
            _tell(bench, held, scenario, paper or {}, called or {})
            bench.save()
    if held:
        _sentence(bench, held, scenario, called or {})
    return [found for _, found in held]


def _names(held: list[tuple[suite.Case, Comparison]]) -> tuple[list[str], str]:
    names = held[0][1].candidates
    return names, REFERENCE if REFERENCE in names else names[0]


def _tell(
    bench: suite.Suite,
    held: list[tuple[suite.Case, Comparison]],
    scenario: str,
    paper: dict[str, str],
    called: dict[str, str],
) -> None:
    names, head = _names(held)
    bench.chart(_chart(held, names, scenario, called))
    bench.table(_table(held, names, head, scenario, paper, called))
    for case, found in held:
        for name in names:
            ratio = found.ratio(name, head)
            if name != head and ratio is not None:
                bench.record.ratios[f"{case.name} {scenario}: {name} / {head}"] = round(ratio[0], 4)


def _chart(held: list[tuple[suite.Case, Comparison]], names: list[str], scenario: str, called: dict[str, str]) -> Chart:
    series = []
    for name in names:
        points = [(float(i), t.median) for i, (_, c) in enumerate(held) if (t := c.times(name)) is not None]
        series.append(Series(name=called.get(name, name), points=points))
    return Chart(
        title=f"Time to target, {scenario}",
        x="",
        y="seconds (logarithmic)",
        series=series,
        log_y=True,
        bars=True,
        groups=[case.name for case, _ in held],
        text="No bar: the target was not reached, or the run was given up before.",
    )


def _table(
    held: list[tuple[suite.Case, Comparison]],
    names: list[str],
    head: str,
    scenario: str,
    paper: dict[str, str],
    called: dict[str, str],
) -> Table:
    rows = []
    for case, found in held:
        time = found.times(head)
        ratios = [suite.shown(found.ratio(name, head)) for name in names if name != head]
        rows.append([case.name, seconds(time.median) if time else "–", *ratios])
    if paper:
        rows.append(["in the paper", "", *(paper.get(name, "–") for name in names if name != head)])
    shown = called.get(head, head)
    return Table(
        title=f"Times as long as {shown}, {scenario}",
        columns=["case", shown, *(called.get(n, n) for n in names if n != head)],
        rows=rows,
        text="> marks a lower bound: the run was given up."
        + (" The paper gives ranges over all its cases, not a figure for each." if paper else ""),
    )


def _sentence(
    bench: suite.Suite, held: list[tuple[suite.Case, Comparison]], scenario: str, called: dict[str, str]
) -> None:
    names, head = _names(held)
    if bench.scale == "smoke":
        for case, found in held:
            bench.answer(f"{case.name}, {scenario}: {reached_by(found, called)}.")
        return
    for name in names:
        ratios = sorted(r for _, c in held if (r := c.ratio(name, head)) is not None)
        if name != head and ratios:
            (low, least), (high, most) = ratios[0], ratios[-1]
            told = f"{'more than ' if least else ''}{low:.1f}"
            if f"{high:.1f}" != f"{low:.1f}" or least != most:
                told += f" to {'more than ' if most else ''}{high:.1f}"
            who, measure = called.get(name, name), called.get(head, head)
            bench.answer(f"{scenario}: {who} took {told} times as long as {measure}.")


def reached_by(found: Comparison, called: dict[str, str] | None = None) -> str:
    """Who came to the target, and who was ended before."""
    shown = {name: (called or {}).get(name, name) for name in found.candidates}
    there = [label for name, label in shown.items() if found.times(name) is not None]
    rest = [label for label in shown.values() if label not in there]
    told = f"{', '.join(there)} reached the target" if there else "nobody reached the target"
    return told + (f"; {', '.join(rest)} did not, or took too long" if rest else "")
