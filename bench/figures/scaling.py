"""How does the time to the target fall with more workers?

Fig. 16a (k-means, and the small CNN beside it): workers from one to --workers, the same data and the same target, with
and without a quarter of the workers slowed eight times. Fig. 16b, with a GPU, is bench/figures/gpu.py.
"""

from __future__ import annotations

from bench.common import suite
from bench.common.record import Chart, Series

FIGURE = "Fig. 16a"
NEEDS = ("algorithm:kmeans",)
WEIGHT = 3


def main() -> None:
    options = suite.arguments(__doc__)
    with suite.Suite(__file__, __doc__, options) as bench:
        counts = [w for w in (1, 2, 4, 8, 16, 32) if w < bench.workers] + [bench.workers]
        cases = [suite.SWEEP] if bench.scale == "smoke" else [suite.SWEEP, suite.CONVOLUTIONAL]
        bench.expect(len(cases) * (2 * len(counts) - (1 in counts)))
        for case in cases:
            _case(bench, case, counts)


def _case(bench: suite.Suite, case: suite.Case, counts: list[int]) -> None:
    lines: dict[str, list[tuple[float, float]]] = {}
    for workers in reversed(counts):
        for slowed in (False, True):
            if slowed and workers < 2:
                continue
            straggler = f"{suite.quarter(workers)}:8x" if slowed else ""
            title = f"{case.name}, {workers} workers" + (", a quarter slowed" if slowed else "")
            found = bench.compare(case, "bsp-mini,fsp", straggler, workers=workers, title=title)
            if found is None:
                continue
            for name in found.candidates:
                if (time := found.times(name)) is not None:
                    label = name + (", stragglers" if slowed else "")
                    lines.setdefault(label, []).append((float(workers), time.median))
            _chart(bench, case, lines)
    for name, points in lines.items():
        first, last = min(points), max(points)
        if first[0] < last[0] and last[1] > 0:
            gain, which = first[1] / last[1], f"{case.name}, {name}"
            bench.record.ratios[f"{which}: {first[0]:g} to {last[0]:g} workers"] = round(gain, 4)
            bench.answer_time(
                f"{which}: {gain:.1f} times faster with {last[0]:g} workers than with {first[0]:g}.",
                f"{which}: the same target is reached with {first[0]:g} and with {last[0]:g} workers.",
            )


def _chart(bench: suite.Suite, case: suite.Case, lines: dict[str, list[tuple[float, float]]]) -> None:
    bench.chart(
        Chart(
            title=f"Time to target by number of workers, {case.name}",
            x="workers (logarithmic)",
            y="seconds (logarithmic)",
            series=[Series(name=name, points=sorted(points)) for name, points in lines.items()],
            log_x=True,
            log_y=True,
        )
    )
    bench.save()


if __name__ == "__main__":
    main()
