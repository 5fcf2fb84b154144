"""Does a linear model that says "converged" have the minimum of the best library, on tables that nobody prepared?

    python -m bench.micro.linear_minimum [--tables 60] [--seed N] [--models lr lr-many poisson gamma huber linearsvm
                                         ridge lasso elasticnet] [--sync bsp fsp asp] [--converged-only]
                                         [--against lr.estimated_gap_by_pairs=2] [--json FILE]
                                         [--at-once 2] [--minutes 20]

Tables are drawn from a fresh seed, which is printed: rows of which one or several are up to a million times as long as
the others, long tails, collinear columns, columns of different scales and offsets, classes that a plane divides, rare
categories of one class, weights over many powers of ten, few entries in a row, more columns than rows, float32, sparse
rows of as many columns; 2 to 20 classes; without a penalty, and with one of C = 1e-4 to 1e4. Peers are scikit-learn's
solvers with a tolerance of 1e-10 and SciPy's L-BFGS; what every one of them and the job found is judged by one
objective in float64. Each job has a synchronization model, and workers in
threads, as one worker, or in processes. Printed for every table: how far the job is above the best peer, what it said,
its passes, and processor seconds of both. A job is `silent` that says "converged" above the minimum by more than
twice its tolerance (and 1e-12 of the trivial model's objective; 1e-13 of that of logistic regression); `unsaid` counts
those that are above it by more than the tolerance itself. With `--converged-only` peers train only where the job
said so. `--against` trains each table once more with other settings, for the passes. `--at-once` takes several tables
at a time, each in a process; after `--minutes` no further one is begun. Asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import secrets
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # before any of these libraries starts its threads

import numpy as np  # noqa: E402
from scipy import sparse  # noqa: E402
from scipy.optimize import minimize  # noqa: E402
from scipy.special import logsumexp  # noqa: E402

import flegel  # noqa: E402
from bench.common.program import commit, machine  # noqa: E402
from flegel.algorithms.glm.losses import Gamma, Huber, LinearSVM, Poisson  # noqa: E402
from flegel.algorithms.least_squares import ElasticNet, Ridge  # noqa: E402
from flegel.algorithms.lr import LR  # noqa: E402

MODELS = ("lr", "lr-many", "poisson", "gamma", "huber", "linearsvm", "ridge", "lasso", "elasticnet")
BY_MOMENTS = ("ridge", "lasso", "elasticnet")
L1_RATIO = {"lasso": 1.0, "elasticnet": 0.5}
KINDS = (
    "plain", "one long row", "one long row", "some long rows", "long tails", "collinear", "collinear, one long row",
    "scales and offsets", "separable", "rare categories", "weights", "few entries", "few entries, one long row",
    "more columns than rows", "float32, one long row", "few entries, as many columns as rows", "separable, scales",
)  # fmt: skip
WORKERS = ("inline", "team", "processes")
PEER_ITERATIONS = 5_000
NEWTON_WEIGHTS = 300  # up to so many all second derivatives of a peer are a matrix
SECONDS = 60.0  # of training after which a job is stopped
EPSILON = 1.35
LEAST_OBJECTIVE = {True: 1e-9, False: 1e-4}
"""Of the trivial model's: distances are parts of it where a minimum is smaller; of logistic regression, and others."""


class Table(NamedTuple):
    rows: Any
    labels: Any
    weights: Any
    model: str
    l2: float
    words: str


def draw(number: int, models: list[str], rng: np.random.Generator, most_rows: int) -> Table:
    model, kind = models[number % len(models)], KINDS[number // len(models) % len(KINDS)]
    points = int(10 ** rng.uniform(2.3, np.log10(most_rows)))
    columns = int(rng.integers(2, 60))
    if kind == "more columns than rows":
        points = int(rng.integers(20, 120))
        columns = int(points * rng.uniform(1.05, 2.0))
    if kind == "few entries, as many columns as rows":
        points = int(rng.integers(100, 400))
        columns = int(points * rng.uniform(0.7, 1.3))
    rows = rows_of(kind, points, columns, rng)
    weights = 10 ** rng.uniform(-4, 4, points) if kind == "weights" else None
    dense = rows.toarray() if sparse.issparse(rows) else np.asarray(rows, np.float64)
    labels = labels_of(model, kind, dense, rng)
    l2 = float(rng.choice([0.0, 1.0 / points, 1e-2, *3 * [1.0 / (points * 10.0 ** rng.uniform(-4, 4))]]))
    length = f", {len(np.unique(labels))} classes" if model == "lr-many" else ""
    return Table(rows, labels, weights, model, l2, f"{model}: {kind}, {points} x {columns}{length}, l2 {l2:.1g}")


def rows_of(kind: str, points: int, columns: int, rng: np.random.Generator) -> Any:
    rows = rng.standard_normal((points, columns))
    if kind.startswith("few entries"):
        rows *= rng.random((points, columns)) < 0.1
    if kind.startswith("collinear"):
        rows = rows * np.geomspace(1.0, 10 ** -rng.uniform(2, 5), columns)
        rows = rows @ np.linalg.qr(rng.standard_normal((columns, columns)))[0]
    if kind == "long tails":
        rows = rng.standard_t(1.0, (points, columns))
    if kind in ("scales and offsets", "separable, scales"):
        scale = 10 ** rng.uniform(-4, 4, columns)
        rows = (rows + rng.standard_normal(columns) * rng.choice([0.0, 1.0, 100.0])) * scale
    if kind == "rare categories":
        category = rng.integers(0, points // 5, points)
        chosen = [(category == c).astype(float) for c in range(min(columns // 2 + 1, points // 5))]
        rows[:, : len(chosen)] = np.stack(chosen, 1)[:, :columns]
    long = 1 if "one long row" in kind else int(rng.integers(2, 6)) if kind == "some long rows" else 0
    for at in rng.choice(points, long, replace=False):
        rows[at] *= 10 ** rng.uniform(4, 6)
    if kind.startswith("few entries"):
        return sparse.csr_matrix(rows)
    return rows.astype(np.float32) if kind.startswith("float32") else rows


def labels_of(model: str, kind: str, dense: Any, rng: np.random.Generator) -> Any:
    """From a linear model over columns of one size, with noise; long rows get any label."""
    size = np.median(np.abs(dense - np.median(dense, axis=0)), axis=0) * 1.5
    size = np.where(size > 0, size, dense.std(axis=0))
    unit = np.clip((dense - np.median(dense, axis=0)) / np.where(size > 0, size, 1.0), -8, 8)
    classes = int(rng.integers(3, 21)) if model == "lr-many" else 1
    score = unit @ rng.standard_normal((dense.shape[1], classes)) * (rng.choice([1.0, 3.0]) / dense.shape[1] ** 0.5)
    noise = 0.0 if kind.startswith("separable") else 1.0
    if model == "lr-many":
        labels = (score + noise * rng.gumbel(size=score.shape)).argmax(axis=1)
        if noise:
            known = min(2 * classes, len(labels))
            labels[:known] = np.arange(known) % classes
            labels[-1 - rng.integers(3)] = 0
        return labels.astype(np.float64)
    score = score[:, 0]
    if model in ("lr", "linearsvm"):
        labels = (score + noise * rng.logistic(size=len(score)) > 0).astype(np.float64)
        if noise or len(np.unique(labels)) < 2:
            labels[:2] = 0.0, 1.0
        return labels
    mean = np.exp(np.clip(0.3 * score, -3, 3))
    if model == "poisson":
        return rng.poisson(mean).astype(np.float64)
    if model == "gamma":
        return mean * rng.gamma(2.0, 0.5, len(mean)) + 1e-6
    return score + noise * rng.standard_t(2.0, len(score))


# -- one objective for everybody --------------------------------------------------------------------------------


class Objective:
    """Mean loss + penalty of a table, and its gradient, in float64; θ is weights, biases and, of Huber's, the scale."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.rows = table.rows.astype(np.float64) if sparse.issparse(table.rows) else np.asarray(table.rows, float)
        given = np.ones(len(table.labels)) if table.weights is None else table.weights
        self.mass = given / (given.sum() if table.model not in ("lr", "lr-many") else len(given))
        self.classes = np.unique(table.labels)
        self.outputs = len(self.classes) if table.model == "lr-many" else 1
        self.columns = self.rows.shape[1]

    def size(self) -> int:
        return self.outputs * (self.columns + 1) + (self.table.model == "huber")

    def start(self) -> Any:
        theta = np.zeros(self.size())
        if self.table.model == "huber":
            theta[-1] = max(float(np.std(self.table.labels)), 1e-3)
        return theta

    def packed(self, weights: Any, bias: Any, scale: float = 1.0) -> Any:
        theta = np.hstack([np.reshape(weights, (self.outputs, -1)), np.reshape(bias, (self.outputs, 1))]).ravel()
        return np.append(theta, scale) if self.table.model == "huber" else theta

    def __call__(self, theta: Any) -> tuple[float, Any]:
        y, model = self.table.labels, self.table.model
        whole = theta[: self.outputs * (self.columns + 1)].reshape(self.outputs, -1)
        scores = self.rows @ whole[:, :-1].T + whole[:, -1]
        extra: list[float] = []
        with np.errstate(all="ignore"):
            if model == "lr-many":
                place = np.searchsorted(self.classes, y)
                top = logsumexp(scores, axis=1)
                loss = top - scores[np.arange(len(y)), place]
                slope = np.exp(scores - top[:, None])
                slope[np.arange(len(y)), place] -= 1.0
            else:
                loss, slope, extra = self.single(scores[:, 0], y, theta)
                slope = slope[:, None]
            slope = slope * self.mass[:, None]
            gradient = np.hstack([(self.rows.T @ slope).T + self.table.l2 * whole[:, :-1], slope.sum(0)[:, None]])
            value = float(self.mass @ loss + 0.5 * self.table.l2 * (whole[:, :-1] ** 2).sum())
            if share := L1_RATIO.get(model):
                squares, absolute = (whole[:, :-1] ** 2).sum(), np.abs(whole[:, :-1]).sum()
                value += self.table.l2 * share * float(absolute - 0.5 * squares)
        return (value if np.isfinite(value) else np.inf), np.append(gradient.ravel(), extra)

    def single(self, score: Any, y: Any, theta: Any) -> tuple[Any, Any, list[float]]:
        match self.table.model:
            case "lr":
                side = np.where(y == self.classes[-1], 1.0, -1.0)
                return np.logaddexp(0.0, -side * score), -side * np.exp(-np.logaddexp(0.0, side * score)), []
            case "linearsvm":
                side = np.where(y > 0.5, 1.0, -1.0)
                short = np.maximum(1.0 - side * score, 0.0)
                return short**2, -2.0 * side * short, []
            case "poisson":
                mean = np.exp(score)
                return mean - y + y * (np.log(np.where(y > 0, y, 1.0)) - score), mean - y, []
            case "gamma":
                ratio = y * np.exp(-score)
                return ratio - 1.0 - np.log(y) + score, 1.0 - ratio, []
            case "ridge" | "lasso" | "elasticnet":
                return 0.5 * (score - y) ** 2, score - y, []
        scale, away = max(float(theta[-1]), 1e-300), y - score
        inside = np.abs(away) <= EPSILON * scale
        loss = scale + np.where(inside, away**2 / scale, 2 * EPSILON * np.abs(away) - EPSILON**2 * scale)
        slope = np.where(inside, -2.0 * away / scale, -2.0 * EPSILON * np.sign(away))
        by_scale = float(self.mass @ (1.0 - np.where(inside, (away / scale) ** 2, EPSILON**2)))
        return loss, slope, [by_scale]


def peers(table: Table, objective: Objective) -> tuple[float, float]:
    """The least objective that a library finds, and processor seconds of the first of them."""
    from sklearn import linear_model

    common = {"tol": 1e-10, "max_iter": PEER_ITERATIONS}
    made: list[Any] = []
    match table.model:
        case "lr" | "lr-many":
            mass = float(len(table.labels))
            c = 1.0 / (mass * table.l2) if table.l2 else np.inf
            newton = "newton-cholesky" if objective.size() <= NEWTON_WEIGHTS else "newton-cg"
            made = [
                linear_model.LogisticRegression(C=c, solver="lbfgs", tol=1e-10, max_iter=20_000),
                linear_model.LogisticRegression(C=c, solver=newton, tol=1e-10, max_iter=100),
            ]
        case "poisson":
            solvers = ("lbfgs", "newton-cholesky")
            made = [linear_model.PoissonRegressor(alpha=table.l2, solver=s, **common) for s in solvers]
        case "gamma":
            solvers = ("lbfgs", "newton-cholesky")
            made = [linear_model.GammaRegressor(alpha=table.l2, solver=s, **common) for s in solvers]
        case "huber":
            mass = objective.table.weights.sum() if table.weights is not None else len(table.labels)
            alpha = 0.5 * table.l2 * float(mass)
            made = [linear_model.HuberRegressor(alpha=alpha, **common)]
        case "ridge":
            mass = objective.table.weights.sum() if table.weights is not None else len(table.labels)
            solvers = ("cholesky", "lsqr", "sparse_cg")
            made = [linear_model.Ridge(alpha=table.l2 * float(mass), solver=s, **common) for s in solvers]
        case "lasso" | "elasticnet":
            share = L1_RATIO[table.model]
            made = [linear_model.ElasticNet(alpha=table.l2, l1_ratio=share, **common)]
    best, seconds = np.inf, 0.0
    for model in made:
        began = time.process_time()
        try:
            found = model.fit(table.rows, table.labels, sample_weight=table.weights)
        except (ValueError, ArithmeticError, np.linalg.LinAlgError):  # a peer that cannot train finds nothing
            continue
        seconds = seconds or time.process_time() - began
        scale = getattr(found, "scale_", 1.0)
        best = min(best, objective(objective.packed(found.coef_, found.intercept_, scale))[0])
    if table.model in L1_RATIO:  # SciPy's methods are for smooth objectives
        return best, seconds
    began = time.process_time()
    bounds = [(None, None)] * (objective.size() - 1) + [(1e-12, None)] if table.model == "huber" else None
    options = {"maxiter": PEER_ITERATIONS, "maxfun": 2 * PEER_ITERATIONS, "ftol": 1e-15, "gtol": 1e-12}
    scipys = minimize(objective, objective.start(), jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    seconds = seconds or time.process_time() - began
    return min(best, float(scipys.fun)), seconds


def algorithm_of(table: Table) -> Any:
    made: dict[str, Callable[..., Any]] = {
        "lr": LR, "lr-many": LR, "poisson": Poisson, "gamma": Gamma, "huber": Huber, "linearsvm": LinearSVM
    }  # fmt: skip
    if table.model == "ridge":
        return Ridge(alpha=table.l2 * float(len(table.labels) if table.weights is None else table.weights.sum()))
    if table.model in L1_RATIO:
        return ElasticNet(alpha=table.l2, l1_ratio=L1_RATIO[table.model])
    return made[table.model](l2=table.l2)


def trained(table: Table, sync: str, workers: str, settings: dict[str, float]) -> Any:
    data = (table.rows, table.labels) if table.weights is None else (table.rows, table.labels, table.weights)
    staff: dict[str, Any] = {
        "inline": {"workers": 1, "processes": "no"}, "team": {"processes": "no", "threads": 2},
        "processes": {"workers": 2, "processes": "yes"},
    }[workers]  # fmt: skip
    return flegel.run(
        algorithm_of(table), data, sync=sync, max_seconds=SECONDS, progress=False, settings=settings, **staff
    )


def passes_of(result: Any) -> float:
    """Of the worker that made the fewest."""
    return float(min(np.atleast_1d(result.rows[-1].get("passes", 0.0))))


def compared(
    table: Table, sync: str, workers: str, converged_only: bool = False, against: dict[str, float] | None = None
) -> dict[str, Any]:
    objective = Objective(table)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = time.process_time()
        result = trained(table, sync, workers, {})
        used = time.process_time() - began
        other = trained(table, sync, workers, against) if against else None
        asked = result.converged or not converged_only
        best, peer_used = peers(table, objective) if asked else (np.nan, 0.0)
    parameter = result.parameter
    scale = float(parameter.shape[0]) if table.model == "huber" else 1.0
    mine = objective(objective.packed(parameter.weights, parameter.bias, scale))[0]
    trivial = abs(objective(objective.start())[0])
    above = (mine - best) / max(abs(best), 1e-300)
    tolerance = 1e-4 if table.model.startswith("lr") else 1e-8
    floor = LEAST_OBJECTIVE[table.model.startswith("lr")] * trivial
    worse = not asked or mine - best > 2.0 * tolerance * max(abs(best), floor)
    unsaid = result.converged and not result.warnings and mine - best > tolerance * max(abs(best), floor)
    reported = abs(float(result.objective) - mine) > 1e-3 * max(abs(mine), 1e-6 * trivial)
    verdict = ("silent" if result.converged and not result.warnings else "told") if worse else "ok"
    return {
        "table": table.words, "sync": sync, "workers": workers, "objective": mine, "peer": best, "above": above,
        "converged": bool(result.converged), "verdict": "misreported" if reported and result.converged else verdict,
        "unsaid": bool(unsaid), "passes": passes_of(result), "seconds": used, "peer_seconds": peer_used,
        "said": [result.reason, *result.warnings], "passes_against": None if other is None else passes_of(other),
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=90)
    parser.add_argument("--first", type=int, default=0, help="number of the first table")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--rows", type=int, default=4000, help="of a table, at most")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--sync", nargs="+", default=["bsp", "fsp", "asp"])
    parser.add_argument("--workers", nargs="+", default=["inline", "team"], choices=WORKERS)
    parser.add_argument("--converged-only", action="store_true")
    parser.add_argument("--against", nargs="*", default=[], help="settings, as NAME=VALUE")
    parser.add_argument("--json", default="")
    parser.add_argument("--at-once", type=int, default=1, help="tables at a time")
    parser.add_argument("--minutes", type=float, default=1e9, help="after which no further table is begun")
    given = parser.parse_args(arguments)
    given.seed = secrets.randbelow(2**31) if given.seed is None else given.seed
    print(f"seed {given.seed}")
    found, end = [], time.monotonic() + 60.0 * given.minutes
    with ProcessPoolExecutor(given.at_once, mp_context=multiprocessing.get_context("spawn")) as pool:
        numbers = range(given.first, given.first + given.tables)
        for number, one in zip(numbers, pool.map(partial(judged, given, end), numbers), strict=True):
            if one is None:
                continue
            found.append(one)
            told = "converged" if one["converged"] else one["said"][0][:40]
            print(
                f"{number:3d} {one['verdict']:6} {one['above']:+9.1e} {one['passes']:5.0f} passes {one['seconds']:6.2f}"
                f" s beside {one['peer_seconds']:6.2f} {told} {one['table']} {one['sync']} {one['workers']}",
                flush=True,
            )
    summary = summarized(found)
    print(json.dumps(summary, indent=1))
    if given.json:
        record = {
            "command": "python -m bench.micro.linear_minimum",
            "seed": given.seed,
            "arguments": {"tables": len(found), "rows": given.rows, "against": given.against},
            "commit": commit(),
            **machine(),
            **summary,
        }
        Path(given.json).write_text(json.dumps(record, indent=1) + "\n")
    return 0


def judged(given: argparse.Namespace, end: float, number: int) -> dict[str, Any] | None:
    """What became of this table; None where it would be begun too late."""
    if time.monotonic() > end:
        return None
    rng = np.random.default_rng([given.seed, number])
    table = draw(number, given.models, rng, given.rows)
    sync, workers = str(rng.choice(given.sync)), str(rng.choice(given.workers))
    if workers == "team" and sync == "asp":
        workers = "inline"  # models without rounds that can be repeated have no teams
    against = {name: float(value) for name, _, value in (each.partition("=") for each in given.against)}
    return compared(table, sync, workers, given.converged_only, against)


def passes_of_both(found: list[dict[str, Any]]) -> dict[str, float]:
    """Passes relative to those with the other settings: of all tables, and of the half that took the fewest then."""
    both = sorted((one["passes_against"], one["passes"]) for one in found if one["passes_against"])
    if not both:
        return {}
    shares = {"all": both, "easy": both[: max(len(both) // 2, 1)]}
    return {f"passes_{name}": sum(new for _, new in few) / sum(old for old, _ in few) for name, few in shares.items()}


def summarized(found: list[dict[str, Any]]) -> dict[str, Any]:
    """By model: how many of each verdict, and of those that converged the worst and the usual distance."""
    made: dict[str, Any] = {}
    for model in sorted({one["table"].split(":")[0] for one in found}):
        mine = [one for one in found if one["table"].startswith(f"{model}:")]
        done = [one["above"] for one in mine if one["converged"]]
        made[model] = {
            "tables": len(mine), "converged": len(done),
            "silent": sum(one["verdict"] in ("silent", "misreported") for one in mine),
            "unsaid": sum(one["unsaid"] for one in mine),
            "told": sum(one["verdict"] == "told" for one in mine),
            "strange": [
                {"table": one["table"], "above": one["above"]} for one in mine if one["unsaid"] or "s" in one["verdict"]
            ],
            "median_above": statistics.median(done) if done else None, "worst_above": max(done, default=None),
            "median_passes": statistics.median(one["passes"] for one in mine),
            "worst_passes": max(one["passes"] for one in mine), **passes_of_both(mine),
        }  # fmt: skip
    return made


if __name__ == "__main__":
    sys.exit(main())
