"""Are all points trained equally often, with and without migration?

Fig. 12 (k-means on HIGGS): full passes of each worker at the end, and each worker's contribution to the fall of the
objective. The second comes from runs of their own, because attributing it costs an evaluation per report.
"""

from __future__ import annotations

from bench.common import suite
from flegel.algorithms.kmeans import KMeans
from flegel.compare import Chart, Series
from flegel.job import Criteria, Job, SyncSpec
from flegel.runtime.job.request import Request
from flegel.runtime.job.run import execute

FIGURE = "Fig. 12"
NEEDS = ("option:straggler", "option:balance", "algorithm:kmeans")


def main() -> None:
    options = suite.arguments(__doc__)
    with suite.Suite(__file__, __doc__, options) as bench:
        bench.expect(2)
        for straggler in ("", f"{suite.quarter(bench.workers)}:8x"):
            scenario = f"stragglers {straggler}" if straggler else "no stragglers"
            found = bench.compare(
                suite.SWEEP, "fsp:balance=off,fsp:balance=async", straggler, title=f"kmeans-higgs, {scenario}"
            )
            if found is None:
                continue
            series = [
                Series(name=name, points=[(float(i), w["passes"]) for i, w in enumerate(shown.workers)])
                for name, shown in found.pictures.items()
            ]
            bench.chart(
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
                bench.answer(f"{scenario}, {line.candidate}: {line.passes_low:.1f} to {line.passes_high:.1f} passes.")
            _gains(bench, straggler, scenario, found.target)


def _gains(bench: suite.Suite, straggler: str, scenario: str, target: float) -> None:
    what = f"contribution of each worker to the objective, {scenario}"
    if "attribute" not in Job.__struct_fields__:
        bench.skip(what, "the engine does not record it")
        return
    series = []
    for mode in ("off", "async"):
        request = Request(
            algorithm=KMeans(**suite.SWEEP.settings),
            data=bench.data(suite.SWEEP),
            job=Job(
                workers=bench.workers,
                sync=SyncSpec("fsp", balance=mode),
                criteria=Criteria(target=target, max_seconds=suite.LIMIT[bench.scale]),
                seed=bench.options.seed,
                straggler=straggler,
                attribute=True,
            ),
            cluster=bench.cluster(bench.workers),
        )
        gains = [w["gain"] for w in execute(request).worker]
        series.append(Series(name=f"fsp:balance={mode}", points=[(float(i), g) for i, g in enumerate(gains)]))
        bench.answer(f"{scenario}, balance {mode}: the workers' shares of the progress add up to {sum(gains):.4g}.")
    groups = [str(i) for i in range(bench.workers)]
    bench.chart(
        Chart(
            title=f"Fall of the objective by worker, {scenario}",
            x="worker",
            y="Δf",
            series=series,
            bars=True,
            groups=groups,
        )
    )


if __name__ == "__main__":
    main()
