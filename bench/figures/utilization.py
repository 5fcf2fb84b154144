"""How much of the workers' time is lost at barriers, and whose?

Fig. 10: (a) difference between the largest and the smallest synchronization cost of a worker, for each case; (b)
the cost of each worker for k-means. The cost is what a worker spends between the end of its computing and the next
order: responding and waiting.
"""

from __future__ import annotations

from bench.common import suite
from bench.common.record import Chart, Series, Table
from flegel.compare import Comparison

FIGURE = "Fig. 10"
NEEDS = ("option:straggler",)


def costs(found: Comparison, name: str) -> list[float]:
    return [w["wait_seconds"] + w["barrier_seconds"] for w in found.pictures[name].workers]


def main() -> None:
    options = suite.arguments(__doc__)
    with suite.Suite(__file__, __doc__, options) as bench:
        straggler = f"{suite.quarter(bench.workers)}:8x"
        cases = [suite.KMEANS] if bench.scale == "smoke" else suite.LARGER
        bench.expect(len(cases))
        held: dict[str, Comparison] = {}
        taken: list[str] = []
        for case in cases:
            found = bench.earlier("runtime_stragglers", case, straggler)
            if found:
                taken.append(case.name)
            else:
                found = bench.compare(case, suite.FULL_BATCH, straggler, title=f"{case.name}, injected")
            if found:
                held[case.name] = found
                _all(bench, held)
                if len(held) == 1:
                    _each(bench, case.name, found)
                bench.save()
        if taken:
            bench.answer(f"Runs of Fig. 7, looked at again: {', '.join(taken)}.")


def _all(bench: suite.Suite, held: dict[str, Comparison]) -> None:
    """Spread of the costs in every case, and utilization."""
    names = suite.FULL_BATCH.split(",")
    series = []
    for name in names:
        spread = {i: costs(c, name) for i, c in enumerate(held.values()) if name in c.pictures}
        points = [(float(i), max(found) - min(found)) for i, found in spread.items() if found]
        series.append(Series(name=name, points=points))
    title = "Synchronization cost: slowest minus fastest worker"
    bench.chart(Chart(title=title, x="", y="seconds", series=series, bars=True, groups=list(held)))
    rows = []
    for case, found in held.items():
        lines = {line.candidate: line for line in found.lines()}
        rows.append([case, *(f"{lines[n].utilization:.0%}" if n in lines else "–" for n in names)])
        if "fsp" in lines:
            bench.record.ratios[f"{case}: utilization of fsp"] = round(lines["fsp"].utilization, 4)
    title = "Utilization (computing over all time)"
    bench.table(Table(title=title, columns=["case", *names], rows=rows))


def _each(bench: suite.Suite, case: str, found: Comparison) -> None:
    """Cost of each worker in one case."""
    series = [
        Series(name=name, points=[(float(i), v) for i, v in enumerate(costs(found, name))])
        for name in suite.FULL_BATCH.split(",")
        if name in found.pictures
    ]
    groups = [str(i) for i in range(found.workers)]
    title = f"Synchronization cost of each worker, {case}"
    bench.chart(Chart(title=title, x="worker", y="seconds", series=series, bars=True, groups=groups))
    for line in found.lines():
        if line.candidate in ("bsp", "fsp"):
            bench.answer_time(
                f"{case}: {line.candidate} kept its workers computing {line.utilization:.0%} of the time.",
                f"{case}: the cost of barriers under {line.candidate} was taken for each of {found.workers} workers.",
            )


if __name__ == "__main__":
    main()
