"""How does the objective fall over time, and does it fall at all without barriers?

Fig. 14: objective against time of bsp-mini, fsp and asp with 1 and with 32 batches a pass, no stragglers.
"""

from __future__ import annotations

from bench.common import suite
from bench.common.record import Chart, Series

FIGURE = "Fig. 14"
NEEDS = ("sync:asp", "sync:bsp-mini")
WEIGHT = 2

SYNC = "bsp-mini,fsp,asp:batches=1,asp:batches=32"


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
                bench.answer(f"{case.name}, {line.candidate}: {line.outcome}.")
        bench.answer("The paper: fsp and bsp-mini are monotone; asp diverges for k-means.")


if __name__ == "__main__":
    main()
