"""How large a part of the points is worth training on: pure functions of a part's size, gain and noise.

A θ of k centroids that is fitted to m points is off by about k/m of its objective, however often these points are
visited. So the first visits go to a small part again and again, and the part grows as soon as one more visit of it
gains less than its noise: centroids travel while a visit of everything costs little. (J. Newling, F. Fleuret, Nested
mini-batch k-means, 2016, grow by the same comparison, of the movement of centroids with its deviation.)
"""

from __future__ import annotations

import math

from flegel.configuration.active import active


def first_part(points: int, columns: int, numbers: int, grid: int = 1) -> int:
    """Points of the first part, for a θ of so many numbers, in multiples of `grid`; all where that is hardly less."""
    rules = active().training
    size = max(rules.smallest_first_part * points, rules.first_part_evidence * numbers / max(columns, 1))
    return _rounded(size, points, rules.largest_first_part, grid)


def worthwhile(gain: float, noise: float) -> bool:
    """One more visit of a part gained so much of its objective: visit it again rather than more points."""
    return gain > 0 and gain >= active().training.gain_per_noise_to_repeat * noise


def next_part(points: int, size: int, gain: float, noise: float, grid: int = 1) -> int:
    """Points of the next part, where one more visit of a part of this size gained so much: three times as many, or as
    many as make the noise as small as the gain."""
    rules = active().training
    factor = rules.gain_per_noise_to_repeat * noise / gain if gain > 0 else rules.greatest_growth_of_part
    growth = min(max(factor, rules.least_growth_of_part), rules.greatest_growth_of_part)
    return _rounded(growth * size, points, rules.largest_later_part, grid)


def _rounded(size: float, points: int, largest: float, grid: int) -> int:
    if not size <= largest * points:
        return points
    return -(-math.ceil(size) // grid) * grid
