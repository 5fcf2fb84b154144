"""A comparison made up for tests of tables and pages."""

from __future__ import annotations

from bench.common.record import Bench, Chart, Series, Table
from flegel.compare import Attempt, Comparison, Picture
from flegel.compare.picture import timeline
from flegel.compare.record import RunEnvironment


def attempt(candidate: str, round: int, reached: float | None, **more: object) -> Attempt:
    given = {"outcome": "reached" if reached is not None else "limit", "reason": "because", "seconds": reached or 9.0}
    return Attempt(**{"candidate": candidate, "round": round, "reached": reached, **given, **more})  # type: ignore[arg-type]


def a_picture(length: float, workers: int = 3) -> Picture:
    spans = [(w, 0.1 * length, 0.9 * length, 5, 0.6 * length, 0.2 * length, 0.1) for w in range(workers)]
    accounts = [
        {"id": w, "points": 10, "visits": 20, "passes": 2.0, "compute_seconds": 1.0, "wait_seconds": 0.5,
         "barrier_seconds": 0.1}
        for w in range(workers)
    ]  # fmt: skip
    return Picture(
        curve=[(0.1 * length, None, 0.01), (0.5 * length, 12.0, 0.02), (length, 10.0, 0.01)],
        timeline=timeline(spans, length, [(0.3 * length, 0.4 * length)], [0.5 * length, length]),
        workers=accounts,
        reasons=[(0.1, "because a < b & c > d")],
        staleness={"0": 3, "2": 1},
        costs=[(0.1, 0.01)],
    )


def run_environment() -> RunEnvironment:
    return RunEnvironment(date="2030-01-01T00:00:00Z", commit="abc", machine={"cores": "2"}, versions={"numpy": "2"})


def comparison(
    attempts: list[Attempt] | None = None, candidates: tuple[str, ...] = ("bsp", "fsp", "asp")
) -> Comparison:
    given = attempts or [
        *(attempt("bsp", r, 8.0 + r, checked=10.0, objective=10.1) for r in range(3)),
        *(attempt("fsp", r, 0.5 + 0.1 * r, checked=10.0) for r in range(3)),
        *(attempt("asp", r, None, outcome="diverged", reason="diverged: <NaN>") for r in range(3)),
    ]
    return Comparison(
        title="KMeans on <points>", algorithm="KMeans", hyperparameters={"k": 3},
        dataset={"name": "points", "rows": 1000, "columns": 4, "stand_in": True}, workers=3, straggler="0:8x", seed=7,
        maximize=False, target=10.0, target_note="given", limit=9.0, candidates=list(candidates), attempts=given,
        pictures={"bsp": a_picture(9.0), "fsp": a_picture(0.6)}, notes=["a note with < and &"],
        environment=run_environment(),
    )  # fmt: skip


def bench() -> Bench:
    lines = [Series(name="bsp", points=[(1.0, 2.0), (8.0, 20.0)]), Series(name="a new one", points=[(1.0, 0.1)])]
    charts = [
        Chart(title="lines", x="x", y="y", series=lines, log_x=True, log_y=True),
        Chart(title="bars", x="", y="y", series=lines, bars=True, groups=["one", "two"] * 5),
        Chart(title="empty", x="x", y="y", series=[]),
        Chart(
            title="no bars", x="", y="y", series=[Series(name="bsp", points=[])], bars=True, log_y=True, groups=["a"]
        ),
        Chart(title="zero", x="x", y="y", series=[Series(name="bsp", points=[(0.0, 0.0)])], log_x=True, log_y=True),
    ]
    return Bench(
        name="skew", figure="Fig. 9", question="How?", scale="smoke", seconds=1.0, environment=run_environment(),
        answer=["So."],
        charts=charts, tables=[Table(title="t", columns=["a", "b"], rows=[["1", "2"]])], comparisons=[comparison()],
        skipped=[("gmm", "not there")], ratios={"bsp / fsp": 12.0},
    )  # fmt: skip
