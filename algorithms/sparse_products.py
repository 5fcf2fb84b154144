"""Products with sparse rows (CSR), compiled. Called through `rows.times`, the starts of k-means and of
logistic regression, and `moments`, for many entries.

A sum is taken in the order of the stored entries, so it has the same bits as its interpreted twin.
"""

from __future__ import annotations

import numpy as np

from flegel.core.code_cache import njit
from flegel.core.pytree import Array


@njit(nogil=True, cache=True)
def multiply(indptr: Array, indices: Array, values: Array, weights: Array, result: Array) -> None:
    """result += rows · weights; `weights` is (columns, outputs), so that an entry reads numbers beside each other."""
    outputs = weights.shape[1]
    for i in range(result.shape[0]):
        sums = result[i]
        for t in range(indptr[i], indptr[i + 1]):
            value = np.float64(values[t])
            row = weights[indices[t]]
            for j in range(outputs):
                sums[j] += value * row[j]


@njit(nogil=True, cache=True)
def add_by_label(indptr: Array, indices: Array, values: Array, labels: Array, sums: Array, low: int, high: int) -> None:
    """sums[labels[i]] += row i, for labels from `low` to `high`: each of several threads adds to sums of its own, in
    the order of the rows, so that their number changes no bit."""
    for i in range(labels.shape[0]):
        if labels[i] < low or labels[i] >= high:
            continue
        target = sums[labels[i]]
        for t in range(indptr[i], indptr[i + 1]):
            target[indices[t]] += values[t]


@njit(nogil=True, cache=True)
def add_outer(indptr: Array, indices: Array, values: Array, weights: Array, target: Array) -> None:
    """target += Σ weights[i] · x·xᵀ over rows x, the lower triangle alone."""
    for i in range(weights.shape[0]):
        for a in range(indptr[i], indptr[i + 1]):
            scaled = weights[i] * values[a]
            for b in range(indptr[i], indptr[i + 1]):
                if indices[b] <= indices[a]:
                    target[indices[a], indices[b]] += scaled * values[b]


@njit(nogil=True, cache=True)
def add_transposed(indptr: Array, indices: Array, values: Array, scores: Array, sums: Array) -> None:
    """sums += Xᵀ·scores for sparse rows X."""
    for i in range(indptr.shape[0] - 1):
        for t in range(indptr[i], indptr[i + 1]):
            for k in range(scores.shape[1]):
                sums[indices[t], k] += values[t] * scores[i, k]
