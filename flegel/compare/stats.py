"""Figures from repeated measurements: medians with honest intervals, and who runs when. Pure; measures nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")

CONFIDENCE = 0.95  # of the intervals that are shown


class Spread(NamedTuple):
    """A median and an interval that holds the true one, with the probability `coverage`, whatever the distribution."""

    median: float
    low: float
    high: float
    coverage: float
    runs: int


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two in the middle."""
    ranked = sorted(values)
    half, odd = divmod(len(ranked), 2)
    return ranked[half] if odd else ranked[half - 1] + (ranked[half] - ranked[half - 1]) / 2


def spread(values: Sequence[float], confidence: float = CONFIDENCE) -> Spread:
    """Median and the narrowest pair of order statistics around it that reaches `confidence`.

    The k-th smallest and k-th largest of n values enclose the true median with probability 1 − 2·P(B < k), B
    binomial(n, ½). Few values cannot reach 95 %; then the whole range is given, with the coverage that it has
    (75 % of three, 94 % of five).
    """
    if not values:
        raise ValueError("a spread needs at least one value")
    ranked, count = sorted(values), len(values)
    k = 0
    while k + 1 <= (count - 1) // 2 and _coverage(count, k + 2) >= confidence:
        k += 1
    return Spread(median(ranked), ranked[k], ranked[-1 - k], _coverage(count, k + 1), count)


def _coverage(count: int, rank: int) -> float:
    """Probability that the median lies between the `rank`-th smallest and the `rank`-th largest of `count` values."""
    tail = sum(math.comb(count, i) for i in range(rank)) / 2**count
    return max(0.0, 1.0 - 2.0 * float(tail))


def turns(candidates: Sequence[T], rounds: int) -> list[list[T]]:
    """The order of each round: every candidate runs once a round, and over the rounds equally often in every place.

    A machine that gets warmer, or busier, during the comparison then affects every candidate alike.
    """
    size = max(len(candidates), 1)
    return [[candidates[(i + r) % size] for i in range(len(candidates))] for r in range(rounds)]


def first_reaching(curve: Sequence[tuple[float, float | None]], target: float, maximize: bool) -> float | None:
    """The time of the first known objective that is as good as `target`."""
    sign = -1.0 if maximize else 1.0
    return next((t for t, value in curve if value is not None and sign * (value - target) <= 0), None)


def loosened(value: float, within: float, maximize: bool) -> float:
    """A target that may be missed by the share `within` of the best known objective."""
    return value - within * abs(value) if maximize else value + within * abs(value)


def thinned(items: Sequence[T], most: int) -> list[T]:
    """At most `most` of the items, evenly, with the first and the last."""
    if len(items) <= most:
        return list(items)
    if most < 2:
        return list(items[:most])
    step = (len(items) - 1) / (most - 1)
    return [items[round(i * step)] for i in range(most)]
