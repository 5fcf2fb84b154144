"""Loads that know less of the network, and what an ideal placement can gain: what plans are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

from flegel.plan.placement.water_filling import LinkLoad, Load, slowest


def even(links: Mapping[int, LinkLoad], total: float) -> Load:
    """The same for everybody: what a system without knowledge of the network does."""
    carried = dict.fromkeys(links, total / len(links))
    return Load(carried, slowest(links, carried), tuple(sorted(links)))


def gain_bound(nodes: int) -> float:
    """Largest gain over even load with a worker beside each server: 2(N - 1)/N.

    The slowest node receives θ, M in all, whatever it carries; under even load it transfers M + (N - 2)M/N.
    """
    return 2 * (nodes - 1) / nodes


def seconds_of_round(size: float, total: float, alpha: float, nodes: int, bandwidth: float) -> float:
    """Eq. 1 without Δt."""
    return (size * nodes / bandwidth + alpha / bandwidth) * (total / size + 1)


def flat_range(total: int, alpha: float, nodes: int, tolerance: float = 0.01) -> tuple[float, float]:
    """Sizes at which T exceeds its least value by at most `tolerance`: there is no reason to cut anew within them."""
    best = sqrt(total * alpha / nodes)
    if not best:
        return 1.0, max(1.0, tolerance * total)
    # T·W = N·M + α + N·x + M·α/x; at the optimum the last two are both N·x*.
    spare = tolerance * (total + alpha / nodes + 2 * best) / 2
    middle = best + spare
    width = sqrt(middle * middle - best * best)
    return max(1.0, middle - width), middle + width
