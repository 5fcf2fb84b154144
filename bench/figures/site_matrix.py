"""Do sites of very unequal links, sizes and speeds, with data of their own, end where central training ends?

    python -m bench.figures.site_matrix --summary site-matrix.json              k-means, GMM, FCM, NMF, a network
    python -m bench.figures.site_matrix --algorithms kmeans,gmm --seeds 8

Virtual time, real training (`bench/sites/training.py`): three sites, the real state machines of groups, links of 1
Mbit/s to 10 Gbit/s with latencies up to 300 ms, sizes and speeds of 1 : 50, rows mixed or sorted by cluster, and a site
that is there a tenth of the time; each once waiting for every site and once with a quorum of two. The objective over
all rows is divided by that of central training from the same θ(0); where that is too large, also by that of central
training which goes on from the θ of the sites (`own_worst`: 1 where they rest in an optimum, though another one). A
network needs torch; logistic regression by its own search (`lr`) is refused by groups, and the program says so; by
plain steps (`lr-gradient`) it is not among the algorithms without `--algorithms`. Seeds are drawn.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.sites.training import Agreement, Place, Rows, TrainingWorld, learner_of, prepared
from flegel.errors import UsageError
from flegel.machine.group.exchange import exchange_of
from flegel.machine.group.quorum import ALL_GROUPS, Quorum
from flegel.params.local import LocalStore
from flegel.params.protocol import Fold

MEGABIT = 125_000.0  # bytes a second
ROWS = 1500
TARGET = 1.001  # times the objective of central training
CENTRAL_PASSES = 150
SETTLED = 1e-7  # relative change over the last results with which a course ends
LONGEST = 400.0  # virtual seconds of a course


@dataclass(frozen=True)
class Cell:
    """One kind of heterogeneity; what is not given is equal everywhere."""

    bandwidth: float = 100.0
    """Mbit/s"""
    latency: float = 0.02
    sizes: tuple[float, float, float] = (1.0, 1.0, 1.0)
    speeds: tuple[float, float, float] = (1.0, 1.0, 1.0)
    is_sorted: bool = False
    there: float = 1.0
    """Part of the time for which the last site is there."""
    day: float = 10.0
    """Seconds after which the last site comes again."""


UNEQUAL = (1.0, 10.0, 50.0)
CELLS = {
    "equal": Cell(),
    "1 Mbit/s": Cell(bandwidth=1.0),
    "10 Gbit/s": Cell(bandwidth=10_000.0),
    "latency 300 ms": Cell(latency=0.3),
    "sizes 1 : 50": Cell(sizes=UNEQUAL),
    "speeds 1 : 50": Cell(speeds=UNEQUAL),
    "sorted rows": Cell(is_sorted=True),
    "sorted, one site there a tenth of the time": Cell(is_sorted=True, there=0.1),
    "sorted, one site there half of the time": Cell(is_sorted=True, there=0.5),
    "sorted, one site there an hour a day": Cell(is_sorted=True, there=1 / 24, day=96.0),
    "all of it": Cell(1.0, 0.3, UNEQUAL, UNEQUAL[::-1], True),
}
WAYS = {"all": ALL_GROUPS, "quorum 2": Quorum(count=2)}


def blobs(seed: int, positive: bool) -> Rows:
    """Clusters that touch, in their order; with the number of the cluster as label."""
    rng = np.random.default_rng(seed)
    centres = 2.0 * rng.normal(size=(12, 6))
    labels = np.repeat(np.arange(12), ROWS // 12)
    rows = centres[labels] + rng.normal(size=(len(labels), 6))
    return (np.abs(rows) if positive else rows), labels.astype(np.float64)


def make(name: str, seed: int) -> tuple[Any, Rows]:
    from flegel.algorithms.fcm import FCM
    from flegel.algorithms.gmm import GMM
    from flegel.algorithms.kmeans import KMeans
    from flegel.algorithms.lr import LR
    from flegel.algorithms.nmf import NMF
    from flegel.algorithms.plain_gradient import PlainLR

    rows, labels = blobs(seed, name == "nmf")
    if name == "mlp":
        from flegel.torch.builtin import MLP

        recipe: dict[str, Any] = {"batch": None, "optimizer": "sgd", "local": True, "micro_batch": 16, "lr": 0.05}
        return MLP(hidden=[32], epochs=10_000, **recipe), (rows.astype(np.float32), labels)
    if name in ("lr", "lr-gradient"):
        return LR() if name == "lr" else PlainLR(rate=0.5), (rows, (labels % 2).astype(np.float64))
    makers = {
        "kmeans": lambda: KMeans(k=12),
        "gmm": lambda: GMM(k=8, init="random"),
        "fcm": lambda: FCM(k=8, init="random"),
        "nmf": lambda: NMF(rank=4, solver="coordinate"),
    }
    return makers[name](), (rows, None)


def places(cell: Cell, rows: Rows, seed: int) -> list[Place]:
    """Rows of the sites, their speeds and links. A site of the usual size takes a second for a pass."""
    features, labels = rows
    order = np.arange(len(features)) if cell.is_sorted else np.random.default_rng(seed).permutation(len(features))
    ends = np.cumsum(cell.sizes) / sum(cell.sizes) * len(features)
    cuts = np.split(order, [int(ends[0]), int(ends[1])])
    fastest, found = max(cell.speeds), list[Place]()
    for at, ids in enumerate(cuts):
        away = at == 2 and cell.there < 1.0
        days = range(int(LONGEST / cell.day) + 1)
        out = tuple((cell.day * (k + cell.there), cell.day * (k + 1)) for k in days) if away else ()
        part = (np.ascontiguousarray(features[ids]), None if labels is None else labels[ids])
        speed = ROWS / 3 * cell.speeds[at] / fastest
        found.append(Place(part, speed, cell.bandwidth * MEGABIT, cell.latency, out))
    return found


def loss(name: str, algorithm: Any, rows: Rows, theta: Any) -> float:
    """Smaller is better: an objective, or the errors of a network."""
    found = algorithm.evaluate(rows[0], rows[1], theta)
    if name == "mlp":
        return 1.0 - float(found.metrics["accuracy"])
    return -float(found.objective) if algorithm.learning.maximize else float(found.objective)


@functools.cache
def central(name: str, seed: int) -> float:
    """The best loss of one site with all rows, from the same θ(0)."""
    return trained(name, seed)


def trained(name: str, seed: int, theta: Any = None) -> float:
    """The best loss of one site with all rows. `theta`: where it begins, in place of θ(0)."""
    algorithm, rows = make(name, seed)
    plan = prepared(algorithm, rows, seed)
    learner = learner_of(plan, rows, plan.compile().kernel, seed)
    store = LocalStore(algorithm, plan.parameter if theta is None else theta, plan.zero)
    best, before = math.inf, math.inf
    for number in range(CENTRAL_PASSES):
        learner.clear()
        learner.train(store.parameter, 0, learner.points, number)
        store.fold(Fold(number, (0,), (store.reported(0, number, learner.changes()),), "a pass"))
        if number % 5 == 4:
            now = loss(name, algorithm, rows, store.parameter)
            best, before, last = min(best, now), now, before
            if name != "mlp" and abs(now - last) <= SETTLED * abs(now):
                break
    return best


def course(name: str, cell: Cell, quorum: Quorum, seed: int) -> dict[str, float]:
    """One cell: loss over that of central training, and when it was within the target."""
    algorithm, rows = make(name, seed)
    plan = prepared(algorithm, rows, seed)
    aim = central(name, seed)
    spread = "visits" if quorum.given and exchange_of(algorithm) == "parameters" else "mean"
    world = TrainingWorld(plan, places(cell, rows, seed), Agreement(1, quorum, outer=spread), seed)
    reached, last, losses = math.inf, 0, list[float]()
    for now in [*np.arange(1.0, 30.0), *np.arange(30.0, LONGEST + 1.0, 5.0)]:
        world.run_until(float(now))
        if not world.results or world.results[-1][1] == last:
            continue
        last = world.results[-1][1]
        losses.append(loss(name, algorithm, rows, world.parameter))
        # Errors of a network are compared by half a point, objectives by a part.
        close = losses[-1] <= (aim + 0.005 if name == "mlp" else aim + (TARGET - 1.0) * abs(aim))
        reached = min(reached, float(now)) if close else reached
        settled = len(losses) > 6 and abs(losses[-1] - losses[-7]) <= SETTLED * abs(losses[-1])
        heard = all(site.job.iteration > 2 for site in world.sites)
        if (settled and heard) or (name == "mlp" and close):
            break
    ratio = 1.0 + losses[-1] - aim if name == "mlp" else 1.0 + (losses[-1] - aim) / abs(aim)
    beyond = trained(name, seed, world.parameter) if ratio > TARGET and name != "mlp" else losses[-1]
    return {
        "ratio": round(ratio, 5), "own_ratio": round(1.0 + (losses[-1] - beyond) / abs(beyond), 5),
        "seconds": reached, "rounds": last, "bytes": round(world.bytes_of_a_round),
        "goodput": round(world.goodput, 4), "audits": world.audit.looks, "foreign": world.audit.foreign,
        "discrepancy": world.audit.largest_discrepancy,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", default="kmeans,gmm,fcm,nmf,lr,mlp")
    parser.add_argument(
        "--cell", choices=list(CELLS), action="append", help="only this one; may be given several times"
    )
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--summary", type=Path)
    options = parser.parse_args()
    seeds = [int(seed) % (1 << 31) for seed in np.random.SeedSequence().generate_state(options.seeds)]
    lines = list[dict[str, Any]]()
    for name in options.algorithms.split(","):
        for cell_name, cell in ((known, CELLS[known]) for known in options.cell or CELLS):
            for way, quorum in WAYS.items():
                try:
                    found = [course(name, cell, quorum, seed) for seed in seeds]
                except (UsageError, ImportError) as error:
                    lines.append({"algorithm": name, "refused": str(error)})
                    break
                reached = [one["seconds"] for one in found if one["seconds"] < math.inf]
                lines.append(
                    {
                        "algorithm": name, "cell": cell_name, "way": way,
                        "ratio": round(float(np.mean([one["ratio"] for one in found])), 5),
                        "worst": max(one["ratio"] for one in found),
                        "own_worst": max(one["own_ratio"] for one in found),
                        "reached": len(reached),
                        "seconds": round(float(np.mean(reached)), 1) if reached else None,
                        "rounds": round(float(np.mean([one["rounds"] for one in found])), 1),
                        "bytes": round(float(np.mean([one["bytes"] for one in found]))),
                        "goodput": round(float(np.mean([one["goodput"] for one in found])), 4),
                        "audits": sum(one["audits"] for one in found), "foreign": sum(one["foreign"] for one in found),
                        "discrepancy": max(one["discrepancy"] for one in found), "seeds": len(found),
                    }
                )  # fmt: skip
                print(json.dumps(lines[-1]), flush=True)
                if options.summary:  # after each line, so that what was done stays when it is interrupted
                    figures = {"seeds": seeds, "lines": lines}
                    options.summary.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
            if "refused" in lines[-1]:
                print(json.dumps(lines[-1]), flush=True)
                break


if __name__ == "__main__":
    main()
