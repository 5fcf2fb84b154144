"""How far two ways to the same sum over points may be apart, by the type of the rows. Pure.

Built-in kernels compute contributions, and their sums over a tile, in the type of the rows; sums of those are float64.
So statistics of float32 rows, and objectives from them, have the precision of float32: what compares two of them asks
here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

FLOAT64_RELATIVE_ERROR = 1e-12
"""Relative, of float64 rows."""
FLOAT32_RELATIVE_ERROR = 1e-6
"""Relative, of float32 rows: memberships add up to 1 to 6e-8. Against a pass in float64, sums of fuzzy c-means were off
by up to 2.2e-7 (objective over its dependence on the sums; five tables)."""

SMALLEST_DIVISOR = 1e-300
"""Divisors that may be 0 are made at least so large: no division by 0."""


def rounding(dtype: np.dtype[Any] | type[Any]) -> float:
    """Of sums over points, relative."""
    return FLOAT64_RELATIVE_ERROR if np.dtype(dtype) == np.float64 else FLOAT32_RELATIVE_ERROR
