"""The step that makes one θ of the groups' changes (spent fields, gradients). Pure.

Δ_g = θ_g − θ_base of each group, Δ̄ = Σ w_g Δ_g / Σ w_g:

    mean        w = 1, and 0 of who has visited no point since the base where others have; θ ← θ_base + Δ̄ (dSyncPS: the
                mean of the groups' θ)
    visits      w = visits since the base
    nesterov    w as for mean, v ← 0.9 v + Δ̄, θ ← θ_base + 0.7 (0.9 v + Δ̄) (DiLoCo); where nobody has visited a point
                since the base, θ ← θ_base + Δ̄ and v stays: momentum alone would move θ, and wake groups at rest, round
                after round until it is smaller than the rounding of θ

A rate may follow, as in `mean:2`: then θ ← θ_base + min(r, n) Δ̄, with n = (Σ w)² / Σ w² groups, so a step is never
longer than the sum of the changes, and that of a group which trains alone is its own. `nesterov:0.5` has 0.5 for 0.7.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flegel.configuration.active import active
from flegel.core.pytree import Array


def outer_step(
    kind: str,
    base: Sequence[Array],
    velocity: Sequence[Array],
    changes: Sequence[tuple[float, Sequence[Array]]],
    factors: Sequence[float] = (),
) -> tuple[list[Array], list[Array]]:
    """New θ and new velocity. `changes`: visits and Δ of each group, in a fixed order, so that bits are fixed too.
    `factors`: of these weights, where changes are outliers; where all are 0, nothing changes."""
    if not changes:
        raise ValueError("no group changed anything")
    kind, _, rate = kind.partition(":")
    weights = [max(weight, 0.0) if kind == "visits" else float(weight > 0.0) for weight, _ in changes]
    if sum(weights) <= 0.0:
        weights = [1.0] * len(changes)
    if factors:
        weights = [weight * factor for weight, factor in zip(weights, factors, strict=True)]
    total = sum(weights) or 1.0
    trained = any(visits > 0.0 for visits, _ in changes)
    length = _length(float(rate), weights) if rate and trained and kind != "nesterov" else 1.0
    mean: list[Array] = []
    for at, like in enumerate(base):
        summed = np.zeros(like.shape, np.float64)
        for weight, (_, change) in zip(weights, changes, strict=True):
            summed += weight * change[at]
        mean.append(summed * (length / total))
    if kind != "nesterov":
        return [_sum(b, m) for b, m in zip(base, mean, strict=True)], []
    before = list(velocity) or [np.zeros(b.shape, np.float64) for b in base]
    if not trained:
        return [_sum(b, m) for b, m in zip(base, mean, strict=True)], before
    along = float(rate) if rate else active().groups.outer_rate
    momentum = active().groups.outer_momentum
    after = [momentum * v + m for v, m in zip(before, mean, strict=True)]
    moved = [_sum(b, along * (momentum * v + m)) for b, v, m in zip(base, after, mean, strict=True)]
    return moved, after


def _length(rate: float, weights: Sequence[float]) -> float:
    """Of the step, in means of the changes."""
    squares = sum(weight * weight for weight in weights)
    return min(rate, sum(weights) ** 2 / squares) if squares else 1.0


def _sum(base: Array, change: Array) -> Array:
    return (base.astype(np.float64) + change).astype(base.dtype)


def less(one: Sequence[Array], other: Sequence[Array]) -> list[Array]:
    """one − other, in float64: differences of float32 weights must not be rounded twice."""
    return [a.astype(np.float64) - b for a, b in zip(one, other, strict=True)]


def plus(base: Sequence[Array], change: Sequence[Array]) -> list[Array]:
    """base + change, in the types of `base`."""
    return [_sum(b, c) for b, c in zip(base, change, strict=True)]


def moved(target: Sequence[Array], now: Sequence[Array], since: Sequence[Array]) -> list[Array]:
    """target + (now − since), in the types of `target`: what was learned meanwhile is kept."""
    return [_sum(t, n.astype(np.float64) - s) for t, n, s in zip(target, now, since, strict=True)]
