"""δ: when each worker should stop so that all reports arrive together (paper Section 5.2). Pure bookkeeping.

Semi-centralized coordination gives worker i its own interval η + δ_i. δ_i is learned, for each worker, from how late its
reports arrive after the moment that was asked for: slowness to respond, to be scheduled, to send. A straggler ends
up with a negative δ_i and stops early.
"""

from __future__ import annotations

WEIGHT = 0.3  # of the newest lateness
SHORTEST = 0.25  # of η: however late a worker is, it is left that much time to train
GRACE, LEAST_GRACE = 4.0, 0.002  # times the usual lateness, and seconds: then the coordinator's own signal follows


class Arrivals:
    """Lateness by worker."""

    def __init__(self) -> None:
        self.delta: dict[int, float] = {}
        self._spread = 0.0
        self._due: float | None = None

    def begin(self, now: float, eta: float, workers: tuple[int, ...]) -> dict[int, float]:
        """A round begins: how long each worker should train by its own clock."""
        self._due = now + eta
        return {w: max(eta + self.delta.get(w, 0.0), SHORTEST * eta) for w in workers}

    def cut(self) -> None:
        """The round was ended by a signal; what arrives now says nothing about own clocks."""
        self._due = None

    def arrived(self, worker: int, now: float) -> None:
        if self._due is None:
            return
        late = now - self._due
        self.delta[worker] = self.delta.get(worker, 0.0) - WEIGHT * late
        self._spread += WEIGHT * (abs(late) - self._spread)

    @property
    def grace(self) -> float:
        """How long after the moment asked for a worker counts as having missed its own timer."""
        return max(GRACE * self._spread, LEAST_GRACE)
