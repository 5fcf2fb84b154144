"""Algorithms whose θ changes once every point has been visited. Never reads data or a clock."""

from __future__ import annotations

from typing import Any

import numpy as np

from flegel.algorithm import Algorithm, Sample

ALL_SEEN = 1.0 - 1e-9
"""Of the weight of all points: rounding leaves so much of the sum of their weights."""


class EveryPoint(Algorithm):
    """Base of such algorithms: θ has a field `total`, what all points weigh."""

    def continueParameter(self, previous: Any, sample: Sample, rng: np.random.Generator) -> Any:
        """The model of before; how many points there are is counted anew."""
        return super().continueParameter(previous, sample, rng)._replace(total=np.array([sample.mass]))


def all_counted(weight: float, parameter: Any) -> bool:
    """Have points of so much weight been visited as there are?"""
    return bool(weight >= parameter.total[0] * ALL_SEEN)
