"""Whether speed or barrier cost have changed since an interval was chosen, as when stragglers come or go. Pure."""

from __future__ import annotations

import math
import statistics
from collections import deque

from flegel.configuration.active import active
from flegel.plan.interval.interval import milliseconds

Environment = tuple[float, float]
"""φ in seconds, and visits a second of all workers."""


class Recent:
    """The last few values. Speeds use the median, which ignores one bad round; costs use the mean, because a rare
    expensive barrier is paid as well."""

    def __init__(self, size: int) -> None:
        self._values: deque[float] = deque(maxlen=size)

    def add(self, value: float) -> None:
        self._values.append(value)

    @property
    def mean(self) -> float:
        return sum(self._values) / len(self._values) if self._values else 0.0

    @property
    def median(self) -> float:
        return statistics.median(self._values) if self._values else 0.0


def environment_change(before: Environment, now: Environment) -> str:
    """What has changed, in words; empty where neither has."""
    most = active().interval.environment_change
    (phi_before, rate_before), (phi, rate) = before, now
    if apart(rate, rate_before) > most:
        return f"speed changed from {rate_before:.3g} to {rate:.3g} points/s"
    if phi_before > 0 and apart(phi, phi_before) > most:
        return f"φ changed from {milliseconds(phi_before)} to {milliseconds(phi)}"
    return ""


def apart(a: float, b: float) -> float:
    """Ratio of the larger to the smaller; 1 if both are 0."""
    if a <= 0 or b <= 0:
        return 1.0 if a == b else math.inf
    return max(a / b, b / a)
