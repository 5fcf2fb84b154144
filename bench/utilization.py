"""How much of the workers' time is lost at barriers, and whose?

Fig. 10: (a) difference between the largest and the smallest synchronization cost of a worker, for each case; (b)
the cost of each worker for k-means. The cost is what a worker spends between the end of its computing and the next
order: responding and waiting.
"""

from __future__ import annotations

import suite

from flegel.compare import Chart, Comparison, Series, Table

FIGURE = "Fig. 10"
NEEDS = ("option:straggler",)


def costs(found: Comparison, name: str) -> list[float]:
    return [w["wait_seconds"] + w["barrier_seconds"] for w in found.pictures[name].workers]


def main() -> None:
    options = suite.arguments(__doc__)
    with suite.Suite(__file__, __doc__, options) as bench:
        straggler = f"{suite.quarter(bench.workers)}:8x"
        cases = [suite.SMALLER[1]] if bench.scale == "smoke" else suite.SMALLER
        held = {}
        for case in [suite.KMEANS, *cases] if bench.scale != "smoke" else cases:
            found = bench.contest(case, suite.FULL_BATCH, straggler, title=f"{case.name}, injected")
            if found:
                held[case.name] = found
        names = suite.FULL_BATCH.split(",")
        rows, series = [], []
        for name in names:
            spread = [max(costs(c, name)) - min(costs(c, name)) if name in c.pictures else 0.0 for c in held.values()]
            series.append(Series(name=name, points=[(float(i), v) for i, v in enumerate(spread)]))
        bench.record.charts.append(
            Chart(
                title="Synchronization cost: slowest minus fastest worker",
                x="",
                y="seconds",
                series=series,
                bars=True,
                groups=list(held),
            )
        )
        for case, found in held.items():
            lines = {line.contender: line for line in found.lines()}
            rows.append([case, *(f"{lines[n].utilization:.0%}" for n in names)])
            bench.record.ratios[f"{case}: utilization of fsp"] = round(lines["fsp"].utilization, 4)
        bench.record.tables.append(
            Table(title="Utilization (computing over all time)", columns=["case", *names], rows=rows)
        )
        first = next(iter(held), None)
        if first:
            found = held[first]
            per_worker = [
                Series(name=n, points=[(float(i), v) for i, v in enumerate(costs(found, n))])
                for n in names
                if n in found.pictures
            ]
            bench.record.charts.append(
                Chart(
                    title=f"Synchronization cost of each worker, {first}",
                    x="worker",
                    y="seconds",
                    series=per_worker,
                    bars=True,
                    groups=[str(i) for i in range(found.workers)],
                )
            )
            for name in ("bsp", "fsp"):
                bench.answer(
                    f"{first}: {name} kept its workers computing {rows[0][1 + names.index(name)]} of the time."
                )


if __name__ == "__main__":
    main()
