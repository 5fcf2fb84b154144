"""The directions in which rows vary most, from a sample: leading principal components. Knows no algorithm.

A few of them say nearly all about distances between rows of embeddings: what a search over many centroids computes
first, and what a start may do without the rest.
"""

from __future__ import annotations

import numpy as np

from flegel.configuration.active import active
from flegel.core.pytree import Array

GRAM_ROUNDING = 1e-15  # of the eigenvalues of a Gram matrix, relative to the largest
ORTHONORMAL_WITHIN = 1e-9  # of these eigenvalues from 1: a bound made by such directions is right in float32
ROUNDS = 5  # of which two make independent vectors orthonormal, and four nearly dependent ones


def leading_directions(rows: Array, count: int) -> Array:
    """(columns, count): orthonormal in float64, in the order of the variance along them. Rows are about their origin.

    Any orthonormal directions would be right for a bound; better ones make it tighter. So a randomized subspace
    iteration is enough, which takes a few products with the sample where an eigendecomposition takes columns³.
    """
    rules = active().kmeans
    columns = rows.shape[1]
    count = min(count, columns)
    width = min(count + rules.direction_oversampling, columns)
    found = np.random.default_rng(0).normal(size=(columns, width)).astype(rows.dtype)
    for _ in range(rules.direction_iterations):
        found = rows.T @ (rows @ _orthonormal(found).astype(rows.dtype))
    basis = _orthonormal(found)
    _, turned = np.linalg.eigh(_gram(rows @ basis.astype(rows.dtype)))
    return np.asarray(basis @ turned[:, ::-1][:, :count], dtype=np.float64)


def _orthonormal(vectors: Array) -> Array:
    """Orthonormal columns that span those of `vectors`, in float64, by products with small matrices: divided by the
    root of the Gram matrix several times (after shifted CholeskyQR, Fukaya et al. 2020).

    Householder's way takes as many steps as there are columns, between which the threads of BLAS wait for each other:
    seconds on a busy machine. It serves where that does not end, such as with columns of zeros.
    """
    found: Array = np.asarray(vectors, dtype=np.float64)
    lengths = np.sqrt(np.einsum("ij,ij->j", found, found))
    if lengths.all() and np.isfinite(lengths).all():
        found = found / lengths
        for _ in range(ROUNDS):
            values, axes = np.linalg.eigh(_gram(found))
            if abs(values[0] - 1) < ORTHONORMAL_WITHIN and abs(values[-1] - 1) < ORTHONORMAL_WITHIN:
                return np.asarray(found)
            found = found @ (axes / np.sqrt(np.maximum(values, GRAM_ROUNDING * values[-1])))
    return np.asarray(np.linalg.qr(np.asarray(vectors, dtype=np.float64))[0])


def _gram(rows: Array) -> Array:
    return np.asarray(rows.T @ rows, dtype=np.float64)
