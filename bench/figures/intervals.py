"""Does the adjuster find an interval as good as the best fixed one?

Fig. 15: time to the target with fixed intervals from a hundredth of a pass to two passes, against fsp, which finds
its own interval, from short and from long first intervals too.
"""

from __future__ import annotations

from bench.common import suite
from bench.common.record import Chart, Series
from flegel.compare import Comparison

FIGURE = "Fig. 15"
NEEDS = ("option:straggler", "option:interval")
WEIGHT = 3

ENOUGH = 3  # fixed intervals, without which nothing can be said of the best
STEPS = {"smoke": 3, "laptop": 6, "small": 12, "paper": 12}


def main() -> None:
    options = suite.arguments(__doc__)
    with suite.Suite(__file__, __doc__, options) as bench:
        who = suite.quarter(bench.workers)
        more = [suite.RATINGS, suite.LOGISTIC, suite.CONVOLUTIONAL]
        cases = [suite.SWEEP, *(more if bench.scale != "smoke" else [])]
        factors = (8,) if bench.scale == "smoke" else (8, 2)
        bench.expect(len(cases) * len(factors))
        for case in cases:
            a_pass = 0.0
            for factor in factors:
                straggler = f"{who}:{factor}x"
                a_pass = a_pass or bench.a_pass(case)
                if not a_pass:
                    continue
                title = f"{case.name}, {factor} times slower"
                found = bench.compare(case, sweep(a_pass, bench.scale), straggler, title=title)
                if found is not None:
                    _show(bench, found, a_pass)


def sweep(a_pass: float, scale: str) -> str:
    """Fixed intervals, then those that search."""
    count = STEPS[scale]
    fixed = [a_pass * 0.01 * 200 ** (i / (count - 1)) for i in range(count)]
    words = [f"fsp:interval={1e6 * eta:.0f}us" for eta in fixed]
    return ",".join([*words, "fsp", "bsp-mini"])


def _show(bench: suite.Suite, found: Comparison, a_pass: float) -> None:
    fixed, others = [], []
    for line in found.lines():
        if line.time is None:
            continue
        if "interval=" in line.candidate:
            micros = float(line.candidate.rpartition("=")[2].removesuffix("us"))
            fixed.append((micros * 1e-6 / a_pass, line.time.median))
        else:
            others.append((line.candidate, line.time.median))
    if len(fixed) < ENOUGH:
        bench.skip(f"the sweep of {found.title}", f"only {len(fixed)} of the fixed intervals were tried in time")
        return
    low, high = fixed[0][0], fixed[-1][0]
    series = [Series(name="fixed interval", points=fixed)]
    series += [Series(name=name, points=[(low, t), (high, t)]) for name, t in others]
    bench.chart(
        Chart(
            title=f"Time to target, {found.title}",
            x="interval over a full pass (logarithmic)",
            y="seconds",
            series=series,
            log_x=True,
        )
    )
    best = min(t for _, t in fixed)
    worst = max(t for _, t in fixed)
    for name, time in others:
        if name.startswith("fsp"):
            bench.record.ratios[f"{found.title}: best fixed / {name}"] = round(best / time, 4)
            bench.answer_time(
                f"{found.title}: {name} took {time / best:.2f} times as long as the best fixed interval; the worst "
                f"took {worst / best:.1f} times.",
                f"{found.title}: {len(fixed)} fixed intervals and {name} reached the target.",
            )


if __name__ == "__main__":
    main()
