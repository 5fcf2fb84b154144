"""Is a mechanism better as its paper prints it, or as ours is?

    python -m bench.figures.published --seeds 4 --page docs/results/published.md

Each mechanism of docs/published.md in both forms, everything else alike, over seeds that are drawn when it runs. Parts:
sync (fsp, fsp-binary and psp on virtual time: k-means, four workers; every point is trained for real), gradient (LR and
NMF against plain gradient steps, to the same objective on virtual time), loads (seconds of the slowest link under loads
of 003, for drawn links; the round of Eq. 1 with both sizes of slices), groups (real jobs in threads: barriers that
three groups need with both forms of the global barrier). A ratio is that of the paper's form to ours: above 1 ours is
better.
"""

from __future__ import annotations

import argparse
import json
import math
import secrets
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import flegel
from bench.common.placement_bounds import even, seconds_of_round
from bench.common.virtual_runs import clustered_rows, compare_virtually
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.nmf import NMF
from flegel.compare.comparison import run_environment
from flegel.compare.record import Comparison
from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.plan.placement.published_loads import elastic, pairwise
from flegel.plan.placement.slice_size import SliceRule
from flegel.plan.placement.water_filling import colocated, water_filling
from flegel.terminal.reporting import say

WORKERS, ROWS = 4, 8_192
CONDITIONS = {
    "nobody slow": "",
    "one of four 8 times slower": "0:8x",
    "another quarter 4 times slower every 5 s": "25%:4x~5s",
}
FSP = ("fsp:probes=rollback", "fsp:timers=all", "fsp:round_end=first", "fsp:matching=pairs", "fsp:published")
LIMIT = 200.0  # virtual seconds, or passes of a usual worker, after which a run is stopped


class Line(NamedTuple):
    """One pair of runs. No ratio: one of them did not reach the target."""

    form: str
    ours: str
    condition: str
    seed: int
    ratio: float | None
    reached: str = ""
    """Which of the two reached the target, where not both did."""


def _paired(found: Comparison, form: str, ours: str, condition: str, seed: int) -> Line:
    times = {line.candidate: line.time.median if line.time else None for line in found.lines()}
    theirs, own = times[form], times[ours]
    if theirs and own:
        return Line(form, ours, condition, seed, theirs / own)
    return Line(form, ours, condition, seed, None, "ours" if own else "theirs" if theirs else "neither")


def sync(seed: int) -> Iterator[Line]:
    """Times to the same objective."""
    rows = clustered_rows(ROWS, seed)
    start = {"k": 12, "init": "random"}
    for condition, straggler in CONDITIONS.items():
        words = ",".join(("fsp", *FSP, "fsp-binary", "fsp-binary:search=again"))
        found = compare_virtually("kmeans", rows, words, seed, WORKERS, straggler, start, max_seconds=LIMIT)
        for form in FSP:
            yield _paired(found, form, "fsp", condition, seed)
        yield _paired(found, "fsp-binary:search=again", "fsp-binary", condition, seed)
    speeds = "0:3x,1:1.5x"
    found = compare_virtually("kmeans", rows, "psp,psp:counts=multiple", seed, 3, speeds, start, max_seconds=LIMIT)
    yield _paired(found, "psp:counts=multiple", "psp", "speeds 1 : 2 : 3", seed)


def gradient(seed: int) -> Iterator[Line]:
    """Times to the same objective of LR and NMF, and of plain gradient steps; the better of three rates counts."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(ROWS, 8)) * np.logspace(-0.5, 0.5, 8)
    labels = (rows @ rng.normal(size=8) + rng.logistic(size=ROWS) > 0).astype(np.float64)
    factors = rng.random((ROWS // 4, 4)) @ rng.random((4, 12)) + 0.05 * rng.random((ROWS // 4, 12))
    best = flegel.run("lr", (rows, labels), workers=1, processes=False, seed=seed, worker_timeout=100.0).objective
    table = [("lr", {}, "lr-gradient", {"classes": 2}, (rows, labels), 1.01 * best, 1.0, (0.3, 1.0, 3.0))]
    whole = flegel.run(
        NMF(rank=4, solver="coordinate"), factors, workers=1, processes=False, seed=seed, worker_timeout=100.0
    ).objective
    table.append(
        ("nmf", {"rank": 4, "solver": "coordinate"}, "nmf-gradient", {"rank": 4}, factors, 2.0 * whole,
         float(factors.size), (0.3, 1.0, 3.0))
    )  # fmt: skip
    for name, settings, plain, own, data, target, scale, rates in table:
        ours = _seconds(name, data, seed, settings, target)
        times = [_seconds(plain, data, seed, {**own, "rate": rate}, target / scale) for rate in rates]
        theirs = min((t for t in times if t is not None), default=None)
        ratio = theirs / ours if theirs and ours else None
        yield Line(plain, name, "nobody slow", seed, ratio, "" if ratio else "ours" if ours else "neither")


def _seconds(algorithm: str, data: Any, seed: int, settings: dict[str, Any], target: float) -> float | None:
    found = compare_virtually(
        algorithm, data, "fsp", seed, WORKERS, settings=settings, target=target, max_seconds=LIMIT
    )
    line = found.lines()[0]
    return line.time.median if line.time else None


def loads(seed: int) -> Iterator[Line]:
    """Seconds of a round on twelve drawn links of 20 to 220 Mbit/s, a worker beside each server, AlexNet's size."""
    rng = np.random.default_rng(seed)
    total = 57_000_000
    links = colocated(dict(enumerate((rng.uniform(20, 220, 12) * 1e6 / 32).tolist())), total)
    best = water_filling(links, total).seconds
    condition = "twelve links of 20 to 220 Mbit/s"
    for name, plan in (("even", even), ("elastic", elastic), ("published: Algorithm 1", pairwise)):
        yield Line(name, "network", condition, seed, plan(links, total).seconds / best)
    printed = pairwise(links, total, printed=True)
    spread = [links[n].seconds(m) for n, m in printed.carried.items()]
    valid = (
        min(printed.carried.values()) >= 0 and max(spread) - min(spread) < active().placement.pairwise_similar_seconds
    )
    yield Line("Eq. 14 as printed", "network", condition, seed, printed.seconds / best if valid else None, "ours")
    alpha = active().placement.first_slice_cost
    for nodes in (12,):
        sizes = [total / SliceRule(total, load).count(alpha, nodes, nodes) for load in ("published", "network")]
        theirs, own = (seconds_of_round(size, total, alpha, nodes, 1e6) for size in sizes)
        yield Line("Eq. 4 exactly", "network", "Eq. 1, AlexNet, twelve nodes", seed, theirs / own)


def groups(seed: int) -> Iterator[Line]:
    """Barriers until all groups are at rest, three groups whose rows are sorted by cluster."""
    rows = clustered_rows(3_072, seed)
    parts = [np.ascontiguousarray(part) for part in np.array_split(rows[np.argsort(rows[:, 0])], 3)]
    taken = {form: _train_groups(parts, seed, form) for form in ("wait", "beside")}
    ratio = taken["wait"] / taken["beside"] if all(taken.values()) else None
    yield Line("group_barrier=wait", "group_barrier=beside", "three groups in threads, barriers", seed, ratio)


def _train_groups(parts: list[Array], seed: int, form: str) -> float:
    """Barriers of all groups together; 0 where one failed."""
    counts: list[float] = []

    def one(at: int, bucket: str) -> None:
        done = flegel.run(
            KMeans(k=8), parts[at], workers=1, group=f"site{at}", bucket=bucket, groups=len(parts), every="3",
            sync="bsp", processes=False, seed=seed, group_barrier=form, max_seconds=60.0, worker_timeout=100.0,
        )  # fmt: skip
        counts.append(float(done.iterations))

    with tempfile.TemporaryDirectory() as bucket:
        threads = [threading.Thread(target=one, args=(at, bucket)) for at in range(len(parts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120.0)
    return sum(counts) if len(counts) == len(parts) else 0.0


PARTS: dict[str, Callable[[int], Iterator[Line]]] = {
    "sync": sync, "gradient": gradient, "loads": loads, "groups": groups,
}  # fmt: skip


def summed(lines: list[Line]) -> list[dict[str, Any]]:
    """One row for each form and condition: geometric mean of the ratios, the least and the largest."""
    rows = []
    for key in dict.fromkeys((line.form, line.ours, line.condition) for line in lines):
        mine = [line for line in lines if (line.form, line.ours, line.condition) == key]
        ratios = [line.ratio for line in mine if line.ratio is not None]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None
        rows.append(
            {
                "as published": key[0], "ours": key[1], "condition": key[2], "seeds": len(mine),
                "ratio": None if mean is None else round(mean, 2),
                "least": round(min(ratios), 2) if ratios else None,
                "largest": round(max(ratios), 2) if ratios else None,
                "only ours reached it": sum(line.reached == "ours" for line in mine),
                "only theirs": sum(line.reached == "theirs" for line in mine),
            }
        )  # fmt: skip
    return rows


ABOUT = (
    "Each mechanism of [As published](../published.md) in both forms, everything else alike: time to the same "
    "objective with the paper's form, divided by the time with ours. Above 1 ours is better. Seeds were drawn when it "
    "ran; on virtual time nothing but the algorithm and the decisions counts. Command: `{command}`; summary: "
    "[published.json](published.json)."
)
HEAD = """# As published, beside ours

{about}

| as published | ours | condition | seeds | ratio | least | largest | only ours reached it | only theirs |
|---|---|---|---|---|---|---|---|---|
"""


def page(made: dict[str, Any]) -> str:
    names = ("as published", "ours", "condition", "seeds", "ratio", "least", "largest")
    counts = ("only ours reached it", "only theirs")
    lines = []
    for row in made["figures"]:
        cells = ["–" if row[name] is None else str(row[name]) for name in (*names, *counts)]
        lines.append("| " + " | ".join(cells) + " |")
    about = textwrap.fill(ABOUT.format(command=made["command"]), 120, break_on_hyphens=False)
    return HEAD.format(about=about) + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS), help=f"with commas between: {', '.join(PARTS)}")
    parser.add_argument("--seeds", type=int, default=4, help="drawn when it runs")
    parser.add_argument("--page", type=Path, help="Markdown page; its JSON lies beside it")
    options = parser.parse_args()
    lines: list[Line] = []
    for part in options.parts.split(","):
        for _ in range(25 * options.seeds if part == "loads" else options.seeds):
            for line in PARTS[part](secrets.randbelow(2**31)):
                lines.append(line)
                if part != "loads":
                    say(f"{line.form} / {line.ours}, {line.condition}: {line.ratio or line.reached}")
    about = run_environment()
    made = {
        "title": "Mechanisms as published, beside ours",
        "command": " ".join(["python -m bench.figures.published", *sys.argv[1:]]),
        "commit": about.commit[:12],
        "machine": ", ".join(f"{name} {what}" for name, what in about.machine.items()),
        "figures": summed(lines),
    }
    print(page(made))
    if options.page is not None:
        options.page.with_suffix(".json").write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", "utf-8")
        options.page.write_text(page(made), encoding="utf-8")


if __name__ == "__main__":
    main()
