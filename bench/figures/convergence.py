"""How does the objective fall over time, and does it fall at all without barriers?

Fig. 14: objective against time of bsp-mini, fsp and asp with 1 and with 32 batches a pass, no stragglers. Then why our
asp converges for k-means where the paper's diverges: the same asp with θ from each worker's last report alone, without
statistics by owner.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import flegel
from bench.common import suite
from bench.common.record import Chart, Series, Table
from flegel import Algorithm, Statistics
from flegel.algorithms import KMeans

FIGURE = "Fig. 14"
NEEDS = ("sync:asp", "sync:bsp-mini")
WEIGHT = 2

SYNC = "bsp-mini,fsp,asp:batches=1,asp:batches=32"
OUTCOMES = {"reached": "reached the target", "limit": "did not reach the target in its time"}
CLUSTERS, MOST_ROWS, PASSES = 20, 20_000, (2, 8, 32)
SMOKE_ROWS, SMOKE_PASSES = 2_000, (2, 8)


class BatchSums(NamedTuple):
    """Of one report."""

    sums: Any
    counts: Any


class LastReport(Algorithm):
    """K-means whose centroids are the means of the last report alone: nothing is kept of other workers' points."""

    statistics = Statistics(spent=("sums", "counts"))
    k: int = CLUSTERS

    def initParameter(self, sample: Any, rng: np.random.Generator) -> Any:
        return np.array(sample.features[: self.k], np.float64)

    def contribution(self, dataPoint: Any, parameter: Any) -> BatchSums:
        x, best, least = dataPoint.features, 0, np.inf
        for c in range(self.k):
            distance = ((x - parameter[c]) ** 2).sum()
            if distance < least:
                best, least = c, distance
        adds = BatchSums(np.zeros((self.k, x.shape[0])), np.zeros(self.k))
        adds.sums[best] = x
        adds.counts[best] = 1.0
        return adds

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        counts = aggregator.counts[:, None]
        return np.where(counts > 0, aggregator.sums / np.maximum(counts, 1e-300), oldParameter)


def main() -> None:
    options = suite.arguments(__doc__)
    with suite.Suite(__file__, __doc__, options) as bench:
        more = [suite.FUZZY_MEANS, suite.LOGISTIC, suite.CONVOLUTIONAL]
        cases = [suite.SWEEP, *(more if bench.scale != "smoke" else [])]
        bench.expect(len(cases))
        for case in cases:
            found = bench.compare(case, SYNC, title=case.name)
            if found is None:
                continue
            series = [
                Series(name=name, points=[(t, v) for t, v, _ in shown.curve if v is not None])
                for name, shown in found.pictures.items()
            ]
            bench.chart(Chart(title=f"Objective against time, {case.name}", x="seconds", y="objective", series=series))
            for line in found.lines():
                told = OUTCOMES.get(line.outcome, line.outcome)
                bench.answer(f"{case.name}, {line.candidate}: {told}.")
        _without_owners(bench)
        bench.answer("The paper: fsp and bsp-mini are monotone; asp diverges for k-means.")


def _without_owners(bench: suite.Suite) -> None:
    """K-means under asp, its sums kept by owner and not, from the same start for the same passes."""
    most, lengths = (SMOKE_ROWS, SMOKE_PASSES) if bench.scale == "smoke" else (MOST_ROWS, PASSES)
    rows = np.ascontiguousarray(bench.data(suite.SWEEP).read().features[:most])
    chosen = np.random.default_rng(bench.options.seed).choice(len(rows), CLUSTERS, replace=False)
    start = rows[chosen].astype(np.float64)
    table = []
    for batches in (32,) if bench.scale == "smoke" else (1, 32):
        kept = [_objective(rows, KMeans(k=CLUSTERS, init=start), None, batches, passes) for passes in lengths]
        last = [_objective(rows, LastReport(k=CLUSTERS), start, batches, passes) for passes in lengths]
        for name, values in (("by owner", kept), ("of the last report", last)):
            table.append([f"asp:batches={batches}", name, *(f"{value / min(kept) - 1:+.2%}" for value in values)])
    columns = ["model", "sums", *(f"after {passes} passes" for passes in lengths)]
    bench.table(Table(title="Objective above the best, k-means under asp", columns=columns, rows=table))
    bench.answer(
        "Our asp does not diverge because sums are kept by owner: stale reports replace what their worker said before. "
        f"With θ from the last report alone, asp:batches=32 ends {table[-1][-1]} above."
    )


def _objective(rows: Any, chosen: Algorithm, start: Any, batches: int, passes: int) -> float:
    """The sum of squared distances after so many passes, over all rows."""
    result = flegel.run(
        chosen,
        rows,
        sync="asp",
        batches=batches,
        workers=4,
        start=start,
        max_passes=passes,
        tolerance=0.0,
        audit="off",
        processes=False,
        progress=False,
    )
    found = result.parameters.get("centroids", next(iter(result.parameters.values())))
    parts = (((rows[at : at + 500, None, :] - found) ** 2).sum(axis=2).min(axis=1) for at in range(0, len(rows), 500))
    return float(sum(part.sum() for part in parts))


if __name__ == "__main__":
    main()
