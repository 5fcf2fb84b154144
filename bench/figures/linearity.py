"""Within a stage, are the objective against time and the progress against the interval linear?

Fig. 2b (k-means): the objective f over time under a fixed interval, as one line and as two with the best inflection
between; and in each of the two stages the progress per second g(η) of several intervals, as a line. A stage is a
stretch of the objective that all intervals pass through, because the paper lets both intervals of a fit train from the
same point: in the same seconds they are at different objectives. On virtual time, so that nothing but the algorithm
decides; each interval trains every point for real. `--repeat` seeds from `--seed` on.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from bench.common import suite
from bench.common.record import Chart, Series, Table
from bench.common.virtual_runs import clustered_rows, compare_virtually

FIGURE = "Fig. 2"

ROWS = {"smoke": 4_096, "laptop": 16_384, "small": 65_536, "paper": 262_144}
PARTS_OF_A_PASS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
"""Intervals; a pass takes a second of virtual time."""
WORKERS = 4
CENTRES = {"smoke": 12}
"""By scale; more train longer."""
MOST_CENTRES = 30
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


def reached(curve: Curve, objective: float) -> float:
    """When the curve falls to this objective, linear between two of its points; NaN where it does not."""
    for (before, above), (after, below) in pairwise(curve):
        if above >= objective >= below and above > below:
            return before + (after - before) * (above - objective) / (above - below)
    return math.nan


def progress(curve: Curve, begin: float, end: float) -> float:
    """Fall of the objective per second, from one objective to another; NaN where they are not on the curve."""
    took = reached(curve, end) - reached(curve, begin)
    return (begin - end) / took if took else math.nan


class Stage(NamedTuple):
    """g(η) in one stage."""

    points: list[tuple[float, float]]
    """η as a part of a pass, and g."""

    @property
    def straight(self) -> float:
        return straightness(self.points)

    @property
    def falls(self) -> bool:
        return bool(np.polyfit(*zip(*self.points, strict=True), 1)[0] < 0.0)


class Fits(NamedTuple):
    """What one seed says."""

    curves: list[list[tuple[float, float]]]
    lines: tuple[float, float, float]
    """R² of f against time: as one line, and of the two that meet at the inflection."""
    turn: float
    stages: list[Stage]


def measure(rows: int, centres: int, seed: int) -> Fits:
    sync = ",".join(f"fsp:interval={part * 1e3:.0f}ms:balance=off" for part in PARTS_OF_A_PASS)
    settings = {"k": centres, "init": "random"}
    found = compare_virtually("kmeans", clustered_rows(rows, seed), sync, seed, WORKERS, settings=settings)
    curves = [[(t, v) for t, v, _ in found.pictures[name].curve if v is not None] for name in found.candidates]
    first = curves[0]
    cut = inflection(first)
    ends = min(curve[0][1] for curve in curves), first[cut][1], max(curve[-1][1] for curve in curves)
    stages = []
    for begin, end in pairwise(ends):
        points = [(part, progress(c, begin, end)) for part, c in zip(PARTS_OF_A_PASS, curves, strict=True)]
        points = [point for point in points if point[1] > 0.0]  # not NaN
        stages += [Stage(points)] if begin > end and len(points) > 2 else []
    lines = straightness(first), straightness(first[:cut]), straightness(first[cut:])
    return Fits(curves, lines, first[cut][0], stages)


def middle(values: Sequence[float]) -> str:
    """Median and range."""
    one = f"{statistics.median(values):.3f}"
    return one if len(values) == 1 else f"{one} ({min(values):.3f} to {max(values):.3f})"


def main() -> None:
    options = suite.arguments(__doc__)
    with suite.Suite(__file__, __doc__, options) as bench:
        centres = CENTRES.get(bench.scale, MOST_CENTRES)
        seeds = [options.seed + at for at in range(bench.repeat)]
        fits = [measure(ROWS[bench.scale], centres, seed) for seed in seeds]
        one, before, after = (middle([fit.lines[at] for fit in fits]) for at in range(3))
        turn = statistics.median(fit.turn for fit in fits)
        bench.answer(
            f"f against time: R² {one} as one line, {before} and {after} as two that meet at {turn:.2f} passes"
        )
        for number in range(2):
            stages = [fit.stages[number] for fit in fits if len(fit.stages) > number]
            if stages:
                falls = sum(stage.falls for stage in stages)
                told = middle([stage.straight for stage in stages])
                bench.answer(f"g against η in stage {number + 1}: R² {told}; g falls in {falls} of {len(stages)} runs.")
        draw(bench, fits[0])
        rows = [
            [str(seed), *(f"{r:.3f}" for r in fit.lines), f"{fit.turn:.2f}", f"{fit.curves[-1][-1][0]:.1f}",
             *(f"{s.straight:.3f}" for s in fit.stages)]
            for seed, fit in zip(seeds, fits, strict=True) if len(fit.stages) == 2
        ]  # fmt: skip
        columns = ["seed", "f, one line", "f, before", "f, after", "they meet at", "passes", "g, stage 1", "g, stage 2"]
        bench.table(Table(title="R² by seed", columns=columns, rows=rows))


def draw(bench: suite.Suite, fit: Fits) -> None:
    named = zip(PARTS_OF_A_PASS, fit.curves, strict=True)
    series = [Series(name=f"η = {part:g} of a pass", points=curve) for part, curve in named]
    bench.chart(Chart(title="f against time", x="passes", y="objective", series=series))
    lines = [Series(name=f"stage {number}", points=stage.points) for number, stage in enumerate(fit.stages, 1)]
    bench.chart(Chart(title="g against η", x="η as a part of a pass", y="fall of f a second", series=lines))
    table = [[s.name, *(f"{g:.4g}" for _, g in s.points)] for s in lines]
    if all(len(s.points) == len(PARTS_OF_A_PASS) for s in lines):
        bench.table(Table(title="g(η)", columns=["stage", *map(str, PARTS_OF_A_PASS)], rows=table))


if __name__ == "__main__":
    main()
