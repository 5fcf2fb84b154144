"""How long does `flegel.run` take for small tables, beside scikit-learn on the same rows, for all five algorithms?

    python -m bench.micro.small_jobs [--rows 1000,20000,200000,2000000] [--algorithms kmeans,lr] [--out small_jobs.json]

Wall time of the whole call, the best and the median of several, after kernels and the loops of teams were compiled and
each was called once, which is never counted (imports excluded, too); of a call that takes longer than `--longest` one
time. Both with their defaults, except that there are 10 clusters, components or factors, and that Flegel's NMF has
`solver="coordinate"`, which factorizes the whole matrix as scikit-learn does (its default is for ratings with missing
entries). The two take turns, so that a busy machine slows both; before each turn the threads of the other one come to
rest: those of BLAS spin for 0.1 s behind a product, which would count for the call that follows. Processor seconds of
this process stand beside it: a busy machine distorts them less. A ratio above 1 says that Flegel takes longer;
`objective` is Flegel's over scikit-learn's (log-likelihoods: the difference for a row), evaluated by the same function
for both. scikit-learn has no fuzzy c-means: its place takes Bezdek's alternation by matrix products, from one start of
scikit-learn's k-means++, until the objective changes by less than 1e-6.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import flegel
from flegel.algorithms.fcm import FCM
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans.kmeans import KMeans
from flegel.algorithms.lr import LR
from flegel.algorithms.nmf import NMF
from flegel.runtime.job import warm_code
from flegel.runtime.processes import host

COLUMNS, PARTS = 28, 10
ALGORITHMS = ("kmeans", "gmm", "fcm", "lr", "nmf")
GOALS = {1_000: 1.5, 20_000: 1.0, 200_000: 0.5, 2_000_000: 0.2}
EVALUATED_ROWS = 20_000  # the first ones, on which both models are compared
REST_SECONDS, REST_LOAD, LONGEST_REST = 0.02, 0.1, 1.0
"""Threads of the last call have come to rest when for so many seconds this process used less than such a part of a
processor; waited for at most so many seconds."""


class Case(NamedTuple):
    """The same task for both, and how good a result is."""

    ours: Callable[[], Any]
    theirs: Callable[[], Any]
    worth: Callable[[Any, Any], float]
    """Of Flegel's result and of the peer's."""


def rows(count: int) -> tuple[Any, Any]:
    """Ten overlapping clusters, and labels that a plane explains in part."""
    rng = np.random.default_rng(0)
    centres = 1.5 * rng.normal(size=(10, COLUMNS))
    features = (centres[rng.integers(0, 10, count)] + rng.normal(size=(count, COLUMNS))).astype(np.float32)
    labels = features @ rng.normal(size=COLUMNS) + rng.logistic(size=count) > 0
    return features, labels.astype(int)


def timed(calls: tuple[Callable[[], Any], ...], repeat: int, longest: float) -> list[tuple[dict[str, float], Any]]:
    """Seconds of calls, in turn, and what they returned last. Each is made once before, uncounted: it may compile."""
    found: list[tuple[dict[str, float], Any]] = []
    counted: list[list[tuple[float, float, Any]]] = [[] for _ in calls]
    for call in calls:
        call()
    for _ in range(max(repeat, 1)):
        for call, times in zip(calls, counted, strict=True):
            if not times or times[0][0] <= longest:
                come_to_rest()
                times.append(_once(call))
    for times in counted:
        walls, cpus, results = zip(*times, strict=True)
        seconds = {"best_s": min(walls), "median_s": statistics.median(walls), "cpu_s": statistics.median(cpus)}
        found.append((seconds, results[-1]))
    return found


def come_to_rest(sleep: Callable[[float], None] = time.sleep, used: Callable[[], float] = time.process_time) -> None:
    """Wait until threads that the last call has left spinning sleep."""
    for _ in range(round(LONGEST_REST / REST_SECONDS)):
        before = used()
        sleep(REST_SECONDS)
        if used() - before < REST_LOAD * REST_SECONDS:
            break


def _once(call: Callable[[], Any]) -> tuple[float, float, Any]:
    wall, cpu = time.perf_counter(), time.process_time()
    result = call()
    return time.perf_counter() - wall, time.process_time() - cpu, result


def fuzzy(features: Any, m: float = 2.0) -> Any:
    """Bezdek's alternation by matrix products: centres."""
    from sklearn.cluster import kmeans_plusplus

    rows, value = features.astype(np.float64), np.inf
    centres, lengths = kmeans_plusplus(rows, PARTS, random_state=0)[0], (rows**2).sum(axis=1)[:, None]
    for _ in range(300):
        squared = np.maximum(lengths - 2.0 * (rows @ centres.T) + (centres**2).sum(axis=1), 1e-30)
        shares = squared ** (-1.0 / (m - 1.0))
        weights = (shares / shares.sum(axis=1, keepdims=True)) ** m
        before, value = value, float((weights * squared).sum())
        if before - value <= 1e-6 * value:
            break
        centres = (weights.T @ rows) / weights.sum(axis=0)[:, None]
    return centres


def case(name: str, count: int) -> Case:
    from sklearn.cluster import KMeans as PeerKMeans
    from sklearn.decomposition import NMF as PeerNMF
    from sklearn.linear_model import LogisticRegression
    from sklearn.mixture import GaussianMixture

    features, labels = rows(count)
    few, positive = features[:EVALUATED_ROWS], np.abs(features)

    def squared(centres: Any) -> Any:
        return np.maximum((few**2).sum(axis=1)[:, None] - 2.0 * (few @ centres.T) + (centres**2).sum(axis=1), 1e-30)

    def scatter(centres: Any) -> float:
        return float(squared(centres).min(axis=1).sum())

    def fuzzy_scatter(centres: Any) -> float:
        return float((1.0 / (1.0 / squared(centres)).sum(axis=1)).sum())  # Σ u² d² for m = 2

    def error(loadings: Any) -> float:
        from scipy.optimize import nnls

        return float(sum(nnls(np.asarray(loadings, np.float64).T, row)[1] ** 2 for row in positive[:1000]))

    def right(scores: Any) -> float:
        return float((np.asarray(scores) == labels[: len(few)]).mean())

    cases = {
        "kmeans": lambda: Case(
            lambda: flegel.run(KMeans(k=PARTS), features),
            lambda: PeerKMeans(PARTS, random_state=0).fit(features),
            lambda own, peer: scatter(own.parameter.centroids) / scatter(peer.cluster_centers_),
        ),
        "gmm": lambda: Case(
            lambda: flegel.run(GMM(k=PARTS), features),
            lambda: GaussianMixture(PARTS, covariance_type="diag", random_state=0).fit(features),
            lambda own, peer: float(GMM(k=PARTS).transform(few, own.parameter)[1].mean() - peer.score(few)),
        ),
        "fcm": lambda: Case(
            lambda: flegel.run(FCM(k=PARTS), features),
            lambda: fuzzy(features),
            lambda own, peer: fuzzy_scatter(own.parameter.centroids) / fuzzy_scatter(peer),
        ),
        "lr": lambda: Case(
            lambda: flegel.run(LR(), (features, labels)),
            lambda: LogisticRegression().fit(features, labels),
            lambda own, peer: right(own.predict(few)) / right(peer.predict(few)),
        ),
        "nmf": lambda: Case(
            lambda: flegel.run(NMF(k=PARTS, solver="coordinate"), positive),
            lambda: PeerNMF(PARTS, random_state=0).fit(positive),
            lambda own, peer: error(own.parameter.factors.T) / error(peer.components_),
        ),
    }
    return cases[name]()


OURS = {"kmeans": KMeans(), "gmm": GMM(), "fcm": FCM(), "lr": LR(), "nmf": NMF(solver="coordinate")}


def compile_ahead(algorithms: list[str]) -> None:
    """Kernels and the loops of teams: otherwise a background process compiles the latter beside the calls measured."""
    os.environ["FLEGEL_WARM"] = "0"
    for name in algorithms:
        warm_code.compile_case(warm_code.Case(OURS[name], name, "float32", sparse=False, weighted=False))


def compare(count: int, algorithms: list[str], repeat: int, longest: float) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in algorithms:
        task = case(name, count)
        (own, result), (peer, model) = timed((task.ours, task.theirs), repeat, longest)
        found[name] = {
            "flegel": {k: round(v, 4) for k, v in own.items()},
            "scikit-learn": {k: round(v, 4) for k, v in peer.items()},
            "ratio": round(own["median_s"] / peer["median_s"], 2),
            "ratio_cpu": round(own["cpu_s"] / peer["cpu_s"], 2),
            "objective": round(task.worth(result, model), 4),
            "placement": result.placement,
            "workers": result.workers,
            "threads": result.threads,
            "training_s": round(result.seconds, 4),
        }
        told = found[name]
        where = f"{told['workers']} {told['placement']}, {told['threads']} threads"
        ours, theirs = own["median_s"] * 1e3, peer["median_s"] * 1e3
        print(
            f"{count:9d} {name:9s} {ours:10.1f} {theirs:16.1f} {told['ratio']:6.2f} {told['ratio_cpu']:16.2f} "
            f"{told['objective']:10.4f}  {where}",
            flush=True,
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1000,20000,200000,2000000", help="comma-separated numbers of rows")
    parser.add_argument("--algorithms", default=",".join(ALGORITHMS), help="comma-separated")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--longest", type=float, default=20.0, help="seconds of a call above which it is made once")
    parser.add_argument("--out", type=Path, help="write the summary to this JSON file")
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # scikit-learn tells of iterations that ran out
    compile_ahead(given.algorithms.split(","))
    before = host.reading()
    print("rows      algorithm  flegel ms  scikit-learn ms  ratio  processor ratio  objective  where")
    figures = {
        str(count): compare(count, given.algorithms.split(","), given.repeat, given.longest)
        for count in map(int, given.rows.split(","))
    }
    load = host.load_since(before)
    goals = ", ".join(f"{goal:g} at {count:,} rows" for count, goal in GOALS.items())
    print(f"goals: ratio at most {goals}; {load.disturbance or 'machine was quiet'}")
    if given.out:
        summary = {
            "title": "flegel.run beside scikit-learn on small tables, whole call, seconds",
            "command": f"python -m bench.micro.small_jobs --rows {given.rows} --repeat {given.repeat}",
            "commit": host.commit(),
            "machine": ", ".join(f"{v}" for v in host.machine().values()) + f" ({load.disturbance or 'quiet'})",
            "figures": figures,
        }
        given.out.write_text(json.dumps(summary, indent=1) + "\n")


if __name__ == "__main__":
    main()
