"""`check_hard_data`: what a class does with raw data (constant columns, duplicates, 1e12, one row, …). Answers in
sentences, raises nothing.

Every table is small and trains for a few passes in this process. A class that refuses a table with a `UsageError` has
answered well; one that returns numbers that are not finite, or fails with another exception, has not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from flegel.algorithm import Algorithm
from flegel.checks.conformance import Trial, sentence_for
from flegel.core import pytree
from flegel.core.pytree import Array
from flegel.core.shard import Sparse
from flegel.core.stop_flag import new_flag
from flegel.errors import UsageError

TRAINED_PASSES = 4  # over each hard table: enough that an objective could diverge
TABLE_ROWS, TABLE_COLUMNS = 200, 5  # of each hard table


def hard_tables(sparse: bool = False) -> Iterator[tuple[str, Any]]:
    """Kind and rows, all positive where the kind allows it; sparse ones only for classes that take them."""
    rng = np.random.default_rng(7)
    plain = np.abs(rng.normal(size=(TABLE_ROWS, TABLE_COLUMNS)) + rng.integers(4, size=(TABLE_ROWS, 1)) * 3.0) + 0.1
    yield "constant columns", np.c_[plain[:, :3], np.full(TABLE_ROWS, 7.25), np.zeros(TABLE_ROWS)]
    yield "rows that are all equal", np.full((TABLE_ROWS, TABLE_COLUMNS), 4.5)
    yield "duplicate rows", np.repeat(plain[:10], TABLE_ROWS // 10, axis=0)
    yield "numbers of size 1e-12", plain * 1e-12
    yield "numbers of size 1e12", plain * 1e12
    yield "columns of size 1e-12 beside 1e12", plain * np.logspace(-12, 12, TABLE_COLUMNS)
    yield "heavy tails", np.exp(3.0 * rng.normal(size=(TABLE_ROWS, TABLE_COLUMNS)))
    yield (
        "one outlier of 1e9",
        np.where(np.arange(TABLE_ROWS * TABLE_COLUMNS).reshape(TABLE_ROWS, TABLE_COLUMNS) == 31, 1e9, plain),
    )
    yield "zeros only", np.zeros((TABLE_ROWS, TABLE_COLUMNS))
    yield "one row", plain[:1]
    if sparse:
        few = np.where(rng.random((TABLE_ROWS, TABLE_COLUMNS)) < 0.2, plain, 0.0)
        few[::3] = 0.0
        row, column = np.nonzero(few)
        indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=TABLE_ROWS))]).astype(np.int64)
        yield "empty sparse rows", Sparse(indptr, column.astype(np.int32), few[row, column], TABLE_COLUMNS)


def check_hard_data(algorithm: Algorithm | type[Algorithm]) -> tuple[list[str], list[str]]:
    """What works, and what does not: a sentence for each kind of table."""
    found = list(tried_tables(algorithm))
    return [line for works, line in found if works], [line for works, line in found if not works]


def tried_tables(algorithm: Algorithm | type[Algorithm]) -> Iterator[tuple[bool, str]]:
    """Whether the class works on a kind of table, and a sentence about it, as soon as each was tried."""
    subject = algorithm() if isinstance(algorithm, type) else algorithm
    for kind, rows in hard_tables(subject.accepts.sparse):
        count = len(rows.indptr) - 1 if isinstance(rows, Sparse) else len(rows)
        labels = (np.arange(count) % 2).astype(np.float64)
        try:
            refused = _train(subject, rows, labels)
        except Exception as error:  # noqa: BLE001 - a user's class may raise anything; its sentence is the finding
            yield False, f"with {kind}: {sentence_for(type(subject).__name__, 'it trains', error)}"
        else:
            yield True, f"refuses {kind}: {refused}" if refused else f"trains on {kind}"


def _train(algorithm: Algorithm, rows: Any, labels: Array) -> str:
    """A few passes, all numbers checked; the sentence with which the class refuses the table, if it does."""
    try:
        trial = Trial(algorithm, rows, labels, np.dtype(np.float64))
    except UsageError as refusal:
        return str(refusal)
    shard = trial.shard(trial.layout())
    kernel = trial.kernel(shard).kernel
    total, parameter = pytree.copy(trial.zero), trial.parameter
    with np.errstate(all="ignore"):
        for iteration in range(TRAINED_PASSES):
            pytree.clear(total, algorithm.statistics.spent)
            kernel(shard, parameter, total, 0, shard.points, iteration, new_flag())
            trial.require(pytree.is_finite(total), f"statistics are not finite after pass {iteration + 1}")
            parameter = trial.update(total, parameter)
            trial.require(pytree.is_finite(parameter), f"updateParameter: not finite after pass {iteration + 1}")
            value = algorithm.objective(pytree.present(total), pytree.present(parameter))
            trial.require(value is None or bool(np.isfinite(value)), f"objective is {value} after pass {iteration + 1}")
    return ""
