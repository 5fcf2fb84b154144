"""Compiled solve with a diagonal of second derivatives, for many weights: one pass over them. Called by `search`."""

from __future__ import annotations

from flegel.core.code_cache import njit


@njit(nogil=True, cache=True, error_model="numpy")
def divide(gradient, sums, seen, diagonal, metric, step):
    """step = −H⁻¹·gradient, both by raw weights and bias; returns gradientᵀ·H⁻¹·gradient.

    H is a diagonal in the coordinates of `metric` (`precondition`): sums[:, 0] / seen, with the penalty that is the
    first row of `diagonal`, and at least its second row. Where `step` has fewer outputs than the gradient, it is space
    for them.
    """
    columns, length, inverse = gradient.shape[1] - 1, 0.0, 1.0 / metric[1]
    share, free = 1.0 / seen, metric[0, columns]
    for k in range(gradient.shape[0]):
        place, bias, back = k % step.shape[0], gradient[k, columns], 0.0
        for t in range(columns):
            inner = (gradient[k, t] - metric[0, t] * bias) * inverse[t]
            bend = max(max(sums[k, 0, t], 0.0) * share + diagonal[0, t], diagonal[1, t])
            moved = inner / (bend if bend > 0.0 else 1.0)
            length += inner * moved
            step[place, t] = -moved * inverse[t]
        for t in range(columns):
            back += step[place, t] * metric[0, t]
        bend = max(max(sums[k, 0, columns], 0.0) * share, diagonal[1, columns])
        moved = bias * free / (bend if bend > 0.0 else 1.0)
        length += bias * free * moved
        step[place, columns] = free * (-moved - back)
    return length
