"""Do workers that stop by their own clocks make barriers cheaper than a central signal?

Fig. 13: cost of each barrier (time between two of them less the workers' mean computing), under both coordinations,
with injected stragglers and beside a second real job (natural), and what part of the time that is saved is the
barriers'. Why it depends on the kind of slowness, on virtual time: sixteen workers, four of which are eight times
slower in every case, by computing slowly or by pauses of 1 to 64 ms; nothing but the length of the pauses differs.
"""

from __future__ import annotations

import random
from statistics import mean
from typing import NamedTuple

from bench.common import suite
from bench.common.record import Chart, Series, Table
from bench.common.second_job import second_job, workers_beside
from bench.common.virtual_runs import clustered_rows, compare_virtually
from flegel.compare import Comparison
from flegel.compare.simulation import ClusterModel
from flegel.compare.table import seconds

FIGURE = "Fig. 13"
NEEDS = ("option:straggler", "option:coordination", "algorithm:kmeans")
WEIGHT = 2

PARTS = ("pauses", "trained")
SYNC = ("fsp:coordination=centralized", "fsp:coordination=semi")
SLOWNESS = 8
PASS_SECONDS = 0.1
"""Of a worker on virtual time that is not slow."""
VIRTUAL_WORKERS = 16
VIRTUAL_POINTS = {"smoke": 512, "laptop": 1_024, "small": 2_048, "paper": 4_096}
"""Of each worker."""
PAUSES = {"smoke": (0, 4, 32), "": (0, 1, 2, 4, 8, 16, 32, 64)}
"""Milliseconds; 0: computes slowly, without pauses."""
INTERVALS = 40, 60
"""Milliseconds between which the interval of a run is drawn: pauses and a fixed one would fall into step."""
LONGEST_SECONDS = 20.0


class Cost(NamedTuple):
    """What barriers of one coordination cost in one comparison."""

    barriers: float
    each: float
    """Mean seconds of a barrier."""
    answer: float
    """Mean seconds in which the slowest worker answers: from the order to its execution."""
    time: float | None
    """Until the target."""

    @property
    def total(self) -> float:
        return self.barriers * self.each


def cost_of(found: Comparison, name: str) -> Cost:
    line = next(line for line in found.lines() if line.candidate == name)
    shown = found.pictures[name]
    each = mean([cost for _, cost in shown.costs] or [0.0])
    slowest = max((worker["barrier_seconds"] for worker in shown.workers), default=0.0)
    return Cost(line.barriers, each, slowest / max(line.barriers, 1.0), line.time.median if line.time else None)


# -- trained -----------------------------------------------------------------------------------------------


def compared(bench: suite.Suite, case: suite.Case, straggler: str, scenario: str, rows: list[list[str]]) -> None:
    """Both coordinations on one case, as lines of the table."""
    found = bench.compare(case, ",".join(SYNC), straggler, title=f"{case.name}, {scenario}")
    if found is not None:
        _show(bench, found, rows)


def _show(bench: suite.Suite, found: Comparison, rows: list[list[str]]) -> None:
    costs = {name: cost_of(found, name) for name in SYNC if name in found.pictures}
    for name, cost in costs.items():
        told = (cost.each, cost.total, cost.answer)
        rows.append([found.title, name, f"{cost.barriers:.0f}", *map(seconds, told), seconds(cost.time or 0.0)])
    columns = ["case", "coordination", "barriers", "mean cost of a barrier", "sum of costs", "slowest answer", "time"]
    bench.table(Table(title="Synchronization cost", columns=columns, rows=rows))
    series = [
        Series(name=name, points=[(float(i + 1), cost) for i, (_, cost) in enumerate(shown.costs) if cost > 0])
        for name, shown in found.pictures.items()
    ]
    title = f"Cost of each barrier, {found.title}"
    bench.chart(Chart(title=title, x="barrier (thinned)", y="seconds (logarithmic)", series=series, log_y=True))
    if len(costs) < len(SYNC):
        return
    central, semi = (costs[name] for name in SYNC)
    bench.record.ratios[f"{found.title}: barrier cost centralized / semi"] = round(
        central.total / max(semi.total, 1e-12), 4
    )
    bench.answer_time(
        f"{found.title}: the slowest worker answers signals within {1e3 * central.answer:.1f} ms; semi barriers cost "
        f"{semi.total / max(central.total, 1e-12):.0%} of centralized ones in all{_share(central, semi)}.",
        f"{found.title}: costs of {central.barriers:.0f} centralized and {semi.barriers:.0f} semi-centralized barriers "
        "were taken.",
    )


def _share(central: Cost, semi: Cost) -> str:
    """What part of the time that is saved is that of barriers, as the paper divides it."""
    if central.time is None or semi.time is None:
        return ""
    less = central.time - semi.time
    if less <= 0.0:
        return f", and training takes {semi.time / central.time:.2f} times as long"
    return f", {(central.total - semi.total) / less:.0%} of the {less:.2f} s by which training is shorter"


# -- why, on virtual time ----------------------------------------------------------------------------------


def straggler(pause: int, points: int) -> str:
    """A quarter of the workers, all equally slow: by computing slowly, or by pauses of so many milliseconds."""
    who = suite.quarter(VIRTUAL_WORKERS)
    if not pause:
        return f"{who}:{SLOWNESS}x"
    rate = points / PASS_SECONDS
    return f"{who}:{pause}ms/{max(1, round(1e-3 * pause * rate / (SLOWNESS - 1)))}"


def by_pause(bench: suite.Suite) -> None:
    """Cost of a barrier under both coordinations by the length of the slow workers' pauses."""
    points, seed = VIRTUAL_POINTS[bench.scale], bench.options.seed
    rows: list[list[str]] = []
    saved: dict[int, float] = {}
    lines: dict[str, list[tuple[float, float]]] = {"signals": [], "own clocks of late workers": []}
    generator = random.Random(seed)
    for pause in PAUSES.get(bench.scale, PAUSES[""]):
        if bench.over(f"pauses of {pause} ms on virtual time"):
            break
        model = ClusterModel(learning="real", pass_seconds=PASS_SECONDS)
        central, semi = [], []
        for turn in range(bench.repeat):
            data = clustered_rows(VIRTUAL_WORKERS * points, seed + turn)
            interval = generator.randint(*INTERVALS)
            names = [f"{name}:interval={interval}ms:balance=off" for name in SYNC]
            found = compare_virtually(
                "kmeans", data, ",".join(names), seed + turn, VIRTUAL_WORKERS, straggler(pause, points),
                {"k": 12, "init": "random"}, model, max_seconds=LONGEST_SECONDS,
            )  # fmt: skip
            central.append(cost_of(found, names[0]).each)
            semi.append(cost_of(found, names[1]).each)
        before, after = mean(central), mean(semi)
        saved[pause] = 1.0 - after / before
        for (_, line), value in zip(lines.items(), (before, after), strict=True):
            line.append((float(pause), 1e3 * value))
        rows.append([f"{pause} ms" if pause else "none", seconds(before), seconds(after), f"{saved[pause]:.0%}"])
    columns = ["pauses", "signals", "own clocks", "saved"]
    bench.table(Table(title="Mean cost of a barrier on virtual time, by pauses", columns=columns, rows=rows))
    series = [Series(name=name, points=found) for name, found in lines.items()]
    title = "Cost of a barrier by the length of pauses, on virtual time"
    bench.chart(Chart(title=title, x="pause, ms (0: computes slowly)", y="ms", series=series))
    told = ", ".join(f"{part:.0%} with {f'pauses of {at} ms' if at else 'none'}" for at, part in saved.items())
    bench.answer(
        f"On virtual time, four of sixteen workers {SLOWNESS} times slower by pauses: own clocks save of the cost of a "
        f"barrier {told}."
    )


def main() -> None:
    options = suite.arguments(__doc__, [suite.parts_option(PARTS)])
    with suite.Suite(__file__, __doc__, options) as bench:
        if "pauses" in options.parts:
            by_pause(bench)
        if "trained" not in options.parts:
            return
        who = suite.quarter(bench.workers)
        rows: list[list[str]] = []
        more = [suite.LOGISTIC, suite.CONVOLUTIONAL]
        cases = [suite.SWEEP, *(more if bench.scale != "smoke" else [])]
        kinds = {"injected": f"{who}:{SLOWNESS}x"}
        kinds |= {"injected 32 ms/1000": f"{who}:32ms/1000"} if bench.scale != "smoke" else {}
        bench.expect((len(kinds) + 1) * len(cases))
        for scenario, slow in kinds.items():
            for case in cases:
                compared(bench, case, slow, scenario, rows)
        with second_job(workers_beside(bench.workers)):
            for case in cases:
                compared(bench, case, "", "natural", rows)
        bench.answer("The paper: the barrier contributes 24 to 57 % of what semi-centralized coordination saves.")


if __name__ == "__main__":
    main()
