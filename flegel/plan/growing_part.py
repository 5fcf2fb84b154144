"""How large a part of the points is worth training on: pure functions of a part's size, gain and noise.

A θ of k centroids that is fitted to m points is off by about k/m of its objective, however often these points are
visited. So the first visits go to a small part again and again, and the part grows as soon as one more visit of it
gains less than its noise: centroids travel while a visit of everything costs little. (J. Newling, F. Fleuret, Nested
mini-batch k-means, 2016, grow by the same comparison, of the movement of centroids with its deviation.)
"""

from __future__ import annotations

import math

SMALLEST = 1 / 64  # of all points, in the first part: a visit of it costs little beside the one visit of all
EVIDENCE = 100.0  # numbers of data for each number of θ in the first part: 50 led to worse optima on real tables
LARGEST_FIRST, LARGEST = 1 / 4, 1 / 8  # of all points, in the first part and in others: more cost more than they save
WORTH = 0.25  # of the noise, which a further visit of a part must gain
SLOWEST, FASTEST = 3.0, 8.0  # times as many points in the next part: the noise is known roughly


def first_part(points: int, columns: int, numbers: int, grid: int = 1) -> int:
    """Points of the first part, for a θ of so many numbers, in multiples of `grid`; all where that is hardly less."""
    size = max(SMALLEST * points, EVIDENCE * numbers / max(columns, 1))
    return _rounded(size, points, LARGEST_FIRST, grid)


def worthwhile(gain: float, noise: float) -> bool:
    """One more visit of a part gained so much of its objective: visit it again rather than more points."""
    return gain > 0 and gain >= WORTH * noise


def next_part(points: int, size: int, gain: float, noise: float, grid: int = 1) -> int:
    """Points of the next part, where one more visit of a part of this size gained so much: three times as many, or as
    many as make the noise as small as the gain."""
    factor = WORTH * noise / gain if gain > 0 else FASTEST
    return _rounded(min(max(factor, SLOWEST), FASTEST) * size, points, LARGEST, grid)


def _rounded(size: float, points: int, largest: float, grid: int) -> int:
    if not size <= largest * points:
        return points
    return -(-math.ceil(size) // grid) * grid
