"""Least squares with penalties from second moments, and steps with an l1 penalty, by coordinate descent, compiled.
Knows no rows.

Minimized is ½·wᵀ·A·w − b·w + l1·‖w‖₁ + ½·l2·‖w‖², where A = Σ x·xᵀ / mass and b = Σ x·y / mass; with `positive`, over
w ≥ 0. The duality gap says how far the objective may be from its minimum.
"""

from __future__ import annotations

import numpy as np

from flegel.core.code_cache import njit
from flegel.core.pytree import Array


@njit(cache=True, nogil=True)
def _inner(a: Array, b: Array) -> float:
    """a·b. Products of numba would need SciPy, which an installation without extras does not have."""
    total = 0.0
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


@njit(cache=True, nogil=True)
def _slope(gram: Array, cross: Array, weights: Array) -> Array:
    """b − A·w, for a symmetric A."""
    slope = cross.copy()
    for j in range(len(weights)):
        if weights[j] != 0.0:
            slope -= weights[j] * gram[j]
    return slope


@njit(cache=True, nogil=True)
def descend(
    gram: Array,
    cross: Array,
    power: float,
    l1: float,
    l2: float,
    weights: Array,
    goal: float,
    sweeps: int,
    positive: bool,
) -> tuple[float, int]:
    """Improve `weights` in place until the gap is at most `goal`, or after so many sweeps over all coordinates. Returns
    the gap and the sweeps. `power`: Σ y² / mass."""
    slope = _slope(gram, cross, weights)
    gap = np.inf
    for sweep in range(sweeps):
        largest, moved = 0.0, 0.0
        for j in range(weights.shape[0]):
            curvature = gram[j, j] + l2
            if gram[j, j] <= 0.0:
                continue
            before = weights[j]
            free = slope[j] + gram[j, j] * before
            if positive:
                after = max(free - l1, 0.0) / curvature
            else:
                after = np.sign(free) * max(abs(free) - l1, 0.0) / curvature
            if after != before:
                weights[j] = after
                slope -= (after - before) * gram[j]
                moved = max(moved, abs(after - before) * np.sqrt(curvature))
            largest = max(largest, abs(after) * np.sqrt(curvature))
        if moved <= 1e-4 * largest or sweep == sweeps - 1 or sweep % 10 == 9:
            slope = _slope(gram, cross, weights)  # differences have rounded
            gap = duality_gap(cross, power, slope, l1, l2, weights, positive)
            if gap <= goal or moved == 0.0:
                return gap, sweep + 1
    return gap, sweeps


@njit(cache=True, nogil=True)
def duality_gap(
    cross: Array, power: float, slope: Array, l1: float, l2: float, weights: Array, positive: bool
) -> float:
    """The objective less a lower bound of the minimum. `slope`: b − A·w. Without l1, where the residual gives no such
    bound, what the largest step along a coordinate would gain, times their number."""
    error = power - _inner(cross, weights) - _inner(slope, weights)  # Σ (y − w·x)² / mass
    tilt = slope - l2 * weights
    if l1 <= 0.0:
        most = 0.0
        for j in range(len(weights)):
            away = tilt[j] if not positive or weights[j] > 0.0 else max(tilt[j], 0.0)
            most = max(most, abs(away))
        return most * most * len(weights)
    steepest = 0.0
    for j in range(len(weights)):
        steepest = max(steepest, tilt[j] if positive else abs(tilt[j]))
    scale = min(1.0, l1 / steepest) if steepest > 0.0 else 1.0
    norm, squares = 0.0, 0.0
    inner = power - _inner(cross, weights)  # Σ (y − w·x)·y / mass
    for weight in weights:
        norm += abs(weight)
        squares += weight * weight
    gap: float = 0.5 * (1.0 + scale * scale) * (error + l2 * squares) + l1 * norm - scale * inner
    return gap


@njit(cache=True, nogil=True)
def proximal_step(matrix: Array, gradient: Array, start: Array, least: Array) -> Array:
    """argmin over d of gradient·d + ½·d·matrix·d + Σ least·|start + d|."""
    step = np.zeros_like(gradient)
    slope = gradient.copy()
    for _ in range(1000):
        moved = 0.0
        for j in range(len(step)):
            at = start[j] + step[j]
            free = at - slope[j] / matrix[j, j]
            want = np.sign(free) * max(abs(free) - least[j] / matrix[j, j], 0.0)
            change = want - at
            if change != 0.0:
                step[j] = -start[j] if want == 0.0 else step[j] + change
                slope += change * matrix[:, j]
                moved = max(moved, change * change * matrix[j, j])
        if moved <= 1e-14 * abs(_inner(gradient, step)):
            break
    return step
