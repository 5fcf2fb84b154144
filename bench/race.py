"""Several cases raced under the same contenders, as a chart and a table: Figures 7, 8 and 11 are such races."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import suite

from flegel.compare import Chart, Comparison, Series, Table
from flegel.compare.contender import supported
from flegel.compare.table import seconds

HEAD = "fsp"


def contenders() -> str:
    """The paper's four; where the engine migrates points, fsp does so by itself, and stands in twice."""
    return suite.FULL_BATCH + (",fsp:balance=off" if supported("balance") else "")


def race(
    bench: suite.Suite, cases: Sequence[suite.Case], straggler: str, scenario: str, sync: str = "", **options: Any
) -> list[Comparison]:
    """Hold a contest for each case; then the chart, the table, the ratios and a sentence."""
    field = sync or contenders()
    held: list[tuple[suite.Case, Comparison]] = []
    for case in cases:
        found = bench.contest(case, field, straggler, title=f"{case.name}, {scenario}", **options)
        if found is not None:
            held.append((case, found))
    if not held:
        return []
    names = held[0][1].contenders
    head = HEAD if HEAD in names else names[0]
    bench.record.charts.append(_chart(held, names, scenario))
    bench.record.tables.append(_table(held, names, head, scenario))
    for case, found in held:
        for name in names:
            ratio = found.ratio(name, head)
            if name != head and ratio is not None:
                bench.record.ratios[f"{case.name} {scenario}: {name} / {head}"] = round(ratio[0], 4)
    _sentence(bench, held, names, head, scenario)
    return [found for _, found in held]


def _chart(held: list[tuple[suite.Case, Comparison]], names: list[str], scenario: str) -> Chart:
    series = []
    for name in names:
        points = [(float(i), t.median) for i, (_, c) in enumerate(held) if (t := c.times(name)) is not None]
        series.append(Series(name=name, points=points))
    return Chart(
        title=f"Time to target, {scenario}",
        x="",
        y="seconds (logarithmic)",
        series=series,
        log_y=True,
        bars=True,
        groups=[case.name for case, _ in held],
        text="No bar: the target was not reached.",
    )


def _table(held: list[tuple[suite.Case, Comparison]], names: list[str], head: str, scenario: str) -> Table:
    rows = []
    for case, found in held:
        time = found.times(head)
        ratios = [suite.shown(found.ratio(name, head)) for name in names if name != head]
        rows.append([case.name, seconds(time.median) if time else "–", *ratios])
    return Table(
        title=f"Times as long as {head}, {scenario}",
        columns=["case", head, *(n for n in names if n != head)],
        rows=rows,
        text="> marks a lower bound: the run was given up at the limit.",
    )


def _sentence(
    bench: suite.Suite, held: list[tuple[suite.Case, Comparison]], names: list[str], head: str, scenario: str
) -> None:
    for name in names:
        ratios = [r[0] for _, c in held if (r := c.ratio(name, head)) is not None]
        if name != head and ratios:
            spread = f"{min(ratios):.1f}" if len(ratios) == 1 else f"{min(ratios):.1f} to {max(ratios):.1f}"
            bench.answer(f"{scenario}: {name} took {spread} times as long as {head}.")
