"""GMM, FCM, LR and NMF at wide shapes: a pass on one core, the start, and whole jobs, beside scikit-learn.

    python -m bench.micro.wide_models pass [--only gmm-diagonal lr-1000 ...] [--scale 1.0] [--repeat 3] [--json FILE]
    python -m bench.micro.wide_models job  [the same]
    python -m bench.micro.wide_models job --quick       # a fifth of the rows, one timed run

`pass`: one core. Processor seconds of a pass of our kernel over all rows (the median of `--repeat` after the first),
and of scikit-learn's for the same step from the same θ: an iteration of EM, an evaluation of lbfgs with its step, an
update of both factors; FCM has no peer there and is compared with Bezdek's alternation on whole matrices in NumPy.
Beside it the seconds of our start (`initParameter` on a sample as a job draws it) in passes. `job`: array to model
with the defaults of both on all cores, wall seconds, and what each reached by our `evaluate` where both models are of
one kind. `--scale` multiplies the rows of every case. Rows are drawn anew from a seed that is printed. Asserts
nothing.
"""

from __future__ import annotations

import os
import sys

from flegel.configuration.active import DEFAULTS

if "pass" in sys.argv:
    for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[_name] = "1"  # before any of these libraries starts its threads

import argparse
import contextlib
import json
import secrets
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import flegel
from bench.common.program import commit, machine
from flegel.algorithm import Algorithm, Sample
from flegel.algorithms.fcm import FCM
from flegel.algorithms.gmm import GMM
from flegel.algorithms.lr import LR
from flegel.algorithms.nmf import NMF
from flegel.core import pytree
from flegel.core.shard import Sparse, make_shard
from flegel.core.stop_flag import new_flag
from flegel.declarations.kernels import KernelHooks
from flegel.declarations.optional import hook

WARM_PASSES = 2  # before a pass is timed
PEER_PASSES = 2  # by which a longer fit of a peer exceeds a shorter one: the difference is without their start
PEER_WARM_EVALUATIONS = 4  # of L-BFGS before those that are timed: its memory has some pairs then
L2 = 1e-3
QUICK_SCALE = 0.2  # of the rows, for `--quick`


class Case(NamedTuple):
    """Rows, labels, our algorithm; so many passes of the peer from a given θ, and its whole fit."""

    rows: Any
    labels: Any
    algorithm: Algorithm
    peer_passes: Callable[[int], Any]
    peer_fit: Callable[[], Any]


def clusters(points: int, columns: int, k: int, rng: np.random.Generator) -> Any:
    centres = rng.normal(size=(k, columns)) * 2.0
    return (centres[rng.integers(k, size=points)] + rng.normal(size=(points, columns))).astype(np.float32)


def mixture(points: int, columns: int, k: int, shape: str, rng: np.random.Generator) -> Case:
    from sklearn.mixture import GaussianMixture

    rows = clusters(points, columns, k, rng)
    kind = "diag" if shape == "diagonal" else shape
    start = rows[rng.choice(points, k, replace=False)].astype(np.float64)
    ones = np.ones((k, columns)) if kind == "diag" else np.repeat(np.eye(columns)[None], k, axis=0)

    def fit() -> Any:
        return GaussianMixture(k, covariance_type=kind, random_state=0).fit(rows)

    def some_passes(count: int) -> Any:
        return GaussianMixture(
            k, covariance_type=kind, max_iter=count, tol=0.0, init_params="random_from_data", means_init=start,
            precisions_init=ones, weights_init=np.full(k, 1.0 / k), reg_covar=1e-3,
        ).fit(rows)  # fmt: skip

    return Case(rows, None, GMM(k=k, covariance=shape), some_passes, fit)


def fuzzy(points: int, columns: int, k: int, rng: np.random.Generator) -> Case:
    from bench.gauntlet.peers import memberships

    rows = clusters(points, columns, k, rng)
    centres = rows[rng.choice(points, k, replace=False)].astype(np.float64)
    exact = rows.astype(np.float64)

    def one_pass(centres: Any) -> Any:
        weights = memberships(exact, centres, 2.0)[0] ** 2
        return weights.T @ exact / weights.sum(axis=0)[:, None]

    def some_passes(count: int) -> Any:
        found = centres
        for _ in range(count):
            found = one_pass(found)
        return found

    def fit() -> Any:
        found = centres
        for _ in range(100):
            before, found = found, one_pass(found)
            if np.abs(found - before).max() < 1e-4:
                break
        return found

    return Case(rows, None, FCM(k=k), some_passes, fit)


def classes(points: int, columns: int, count: int, rng: np.random.Generator) -> Case:
    from sklearn.linear_model import LogisticRegression

    points = max(points, 2 * count)
    rows = rng.normal(size=(points, columns)).astype(np.float32)
    truth = rng.normal(size=(columns, count)).astype(np.float32) * np.float32(2.0 / np.sqrt(columns))
    labels = (rows @ truth + rng.gumbel(size=(points, count))).argmax(axis=1)
    labels[:count] = np.arange(count)

    def evaluations(number: int) -> Any:
        from scipy.optimize import minimize
        from sklearn._loss import HalfMultinomialLoss
        from sklearn.linear_model._linear_loss import LinearModelLoss

        model = LinearModelLoss(base_loss=HalfMultinomialLoss(n_classes=count), fit_intercept=True)
        start = np.zeros((count, columns + 1), np.float32, order="F").ravel(order="F")
        made, wanted = 0, number + PEER_WARM_EVALUATIONS

        def value(weights: Any) -> Any:
            nonlocal made
            if made == wanted:
                raise StopIteration
            made += 1
            return model.loss_gradient(weights, rows, labels.astype(np.float32), None, L2)

        with contextlib.suppress(StopIteration):
            minimize(value, start, jac=True, method="L-BFGS-B", options={"maxls": 50, "maxiter": 1000})

    def fit() -> Any:
        return LogisticRegression(C=1.0 / (L2 * points)).fit(rows, labels)

    return Case(rows, labels.astype(np.float64), LR(l2=L2), evaluations, fit)


def ratings(points: int, columns: int, rank: int, rng: np.random.Generator, each: int = 50) -> Case:
    import scipy.sparse
    from sklearn.decomposition import NMF as Peer
    from sklearn.decomposition import non_negative_factorization

    popular = np.cumsum(1.0 / np.arange(1, columns + 1) ** 0.6)
    chosen = np.searchsorted(popular, rng.random((points, each)) * popular[-1]).clip(max=columns - 1)
    row = np.repeat(np.arange(points), each)
    matrix = scipy.sparse.csr_matrix(
        (rng.integers(1, 6, row.size).astype(float), (row, chosen.ravel())), (points, columns)
    )
    matrix.sum_duplicates()
    found = Sparse(matrix.indptr, matrix.indices, matrix.data, columns)
    scale = np.sqrt(matrix.mean() / rank)
    w, h = np.abs(scale * rng.normal(size=(points, rank))), np.abs(scale * rng.normal(size=(rank, columns)))

    def some_passes(count: int) -> Any:
        return non_negative_factorization(
            matrix, W=w.copy(), H=h.copy(), n_components=rank, init="custom", tol=0.0, max_iter=count
        )

    def fit() -> Any:
        return Peer(rank, init="random", random_state=0).fit(matrix)

    return Case(found, None, NMF(rank=rank, solver="coordinate"), some_passes, fit)


CASES: dict[str, Callable[[float, np.random.Generator], Case]] = {
    "gmm-diagonal 128 × 256": lambda scale, rng: mixture(int(20_000 * scale), 128, 256, "diagonal", rng),
    "gmm-full 32 × 64": lambda scale, rng: mixture(int(20_000 * scale), 32, 64, "full", rng),
    "fcm 128 × 256": lambda scale, rng: fuzzy(int(10_000 * scale), 128, 256, rng),
    "lr 784 × 10": lambda scale, rng: classes(int(20_000 * scale), 784, 10, rng),
    "lr 2048 × 1000": lambda scale, rng: classes(int(4_000 * scale), 2048, 1000, rng),
    "nmf rank 100": lambda scale, rng: ratings(int(10_000 * scale), 2_000, 100, rng),
}


def count_of(rows: Any) -> int:
    return len(rows.indptr) - 1 if isinstance(rows, Sparse) else len(rows)


def columns_of(rows: Any) -> int:
    return rows.columns if isinstance(rows, Sparse) else int(rows.shape[1])


def first_rows(rows: Any, count: int) -> Any:
    if not isinstance(rows, Sparse):
        return rows[:count]
    end = rows.indptr[count]
    return Sparse(rows.indptr[: count + 1], rows.indices[:end], rows.values[:end], rows.columns)


def passes(case: Case, repeat: int) -> dict[str, float]:
    """Processor seconds of our start and of a pass of each side."""
    algorithm, points, columns = case.algorithm, count_of(case.rows), columns_of(case.rows)
    some = min(points, DEFAULTS.starts.sample_rows, max(DEFAULTS.starts.sample_numbers // columns, 1))
    labels = None if case.labels is None else case.labels[:some]
    sample = Sample(first_rows(case.rows, some), labels, points, columns)
    sample = sample if case.labels is None else sample._replace(classes=np.unique(case.labels))
    algorithm.validate(sample)
    algorithm.initParameter(sample, np.random.default_rng(0))  # compiled, caches filled
    began = time.process_time()
    parameter: Any = pytree.as_doubles(algorithm.initParameter(sample, np.random.default_rng(0)))
    start = time.process_time() - began
    state = algorithm.initState(points, columns, np.random.default_rng(0))
    layout = hook(algorithm, KernelHooks.layout_for)(columns)
    shard = make_shard(case.rows, algorithm.accepts.kept_labels(case.labels), state, layout)
    sums = pytree.as_doubles(algorithm.initAggregator(sample, pytree.present(parameter)))
    kernel = hook(algorithm, KernelHooks.kernel)(shard)
    assert kernel is not None
    ours, theirs, updates = [], [], []
    for number in range(WARM_PASSES + repeat):
        pytree.clear(sums, algorithm.statistics.spent)
        began = time.process_time()
        kernel(shard, pytree.read_only(parameter), sums, 0, points, number, new_flag())
        ended = time.process_time()
        parameter = algorithm.updateParameter(pytree.present(sums), pytree.present(parameter))
        ours.append(ended - began)
        updates.append(time.process_time() - ended)
    for number in range(1 + repeat):
        took = []
        for count in (1, 1 + PEER_PASSES):
            began = time.process_time()
            case.peer_passes(count)
            took.append(time.process_time() - began)
        theirs += [(took[1] - took[0]) / PEER_PASSES] if number else []
    middle = [statistics.median(each) for each in (ours[WARM_PASSES:], theirs, updates[WARM_PASSES:])]
    return {
        "ours_s": middle[0], "theirs_s": middle[1], "ratio": middle[1] / (middle[0] + middle[2]),
        "update_s": middle[2], "start_s": start, "start_in_passes": start / (middle[0] + middle[2]),
    }  # fmt: skip


def jobs(case: Case, repeat: int) -> dict[str, float]:
    """Wall seconds of whole jobs."""
    data = case.rows if case.labels is None else (case.rows, case.labels)
    ours, theirs, started = [], [], []
    for number in range(1 + repeat):
        began = time.perf_counter()
        result = flegel.run(case.algorithm, data, seed=number)
        ours.append(time.perf_counter() - began)
        started.append(ours[-1] - result.seconds)
        began = time.perf_counter()
        case.peer_fit()
        theirs.append(time.perf_counter() - began)
    middle = [statistics.median(each[1:]) for each in (ours, theirs, started)]
    return {
        "ours_s": middle[0], "theirs_s": middle[1], "ratio": middle[1] / middle[0], "before_training_s": middle[2]
    }  # fmt: skip


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["pass", "job"])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--quick", action="store_true", help="a fifth of the rows, one timed run of each side")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(argv)
    if given.quick:
        given.scale, given.repeat = QUICK_SCALE, 1
    seed = secrets.randbits(32) if given.seed is None else given.seed
    print(f"rows are drawn from the seed {seed}")
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    for name, make in CASES.items():
        if given.only and not any(name.startswith(word) for word in given.only):
            continue
        case = make(given.scale, np.random.default_rng(seed))
        found[name] = (passes if given.what == "pass" else jobs)(case, given.repeat)
        print(f"{name:24}", "  ".join(f"{key} {value:.3g}" for key, value in found[name].items()), flush=True)
    if given.json:
        about = {
            "title": "GMM, FCM, LR and NMF at wide shapes beside scikit-learn",
            "command": f"python -m bench.micro.wide_models {given.what}",
            "commit": commit(),
            "machine": machine(),
        }
        given.json.write_text(
            json.dumps({**about, "seed": seed, "scale": given.scale, "figures": found}, indent=1) + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
