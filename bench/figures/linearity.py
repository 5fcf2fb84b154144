"""Within a stage, are the objective against time and the progress against the interval linear?

Fig. 2b (k-means): the objective f over time under a fixed interval, as one line and as two with the best inflection
between; and in each of the two stages the progress per second g(η) of several intervals, as a line. On virtual time, so
that nothing but the algorithm decides; each interval trains every point for real.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.common import suite
from bench.common.record import Chart, Series, Table
from bench.common.virtual_runs import clustered_rows, compare_virtually

FIGURE = "Fig. 2"

ROWS = {"smoke": 4_096, "laptop": 16_384, "small": 65_536, "paper": 262_144}
PARTS_OF_A_PASS = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Intervals; a pass takes a second of virtual time."""
WORKERS = 4
Curve = Sequence[tuple[float, float]]


def straightness(curve: Curve) -> float:
    """R² of a line through the points; 1 where all values are the same."""
    x, y = np.array([p[0] for p in curve]), np.array([p[1] for p in curve])
    if len(x) < 3 or np.ptp(y) == 0.0:
        return 1.0
    slope, height = np.polyfit(x, y, 1)
    return float(1.0 - np.sum((y - slope * x - height) ** 2) / np.sum((y - y.mean()) ** 2))


def inflection(curve: Curve) -> int:
    """Where two lines fit best: the index of the first point of the second stage."""

    def error(part: Curve) -> float:
        values = np.array([p[1] for p in part])
        return float((1.0 - straightness(part)) * np.sum((values - values.mean()) ** 2))

    return min(range(3, max(len(curve) - 3, 4)), key=lambda cut: error(curve[:cut]) + error(curve[cut:]))


def progress(curve: Curve, begin: float, end: float) -> float:
    """Fall of the objective per second between two times."""
    times = [p[0] for p in curve]
    values = [p[1] for p in curve]
    first, last = np.interp([begin, end], times, values)
    return float((first - last) / (end - begin))


def main() -> None:
    options = suite.arguments(__doc__)
    with suite.Suite(__file__, __doc__, options) as bench:
        rows = clustered_rows(ROWS[bench.scale], options.seed)
        sync = ",".join(f"fsp:interval={part * 1e3:.0f}ms:balance=off" for part in PARTS_OF_A_PASS)
        found = compare_virtually("kmeans", rows, sync, options.seed, WORKERS, settings={"k": 12, "init": "random"})
        curves = [[(t, v) for t, v, _ in found.pictures[name].curve if v is not None] for name in found.candidates]
        middle = curves[0]
        cut = inflection(middle)
        turn = middle[cut][0]
        whole = min(curve[-1][0] for curve in curves)
        stages = [(max(curve[0][0] for curve in curves), turn), (turn, max(whole, turn + 1e-9))]
        fits = [straightness(middle), straightness(middle[:cut]), straightness(middle[cut:])]
        one, before, after = (f"{fit:.3f}" for fit in fits)
        bench.answer(
            f"f against time: R² {one} as one line, {before} and {after} as two that meet at {turn:.2f} passes."
        )
        lines = []
        for number, (begin, end) in enumerate(stages, 1):
            if end - begin <= 0.0:
                continue
            points = [(part, progress(curve, begin, end)) for part, curve in zip(PARTS_OF_A_PASS, curves, strict=True)]
            lines.append(Series(name=f"stage {number}", points=points))
            bench.answer(f"g against η in stage {number}: R² {straightness(points):.3f}.")
        named = zip(PARTS_OF_A_PASS, curves, strict=True)
        series = [Series(name=f"η = {part:g} of a pass", points=curve) for part, curve in named]
        bench.chart(Chart(title="f against time", x="passes", y="objective", series=series))
        bench.chart(Chart(title="g against η", x="η as a part of a pass", y="fall of f a second", series=lines))
        table = [[s.name, *(f"{g:.4g}" for _, g in s.points)] for s in lines]
        bench.table(Table(title="g(η)", columns=["stage", *map(str, PARTS_OF_A_PASS)], rows=table))


if __name__ == "__main__":
    main()
