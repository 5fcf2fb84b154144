"""Changes of θ that are far from what their group sent before: kept, clipped, damped or left out. Pure.

As in EDiT, a group is compared with itself: sites of unequal size and rows may send changes of unequal size. The size
of a change is the logarithm of its root mean square; mean and variance are kept for each group and fragment in the
header of the result, so that whoever writes the next one decides by the same numbers. An outlier is larger than the
mean by more than three standard deviations, and does not count in them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.machine.group.fragments import root_mean_square

ChangeSize = tuple[float, float, int]
"""Mean and variance of the logarithms of sizes, and of how many."""


@dataclass(frozen=True)
class JudgedChange:
    """A change as it counts."""

    factor: float
    """Of its weight; 0: left out."""
    parts: Sequence[Array]
    size: ChangeSize
    """Of this group and fragment from now on."""
    reason: str = ""
    """What was done to it, where it is an outlier."""


def judge(how: str, parts: Sequence[Array], before: ChangeSize | None) -> JudgedChange:
    """`how`: keep, clip (to the largest size that is none), damp (weigh it less by that part) or exclude."""
    size = root_mean_square(parts)
    mean, variance, count = known = before or (0.0, 0.0, 0)
    if how == "keep" or size <= 0.0:
        return JudgedChange(1.0, parts, known)
    settings = active().groups
    deviation = max(math.sqrt(variance), settings.least_change_deviation)
    limit = mean + settings.outlier_deviations * deviation
    if count >= settings.changes_before_outliers and math.log(size) > limit:
        factor = math.exp(limit - math.log(size))
        times = 10.0 ** min((math.log(size) - mean) / math.log(10.0), 300.0)
        told = f"its change was {times:.3g} times as large as usual, and was"
        if how == "clip":
            return JudgedChange(1.0, [part * factor for part in parts], known, f"{told} clipped to {factor:.2g} of it")
        if how == "damp":
            return JudgedChange(factor, parts, known, f"{told} weighted by {factor:.2g}")
        return JudgedChange(0.0, parts, known, f"{told} left out")
    seen = min(count + 1, settings.changes_remembered)
    step = math.log(size) - mean
    mean += step / seen
    variance += (step * (math.log(size) - mean) - variance) / seen
    return JudgedChange(1.0, parts, (mean, max(variance, 0.0), count + 1))


def told_outliers(outliers: Mapping[str, str]) -> list[str]:
    """Sentences for the trace."""
    return [f"group {group}: {why}" for group, why in sorted(outliers.items())]
