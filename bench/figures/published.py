"""Is a mechanism better as its paper prints it, or as ours is?

    python -m bench.figures.published --seeds 4 --page docs/results/published.md

Each mechanism of docs/published.md in both forms, everything else alike, over seeds that are drawn when it runs. Parts:
sync (fsp, fsp-binary and psp on virtual time: k-means, four workers; every point is trained for real), gradient (LR and
NMF against plain gradient steps, to the same objective on virtual time), loads (seconds of the slowest link under loads
of 003, for drawn links; the round of Eq. 1 with both sizes of slices), groups (real jobs in threads: barriers that
three groups need with both forms of the global barrier), travel (asp whose workers stand still while reports travel,
and the timer of a barrier, on virtual time), local (models of workers, averaged, against gradients, on virtual time),
visits (a point whose visit sleeps, in threads: seconds of rounds), gate (held-out loss, not time, where rows of one of
four workers have wrong labels, and where none have), choice (seconds until workers that choose their group are at
rest), waiting (networks that train on until the new θ comes, on virtual time), plans (a plan in every round against
moves that pay: transfers of slices behind drawn links in network namespaces, as root). A ratio is that of the paper's
form to ours: above 1 ours is better. `--page` keeps the rows of parts that are not measured.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import secrets
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import flegel
from bench.common.namespaces import Network, unavailable
from bench.common.network_runs import fashion
from bench.common.placement_bounds import even, seconds_of_round
from bench.common.placement_schemes import EngineScheme
from bench.common.slice_exchange import Exchange
from bench.common.virtual_runs import clustered_rows, compare_virtually
from bench.sites.moving_workers import LOOKS, simulate
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.lr import LR
from flegel.algorithms.nmf import NMF
from flegel.compare.comparison import run_environment
from flegel.compare.record import Comparison
from flegel.compare.simulation import ClusterModel
from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.plan.placement.published_loads import elastic, pairwise
from flegel.plan.placement.slice_size import SliceRule, best_size, partition_rate
from flegel.plan.placement.water_filling import colocated, water_filling
from flegel.sim.coordinator_cost import MEASURED
from flegel.sim.network import NetworkSpec
from flegel.terminal.reporting import say

WORKERS, ROWS = 4, 8_192
CONDITIONS = {
    "nobody slow": "",
    "one of four 8 times slower": "0:8x",
    "another quarter 4 times slower every 5 s": "25%:4x~5s",
}
FSP = ("fsp:probes=rollback", "fsp:timers=all", "fsp:round_end=first", "fsp:matching=pairs", "fsp:published")
IMAGES, LOSS = 1_600, 1.0  # of a network, and the mean loss to which it is trained
CALL, IMAGE, WAKE = 0.001, 71e-6, 0.001  # seconds: of a call besides its images, of an image, of an order
NODES, SLICED_PARAMETERS, PLANNED_ROUNDS = 12, 5_250_000 // 20, 24  # a 20th of MobileNet
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


def _seconds(
    algorithm: str, data: Any, seed: int, settings: dict[str, Any], target: float, model: str = "fsp",
    workers: int = WORKERS, straggler: str = "",
) -> float | None:  # fmt: skip
    found = compare_virtually(
        algorithm, data, model, seed, workers, straggler, settings, target=target, max_seconds=LIMIT
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


def loads_of_slices(seed: int) -> Iterator[Line]:
    """α as it is printed and as it is fitted, by Eq. 1; and whether Eq. 5 alone gives each server two probes."""
    rng, total, nodes = np.random.default_rng(seed), 57_000_000, 12
    printed = active().placement.first_slice_cost
    alpha = printed * 10.0 ** rng.uniform(-1.0, 1.0)
    times = (seconds_of_round(best_size(total, each, nodes), total, alpha, nodes, 1e6) for each in (printed, alpha))
    yield Line("α of 120,000", "α as fitted", "Eq. 1, α of 12,000 to 1.2 million", seed, next(times) / next(times))
    pieces = round(total / best_size(total, printed, nodes))
    enough = rng.binomial(pieces, partition_rate(nodes, pieces)) >= active().placement.measuring_slices * nodes
    condition = "two probes for each of twelve servers"
    yield Line("Eq. 5 alone", "what is missing is cut off", condition, seed, 1.0 if enough else None, "ours")


def travel(seed: int) -> Iterator[Line]:
    """Times to the same objective."""
    rows, start = clustered_rows(ROWS, seed), {"k": 12, "init": "random"}
    for latency, condition in ((0.0003, "messages of 0.3 ms"), (0.02, "messages of 20 ms")):
        model = ClusterModel(learning="real", network=NetworkSpec(latency=latency))
        words = "asp,asp:waiting=training"
        found = compare_virtually("kmeans", rows, words, seed, WORKERS, "", start, model, max_seconds=LIMIT)
        yield _paired(found, "asp", "asp:waiting=training", condition, seed)
    for condition, straggler in list(CONDITIONS.items())[:2]:
        words = "bsp,bsp:barrier_timeout=2s"
        found = compare_virtually("kmeans", rows, words, seed, WORKERS, straggler, start, max_seconds=LIMIT)
        yield _paired(found, "bsp:barrier_timeout=2s", "bsp", f"{condition}, passes of 1 s", seed)


def local(seed: int) -> Iterator[Line]:
    """Models that workers made by single steps, averaged, against mean gradients; the best of three rates counts."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(ROWS, 8)) * np.logspace(-0.5, 0.5, 8)
    labels = (rows @ rng.normal(size=8) + rng.logistic(size=ROWS) > 0).astype(np.float64)
    best = flegel.run("lr", (rows, labels), workers=1, processes=False, seed=seed, worker_timeout=100.0).objective
    speeds = "0:3x,1:1.5x"
    times = [
        [
            _seconds(name, (rows, labels), seed, {"classes": 2, "rate": rate}, 1.01 * best, "psp", 3, speeds)
            for rate in rates
        ]
        for name, rates in (("lr-local", (0.001, 0.01, 0.1)), ("lr-gradient", (0.3, 1.0, 3.0)))
    ]
    theirs, ours = (min((t for t in each if t is not None), default=None) for each in times)
    ratio = theirs / ours if theirs and ours else None
    reached = "" if ratio else "ours" if ours else "theirs" if theirs else "neither"
    yield Line("lr-local", "lr-gradient", "psp, speeds 1 : 2 : 3", seed, ratio, reached)


class Sleeping(flegel.Algorithm):
    """Sums of columns; a visit of a point with a first column below 0 sleeps, one with any other does not."""

    seconds: float = 1.0

    def initParameter(self, sample: Any, rng: Any) -> Any:
        return np.zeros(sample.columns)

    def initState(self, points: int, columns: int, rng: Any) -> Any:
        return np.zeros((points, 1))

    def updateDataPoint(self, dataPoint: Any, parameter: Any, iterationNum: int) -> Any:
        new = (1.0 - dataPoint.state[0]) * dataPoint.features
        dataPoint.state[0] = 1.0
        if dataPoint.features[0] < 0.0:
            time.sleep(self.seconds)
        return new

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return np.asarray(aggregator)

    def objective(self, aggregator: Any, parameter: Any) -> float:
        return -float(np.sum(parameter))


def visits(seed: int) -> Iterator[Line]:
    """Seconds of ten rounds, one of whose points sleeps two seconds; abandoned, it does not count in the model."""
    data = np.abs(np.random.default_rng(seed).normal(size=(40, 2)))
    data[3, 0] = -1.0
    taken = {
        form: flegel.run(
            Sleeping(seconds=2.0), data, workers=2, processes=False, sync="fsp", interval=0.3, expensive=form,
            hook_timeout=600.0, max_iterations=10, tolerance=0, balance="off", resting="off", progress=False,
        ).seconds
        for form in ("abandon", "fail")
    }  # fmt: skip
    condition = "one of 40 points takes 2 s: seconds of ten rounds"
    yield Line("expensive=abandon", "expensive=fail", condition, seed, float(taken["abandon"] / taken["fail"]))


def gate(seed: int) -> Iterator[Line]:
    """Held-out loss of a model with and without the gate of each worker."""
    rng = np.random.default_rng(seed)
    features, direction = rng.normal(size=(3_000, 4)), rng.normal(size=4)
    labels = (features @ direction + 0.5 * rng.logistic(size=3_000) > 0).astype(np.float64)
    held, wrong = slice(2_000, None), labels[:2_000].copy()
    wrong[1_500:] = 1.0 - wrong[1_500:]
    with tempfile.TemporaryDirectory() as folder:
        judged = Path(folder) / "gate.csv"
        table = np.column_stack([features[2_800:], labels[2_800:]])
        np.savetxt(judged, table, delimiter=",", header="a,b,c,d,y", comments="")
        for condition, given in (("one of four has wrong labels", wrong), ("all labels are right", labels[:2_000])):
            frame = {name: features[:2_000, at] for at, name in enumerate("abcd")} | {"y": given}
            losses = []
            gated: dict[str, Any] = {"gate": "0.6", "gate_data": str(judged), "gate_failures": 3}
            none: dict[str, Any] = {}
            for options in (gated, none):
                algorithm = LR()
                done = flegel.run(
                    algorithm, frame, label="y", workers=4, sync="bsp", partition="contiguous", processes=False,
                    max_iterations=40, progress=False, seed=seed, **options,
                )  # fmt: skip
                losses.append(float(algorithm.evaluate(features[held], labels[held], done.parameter).objective))
            yield Line("gate=0.6", "no gate", f"{condition}: held-out loss", seed, losses[0] / losses[1])


def choice(seed: int) -> Iterator[Line]:
    """Seconds until the last move of ten workers that begin as 1, 1 and 8, and how many move."""
    often, seldom = (simulate((1, 1, 8), seed, every) for every in (1.0, LOOKS))
    last = [max((at for at, *_ in course.moves), default=0.0) for course in (often, seldom)]
    yield Line("--look update", "every 30 s", "from 1, 1 and 8: seconds to the last move", seed, last[0] / last[1])
    moves = len(often.moves) / len(seldom.moves)
    yield Line("--look update", "every 30 s", "from 1, 1 and 8: moves", seed, moves)


def waiting(seed: int) -> Iterator[Line]:
    """Times of a small CNN to the same loss, workers of speeds 1 : 2 : 3."""
    images = fashion(None, IMAGES, 1).train
    for latency, condition in ((0.0003, "messages of 0.3 ms"), (0.02, "messages of 20 ms")):
        model = ClusterModel(
            learning="real", rates=dict.fromkeys(range(3), 1.0 / IMAGE), call=CALL, costs=replace(MEASURED, wake=WAKE),
            network=NetworkSpec(latency=latency),
        )  # fmt: skip
        found = compare_virtually(
            "cnn", images, "psp,psp:waiting=training", seed, 3, "0:3x,1:1.5x", {"epochs": 1e6}, model, target=LOSS,
            max_seconds=LIMIT / 10,
        )  # fmt: skip
        yield _paired(found, "psp:waiting=training", "psp", f"small CNN, speeds 1 : 2 : 3, {condition}", seed)


def plans(seed: int) -> Iterator[Line]:
    """Seconds of a job's first rounds, those in which slices move included; rounds of both forms alternate."""
    if why := unavailable():
        say(f"plans are left out: {why}")
        return
    generator, nodes = random.Random(seed), range(NODES)
    for condition, states in (("twelve drawn links", 1), ("twelve drawn links, dealt anew every eight rounds", 3)):
        speeds = [generator.uniform(20.0, 220.0) for _ in nodes]
        size = best_size(SLICED_PARAMETERS, active().placement.first_slice_cost / 20, NODES, NODES)
        schemes = [EngineScheme(load, SLICED_PARAMETERS, size, nodes) for load in ("published", "network")]
        with Network(NODES) as network, Exchange(network, nodes, nodes) as exchange:
            for at in range(PLANNED_ROUNDS):
                if at % (PLANNED_ROUNDS // states) == 0:
                    generator.shuffle(speeds)
                    for node, speed in enumerate(speeds):
                        network.limit(speed, [node], receiving=True)
                for scheme in schemes:
                    scheme.round(exchange)
        theirs, ours = (sum(scheme.seconds) for scheme in schemes)
        yield Line("a plan in every round", "moves that pay", condition, seed, theirs / ours)


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
    "sync": sync, "gradient": gradient, "loads": loads, "slices": loads_of_slices, "groups": groups, "travel": travel,
    "local": local, "visits": visits, "gate": gate, "choice": choice, "waiting": waiting, "plans": plans,
}  # fmt: skip
CHEAP = ("loads", "slices", "choice")
"""Parts without jobs, which take 25 times as many seeds."""


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


def kept_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of earlier runs."""
    return list(json.loads(path.read_text(encoding="utf-8"))["figures"]) if path.exists() else []


def merged(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of this run in place of earlier ones of the same pair and condition; the others stay."""
    rows = {(row["as published"], row["ours"], row["condition"]): row for row in before}
    return list((rows | {(row["as published"], row["ours"], row["condition"]): row for row in now}).values())


ABOUT = (
    "Each mechanism of [As published](../published.md) in both forms, everything else alike: time to the same "
    "objective with the paper's form, divided by the time with ours. Above 1 ours is better. Seeds were drawn when it "
    "ran; on virtual time nothing but the algorithm and the decisions counts. Command: `python -m "
    "bench.figures.published --seeds {seeds} --page docs/results/published.md`, in parts (`--parts`); the summary has "
    "the commit of each row: [published.json](published.json)."
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
    about = textwrap.fill(ABOUT.format(seeds=made["seeds"]), 120, break_on_hyphens=False)
    return HEAD.format(about=about) + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS), help=f"with commas between: {', '.join(PARTS)}")
    parser.add_argument("--seeds", type=int, default=4, help="drawn when it runs")
    parser.add_argument("--page", type=Path, help="Markdown page; its JSON lies beside it")
    options = parser.parse_args()
    lines: list[Line] = []
    for part in options.parts.split(","):
        for _ in range(25 * options.seeds if part in CHEAP else options.seeds):
            for line in PARTS[part](secrets.randbelow(2**31)):
                lines.append(line)
                if part not in CHEAP:
                    say(f"{line.form} / {line.ours}, {line.condition}: {line.ratio or line.reached}")
    about = run_environment()
    rows = [{**row, "commit": about.commit[:12]} for row in summed(lines)]
    if options.page is not None:
        rows = merged(kept_rows(options.page.with_suffix(".json")), rows)
    made = {
        "title": "Mechanisms as published, beside ours",
        "command": " ".join(["python -m bench.figures.published", *sys.argv[1:]]),
        "commit": about.commit[:12],
        "machine": ", ".join(f"{name} {what}" for name, what in about.machine.items()),
        "seeds": options.seeds,
        "figures": rows,
    }
    print(page(made))
    if options.page is not None:
        options.page.with_suffix(".json").write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", "utf-8")
        options.page.write_text(page(made), encoding="utf-8")


if __name__ == "__main__":
    main()
