"""How does the time to the target fall with more workers?

Fig. 16a (k-means): workers from one to --workers, the same data and the same target, with and without a quarter of
the workers slowed eight times. Fig. 16b, with a GPU, is bench/figures/gpu.py.
"""

from __future__ import annotations

from bench.common import suite
from flegel.compare import Chart, Series

FIGURE = "Fig. 16a"
NEEDS = ("algorithm:kmeans",)
WEIGHT = 3


def main() -> None:
    options = suite.arguments(__doc__)
    with suite.Suite(__file__, __doc__, options) as bench:
        counts = [w for w in (1, 2, 4, 8, 16, 32) if w < bench.workers] + [bench.workers]
        bench.expect(2 * len(counts) - (1 in counts))
        lines: dict[str, list[tuple[float, float]]] = {}
        for workers in reversed(counts):
            for slowed in (False, True):
                if slowed and workers < 2:
                    continue
                straggler = f"{suite.quarter(workers)}:8x" if slowed else ""
                title = f"kmeans-higgs, {workers} workers" + (", a quarter slowed" if slowed else "")
                found = bench.compare(suite.SWEEP, "bsp-mini,fsp", straggler, workers=workers, title=title)
                if found is None:
                    continue
                for name in found.candidates:
                    if (time := found.times(name)) is not None:
                        label = name + (", stragglers" if slowed else "")
                        lines.setdefault(label, []).append((float(workers), time.median))
                _chart(bench, lines)
        for name, points in lines.items():
            first, last = min(points), max(points)
            if first[0] < last[0] and last[1] > 0:
                gain = first[1] / last[1]
                bench.record.ratios[f"{name}: {first[0]:g} to {last[0]:g} workers"] = round(gain, 4)
                bench.answer(f"{name}: {gain:.1f} times faster with {last[0]:g} workers than with {first[0]:g}.")


def _chart(bench: suite.Suite, lines: dict[str, list[tuple[float, float]]]) -> None:
    bench.chart(
        Chart(
            title="Time to target by number of workers",
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
