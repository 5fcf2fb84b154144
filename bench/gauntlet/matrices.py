"""Generated matrices: non-negative ones for factorization, sparse ones for all that take them. Trains nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.gauntlet.labelled import drawn
from bench.gauntlet.tables import SPARSE, Table, table, variant
from flegel.core.shard import Sparse

FACTORS = {"algorithms": ("nmf",)}


def sparse_of(dense: Any, dtype: Any = np.float64) -> Sparse:
    row, column = np.nonzero(dense)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(dense)))]).astype(np.int64)
    return Sparse(indptr, column.astype(np.int32), np.asarray(dense)[row, column].astype(dtype), dense.shape[1])


def low_rank(points: int = 300, columns: int = 25, rank: int = 4, noise: float = 0.1, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    whole = rng.gamma(1.0, size=(points, rank)) @ rng.gamma(1.0, size=(rank, columns))
    return whole * (1.0 + noise * rng.uniform(-1, 1, whole.shape))


variant("nmf_low_rank", low_rank, **FACTORS)
variant("nmf_exact", lambda: low_rank(noise=0.0), **FACTORS)
variant("nmf_unit_interval", lambda: (w := low_rank()) / w.max(), **FACTORS)
variant("nmf_times_1e_4", lambda: low_rank() * 1e-4, **FACTORS)
variant("nmf_times_1e6", lambda: low_rank() * 1e6, **FACTORS)
variant("nmf_blocks", lambda: np.kron(np.eye(4), np.ones((40, 6))), **FACTORS)
variant("nmf_zero_rows_and_columns", lambda: low_rank() * np.outer(np.arange(300) % 3 > 0, np.arange(25) % 5 > 0),
        **FACTORS)  # fmt: skip
variant("nmf_one_huge_entry", lambda: np.where(np.arange(7500).reshape(300, 25) == 40, 1e6, low_rank()), **FACTORS)
variant("nmf_counts", lambda: np.random.default_rng(3).poisson(low_rank(noise=0)).astype(np.float64), **FACTORS)


def text(rows: int, columns: int, words: int, seed: int = 0) -> Any:
    """Counts of words with Zipf's law, as CSR; every tenth row is empty."""
    rng = np.random.default_rng(seed)
    indptr, indices, values = [0], [], []
    for i in range(rows):
        drawn_words = np.minimum(rng.zipf(1.3, size=0 if i % 10 == 0 else words), columns) - 1
        found, counts = np.unique(drawn_words, return_counts=True)
        indices.append(found)
        values.append(counts)
        indptr.append(indptr[-1] + len(found))
    return Sparse(
        np.array(indptr), np.concatenate(indices).astype(np.int32), np.concatenate(values).astype(np.float64), columns
    )


def marked(rows: Sparse, seed: int = 1, **more: Any) -> Table:
    """With labels that depend on the rows."""
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal(rows.columns)
    row = np.repeat(np.arange(len(rows.indptr) - 1), np.diff(rows.indptr))
    scale = np.abs(rows.values).max(initial=1e-300)
    scores = np.bincount(row, rows.values / scale * weights[rows.indices], minlength=len(rows.indptr) - 1)
    return Table(rows, drawn(3 * scores, rng), lr={"l2": 1e-3}, algorithms=SPARSE, **more)


@table
def sparse_text() -> Table:
    return marked(text(400, 300, 40))


@table
def sparse_50000_columns() -> Table:
    return marked(text(200, 50_000, 60))


@table
def sparse_mostly_empty() -> Table:
    dense = np.where(np.random.default_rng(5).random((500, 40)) < 0.01, 1.0, 0.0)
    return marked(sparse_of(dense))


@table
def sparse_single_entries() -> Table:
    dense = np.zeros((300, 30))
    dense[np.arange(300), np.arange(300) % 30] = 1.0 + np.arange(300) % 7
    return marked(sparse_of(dense))


@table
def sparse_one_huge_value() -> Table:
    rows = text(300, 50, 20, seed=6)
    values = rows.values.copy()
    values[17] = 1e9
    return marked(rows._replace(values=values))


@table
def sparse_tiny_values() -> Table:
    rows = text(300, 50, 20, seed=7)
    return marked(rows._replace(values=rows.values * 1e-10))


@table
def sparse_float32() -> Table:
    rows = text(400, 100, 30, seed=8)
    return marked(rows._replace(values=rows.values.astype(np.float32)))


@table
def sparse_duplicates() -> Table:
    dense = np.where(np.random.default_rng(9).random((20, 30)) < 0.2, 1.0, 0.0)
    return marked(sparse_of(np.repeat(dense, 20, axis=0)))


@table
def ratings_missing() -> Table:
    """A matrix of ratings from 1 to 5 of which a third is known."""
    rng = np.random.default_rng(10)
    whole = low_rank(300, 40, 3)
    whole = 1.0 + 4.0 * np.clip(whole / np.quantile(whole, 0.95), 0, 1)
    return Table(sparse_of(np.where(rng.random(whole.shape) < 0.35, whole.round(), 0.0)), algorithms=("nmf",))


@table
def ratings_sparse() -> Table:
    rng = np.random.default_rng(11)
    whole = 1.0 + 4.0 * rng.random((400, 60)).round(1)
    return Table(sparse_of(np.where(rng.random(whole.shape) < 0.15, whole, 0.0)), algorithms=("nmf",))
