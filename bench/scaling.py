"""How does the time to the target fall with more workers?

Fig. 16a (k-means): workers from one to --workers, the same data and the same target, with and without a quarter of
the workers slowed eight times. The GPU of Fig. 16b is not part of it.
"""

from __future__ import annotations

import suite

from flegel.compare import Chart, Series

FIGURE = "Fig. 16"
NEEDS = ("algorithm:kmeans",)


def main() -> None:
    options = suite.arguments(__doc__)
    with suite.Suite(__file__, __doc__, options) as bench:
        counts = [w for w in (1, 2, 4, 8, 16, 32) if w < bench.workers] + [bench.workers]
        lines: dict[str, list[tuple[float, float]]] = {}
        for workers in reversed(counts):
            for slowed in (False, True):
                if slowed and workers < 2:
                    continue
                straggler = f"{suite.quarter(workers)}:8x" if slowed else ""
                title = f"kmeans-higgs, {workers} workers" + (", a quarter slowed" if slowed else "")
                found = bench.contest(suite.KMEANS, "bsp-mini,fsp", straggler, workers=workers, title=title)
                if found is None:
                    continue
                for name in found.contenders:
                    if (time := found.times(name)) is not None:
                        label = name + (", stragglers" if slowed else "")
                        lines.setdefault(label, []).append((float(workers), time.median))
        series = [Series(name=name, points=sorted(points)) for name, points in lines.items()]
        bench.record.charts.append(
            Chart(
                title="Time to target by number of workers",
                x="workers (logarithmic)",
                y="seconds (logarithmic)",
                series=series,
                log_x=True,
                log_y=True,
            )
        )
        for each in series:
            if len(each.points) > 1 and each.points[-1][1] > 0:
                first, last = each.points[0], each.points[-1]
                gain = first[1] / last[1]
                bench.record.ratios[f"{each.name}: {first[0]:g} to {last[0]:g} workers"] = round(gain, 4)
                bench.answer(f"{each.name}: {gain:.1f} times faster with {last[0]:g} workers than with {first[0]:g}.")
        bench.skip("Fig. 16b, a GPU among the workers", "there are no GPU kernels yet")


if __name__ == "__main__":
    main()
