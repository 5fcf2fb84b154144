"""Sparse rows of many columns are trained in memory that grows with their entries and with θ, never with rows ×
columns."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import flegel
from flegel.algorithm import Algorithm
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.lr import LR
from flegel.algorithms.nmf import NMF
from flegel.core import pytree
from flegel.core.pytree import Array
from flegel.core.shard import Sparse

POINTS, COLUMNS, EACH, CLASSES = 3000, 40_000, 20, 20
COPIES = 40
"""Copies of θ and of the rows that a job may hold at a time: the start tries several, the coordinator keeps statistics
by owner, θ to go back to and reports, and each of two workers has its own."""


def hashed() -> tuple[Sparse, Array]:
    """Rows of 20 classes, each of which has some columns of its own."""
    rng = np.random.default_rng(0)
    labels = rng.integers(CLASSES, size=POINTS)
    columns = np.where(rng.random((POINTS, EACH)) < 0.5, labels[:, None] * 50, 0) + rng.integers(
        50, size=(POINTS, EACH)
    )
    columns[:, 0] = rng.integers(COLUMNS, size=POINTS)
    columns.sort(axis=1)
    kept = np.c_[np.ones(POINTS, bool), np.diff(columns) > 0]
    indptr = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
    return Sparse(indptr, columns[kept].astype(np.int32), np.ones(int(kept.sum())), COLUMNS), labels.astype(float)


@pytest.mark.parametrize("algorithm", [KMeans(k=5, n_init=1), LR(l2=1e-2), NMF(rank=4)], ids=["kmeans", "lr", "nmf"])
def test_memory_grows_with_entries_and_parameters(algorithm: Algorithm) -> None:
    rows, labels = hashed()
    data = (rows, labels) if isinstance(algorithm, LR) else rows
    flegel.run(algorithm, data, workers=2, processes="no", max_passes=2, seed=1)  # compiles, fills caches
    tracemalloc.start()
    try:
        result = flegel.run(algorithm, data, workers=2, processes="no", max_passes=2, seed=1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    held = sum(array.nbytes for array in (*rows[:3], *pytree.flatten(result.parameter)))
    assert peak < COPIES * held + (16 << 20)
    assert peak < POINTS * COLUMNS * 8 / 2, "nobody made rows × columns numbers"
