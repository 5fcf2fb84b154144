"""Who has been silent, who is late, who does not get on: every wait has a deadline and names its peer. Pure.

Two signs of life: a worker's messages (its I/O thread beats while it trains) and the number of points in its beats. A
process that is killed, frozen or cut off gives neither, and counts as lost; one that beats but does not finish a
single point has code that does not return, which no other worker would do better.
"""

from __future__ import annotations

from flegel.machine.events import Patience
from flegel.messages import Answer, Beat
from flegel.sync.base import View

BEATING = 5.0  # seconds: a beat so fresh says that the process itself is well


class Watch:
    """Told of every message and order; asked now and then."""

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self.asked_at: dict[int, float] = {}
        self._heard_at: dict[int, float] = {}
        self._beat_at: dict[int, float] = {}
        self._visits: dict[int, tuple[int, float]] = {}

    def expect(self, worker: int, now: float) -> None:
        """The worker was told to do something."""
        self.asked_at[worker] = now
        self._heard_at.setdefault(worker, now)
        self._visits[worker] = (self._visits.get(worker, (-1, now))[0], now)

    def hear(self, worker: int, body: Answer, now: float) -> None:
        self._heard_at[worker] = now
        if isinstance(body, Beat):
            self._beat_at[worker] = now
            if self._visits.get(worker, (-1, now))[0] != body.visits:
                self._visits[worker] = (body.visits, now)

    def forget(self, worker: int) -> None:
        for book in (self.asked_at, self._heard_at, self._beat_at, self._visits):
            book.pop(worker, None)

    def silent(self, now: float) -> list[tuple[int, str]]:
        """Workers that count as lost, and why."""
        return [
            (worker, f"has been silent for {now - heard:.0f} s")
            for worker, heard in self._heard_at.items()
            if now - heard > self.patience.silence
        ]

    def stuck(self, view: View, now: float) -> str | None:
        """A worker that trains, beats, and does not get on."""
        for worker in view.training():
            visits, since = self._visits.get(worker, (-1, now))
            alive = now - self._beat_at.get(worker, -BEATING) < BEATING
            if visits >= 0 and alive and now - since > self.patience.progress:
                return (
                    f"Worker {worker} is alive, but has not finished a single point for {now - since:.0f} s in round "
                    f"{view.round}; does updateDataPoint return? A longer --worker-timeout gives it more time."
                )
        return None
