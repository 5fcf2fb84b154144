"""How large a part of the points is worth training on: pure functions of a part's size, gain and noise.

A θ of k centroids that is fitted to m points is off by about k/m of its objective, however often these points are
visited. So the first visits go to a small part again and again, and the part grows as soon as one more visit of it
gains less than its noise: centroids travel while a visit of everything costs little. (J. Newling, F. Fleuret, Nested
mini-batch k-means, 2016, grow by the same comparison, of the movement of centroids with its deviation.)
"""

from __future__ import annotations

import math

# Constants, not settings: workers decide by them, and settings do not travel to workers.
SMALLEST_FIRST_PART = 1 / 64
"""Of all points: a visit of such a part costs little beside the one visit of all points."""
FIRST_PART_EVIDENCE = 100.0
"""Numbers of data for each number of θ in the first part: 50 led to worse optima on real tables."""
LARGEST_FIRST_PART = 1 / 4
LARGEST_LATER_PART = 1 / 8
"""Of all points: visits of larger parts cost more than they save."""
GAIN_PER_NOISE_TO_REPEAT = 0.25
"""What a further visit of a part must gain, as a share of the noise of the objective on that part."""
LEAST_GROWTH_OF_PART = 3.0
GREATEST_GROWTH_OF_PART = 8.0
"""Ratio of the next part to this one: the noise is known only roughly."""


def first_part(points: int, columns: int, numbers: int, grid: int = 1) -> int:
    """Points of the first part, for a θ of so many numbers, in multiples of `grid`; all where that is hardly less."""
    size = max(SMALLEST_FIRST_PART * points, FIRST_PART_EVIDENCE * numbers / max(columns, 1))
    return _rounded(size, points, LARGEST_FIRST_PART, grid)


def worthwhile(gain: float, noise: float) -> bool:
    """One more visit of a part gained so much of its objective: visit it again rather than more points."""
    return gain > 0 and gain >= GAIN_PER_NOISE_TO_REPEAT * noise


def next_part(points: int, size: int, gain: float, noise: float, grid: int = 1) -> int:
    """Points of the next part, where one more visit of a part of this size gained so much: three times as many, or as
    many as make the noise as small as the gain."""
    factor = GAIN_PER_NOISE_TO_REPEAT * noise / gain if gain > 0 else GREATEST_GROWTH_OF_PART
    return _rounded(
        min(max(factor, LEAST_GROWTH_OF_PART), GREATEST_GROWTH_OF_PART) * size, points, LARGEST_LATER_PART, grid
    )


def _rounded(size: float, points: int, largest: float, grid: int) -> int:
    if not size <= largest * points:
        return points
    return -(-math.ceil(size) // grid) * grid
