"""By how much an objective may be off because statistics are rounded. Pure.

An objective is mostly a difference of large sums, such as Σ‖x‖² − Σ n·‖c‖²: what rounding does to the sums is many
times as much for their difference. So its error is not a share of its value; it follows from how the objective depends
on each field of the statistics.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from flegel.core import pytree
from flegel.core.pytree import Tree

RELATIVE_FIELD_CHANGE = 1e-6
"""Relative change of a field by which the dependence on it is measured: far above rounding, far below curvature."""


def objective_error(objective: Callable[[Tree], Any], statistics: Tree, value: float, rounding: float) -> float:
    """Absolute: ε·(|F| + Σ |∂F/∂ln s|) over the fields s of the statistics, ε being their relative `rounding`."""
    arrays = pytree.flatten(statistics)
    found = abs(value)
    for at, array in enumerate(arrays):
        other = objective(
            pytree.unflatten(statistics, [*arrays[:at], array * (1.0 + RELATIVE_FIELD_CHANGE), *arrays[at + 1 :]])
        )
        if other is not None and math.isfinite(other):
            found += abs(float(other) - value) / RELATIVE_FIELD_CHANGE
    return rounding * found
