"""The size of a worker's micro-batches: short beside an interval, and no smaller than pays. Pure.

A round ends when a signal comes, and the running micro-batch is finished: stopping then depends on the past alone, so
the mean gradient stays unbiased (Wald). To abandon a micro-batch because it takes too long would leave out the samples
that cost most. So micro-batches are kept short instead: a tenth of an interval T. Where a call takes c seconds besides
its samples, micro-batches of t seconds lose c/t of the time to calls and t/T to waiting at the barrier, least at
t = √(cT), so they are not shorter than that, nor than 2c: on a GPU, where c is 1 ms and a sample takes 1 µs, shorter
ones would compute next to nothing. Rounds that no signal ends set no limit.
"""

from __future__ import annotations

import math

from flegel.configuration.active import active


class MicroBatches:
    """Tell it how long micro-batches and rounds took; it says how large the next one should be. Sizes are powers of
    two, because libraries prepare their plans for each size anew."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._size = min(32, most)
        self._seconds: dict[int, float] = {}
        """Of a micro-batch, by its size."""
        self._trials: dict[int, int] = {}
        """Timings so far, by size; of those that are not `size` as well."""
        self._round = 0.0
        """Seconds of the last rounds that a signal ended; 0 where none did."""

    @property
    def size(self) -> int:
        return self._size

    @property
    def call(self) -> float:
        """Seconds that a call takes besides its samples; 0 until two sizes have been timed."""
        return self._cost()[0] if self._seconds else 0.0

    def add(self, samples: int, seconds: float) -> None:
        """A micro-batch of so many samples took so long."""
        rules = active().networks
        if samples < rules.fewest_samples or seconds <= 0:
            return
        self._trials[samples] = trials = self._trials.get(samples, 0) + 1
        if trials == 1:
            return
        known = self._seconds.get(samples, seconds)
        self._seconds[samples] = known + (
            rules.faster_timing_weight if seconds < known else rules.slower_timing_weight
        ) * (seconds - known)
        if samples == self._size and trials >= rules.timings_before_choice:
            self._choose()

    def add_round(self, seconds: float, stopped: bool) -> None:
        """A round took so long, from a new θ to the report; `stopped`: by a signal, before its points were done."""
        if stopped:
            seconds = max(seconds - 0.5 * self._seconds.get(self._size, 0.0), 0.5 * seconds)  # when the signal came
            self._round = seconds if not self._round else self._round + 0.5 * (seconds - self._round)
        else:
            self._round = 0.0
        self._choose()

    def too_large(self, samples: int) -> bool:
        """There was no memory for so many samples. False: fewer are not possible."""
        self.most = samples // 2
        self._size = max(min(self._size, self.most), 1)
        return self.most >= 1

    def _cost(self) -> tuple[float, float]:
        """Seconds of a call and of each sample: the line of least squares through the sizes so far, each with its usual
        time. A call takes no less than nothing, and no more than a whole one of the fewest samples."""
        few, many = min(self._seconds), max(self._seconds)
        if few == many:
            return 0.0, self._seconds[few] / few
        weight = {
            samples: min(self._trials[samples] - 1, active().networks.most_timings_counted) for samples in self._seconds
        }
        total = sum(weight.values())
        size = sum(weight[samples] * samples for samples in weight) / total
        mean = sum(weight[samples] * seconds for samples, seconds in self._seconds.items()) / total
        spread = sum(weight[samples] * (samples - size) ** 2 for samples in weight)
        each = sum(weight[n] * (n - size) * (seconds - mean) for n, seconds in self._seconds.items()) / spread
        call = min(max(mean - each * size, 0.0), min(self._seconds.values()))
        return call, max((mean - call) / size, 1e-12)

    def _choose(self) -> None:
        """Choose the size: doubled while a micro-batch stays a small part of a round, halved where it is too long."""
        rules = active().networks
        if not self._seconds:
            return
        call, each = self._cost()
        fitting = 2.0 * self._size
        if self._round:
            longest = max(
                rules.micro_batch_interval_part * self._round,
                min(math.sqrt(call * self._round), 0.5 * self._round),
            )
            fitting = max(longest - call, call) / each
        while 2 * self._size <= min(fitting, self.most):
            self._size *= 2
        while self._size > max(fitting, rules.fewest_samples) and self._size > 1:
            self._size //= 2
        self._size = max(min(self._size, self.most), 1)
