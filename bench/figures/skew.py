"""How do slower stragglers, and more of them, change the time to the target?

Fig. 9 (k-means on HIGGS, and the small CNN beside it): (a) a quarter of the workers slowed by a growing factor (the
paper varies τ, the sleep per 1,000 points; here the factor, which means the same for kernels of any speed); (b) a
growing number of workers slowed eight times.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.common import suite
from bench.common.record import Chart, Series
from flegel.compare import Comparison

FIGURE = "Fig. 9"
NEEDS = ("option:straggler", "algorithm:kmeans")
WEIGHT = 4


def main() -> None:
    options = suite.arguments(__doc__)
    with suite.Suite(__file__, __doc__, options) as bench:
        smoke = bench.scale == "smoke"
        cases = [suite.SWEEP] if smoke else [suite.SWEEP, suite.CONVOLUTIONAL]
        factors = (1, 8) if smoke else (1, 2, 8, 32) if bench.scale in ("laptop", "small") else (1, 2, 4, 8, 16, 32)
        counts = sorted({max(1, round(bench.workers * share)) for share in (0.07, 0.25, 0.5)})
        counts = counts[:1] if smoke else counts
        bench.expect(len(cases) * (len(factors) + len(counts)))
        for case in cases:
            _by_factor(bench, case, factors)
            _by_count(bench, case, counts)
        bench.answer("The paper: BSP degrades with τ while FSP scales; with more stragglers the gap narrows.")


def _by_factor(bench: suite.Suite, case: suite.Case, factors: Sequence[int]) -> None:
    who, what = suite.quarter(bench.workers), f"Slowdown of a quarter of the workers, {case.name}"
    held: dict[float, Comparison] = {}
    for factor in factors:
        straggler = f"{who}:{factor}x" if factor > 1 else ""
        title = f"{case.name}, workers {who} slowed {factor} times"
        found = bench.compare(case, suite.FULL_BATCH, straggler, title=title, repeat=max(1, bench.repeat - 1))
        if found:
            held[factor] = found
            _chart(bench, held, what, "slowed so many times (logarithmic)")
    _sentences(bench, held, what)


def _by_count(bench: suite.Suite, case: suite.Case, counts: Sequence[int]) -> None:
    what = f"Number of stragglers, {case.name}"
    held: dict[float, Comparison] = {}
    for count in counts:
        straggler = "0:8x" if count == 1 else f"0-{count - 1}:8x"
        title = f"{case.name}, {count} of {bench.workers} workers slowed 8 times"
        found = bench.compare(case, suite.FULL_BATCH, straggler, title=title, repeat=max(1, bench.repeat - 1))
        if found:
            held[count] = found
            _chart(bench, held, what, f"stragglers among {bench.workers} workers")
    _sentences(bench, held, what)


def _chart(bench: suite.Suite, held: dict[float, Comparison], title: str, x: str) -> None:
    series = []
    for name in suite.FULL_BATCH.split(","):
        points = [(at, time.median) for at, c in held.items() if (time := c.times(name)) is not None]
        series.append(Series(name=name, points=points))
    for at, found in held.items():
        if (ratio := found.ratio("bsp", "fsp")) is not None:
            bench.record.ratios[f"{title} {at:g}: bsp / fsp"] = round(ratio[0], 4)
    most, others = suite.GIVE_UP_AFTER["bsp"], suite.GIVE_UP_AFTER[""]
    text = f"A line ends where a run was given up, after {most:g} (bsp) or {others:g} times the time of fsp."
    bench.chart(
        Chart(
            title=title,
            x=x,
            y="seconds to target (logarithmic)",
            series=series,
            log_x="log" in x,
            log_y=True,
            text=text,
        )
    )
    bench.save()


def _sentences(bench: suite.Suite, held: dict[float, Comparison], title: str) -> None:
    for name in ("bsp", "fsp"):
        points = [(at, time.median) for at, c in held.items() if (time := c.times(name)) is not None]
        if len(points) > 1:
            (first, early), (last, late) = points[0], points[-1]
            bench.answer_time(
                f"{title}: {name} took {early:.3g} s at {first:g} and {late:.3g} s at {last:g}.",
                f"{title}: {name} reached the target at {first:g} and at {last:g}.",
            )


if __name__ == "__main__":
    main()
