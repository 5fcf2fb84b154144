"""Are all points trained equally often, with and without migration?

Fig. 12 (k-means on HIGGS): full passes of each worker at the end. The paper's second part, each worker's
contribution to the objective, is not recorded by the engine and therefore not shown.
"""

from __future__ import annotations

import suite

from flegel.compare import Chart, Series

FIGURE = "Fig. 12"
NEEDS = ("option:straggler", "option:balance", "algorithm:kmeans")


def main() -> None:
    options = suite.arguments(__doc__)
    with suite.Suite(__file__, __doc__, options) as bench:
        for straggler in ("", f"{suite.quarter(bench.workers)}:8x"):
            scenario = f"stragglers {straggler}" if straggler else "no stragglers"
            found = bench.contest(
                suite.KMEANS, "fsp:balance=off,fsp:balance=async", straggler, title=f"kmeans-higgs, {scenario}"
            )
            if found is None:
                continue
            series = [
                Series(name=name, points=[(float(i), w["passes"]) for i, w in enumerate(shown.workers)])
                for name, shown in found.pictures.items()
            ]
            bench.record.charts.append(
                Chart(
                    title=f"Passes of each worker, {scenario}",
                    x="worker",
                    y="passes",
                    series=series,
                    bars=True,
                    groups=[str(i) for i in range(found.workers)],
                )
            )
            for line in found.lines():
                bench.answer(f"{scenario}, {line.contender}: {line.passes_low:.1f} to {line.passes_high:.1f} passes.")
        bench.skip("contribution of each worker to the objective", "the engine does not record it")


if __name__ == "__main__":
    main()
