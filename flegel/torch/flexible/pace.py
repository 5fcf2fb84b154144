"""When ranks synchronize: the interval as a function of numbers that all ranks have, and one rank's own decision. Pure.

A rank looks at its clock before a micro-batch and at timings of the past only. So its number of micro-batches is a
stopping time, and the pooled gradient is unbiased. Nothing here looks at the content of a batch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from flegel.plan.interval.gradient_noise import GradientNoise, NoiseInterval, from_reports, gain
from flegel.plan.interval.interval import FixedInterval, Interval, Round

BARRIERS_PER_MEASUREMENT = 4  # once the noise scale is known: two norms cost as much as reading all parameters twice
REMEMBERED_INTERVALS = 8  # whose micro-batches' durations predict the next one
REMEMBERED_WAITS, REMEMBERED_WAIT_SECONDS = 32, 5.0
"""Barriers whose waiting counts, and seconds of training, if these are more: pauses of a second are seen in them,
however short micro-batches are, although the longest one is left out."""
FIRST_JUDGED_BARRIER = 4  # before it timings are those of the start: compiling, first allocations, empty caches
INTERVAL_WAITS = 2.0
"""Shortest interval in mean waits of a barrier: a third of the time is waited then, where delays are as long as the
interval and come at random. A longer interval waits less, but its steps are worth less."""
UNEVEN_RATIO, EVEN_RATIO = 1.5, 1.25
"""Of the interval to a micro-batch of the fastest rank. From 1.5 on that rank would make two; the lower one keeps ranks
near the limit from changing at every barrier."""
LEARNING_RATE_RULES = ("auto", "none", "linear", "sqrt", "adascale")
TOLD_BATCH_RATIO = 1.5  # of the samples of a step to those of DDP, from which "auto" warns that it changes the rate
RULES_OF_OPTIMIZERS = {
    **dict.fromkeys(("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "SparseAdam", "Adagrad", "RMSprop"), "sqrt"),
    "SGD": "adascale",
}
LEAST_NOISE_WEIGHT = 0.8
"""Weight of the noise estimate from which it is used: about 16 estimates, because a single one is mostly chance."""


def learning_rate_factor(rule: str, batch: float, reference: float, scale: float | None) -> float:
    """What a step of `batch` samples multiplies the learning rate by, if the rate was chosen for steps of `reference`.

    "linear" is for SGD where gradients are mostly noise (P. Goyal et al., 2017), "sqrt" for Adam and its kin (S.
    Malladi et al., 2022); "adascale" is linear below the noise scale, bounded above it, and 1 until that is known."""
    if rule == "linear":
        return batch / reference
    if rule == "sqrt":
        return math.sqrt(batch / reference)
    return gain(batch, reference, scale) if rule == "adascale" and scale is not None else 1.0


def rule_of(optimizer: type) -> str:
    """What "auto" means for this optimizer, or for one derived from it; "none" for an optimizer without a known
    rule."""
    return next(
        (RULES_OF_OPTIMIZERS[t.__name__] for t in optimizer.__mro__ if t.__name__ in RULES_OF_OPTIMIZERS), "none"
    )


class RankReport(NamedTuple):
    """What one rank says at a barrier: a row of the all-reduced table. All numbers concern the time before it."""

    samples: float = 0.0
    seconds: float = 0.0
    """From the end of the last barrier until its last gradient is ready; the backward pass counts as the last one."""
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
    taken: float = 0.0
    """Samples that its loop has taken from the loader since the last barrier; the loader's batches, not the model's."""
    take: float = 0.0
    """Samples that one iteration of its loop takes: several batches where gradients are accumulated."""
    least: float = 1.0
    """Samples below which its loop cannot make an iteration: at the end of an epoch they are left."""
    closed: float = 0.0
    """1 if its loader has read all its claims and ended, so it takes no others."""
    epoch: float = 0.0
    """Epochs that it has begun."""
    barrier: float = 0.0
    """Barriers that it has passed."""
    stop: float = 0.0
    """1 if it asks all ranks to end the training at this barrier."""
    generation: float = 0.0
    """The latest generation of ranks to whose members it is connected, where ranks heal."""
    rate: float = 0.0
    """Learning rates of its optimizers, added up: the same on all ranks, where these step with the same gradient."""

    @classmethod
    def of_means(cls, table: Any) -> list[RankReport]:
        """From the mean over ranks of tables in which each has filled in its own row. Counts are whole numbers again,
        also where a division by the number of ranks has rounded them."""
        values = table.astype(np.float64) * len(table)
        values[:, COUNTS] = np.rint(values[:, COUNTS])
        return [cls(*row) for row in values.tolist()]


REPORT_FIELDS = len(RankReport._fields)
FRACTIONS = ("seconds", "unit", "cost", "square", "rate")
COUNTS = [at for at, name in enumerate(RankReport._fields) if name not in FRACTIONS]


class BarrierWaits:
    """Seconds that ranks waited at the last barriers for the one that came last, on average over these ranks."""

    def __init__(self) -> None:
        self._last: deque[tuple[float, float]] = deque()
        """Seconds waited, and seconds of the whole interval."""
        self._waited = self._trained = self._longest = 0.0

    @property
    def barriers(self) -> int:
        return len(self._last)

    def add(self, seconds: Sequence[float]) -> None:
        """What each rank has spent until it arrived."""
        longest = max(seconds)
        waited = (longest * len(seconds) - sum(seconds)) / max(len(seconds) - 1, 1)
        self._last.append((waited, longest))
        self._waited, self._trained = self._waited + waited, self._trained + longest
        self._longest = max(self._longest, waited)
        while len(self._last) > REMEMBERED_WAITS and self._trained - self._last[0][1] > REMEMBERED_WAIT_SECONDS:
            waited, trained = self._last.popleft()
            self._waited, self._trained = self._waited - waited, self._trained - trained
            if waited == self._longest:
                self._longest = max(one for one, _ in self._last)

    @property
    def mean(self) -> float:
        """Of a barrier. The longest wait is left out: a single delay says nothing about the next ones."""
        if len(self._last) < FIRST_JUDGED_BARRIER:
            return 0.0
        return (self._waited - self._longest) / (len(self._last) - 1)


class BarrierPace:
    """The interval, the same on all ranks: it changes by all-reduced numbers only."""

    def __init__(self, fixed: float | None = None) -> None:
        self._fixed = fixed
        self._adjuster: Interval = NoiseInterval() if fixed is None else FixedInterval(fixed)
        self.interval = 0.0
        self.even = fixed is None
        """Every rank trains one micro-batch in an interval, as in DDP: nobody could make another one meanwhile."""
        self.noise = GradientNoise()
        self._counts: tuple[float, ...] = ()
        self._waits = BarrierWaits()

    def measures(self, barrier: int) -> bool:
        """Whether the gradients of this barrier are measured; the same answer on all ranks. The noise scale is of no
        use while every micro-batch ends with a barrier."""
        if self.even:
            return False
        return self.noise.weight < LEAST_NOISE_WEIGHT or barrier % BARRIERS_PER_MEASUREMENT == 0

    def barrier(self, reports: Sequence[RankReport], pooled: float) -> None:
        """`pooled`: ‖ΣG‖² over all ranks at the barrier before this one, whose `square`s the reports carry."""
        if self._fixed is None:
            self._judge(reports)
        if self.even:
            self.interval = max([r.unit for r in reports])
            self._counts = ()
            return
        known = len(self._counts) == len(reports) and 0.0 < pooled < math.inf
        if known and all(0.0 < r.square < math.inf for r in reports):
            self.noise = self.noise.add(from_reports([r.square for r in reports], self._counts, pooled))
        self._counts = tuple(r.samples for r in reports)
        self.interval = self._adjuster.next(self._round(reports)).seconds or 0.0
        if self._fixed is None:
            self.interval = max(self.interval, INTERVAL_WAITS * self._waits.mean)

    def _judge(self, reports: Sequence[RankReport]) -> None:
        """Whether ranks are even: in the interval that the slowest one and the waiting ask for, the fastest one makes
        one micro-batch. Ranks that count as even become uneven by a larger ratio than they become even again by."""
        self._waits.add([r.seconds for r in reports])
        if self._waits.barriers < FIRST_JUDGED_BARRIER:
            return
        units = [r.unit for r in reports]
        ratio = max(max(units), INTERVAL_WAITS * self._waits.mean) / max(min(units), 1e-9)
        self.even = ratio < (UNEVEN_RATIO if self.even else EVEN_RATIO)

    def regroup(self) -> None:
        """Other ranks from now on: costs and counts were those of another world. The noise is that of the data."""
        self._adjuster = NoiseInterval() if self._fixed is None else FixedInterval(self._fixed)
        self._counts = ()
        self._waits = BarrierWaits()

    def to_state(self) -> dict[str, Any]:
        """Of plain values, for a rank that joins."""
        return {"interval": self.interval, "even": self.even, "noise": asdict(self.noise)}

    def load_state(self, state: dict[str, Any]) -> None:
        self.interval, self.even, self.noise = state["interval"], state["even"], GradientNoise(**state["noise"])
        self._waits = BarrierWaits()

    def _round(self, reports: Sequence[RankReport]) -> Round:
        """The time since the last barrier as an interval sees it. Its seconds are those in which all ranks together
        train these samples at their measured speeds."""
        samples = sum(r.samples for r in reports)
        rate = sum(r.samples / r.seconds for r in reports if r.seconds > 0.0)
        cost = min(r.cost for r in reports)  # the rank that came last did not wait
        return Round(
            visits=round(samples) if rate > 0.0 else 0,
            seconds=cost + (samples / rate if rate > 0.0 else 0.0),
            barrier_cost=cost,
            gain=None,
            full_pass=samples,
            points=samples,
            laps=0.0,
            noise=self.noise.scale if self.noise.weight >= LEAST_NOISE_WEIGHT else None,
            indivisible=max(r.unit for r in reports),
        )


@dataclass
class RankTimings:
    """One rank's own timings. All that passes from the end of a barrier to the arrival at the next one is this rank's
    time, whatever it does: reading, copying, logging. Only evaluation is not, nor what precedes the first micro-batch
    of all."""

    means: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED_INTERVALS))
    computed: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED_INTERVALS))
    """Seconds from the beginning of a forward pass to its gradients: what a batch takes once it is read."""
    opened: float = 0.0
    """When the last barrier ended; later by what was spent on evaluation."""
    count: int = 0
    begun: float = 0.0
    latest: float = 0.0

    def begin(self, now: float) -> None:
        """A micro-batch begins: it was read already."""
        if not self.means and not self.count:
            self.opened = now  # loaders and kernels start once in a training
        if self.count:
            self.latest = now - self.begun
        self.count, self.begun = self.count + 1, now

    def exclude(self, seconds: float) -> None:
        """Spent on evaluation."""
        self.opened += seconds
        self.begun += seconds

    def ready(self, now: float) -> float:
        """The gradient of the synchronized micro-batch is complete; seconds of this rank since the last barrier."""
        self.means.append((now - self.opened) / max(self.count, 1))
        self.computed.append(now - self.begun)
        return now - self.opened

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
        interval is a few micro-batches long, a small delay must not cost one of them.

        The batch that begins was read and is trained in any case, so what its reading took may be looked at: whether
        it is trained was decided before it (a stopping time)."""
        if not self.means:
            return True
        unit = self.unit
        return now - self.opened + min(median(self.computed), unit) + 0.5 * unit > interval
