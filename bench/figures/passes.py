"""Are all points trained equally often, with and without migration?

Fig. 12 (k-means on HIGGS, and the small CNN beside it): full passes of each worker at the end, and each worker's
contribution to the fall of the objective. The second is of k-means alone and comes from runs of their own, because
attributing it costs an evaluation per report.
"""

from __future__ import annotations

from bench.common import suite
from bench.common.record import Chart, Series
from flegel.algorithms.kmeans import KMeans
from flegel.compare import Comparison
from flegel.job import Criteria, Job, SyncSpec
from flegel.runtime.job.request import Request
from flegel.runtime.job.run import execute

FIGURE = "Fig. 12"
NEEDS = ("option:straggler", "option:balance", "algorithm:kmeans")


def main() -> None:
    options = suite.arguments(__doc__)
    with suite.Suite(__file__, __doc__, options) as bench:
        cases = [suite.SWEEP] if bench.scale == "smoke" else [suite.SWEEP, suite.CONVOLUTIONAL]
        bench.expect(2 * len(cases))
        for case in cases:
            for straggler in ("", f"{suite.quarter(bench.workers)}:8x"):
                scenario = f"{case.name}, stragglers {straggler}" if straggler else f"{case.name}, no stragglers"
                found = bench.compare(case, "fsp:balance=off,fsp:balance=async", straggler, title=scenario)
                if found is None:
                    continue
                _passes(bench, found, scenario)
                if case is suite.SWEEP:
                    _gains(bench, straggler, scenario, found.target)


def _passes(bench: suite.Suite, found: Comparison, scenario: str) -> None:
    series = [
        Series(name=name, points=[(float(i), w["passes"]) for i, w in enumerate(shown.workers)])
        for name, shown in found.pictures.items()
    ]
    groups = [str(i) for i in range(found.workers)]
    bench.chart(
        Chart(
            title=f"Passes of each worker, {scenario}", x="worker", y="passes", series=series, bars=True, groups=groups
        )
    )
    for line in found.lines():
        bench.answer_time(
            f"{scenario}, {line.candidate}: {line.passes_low:.1f} to {line.passes_high:.1f} passes.",
            f"{scenario}, {line.candidate}: passes of {found.workers} workers were counted.",
        )


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
        bench.answer_time(
            f"{scenario}, balance {mode}: the workers' shares add up to a change of f by {sum(gains):.4g}.",
            f"{scenario}, balance {mode}: each worker's share of the change of f was taken.",
        )
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
