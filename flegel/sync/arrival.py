"""Who keeps its own time, and when it should stop so that all reports arrive together (paper Section 5.2). Pure.

A signal reaches punctual workers at once. Who answers late again and again, because it sleeps, waits for its processor
or is far away, is told before the round how long to train: η + δ_i, and does not begin what would end later
(`machine/foresight.py`). δ_i is learned, for each of these workers, from how late its reports arrive compared with the
median worker, beyond the scatter that all of them have; it is never positive.

Some cannot be in time: a step of theirs takes longer than η. No round is over before they report, so that the signal
for the others may as well come later: `patience` says by how much.
"""

from __future__ import annotations

from statistics import median

WEIGHT = 0.3  # of the newest lateness
USUAL = 3.0  # times the median distance from the median: reports are taken in one by one, and somebody is always last
LEAST = 0.001  # seconds: to answer so late is not late
FADING = 0.95  # of the patience is kept from one round to the next: δ should do what it can
SHORTEST = 0.25  # of η: however late a worker is, it is left that much time to train


class Arrivals:
    """Lateness by worker."""

    def __init__(self) -> None:
        self.delta: dict[int, float] = {}
        """Of those that keep their own time."""
        self.patience = 0.0
        """Seconds beyond η that the round lasts for the sake of those that cannot be earlier."""
        self._late: dict[int, float] = {}
        self._usual = self._eta = 0.0
        self._cut: float | None = None
        self._now: dict[int, float] = {}

    def begin(self, eta: float) -> dict[int, float]:
        """A round begins: how long those that keep their own time should train."""
        self._cut, self._eta = None, eta
        self._now.clear()
        for worker, delta in self.delta.items():  # no further than matters, or it would not find back
            self.delta[worker] = max(delta, (SHORTEST - 1) * eta)
        return {worker: eta + delta for worker, delta in self.delta.items()}

    def arrived(self, worker: int, now: float) -> None:
        self._now[worker] = now

    def cut(self, now: float) -> None:
        """The round is ended before its time. What arrives from now on says nothing about own clocks; who stopped by
        its own before was early, and trains longer next time."""
        if self._cut is not None:
            return
        self._cut = now
        for worker, at in self._now.items():
            if worker in self.delta:
                self.delta[worker] = min(self.delta[worker] + WEIGHT * (now - at), 0.0)

    def close(self) -> None:
        """All have arrived: learn. Who was through with its share before the signal counts as having come with it."""
        cut = self._cut
        times = {worker: at if cut is None else max(at, cut) for worker, at in self._now.items()}
        punctual = [at for worker, at in times.items() if worker not in self.delta] or list(times.values())
        if not punctual:
            return
        middle = median(punctual)
        usual = USUAL * median(abs(at - middle) for at in punctual)
        if cut is None:
            self._usual += WEIGHT * (usual - self._usual)
        for worker, at in times.items():
            if cut is not None and self._now[worker] <= cut:
                continue
            late = self._late.get(worker, 0.0)
            late += WEIGHT * (at - middle - late)
            self._late[worker] = late
            if worker not in self.delta:
                if late > max(self._usual, usual, LEAST):
                    self.delta[worker] = 0.0
            elif cut is None:
                beyond = late - self._usual if late > self._usual else min(late, 0.0)
                self.delta[worker] = min(self.delta[worker] - WEIGHT * beyond, 0.0)
        if cut is None and self.delta:
            last = max(times.get(worker, middle) for worker in self.delta) - middle
            change = WEIGHT * min(max(last, -self._eta), self._eta)  # a single hitch teaches little
            self.patience = FADING * max(self.patience + change, 0.0)
