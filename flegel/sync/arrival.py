"""δ: when each worker should stop so that all reports arrive together (paper Section 5.2). Pure bookkeeping.

Semi-centralized coordination gives worker i its own interval η + δ_i. δ_i is learned, for each worker, from how
late its reports arrive compared with those of the median worker, beyond the scatter that all of them have: slowness
to respond, to be scheduled, to send. A straggler ends up with a negative δ_i and stops early; the median worker
trains for η as it would under a signal, because δ is counted from the median δ, and nobody trains longer: who comes
early may have foreseen that another step would end too late (`machine/foresight.py`).
"""

from __future__ import annotations

import math
from statistics import median

WEIGHT = 0.3  # of the newest lateness
USUAL = 3.0  # times the median distance from the median: reports are taken in one by one, and somebody is always last
SHORTEST = 0.25  # of η: however late a worker is, it is left that much time to train
GRACE, LEAST_GRACE = 4.0, 0.002  # times the usual spread, and seconds: then the coordinator's own signal follows


class Arrivals:
    """Lateness by worker."""

    def __init__(self) -> None:
        self.delta: dict[int, float] = {}
        self._overhead = self._spread = 0.0
        self._due = 0.0
        self._cut = False
        self._now: dict[int, float] = {}

    def begin(self, now: float, eta: float, workers: tuple[int, ...]) -> dict[int, float]:
        """A round begins: how long each worker should train by its own clock."""
        self._due, self._cut = now + eta, False
        self._now.clear()
        for worker, delta in self.delta.items():  # no further than matters, or it would not find back
            self.delta[worker] = max(delta, (SHORTEST - 1) * eta)
        return {w: eta + self.delta.get(w, 0.0) for w in workers}

    def arrived(self, worker: int, now: float) -> None:
        self._now[worker] = now

    def cut(self) -> None:
        """The round is ended by a signal. What arrives from now on says nothing about own clocks; who stopped by its
        own clock before that was early, and trains longer next time, as long as all the others at most."""
        if self._cut:
            return
        self._cut = True
        end = max(self._now.values(), default=0.0)
        for worker, at in self._now.items():
            if self.delta.get(worker, 0.0) < 0:
                self.delta[worker] = min(self.delta[worker] + WEIGHT * (end - at), 0.0)

    def close(self) -> None:
        """All have arrived: learn."""
        if self._cut or not self._now:
            return
        middle = median(self._now.values())
        usual = USUAL * median(abs(at - middle) for at in self._now.values())
        for worker, at in self._now.items():
            late = at - middle
            beyond = math.copysign(max(abs(late) - usual, 0.0), late)
            self.delta[worker] = self.delta.get(worker, 0.0) - WEIGHT * beyond
            self._spread += WEIGHT / len(self._now) * (abs(late) - self._spread)
        anchor = median(self.delta[worker] for worker in self._now)
        for worker in self._now:
            self.delta[worker] = min(self.delta[worker] - anchor, 0.0)
        self._overhead += WEIGHT * (middle - self._due - self._overhead)

    @property
    def fallback(self) -> float:
        """When a worker counts as having missed its own timer."""
        return self._due + max(self._overhead, 0.0) + max(GRACE * self._spread, LEAST_GRACE)
