"""When ranks synchronize: the interval as a function of numbers that all ranks have, and one rank's own decision. Pure.

A rank looks at its clock before a micro-batch and at timings of the past only. So its number of micro-batches is a
stopping time, and the pooled gradient is unbiased. Nothing here looks at the content of a batch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from flegel.plan.interval.gradient_noise import GradientNoise, from_reports, gain

MEASURED = 16  # barriers at first, all of whose gradients are measured for the noise scale
SELDOM = 4  # then every fourth: two norms cost as much as passing twice over the parameters
REMEMBERED = 8  # durations of micro-batches from which the next one is foreseen
LEARNING_RATE_RULES = ("none", "linear", "sqrt", "adascale")
KNOWN = 0.8  # weight of the noise estimate from which it is used: 16 estimates, since one alone is mostly chance
MOST_COSTS = 20.0  # costs of a barrier in the longest interval: barriers then take 5 %, and no longer one wins more


def learning_rate_factor(rule: str, batch: float, reference: float, scale: float | None) -> float:
    """What a step of `batch` samples multiplies the learning rate by, if the rate was chosen for steps of `reference`.

    "linear" is for SGD where gradients are mostly noise (P. Goyal et al., 2017), "sqrt" for Adam and its kin (S.
    Malladi et al., 2022); "adascale" is linear below the noise scale, bounded above it, and 1 until that is known."""
    if rule == "linear":
        return batch / reference
    if rule == "sqrt":
        return math.sqrt(batch / reference)
    return gain(batch, reference, scale) if rule == "adascale" and scale is not None else 1.0


@dataclass(frozen=True)
class RankReport:
    """What one rank says at a barrier: a row of the all-reduced table. All numbers concern the time before it."""

    samples: float = 0.0
    seconds: float = 0.0
    """From the end of the last barrier until its last gradient was ready."""
    unit: float = 0.0
    """Seconds of one micro-batch: the median of the last intervals."""
    cost: float = 0.0
    """Seconds of the barrier before this one: from its last gradient until it had stepped and could go on."""
    square: float = 0.0
    """‖ΣG‖² of its gradient sum at the barrier before this one."""
    batch: float = 0.0
    """Its largest micro-batch."""
    ahead: float = 0.0
    """Samples that its loader has read ahead."""

    def row(self) -> list[float]:
        """All fields in their order."""
        return [self.samples, self.seconds, self.unit, self.cost, self.square, self.batch, self.ahead]


FIELDS = len(RankReport.__dataclass_fields__)


@dataclass
class BarrierPace:
    """The interval, the same on all ranks: it changes by all-reduced numbers only."""

    fixed: float | None = None
    interval: float = 0.0
    noise: GradientNoise = field(default_factory=GradientNoise)
    costs: deque[float] = field(default_factory=lambda: deque(maxlen=9))
    counts: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()

    @staticmethod
    def measures(barrier: int) -> bool:
        """Whether the gradients of this barrier are measured; the same answer on all ranks."""
        return barrier < MEASURED or barrier % SELDOM == 0

    def barrier(self, reports: Sequence[RankReport], pooled: float) -> None:
        """`pooled`: ‖ΣG‖² over all ranks at the barrier before this one, whose `square`s the reports carry."""
        if self.counts and pooled > 0.0:
            self.noise = self.noise.add(from_reports([r.square for r in reports], self.counts, pooled))
        cost = min(r.cost for r in reports)  # who came last waited for nobody
        if cost > 0.0:
            self.costs.append(cost)
        self.counts = tuple(r.samples for r in reports)
        self.rates = tuple(r.samples / r.seconds if r.seconds > 0.0 else 0.0 for r in reports)
        self.interval = self.fixed if self.fixed is not None else self._best(reports)

    def _best(self, reports: Sequence[RankReport]) -> float:
        """√(φ·B/R), but never shorter than a micro-batch of the slowest rank: otherwise all would wait for it."""
        shortest = max(r.unit for r in reports)
        scale, rate = self.noise.scale, sum(self.rates)
        if scale is None or self.noise.weight < KNOWN or not self.costs or rate <= 0.0:
            return shortest
        cost = median(self.costs)
        return max(min(math.sqrt(cost * scale / rate), MOST_COSTS * cost), shortest)


@dataclass
class RankTimings:
    """One rank's own timings. A micro-batch takes what passes from one to the next, so loading is part of it."""

    means: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    opened: float = 0.0
    """When the last barrier ended."""
    count: int = 0
    first: float = 0.0
    begun: float = 0.0
    latest: float = 0.0

    def begin(self, now: float) -> None:
        """A micro-batch begins."""
        if self.count:
            self.latest = now - self.begun
        else:
            self.first = now
        self.count, self.begun = self.count + 1, now

    def ready(self, now: float) -> float:
        """The gradient of the synchronized micro-batch is complete; seconds of this rank since the last barrier.

        What passes before the first micro-batch, such as the start of loaders or a validation, is not training."""
        self.means.append((now - self.first) / max(self.count, 1))
        return now - self.first

    def open(self, now: float) -> None:
        """A barrier ended."""
        self.opened, self.count, self.latest = now, 0, 0.0

    @property
    def typical(self) -> float:
        """Seconds of a micro-batch: the median of the last intervals, so that one delay does not lengthen all ranks'
        next interval."""
        return median(self.means) if self.means else 0.0

    @property
    def unit(self) -> float:
        """Seconds of a micro-batch, foreseen: as typical, or as the latest if that took longer."""
        return max(self.typical, self.latest)

    def is_last(self, now: float, interval: float) -> bool:
        """Whether the end of the one that begins now is nearer to the deadline than that of a further one: where the
        interval is a few micro-batches long, a small delay must not cost one of them."""
        return not self.means or now - self.opened + 1.5 * self.unit > interval
