"""The size of a worker's micro-batches: a tenth of an interval at most, and no larger than pays. Pure.

A round ends when a signal comes, and the running micro-batch is finished: stopping then depends on the past alone, so
the mean gradient stays unbiased (Wald). To abandon a micro-batch because it takes too long would leave out the samples
that cost most. So micro-batches are kept short instead.
"""

from __future__ import annotations

PART = 0.1  # of an interval that a micro-batch may take
LEAST = 8  # samples: with fewer the calls cost more than the arithmetic


class MicroBatches:
    """Tell it how long micro-batches and rounds took; it says how large the next one should be. Sizes are powers of
    two, because libraries prepare their plans for each size anew."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._size = min(32, most)
        self._rate = 0.0
        """Samples a second."""
        self._round = 0.0
        """Seconds of the last rounds."""

    @property
    def size(self) -> int:
        return self._size

    def add(self, samples: int, seconds: float) -> None:
        """A micro-batch of so many samples took so long."""
        if seconds <= 0:
            return
        fresh = samples / seconds
        self._rate = fresh if not self._rate else self._rate + 0.2 * (fresh - self._rate)
        self._choose()

    def add_round(self, seconds: float) -> None:
        """A round took so long, from a new θ to the report."""
        self._round = seconds if not self._round else self._round + 0.5 * (seconds - self._round)
        self._choose()

    def too_large(self, samples: int) -> bool:
        """There was no memory for so many samples. False: fewer are not possible."""
        self.most = samples // 2
        self._size = max(min(self._size, self.most), 1)
        return self.most >= 1

    def _choose(self) -> None:
        fitting = self._rate * self._round * PART if self._round else 2.0 * self._size
        while 2 * self._size <= min(fitting, self.most):
            self._size *= 2
        while self._size > max(fitting, LEAST) and self._size > 1:
            self._size //= 2
        self._size = max(min(self._size, self.most), 1)
