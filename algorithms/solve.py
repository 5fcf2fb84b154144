"""Small systems of linear equations inside compiled hooks. Never knows what they are for."""

from __future__ import annotations

from typing import Any

import numpy as np

from flegel.core.code_cache import njit
from flegel.core.pytree import Array

_OPTIONS: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy"}


@njit(**_OPTIONS)
def solve_factored(matrix: Array, right: Array) -> Array:
    """The same, for a lower triangle that `solve_positive` has replaced."""
    n = right.shape[0]
    for i in range(n):
        for t in range(i):
            right[i] -= matrix[i, t] * right[t]
        right[i] /= matrix[i, i]
    for i in range(n - 1, -1, -1):
        for t in range(i + 1, n):
            right[i] -= matrix[t, i] * right[t]
        right[i] /= matrix[i, i]
    return right


@njit(**_OPTIONS)
def solve_positive(matrix: Array, right: Array) -> Array:
    """x of matrix·x = right, for a symmetric positive definite matrix, of which the lower triangle is read and
    replaced; x takes the place of `right`."""
    n = right.shape[0]
    for j in range(n):
        for i in range(j, n):
            value = matrix[i, j]
            for t in range(j):
                value -= matrix[i, t] * matrix[j, t]
            matrix[i, j] = np.sqrt(value) if i == j else value / matrix[j, j]
    return solve_factored(matrix, right)


@njit(**_OPTIONS)
def solve_user(indices: Array, values: Array, factors: Array, products: Array, alpha: float, l2: float) -> Array:
    """Factors x of a user whose entries are these, under given items:
    (Σ y·yᵀ + Σ alpha·r·y·yᵀ + l2)·x = Σ (1 + alpha·r)·y, the last two sums over the user's items."""
    rank = products.shape[0]
    matrix, right = products.copy(), np.zeros(rank)
    for f in range(rank):
        matrix[f, f] += l2
    for i in range(indices.shape[0]):
        extra = alpha * values[i]
        if extra > 0.0:
            y = factors[indices[i]]
            for f in range(rank):
                right[f] += (1.0 + extra) * y[f]
                pull = extra * y[f]
                for g in range(f + 1):
                    matrix[f, g] += pull * y[g]
    return solve_positive(matrix, right)


@njit(**_OPTIONS)
def posterior(matrix: Array, right: Array, noise: float, found: Array) -> None:
    """Moments of w ~ N(0, 1) given Σ l·lᵀ (the lower triangle of `matrix`, which is replaced) and Σ l·x of numbers
    x = l·w + noise. `found`: E[v·vᵀ] of v = (w, 1) as a lower triangle, and the divergence from the prior."""
    k = right.shape[0]
    inverse, unit, logs = np.empty((k, k)), np.empty(k), 0.0
    for f in range(k):
        matrix[f, f] += noise
    for f in range(k):
        unit[:] = 0.0
        unit[f] = 1.0
        if f == 0:
            solve_positive(matrix, unit)
        else:
            solve_factored(matrix, unit)
        inverse[f] = unit
        logs += 2.0 * np.log(matrix[f, f])
    w, place, size = np.zeros(k), 0, 0.0
    for f in range(k):
        for g in range(k):
            w[f] += inverse[f, g] * right[g]
    for f in range(k):
        for g in range(f + 1):
            found[place] = w[f] * w[g] + noise * inverse[f, g]
            place += 1
        size += found[place - 1]
    found[place : place + k] = w
    found[place + k] = 1.0
    found[place + k + 1] = 0.5 * (size - k + logs - k * np.log(noise))
