"""Every class of the library under every synchronization model: does each job end, and is what it reports true?

    python -m bench.micro.library_models --out library_models.json

Small tables, three workers in threads, of which one is three times slower, so that points move under `fsp`. A cell is
the objective above that of `bsp`, relatively; the reported objective is compared with the same computed anew from all
rows. Verdicts: `ok`, `other` (another minimum, more than 0.1 % worse, of a class that has several), `warned` (worse,
and a warning or the reason says so), `silent` (a class with one minimum ends worse and says nothing), `misreported`,
`error`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import flegel
from bench.common.program import commit
from flegel import algorithms
from flegel.sync import models

ROWS, COLUMNS = 1500, 6
rng = np.random.default_rng(4)
KIND = rng.integers(0, 4, ROWS)
X = rng.normal(size=(4, COLUMNS))[KIND] * 4 + rng.normal(size=(ROWS, COLUMNS))
SCORE = 0.2 * X @ rng.normal(size=COLUMNS)
REAL, BINARY = SCORE + rng.normal(size=ROWS), (SCORE + rng.normal(size=ROWS) > 0).astype(float)
COUNTS, SIZES = rng.poisson(np.exp(0.3 * SCORE)).astype(float), rng.gamma(2.0, np.exp(0.3 * SCORE)) + 1e-6
GAPS = np.where(rng.random(X.shape) < 0.2, np.nan, X)
WORDS = rng.poisson(3 * rng.dirichlet(np.full(5, 0.3), ROWS) @ rng.gamma(0.3, size=(5, 30))).astype(float)
ONES = (rng.random((ROWS, 12)) < rng.random((4, 12))[KIND]).astype(float)
MIXED = np.column_stack([X, rng.integers(0, 4, ROWS)])

CONVEX: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "PCA": ({"k": 2}, X, None),
    "SVD": ({"k": 2}, X, None),
    "Covariance": ({}, X, None),
    "GaussianNB": ({}, X, BINARY),
    "MultinomialNB": ({}, WORDS, BINARY),
    "BernoulliNB": ({}, ONES, BINARY),
    "LinearRegression": ({}, X, REAL),
    "Ridge": ({"alpha": 1.0}, X, REAL),
    "Lasso": ({"alpha": 0.01}, X, REAL),
    "ElasticNet": ({"alpha": 0.01}, X, REAL),
    "LR": ({"l2": 0.01}, X, BINARY),
    "Poisson": ({"l2": 0.001}, X, COUNTS),
    "Gamma": ({"l2": 0.001}, X, SIZES),
    "Huber": ({"l2": 0.001}, X, REAL),
    "LinearSVM": ({"l2": 0.001}, X, BINARY),
}
OTHERS: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "GapPCA": ({"k": 2}, GAPS, None),
    "GapKMeans": ({"k": 4}, GAPS, None),
    "GapGMM": ({"k": 4}, GAPS, None),
    "SizedKMeans": ({"k": 4, "size_min": 300, "size_max": 450}, X, None),
    "KPrototypes": ({"k": 4, "categorical": [COLUMNS]}, MIXED, None),
    "KModes": ({"k": 4}, MIXED[:, -1:].repeat(2, axis=1) + np.arange(2), None),
    "AutoKMeans": ({"k_max": 12}, X, None),
    "BisectingKMeans": ({"k": 4}, X, None),
    "BernoulliMixture": ({"k": 4}, ONES, None),
    "LDA": ({"k": 4}, WORDS, None),
    "ImplicitALS": ({"rank": 4}, WORDS, None),
    "KLNMF": ({"rank": 4}, WORDS + 0.01, None),
}
REST: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "KMeans": ({"k": 4}, X, None),
    "GMM": ({"k": 4}, X, None),
    "FCM": ({"k": 4}, X, None),
    "NMF": ({"rank": 4}, WORDS + 0.01, None),
    "LocalLR": ({}, X, BINARY),
    "LocalNMF": ({"rank": 4}, WORDS + 0.01, None),
    "PlainLR": ({}, X, BINARY),
    "PlainNMF": ({"rank": 4}, WORDS + 0.01, None),
}
"""Classes with pages and tests of their own; here so that every built-in class has rows."""
TABLES = {**CONVEX, **OTHERS, **REST}
WORSE, APART = 1e-3, 1e-3


def job(name: str, sync: str) -> dict[str, Any]:
    hyper, rows, labels = TABLES[name]
    algorithm = getattr(algorithms, name)(**hyper)
    began = time.perf_counter()
    result = flegel.run(
        algorithm,
        rows,
        labels,
        sync=sync,
        workers=3,
        processes=False,
        straggler="0:3x",
        seed=0,
        max_seconds=60,
        progress=False,
        **({"missing": "keep"} if np.isnan(rows).any() else {}),
    )
    again = algorithm.evaluate(rows, labels, result.parameter).objective
    return {
        "objective": result.objective,
        "evaluated": again,
        "outcome": result.outcome,
        "reason": result.reason,
        "warnings": list(result.warnings),
        "maximized": algorithm.learning.maximize,
        "seconds": round(time.perf_counter() - began, 2),
    }


def judged(name: str, found: dict[str, Any], first: dict[str, Any]) -> dict[str, Any]:
    """The verdict on a job beside that of `bsp`."""
    scale = max(abs(first["evaluated"]), 1e-300)
    worse = (found["evaluated"] - first["evaluated"]) / scale * (-1 if found["maximized"] else 1)
    apart = abs(found["objective"] - found["evaluated"]) / max(abs(found["evaluated"]), 1e-300)
    told = bool(found["warnings"]) or found["outcome"] != "converged"
    verdict = "ok"
    if worse > WORSE:
        verdict = "warned" if told else "silent" if name in CONVEX else "other"
    elif apart > APART:
        verdict = "warned" if told else "misreported"
    return {**found, "worse": float(f"{worse:.1e}"), "apart": float(f"{apart:.1e}"), "verdict": verdict}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of classes, separated by commas")
    parser.add_argument("--out", type=Path, default=None, help="a file for the figures")
    given = parser.parse_args()
    about = {
        "command": "python -m bench.micro.library_models",
        "commit": commit(),
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores for this process",
    }
    cells: dict[str, dict[str, Any]] = {}
    for name in [name for name in TABLES if (name in given.only.split(",") if given.only else name not in REST)]:
        cells[name] = {}
        for sync in ["bsp", *(model for model in models() if model != "bsp")]:
            try:
                cells[name][sync] = judged(name, found := job(name, sync), cells[name].get("bsp", found))
            except (flegel.FlegelError, ArithmeticError, LookupError, TypeError, ValueError) as error:
                cells[name][sync] = {"verdict": "error", "words": f"{type(error).__name__}: {error}"}
        print(
            name, {sync: (c["verdict"], c.get("worse"), c.get("words")) for sync, c in cells[name].items()}, flush=True
        )
        total = Counter(cell["verdict"] for row in cells.values() for cell in row.values())
        if given.out is not None:
            given.out.write_text(json.dumps({**about, "verdicts": dict(total), "cells": cells}, indent=1) + "\n")
    print(dict(total))


if __name__ == "__main__":
    main()
