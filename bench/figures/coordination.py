"""Do workers that stop by their own clocks make barriers cheaper than a central signal?

Fig. 13: cost of each barrier (time between two of them less the workers' mean computing), under both coordinations,
with injected stragglers and beside a second real job (natural).
"""

from __future__ import annotations

from bench.common import suite
from bench.common.record import Chart, Series, Table
from bench.common.second_job import second_job, workers_beside
from flegel.compare import Comparison
from flegel.compare.table import seconds

FIGURE = "Fig. 13"
NEEDS = ("option:straggler", "option:coordination", "algorithm:kmeans")
WEIGHT = 2

SYNC = ("fsp:coordination=centralized", "fsp:coordination=semi")


def compared(bench: suite.Suite, case: suite.Case, straggler: str, scenario: str, rows: list[list[str]]) -> None:
    """Both coordinations on one case, as lines of the table."""
    found = bench.compare(case, ",".join(SYNC), straggler, title=f"{case.name}, {scenario}")
    if found is not None:
        _show(bench, found, rows)


def main() -> None:
    options = suite.arguments(__doc__)
    with suite.Suite(__file__, __doc__, options) as bench:
        who = suite.quarter(bench.workers)
        rows: list[list[str]] = []
        more = [suite.LOGISTIC, suite.CONVOLUTIONAL]
        cases = [suite.SWEEP, *(more if bench.scale != "smoke" else [])]
        bench.expect(2 * len(cases))
        for case in cases:
            compared(bench, case, f"{who}:8x", "injected", rows)
        with second_job(workers_beside(bench.workers)):
            for case in cases:
                compared(bench, case, "", "natural", rows)
        bench.answer("The paper: the barrier contributes 24 to 57 % of what semi-centralized coordination saves.")


def _table(bench: suite.Suite, rows: list[list[str]]) -> None:
    columns = ["case", "coordination", "barriers", "mean cost of a barrier", "sum of costs"]
    bench.table(Table(title="Synchronization cost", columns=columns, rows=rows))


def _show(bench: suite.Suite, found: Comparison, rows: list[list[str]]) -> None:
    series, sums = [], {}
    for name, shown in found.pictures.items():
        costs = [(float(i + 1), cost) for i, (_, cost) in enumerate(shown.costs)]
        mean = sum(c for _, c in costs) / max(len(costs), 1)
        barriers = next(line.barriers for line in found.lines() if line.candidate == name)
        sums[name] = mean * barriers
        rows.append([found.title, name, f"{barriers:.0f}", seconds(mean), seconds(sums[name])])
        series.append(Series(name=name, points=[p for p in costs if p[1] > 0]))
    _table(bench, rows)
    bench.chart(
        Chart(
            title=f"Cost of each barrier, {found.title}",
            x="barrier (thinned)",
            y="seconds (logarithmic)",
            series=series,
            log_y=True,
        )
    )
    if len(sums) == 2:
        central, semi = (sums[name] for name in SYNC)
        bench.record.ratios[f"{found.title}: barrier cost centralized / semi"] = round(central / max(semi, 1e-12), 4)
        bench.answer(f"{found.title}: semi barriers cost {semi / max(central, 1e-12):.0%} of centralized ones in all.")


if __name__ == "__main__":
    main()
