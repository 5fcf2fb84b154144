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

from flegel.plan.interval.gradient_noise import (
    GradientNoise,
    NoiseInterval,
    from_reports,
    gain,
)
from flegel.plan.interval.interval import FixedInterval, Interval, Round
from flegel.torch.flexible.rank_settings import rank_settings

LEARNING_RATE_RULES = ("auto", "none", "linear", "sqrt", "adascale")
RULES_OF_OPTIMIZERS = {
    **dict.fromkeys(("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "SparseAdam", "Adagrad", "RMSprop"), "sqrt"),
    "SGD": "adascale",
}


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
    """From the end of the last barrier until its last gradient is ready; the backward pass counts as the last one.
    After barriers without reports, the mean over these intervals."""
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
    site: float = 0.0
    """What the leader of a site says of θ of all sites (site_rounds.py), where ranks are one of several sites."""
    silent: float = 0.0
    """1 if this is no report: equally fast ranks trained a usual micro-batch (even_run.py). Other columns are 0."""

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


class WaitedBarrier(NamedTuple):
    """What one barrier tells about waiting. Seconds."""

    waited: float
    """By a rank for the one that came last, on average over these ranks."""
    longest: float
    """Of the rank that came last, since the barrier before."""
    step: float
    """That ranks with one micro-batch in an interval would have taken: a micro-batch of the rank that came last."""


class BarrierWaits:
    """How long ranks waited at the last barriers for the one that came last."""

    def __init__(self) -> None:
        self._last: deque[WaitedBarrier] = deque()
        self._sum_waited = self._sum_longest = self._sum_step = 0.0
        self.longest = 0.0
        """The longest wait."""

    @property
    def barriers(self) -> int:
        return len(self._last)

    def add(self, seconds: Sequence[float], counts: Sequence[float] | None = None, barriers: int = 1) -> None:
        """What each rank has spent until it arrived, on average over so many barriers, and on how many micro-batches,
        if not on one each."""
        rules = rank_settings()
        longest = max(seconds)  # of the rank that came last
        waited = (longest * len(seconds) - sum(seconds)) / max(len(seconds) - 1, 1)
        step = longest
        if counts is not None:
            step = max(own / max(count, 1.0) for own, count in zip(seconds, counts, strict=True))
        longest *= barriers
        self._last.append(WaitedBarrier(waited, longest, step))
        self._change_sums(waited, longest, step)
        self.longest = max(self.longest, waited)
        while (
            len(self._last) > rules.remembered_waits
            and self._sum_longest - self._last[0].longest > rules.remembered_wait_seconds
        ):
            oldest = self._last.popleft()
            self._change_sums(-oldest.waited, -oldest.longest, -oldest.step)
            if oldest.waited == self.longest:
                self.longest = max(one.waited for one in self._last)

    def _change_sums(self, waited: float, longest: float, step: float) -> None:
        self._sum_waited, self._sum_longest = self._sum_waited + waited, self._sum_longest + longest
        self._sum_step += step

    @property
    def mean(self) -> float:
        """Of a barrier. The longest wait is left out: a single delay says nothing about the next ones."""
        if len(self._last) < rank_settings().first_judged_barrier:
            return 0.0
        return (self._sum_waited - self.longest) / (len(self._last) - 1)

    @property
    def mean_step(self) -> float:
        """Seconds of a step with one micro-batch of each rank, waiting included."""
        return self._sum_step / len(self._last) if self._last else 0.0


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
        rules = rank_settings()
        if self.even:
            return False
        return self.noise.weight < rules.least_noise_weight or barrier % rules.barriers_per_noise_measurement == 0

    def barrier(self, reports: Sequence[RankReport], pooled: float, barriers: int = 1) -> None:
        """`pooled`: ‖ΣG‖² over all ranks at the barrier before this one, whose `square`s the reports carry.
        `barriers`: since the last reports."""
        if self._fixed is None:
            self._judge(reports, barriers)
        if self.even:
            # The latest where it is shorter: a module that is compiled in the first micro-batch takes seconds there,
            # and an epoch that is dealt by such a median would end with the next barrier.
            self.interval = max([min(r.unit, r.seconds) for r in reports])
            self._counts = ()
            return
        known = len(self._counts) == len(reports) and 0.0 < pooled < math.inf
        if known and all(0.0 < r.square < math.inf for r in reports):
            self.noise = self.noise.add(from_reports([r.square for r in reports], self._counts, pooled))
        self._counts = tuple(r.samples for r in reports)
        ended = self._round(reports)
        self.interval = self._adjuster.next(ended).seconds or 0.0
        if self._fixed is None:
            self.interval = max(self.interval, self._asked_by_waiting(ended, reports))

    def _asked_by_waiting(self, ended: Round, reports: Sequence[RankReport]) -> float:
        """Seconds. A rank that pauses now and then is waited for less often in intervals as long as its pauses, whose
        steps are worth less: so long intervals if they progress faster than steps of one micro-batch of each rank. 0
        until the noise scale is known, which many short steps tell soonest."""
        if ended.noise is None:
            return 0.0
        rules, pause, cost = rank_settings(), self._waits.longest, ended.barrier_cost
        rate = sum(r.batch / r.unit for r in reports if r.unit > 0.0)
        seconds = (1.0 + 1.0 / rules.longest_interval_in_waits) * pause + cost
        reference = sum(r.batch for r in reports)
        steps = gain(rate * pause, reference, ended.noise) if rate * pause > reference else 1.0
        if steps * (self._waits.mean_step + cost) < seconds:
            return 0.0
        return rules.longest_interval_in_waits * self._waits.mean

    def _judge(self, reports: Sequence[RankReport], barriers: int) -> None:
        """Whether ranks are even: in the interval that the slowest one and the waiting ask for, the fastest one makes
        one micro-batch. Ranks that count as even become uneven by a larger ratio than they become even again by."""
        rules = rank_settings()
        counts = None if self.even else [r.samples / max(r.batch, 1.0) for r in reports]
        self._waits.add([r.seconds for r in reports], counts, barriers)
        if self._waits.barriers < rules.first_judged_barrier:
            return
        units = [r.unit for r in reports]
        ratio = max(max(units), rules.longest_interval_in_waits * self._waits.mean) / max(min(units), 1e-9)
        self.even = ratio < (rules.uneven_from_ratio if self.even else rules.even_below_ratio)

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
            noise=self.noise.scale if self.noise.weight >= rank_settings().least_noise_weight else None,
            indivisible=max(r.unit for r in reports),
        )


@dataclass
class RankTimings:
    """One rank's own timings. All that passes from the end of a barrier to the arrival at the next one is this rank's
    time, whatever it does: reading, copying, logging. Only evaluation is not, nor what precedes the first micro-batch
    of all."""

    mean_batch_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=rank_settings().remembered_intervals))
    last_batch_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=rank_settings().remembered_intervals))
    """Seconds from the beginning of a forward pass to its gradients: what a batch takes once it is read."""
    opened: float = 0.0
    """When the last barrier ended; later by what was spent on evaluation."""
    count: int = 0
    begun: float = 0.0
    latest: float = 0.0
    excluded: float = 0.0
    """Spent on evaluation since the last barrier."""
    intervals: int = 0
    """Barriers that have ended."""

    def begin(self, now: float) -> None:
        """A micro-batch begins: it was read already."""
        if not self.mean_batch_seconds and not self.count:
            self.opened = now  # loaders and kernels start once in a training
        if self.count:
            self.latest = now - self.begun
        self.count, self.begun = self.count + 1, now

    def exclude(self, seconds: float) -> None:
        """Spent on evaluation."""
        self.excluded += seconds
        self.opened += seconds
        self.begun += seconds

    def ready(self, now: float) -> float:
        """The gradient of the synchronized micro-batch is complete; seconds of this rank since the last barrier."""
        self.mean_batch_seconds.append((now - self.opened) / max(self.count, 1))
        self.last_batch_seconds.append(now - self.begun)
        return now - self.opened

    def open(self, now: float) -> None:
        """A barrier ended."""
        self.opened, self.count, self.latest, self.excluded = now, 0, 0.0, 0.0
        self.intervals += 1

    @property
    def typical(self) -> float:
        """Seconds of a micro-batch: the median of the last intervals, so that one delay does not lengthen all ranks'
        next interval."""
        return median(self.mean_batch_seconds) if self.mean_batch_seconds else 0.0

    @property
    def batch_seconds(self) -> float:
        """Seconds of a micro-batch, foreseen: as typical, or as the latest if that took longer."""
        return max(self.typical, self.latest)

    def is_last(self, now: float, interval: float) -> bool:
        """Whether the micro-batch that begins now is the last one before the barrier: its end is nearer to the deadline
        than that of a further one. Where the interval is a few micro-batches long, a small delay must not cost one.

        The batch that begins was read and is trained in any case, so what its reading took may be looked at: whether
        it is trained was decided before it (a stopping time)."""
        if not self.mean_batch_seconds:
            return True  # nothing is measured yet: synchronize after the first
        batch = self.batch_seconds
        return now - self.opened + min(median(self.last_batch_seconds), batch) + 0.5 * batch > interval
