"""The directions in which rows vary most, from a sample: leading principal components. Knows no algorithm.

A few of them say nearly all about distances between rows of embeddings: what a search over many centroids computes
first, and what a start may do without the rest.
"""

from __future__ import annotations

import numpy as np

from flegel.core.pytree import Array

ITERATIONS = 2  # of the subspace iteration; the leading components of a decaying spectrum are right to a few percent
OVERSAMPLING = 8  # further directions that are iterated and then dropped (Halko, Martinsson and Tropp 2011)


def leading_directions(rows: Array, count: int) -> Array:
    """(columns, count): orthonormal in float64, in the order of the variance along them. Rows are about their origin.

    Any orthonormal directions would be right for a bound; better ones make it tighter. So a randomized subspace
    iteration is enough, which takes a few products with the sample where an eigendecomposition takes columns³.
    """
    columns = rows.shape[1]
    count = min(count, columns)
    width = min(count + OVERSAMPLING, columns)
    found = np.random.default_rng(0).normal(size=(columns, width)).astype(rows.dtype)
    for _ in range(ITERATIONS):
        found = np.linalg.qr(found)[0]
        found = rows.T @ (rows @ found)
    basis = np.linalg.qr(found.astype(np.float64))[0]
    _, turned = np.linalg.eigh(_gram(rows @ basis.astype(rows.dtype)))
    return np.asarray(basis @ turned[:, ::-1][:, :count], dtype=np.float64)


def _gram(rows: Array) -> Array:
    return np.asarray(rows.T @ rows, dtype=np.float64)
