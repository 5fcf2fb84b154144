"""One-pass and linear models beside scikit-learn's own classes: seconds of `fit`, in turn, and how alike the fits are.

    taskset -c 0 python -m bench.micro.linear_models            # one core
    python -m bench.micro.linear_models --rows 1000000          # all cores

Both libraries have their default settings. Prints a line for each class and, at the end, the figures as JSON. Times are
medians; on a machine that others use, compare processor times (`cpu`).
"""

from __future__ import annotations

import argparse
import json
import secrets
import time
import warnings
from statistics import median
from typing import Any

import numpy as np
from sklearn import covariance, decomposition, linear_model, naive_bayes, svm

from flegel import sklearn as ours

CLASSES: list[tuple[Any, str, dict[str, Any], str]] = [
    (decomposition, "PCA", {"n_components": 5}, ""),
    (covariance, "LedoitWolf", {}, ""),
    (naive_bayes, "GaussianNB", {}, "kind"),
    (linear_model, "LinearRegression", {}, "real"),
    (linear_model, "Ridge", {}, "real"),
    (linear_model, "Lasso", {"alpha": 0.01}, "real"),
    (linear_model, "ElasticNet", {"alpha": 0.01}, "real"),
    (linear_model, "PoissonRegressor", {"alpha": 0.001}, "count"),
    (linear_model, "GammaRegressor", {"alpha": 0.001}, "size"),
    (linear_model, "HuberRegressor", {}, "real"),
    (svm, "LinearSVC", {}, "kind"),
]
ATTRIBUTES = ("components_", "covariance_", "theta_", "coef_")


def made(rows: int, columns: int, seed: int) -> tuple[Any, dict[str, Any]]:
    """Rows and labels of every kind, from one linear score."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, columns))
    score = 0.3 * X @ rng.normal(size=columns)
    mean = np.exp(0.5 * score)
    labels = {
        "": None,
        "real": score + rng.standard_t(3, size=rows),
        "kind": (score + rng.normal(size=rows) > 0).astype(int),
        "count": rng.poisson(mean).astype(float),
        "size": rng.gamma(2.0, mean / 2.0) + 1e-9,
    }
    return X, labels


def timed(model: Any, X: Any, y: Any) -> tuple[float, float]:
    began, used = time.perf_counter(), time.process_time()
    model.fit(X) if y is None else model.fit(X, y)
    return time.perf_counter() - began, time.process_time() - used


def compare(home: Any, name: str, hyper: dict[str, Any], X: Any, y: Any, repeat: int) -> dict[str, float]:
    """Medians of both, in turn after one fit of ours that is not counted, and the largest difference of the models."""
    getattr(ours, name)(**hyper).fit(X[:5000], None if y is None else y[:5000])
    found: dict[str, list[tuple[float, float]]] = {"ours": [], "theirs": []}
    models: dict[str, Any] = {}
    for _ in range(repeat):
        for who, library in (("ours", ours), ("theirs", home)):
            models[who] = getattr(library, name)(**hyper)
            found[who].append(timed(models[who], X, y))
    key = next(attribute for attribute in ATTRIBUTES if hasattr(models["ours"], attribute))
    one, other = (np.asarray(getattr(models[who], key)) for who in ("ours", "theirs"))
    seconds = {who: median(s for s, _ in times) for who, times in found.items()}
    cpu = {who: median(c for _, c in times) for who, times in found.items()}
    return {
        "flegel s": round(seconds["ours"], 3),
        "scikit-learn s": round(seconds["theirs"], 3),
        "ratio": round(seconds["ours"] / seconds["theirs"], 2),
        "ratio of cpu": round(cpu["ours"] / cpu["theirs"], 2),
        "difference": float(f"{np.abs(one - other).max() / np.abs(other).max():.1e}"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seed", type=int, default=None, help="drawn anew unless given")
    parser.add_argument("--only", default="", help="names of classes, separated by commas")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    seed = secrets.randbits(32) if given.seed is None else given.seed
    print(f"rows are drawn from the seed {seed}")
    X, labels = made(given.rows, given.columns, seed)
    figures = {}
    for home, name, hyper, kind in CLASSES:
        if given.only and name not in given.only.split(","):
            continue
        figures[name] = compare(home, name, hyper, X, labels[kind], given.repeat)
        print(name, figures[name], flush=True)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
