"""Covariance matrices of mixtures as packed rows, and the M-step's exact answer under a floor. Never reads data.

A packed row is a component's d variances, or the lower triangle of its matrix, row by row. All matrices here are in
standard units.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from flegel.configuration.active import active
from flegel.core.pytree import Array

LOST = 1e-5  # what a logarithm of a density may lose to differences of products


@lru_cache(maxsize=4)
def lower_triangle(d: int) -> tuple[Array, Array]:
    """Rows and columns of its entries, row by row. Kept: finding them took a third of a job on few rows."""
    rows, columns = np.tril_indices(d)
    rows.flags.writeable = columns.flags.writeable = False
    return rows, columns


def floored(scatter: Array, counts: Array, least: Array, shape: str) -> Array:
    """The covariances that maximize the likelihood of these scatters among all that are at least `least`.

    `scatter` is packed, a row a component; `least` has a variance for each component and column. For one Gaussian with
    Σ ⪰ D the maximum is the scatter with its eigenvalues raised to 1, both in coordinates where D is the unit matrix;
    for variances that is the larger of the two.
    """
    d = least.shape[1]
    if shape == "spherical":
        wide = np.maximum(scatter.mean(axis=1), least.max(axis=1))
        return np.repeat(wide[:, None], d, axis=1)
    if scatter.shape[1] == d and shape != "tied":
        return np.maximum(scatter, least)
    if shape == "tied":
        scatter = (counts @ scatter / max(counts.sum(), 1e-300))[None, :]
        least = least.min(axis=0, keepdims=True)
    if scatter.shape[1] == d:
        raised = np.maximum(scatter, least)
    else:
        root = np.sqrt(least)
        corner = outer(root, scatter.shape[1])
        values, vectors = np.linalg.eigh(np.stack([square(row, d) for row in scatter / corner]), UPLO="L")
        values = np.maximum(values, 1.0)
        raised = packed((vectors * values[:, None, :]) @ np.transpose(vectors, (0, 2, 1))) * corner
    return np.repeat(raised, len(counts), axis=0) if shape == "tied" else raised


def packed(matrices: Array) -> Array:
    """(k, d, d) to the lower triangles, row by row."""
    rows, columns = lower_triangle(matrices.shape[1])
    return np.ascontiguousarray(matrices[:, rows, columns])


def square(row: Array, d: int) -> Array:
    """One component's lower triangle (or diagonal) as a d × d matrix with zeros above."""
    if len(row) == d:
        return np.diag(row)
    matrix = np.zeros((d, d))
    matrix[lower_triangle(d)] = row
    return matrix


def symmetric(row: Array, d: int) -> Array:
    lower = square(row, d)
    return lower + np.tril(lower, -1).T


def diagonals(rows: Array, d: int) -> Array:
    """(k, d): the diagonal of each packed row."""
    if rows.shape[1] == d:
        return rows
    t = np.arange(d)
    return rows[:, t * (t + 3) // 2]


def outer(vectors: Array, width: int) -> Array:
    """v vᵀ of each row, packed like covariances of this width."""
    d = vectors.shape[1]
    if width == d:
        return vectors * vectors
    rows, columns = lower_triangle(d)
    return np.asarray(vectors[:, rows] * vectors[:, columns])


def multiplicities(d: int, width: int) -> Array:
    """How often an entry of a packed symmetric matrix counts in a sum over the whole matrix: those off the
    diagonal twice."""
    if width == d:
        return np.ones(d)
    rows, columns = lower_triangle(d)
    return np.where(rows == columns, 1.0, 2.0)


def whitening(covariances: Array, d: int) -> tuple[Array, Array]:
    """Inverse Cholesky factors, packed alike, and the logarithm of their determinants."""
    if covariances.shape[1] == d:
        whiten = 1.0 / np.sqrt(covariances)
        return whiten, np.log(whiten).sum(axis=1)
    inverse = np.linalg.inv(np.linalg.cholesky(np.stack([symmetric(row, d) for row in covariances])))
    return packed(inverse), np.log(np.einsum("jtt->jt", inverse)).sum(axis=1)


def served_by_products(y: Array, means: Array, whiten: Array) -> bool:
    """Do products pay, and are they exact enough? Rows in units of the columns, diagonal matrices."""
    return means.size >= active().shapes.gmm_products_from and as_exact_by_products(
        (y**2).max(axis=0, initial=0.0), means, whiten
    )


def as_exact_by_products(largest: Array, means: Array, whiten: Array) -> bool:
    """Are half squared distances by products as exact as LOST? `largest`: the largest square of each column."""
    cancelled = whiten**2 @ largest + np.einsum("jt,jt->j", whiten**2, means**2)
    return bool(float(cancelled.max(initial=0.0)) * float(np.finfo(np.float64).eps) < LOST)


def by_products(y: Array, means: Array, whiten: Array) -> Array:
    """Half the squared distance of each row from each mean, in units of its deviations: two matrix products."""
    precision = whiten**2
    apart = (y * y) @ (0.5 * precision).T - y @ (precision * means).T
    return np.asarray(np.maximum(apart + 0.5 * (precision * means**2).sum(axis=1), 0.0))


def precisions(whiten: Array, d: int) -> Array:
    """Whitening matrices to precision matrices AᵀA, packed alike."""
    if whiten.shape[1] == d:
        return whiten * whiten
    return packed(np.stack([(a := square(row, d)).T @ a for row in whiten]))
