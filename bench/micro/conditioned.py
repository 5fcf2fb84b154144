"""Does logistic regression reach the minimum on ill-conditioned tables, and in what time beside scikit-learn's lbfgs?

    python -m bench.micro.conditioned [--tables 20] [--seed N] [--rows 8000] [--connections 100000] [--sync fsp]
                                      [--json FILE]

Tables are drawn from a fresh seed, which is printed: binary and multinomial, dense and sparse, columns standardized
(but nearly collinear) or as they are (scales apart), of condition 1e6 to 1e12. The first one is in the shape of KDD Cup
99 (`connections.py`). Both get C=1. The peer runs with a tolerance of 1e-9 for at most 2,000 iterations; jobs with
their default one. Printed for every table: objective and time as parts of the peer's, processor time of the peer (on a
busy machine its time says little), and what the job said. Asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

import flegel
from bench.gauntlet.peers import lr_objective
from bench.micro.connections import connections
from flegel.algorithms.lr import LR

CONDITIONS = (1e6, 1e12)
PEER_ITERATIONS = 2_000


class Table(NamedTuple):
    """Rows with labels, and how they were drawn."""

    rows: Any
    labels: Any
    words: str


def draw(number: int, rows: int, rng: np.random.Generator) -> Table:
    """All eight kinds in turn."""
    many, few_entries, scaled = number % 2 == 1, number // 2 % 2 == 1, number // 4 % 2 == 0
    columns = int(rng.integers(20, 120 if not few_entries else 300))
    classes = int(rng.integers(3, 12)) if many else 2
    condition = float(10 ** rng.uniform(*np.log10(CONDITIONS)))
    made = sparse_rows(rows, columns, rng) if few_entries else rng.standard_normal((rows, columns))
    spread = np.geomspace(1.0, 1.0 / condition, columns)
    if scaled:
        made = collinear(made, spread, rng)
    else:
        spread = rng.permutation(spread) * condition**0.5
        made = made @ sparse.diags(spread) if few_entries else made * spread + spread * rng.standard_normal(columns)
    labels = labels_of(made, classes, rng)
    if few_entries:
        made = sparse.csr_matrix(made)
    kind = f"{'sparse' if few_entries else 'dense'}, {'collinear' if scaled else 'scales apart'}"
    return Table(made, labels, f"{kind}, {columns} columns, {classes} classes, condition {condition:.0e}")


def sparse_rows(rows: int, columns: int, rng: np.random.Generator) -> Any:
    """One entry in twenty, of columns of very different frequency."""
    found = sparse.random(rows, columns, 0.05, "csr", rng=rng, data_rvs=lambda n: rng.standard_exponential(n) + 0.1)
    return found @ sparse.diags((rng.random(columns) < 0.9).astype(float) + 0.01)


def collinear(made: Any, spread: Any, rng: np.random.Generator) -> Any:
    """Columns of one size, whose combinations are of very different size."""
    columns = len(spread)
    if sparse.issparse(made):  # each column is almost a copy of the one before: the difference has the size `spread`
        dense = made.toarray()
        for k in range(1, columns, 2):
            dense[:, k] = dense[:, k - 1] * (1.0 + spread[k] * rng.standard_normal(len(dense)))
        return sparse.csr_matrix(dense)
    turned = made * spread @ np.linalg.qr(rng.standard_normal((columns, columns)))[0]
    return (turned - turned.mean(axis=0)) / turned.std(axis=0)


def labels_of(made: Any, classes: int, rng: np.random.Generator) -> Any:
    """Drawn from a linear model over standardized columns; the last class is rare."""
    dense = made.toarray() if sparse.issparse(made) else made
    size = dense.std(axis=0)
    unit = (dense - dense.mean(axis=0)) / np.where(size > 0, size, 1.0)
    scores = unit @ rng.standard_normal((dense.shape[1], classes)) * (3.0 / dense.shape[1] ** 0.5)
    scores[:, -1] -= 2.0
    labels = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
    labels[: 2 * classes] = np.arange(2 * classes) % classes  # every class occurs
    return labels.astype(np.float64)


def peer(table: Table) -> tuple[float, float, float]:
    """Objective, seconds and processor seconds of scikit-learn."""
    from sklearn.linear_model import LogisticRegression

    hyper = {"l2": 1.0 / len(table.labels)}
    began, used = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = LogisticRegression(C=1.0, tol=1e-9, max_iter=PEER_ITERATIONS).fit(table.rows, table.labels)
    seconds, used = time.perf_counter() - began, time.process_time() - used
    return objective(table, hyper, found.coef_, found.intercept_), seconds, used


def objective(table: Table, hyper: dict[str, Any], weights: Any, bias: Any) -> float:
    dense = table.rows.toarray() if sparse.issparse(table.rows) else table.rows
    return float(lr_objective(dense, table.labels, hyper, weights, bias))


def compared(table: Table, sync: str, workers: int) -> dict[str, Any]:
    hyper = {"l2": 1.0 / len(table.labels)}
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = flegel.run(LR(**hyper), (table.rows, table.labels), workers=workers, sync=sync, max_seconds=300)
    seconds = time.perf_counter() - began
    mine = objective(table, hyper, result.parameter.weights, result.parameter.bias)
    theirs, peer_seconds, peer_used = peer(table)
    return {
        "table": table.words, "objective": mine, "peer": theirs, "ratio": mine / theirs, "seconds": seconds,
        "peer_seconds": peer_seconds, "peer_processor_seconds": peer_used, "time_ratio": seconds / peer_seconds,
        "converged": result.converged,
        "passes": result.rows[-1].get("passes"), "said": [result.reason, *result.warnings],
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--connections", type=int, default=100_000, help="rows of the first table; 0: without it")
    parser.add_argument("--sync", default="fsp")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", default="")
    given = parser.parse_args(arguments)
    seed = int(time.time()) if given.seed is None else given.seed
    print(f"seed {seed}, {given.sync}")
    found = []
    flegel.run(
        LR(), (np.eye(8), np.arange(8) % 2), workers=given.workers, max_iterations=1
    )  # compiled before it counts
    for number in range(given.tables):
        rng = np.random.default_rng([seed, number])
        if number == 0 and given.connections:
            table = Table(*connections(given.connections, rng), f"{given.connections} connections, 23 classes")
        else:
            table = draw(number, given.rows, rng)
        one = compared(table, given.sync, given.workers)
        found.append(one)
        print(
            f"{one['ratio'] - 1:+9.1e} of the objective {one['peer']:.6g}, "
            f"{one['time_ratio']:5.2f} of {one['peer_seconds']:.2f} s ({one['peer_processor_seconds']:.2f} s of a "
            "processor), "
            f"{'converged' if one['converged'] else one['said'][0]}: {one['table']}",
            flush=True,
        )
    for name, shift in (("ratio", 1.0), ("time_ratio", 0.0)):
        values = [one[name] - shift for one in found]
        print(f"{name}{' - 1' * (shift > 0)}: median {statistics.median(values):.2g}, worst {max(values):.2g}")
    wrong = [one["table"] for one in found if one["converged"] and one["ratio"] > 1.0001]
    print(f"converged {sum(one['converged'] for one in found)} of {len(found)}; of these above 1e-4: {len(wrong)}")
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump({"seed": seed, "sync": given.sync, "tables": found}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
