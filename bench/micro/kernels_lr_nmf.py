"""Logistic regression and factorization against their peers: one process, one thread, interleaved medians.

    python -m bench.micro.kernels_lr_nmf [--quick] [--ratings FILE …] [--json FILE]

Times are CPU seconds of this process, because other work on a machine must not count. Peers that are not
installed are left out with a word. Never part of the tests.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np  # noqa: E402

from bench.common import ratings  # noqa: E402
from flegel.algorithm import Algorithm, Sample  # noqa: E402
from flegel.algorithms.lr.lr import LR  # noqa: E402
from flegel.algorithms.nmf.nmf import NMF  # noqa: E402
from flegel.core import pytree  # noqa: E402
from flegel.core.shard import Shard, make_shard  # noqa: E402
from flegel.core.stop_flag import new_flag  # noqa: E402

Row = dict[str, Any]


def cpu(function: Callable[[], Any]) -> float:
    before = time.process_time()
    function()
    return time.process_time() - before


def compare(title: str, rivals: dict[str, Callable[[], Any]], rounds: int) -> list[Row]:
    """Every rival once a round, in turn; the first is ours."""
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for function in rivals.values():
        function()
    for _ in range(rounds):
        for name, function in rivals.items():
            times[name].append(cpu(function))
    medians = {name: statistics.median(found) for name, found in times.items()}
    ours = next(iter(medians.values()))
    return [{"case": title, "who": name, "seconds": t, "ratio": t / ours} for name, t in medians.items()]


def set_up(algorithm: Algorithm, features: Any, labels: Any, points: int, columns: int) -> tuple[Shard, Any, Any]:
    rows = features if hasattr(features, "indptr") else features[:5000]
    sample = Sample(rows, None if labels is None else labels[:5000], points, columns)
    algorithm.validate(sample)
    rng = np.random.default_rng(0)
    parameter = algorithm.initParameter(sample, rng)
    share = make_shard(features, labels, algorithm.initState(points, columns, rng), algorithm.kernels.layout)
    return share, parameter, pytree.as_doubles(algorithm.initAggregator(sample, parameter))


def chunked_gemm(rows: Any, labels: Any, weights: Any) -> Any:
    """Loss and gradient with matrix products over pieces that stay in cache."""
    gradient, loss = np.zeros(rows.shape[1]), 0.0
    for first in range(0, len(rows), 8192):
        x, y = rows[first : first + 8192], labels[first : first + 8192]
        z = x @ weights
        small = np.exp(-np.abs(z))
        loss += float((np.maximum(z, 0) - y * z + np.log1p(small)).sum(dtype=np.float64))
        gradient += x.T @ (np.where(z >= 0, 1, small) / (1 + small) - y)
    return loss, gradient


def logistic_regression(points: int, rounds: int, dtype: Any) -> list[Row]:
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((points, 28)).astype(dtype)
    labels = (rows[:, 0] + rng.standard_normal(points) > 0).astype(np.float64)
    algorithm = LR()
    share, parameter, aggregator = set_up(algorithm, rows, labels, points, 28)
    parameter = parameter._replace(weights=parameter.weights + 0.1)
    kernel, narrow, weights = algorithm.kernel(share), labels.astype(dtype), np.full(28, 0.1, dtype)
    rivals: dict[str, Callable[[], Any]] = {
        "flegel": lambda: kernel(share, parameter, aggregator, 0, points, 0, new_flag()),
        "chunked GEMM (numpy)": lambda: chunked_gemm(rows, narrow, weights),
    }
    try:
        from sklearn._loss import HalfBinomialLoss
        from sklearn.linear_model._linear_loss import LinearModelLoss

        model = LinearModelLoss(base_loss=HalfBinomialLoss(), fit_intercept=True)
        theta = np.full(29, 0.1, dtype)
        rivals["scikit-learn, one lbfgs gradient"] = lambda: model.loss_gradient(theta, rows, narrow)
    except ImportError as missing:
        print(f"scikit-learn left out: {missing}", file=sys.stderr)
    return compare(f"LR pass, {points:,} × 28, {np.dtype(dtype).name}", rivals, rounds)


PENALTY = 0.05
"""Of ‖w_i‖² + ‖h_j‖² for each rating, as a share of the standard deviation of the ratings: LIBMF's λ."""


def penalty(data: ratings.Ratings) -> float:
    return PENALTY * float(data.train.values.std())


def flegel_to(data: ratings.Ratings, target: float, rank: int, passes: int) -> tuple[float, float, int, float]:
    """CPU seconds and passes until the held-out RMSE is reached (at most `passes`), a barrier ten times a
    pass. The objective is LIBMF's: with entries of scale · w·h its λ is our penalty times the mean rating.
    """
    algorithm = NMF(rank=rank, regularization=penalty(data) / float(data.train.values.mean()))
    points = len(data.train.indptr) - 1
    share, parameter, aggregator = set_up(algorithm, data.train, None, points, data.train.columns)
    kernel = algorithm.kernel(share)
    spent = 0.0
    edges = np.linspace(0, points, 11).astype(int)

    def one_pass() -> None:
        nonlocal parameter
        for first, last in pairwise(edges):
            pytree.clear(aggregator, algorithm.statistics.spent)
            kernel(share, parameter, aggregator, int(first), int(last), 0, new_flag())
            parameter = algorithm.updateParameter(aggregator, parameter)

    done, held = 0, np.inf
    while done < passes and held > target:
        done += 1
        spent += cpu(one_pass)
        weights = share.state_rows()
        held = algorithm.rmse(weights, parameter, data.rows, data.columns, data.values)
    rows = np.repeat(np.arange(points), np.diff(data.train.indptr))
    some = slice(None, None, 10)
    train = algorithm.rmse(weights, parameter, rows[some], data.train.indices[some], data.train.values[some])
    return spent, held, done, train


def libmf_fit(data: ratings.Ratings, rank: int, iterations: int) -> tuple[float, float, float]:
    with contextlib.redirect_stdout(io.StringIO()):
        from libmf import mf
    rows = np.repeat(np.arange(len(data.train.indptr) - 1), np.diff(data.train.indptr))
    table = np.stack([rows, data.train.indices, data.train.values], axis=1).astype(np.float32)
    settings = {"lambda_p1": 0.0, "lambda_q1": 0.0, "eta": 0.1}
    settings["lambda_p2"] = settings["lambda_q2"] = penalty(data)
    engine = mf.MF(k=rank, nr_threads=1, nr_iters=iterations, do_nmf=True, quiet=True, **settings)
    spent = cpu(lambda: engine.fit(table))
    w, h = engine.p_factors(), engine.q_factors()

    def rmse(i: Any, j: Any, r: Any) -> float:
        """Rows and columns without a rating in training have no factors; LIBMF answers with the mean rating there."""
        known = (i < len(w)) & (j < len(h))
        about = np.full(len(r), engine.model.b, np.float64)
        about[known] = np.einsum("tf,tf->t", w[i[known]], h[j[known]])
        about[np.isnan(about)] = engine.model.b
        return float(np.sqrt(np.mean((about - r) ** 2)))

    some = slice(None, None, 10)
    train = rmse(rows[some], data.train.indices[some], data.train.values[some])
    return spent, rmse(data.rows, data.columns, data.values), train


def factorization(data: ratings.Ratings, name: str, rounds: int) -> list[Row]:
    """LIBMF's 20 iterations set the held-out RMSE; ours runs until it has the same or better."""
    title = f"NMF, {name}, {len(data.train.values):,} ratings, rank 20, time to the same held-out RMSE"
    warm = ratings.make(20_000, users=500, films=300)
    flegel_to(warm, 0.0, 20, 1)
    try:
        once = libmf_fit(data, 20, 1)[0]
        spent, target, train = libmf_fit(data, 20, 20)
        iterating = 20 * (spent - once) / 19  # without loading and ordering the data
        peers = [{"who": "LIBMF, 20 iterations", "seconds": iterating, "held": target, "train": train}]
    except ImportError as missing:
        print(f"LIBMF left out: {missing}", file=sys.stderr)
        target, peers = 0.75, []
    runs = [flegel_to(data, target, 20, 20) for _ in range(rounds)]
    seconds = statistics.median(run[0] for run in runs)
    _, held, passes, train = runs[0]
    ours = {"who": f"flegel, {passes} passes", "seconds": seconds, "held": held, "train": train}
    return [{"case": title, "ratio": row["seconds"] / seconds, **row} for row in (ours, *peers)]


def show(found: list[Row]) -> None:
    for title in dict.fromkeys(row["case"] for row in found):
        print(f"\n{title}")
        for row in (row for row in found if row["case"] == title):
            quality = f"   held-out {row['held']:.4f}  train {row['train']:.4f}" if "held" in row else ""
            print(f"  {row['who']:<36}{row['seconds']:>10.4f} s{row['ratio']:>8.2f} ×{quality}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a tenth of the data")
    parser.add_argument(
        "--ratings", type=Path, nargs="*", default=[], help="files with ratings, each a case of its own"
    )
    parser.add_argument("--json", type=Path, help="write the rows there")
    chosen = parser.parse_args()
    size = 10 if chosen.quick else 1
    found = factorization(ratings.make(10_000_000 // size, 69_878 // size), "synthetic", 3)
    for path in chosen.ratings:
        found += factorization(ratings.read(path), path.name, 3)
    for dtype in (np.float32, np.float64):
        found += logistic_regression(1_000_000 // size, 7, dtype)
    show(found)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
