"""Covariances between the engine's packed rows and scikit-learn's four shapes. Pure arithmetic."""

from __future__ import annotations

import numpy as np

from flegel.algorithms.gmm.shapes import packed, symmetric
from flegel.core.pytree import Array

TYPES = ("full", "tied", "diag", "spherical")


def covariances_of(rows: Array, kind: str, columns: int) -> Array:
    """Packed rows, one a component, as scikit-learn has them."""
    if kind == "spherical":
        return np.asarray(rows.mean(axis=1))
    if kind == "diag":
        return np.asarray(rows)
    matrices = np.stack([symmetric(row, columns) for row in rows])
    return matrices[0] if kind == "tied" else matrices


def packed_covariances(covariances: Array, kind: str, components: int, columns: int) -> Array:
    """Covariances as scikit-learn has them, in the packed form that kernels use."""
    if kind == "spherical":
        return np.repeat(np.asarray(covariances)[:, None], columns, axis=1)
    if kind == "diag":
        return np.asarray(covariances)
    matrices = np.repeat(covariances[None], components, axis=0) if kind == "tied" else covariances
    return packed(matrices)


def inverted(matrices: Array, kind: str) -> Array:
    """Covariances to precisions, and back."""
    return np.asarray(np.linalg.inv(matrices) if kind in ("full", "tied") else 1.0 / matrices)


def precision_factors(covariances: Array, kind: str) -> Array:
    """Upper triangular U with U·Uᵀ the precision, as scikit-learn keeps them; of variances 1 / √."""
    if kind in ("diag", "spherical"):
        return np.asarray(1.0 / np.sqrt(covariances))
    lower = np.linalg.cholesky(covariances)
    return np.asarray(np.swapaxes(np.linalg.inv(lower), -1, -2))


def free_numbers(kind: str, components: int, columns: int) -> int:
    """How many numbers of the covariances are free."""
    triangle = columns * (columns + 1) // 2
    each = {"full": components * triangle, "tied": triangle, "diag": components * columns, "spherical": components}
    return each[kind]
