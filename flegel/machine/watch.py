"""Who has been silent, who is late, who does not get on: every wait has a deadline and names its peer. Pure.

Two signs of life: a worker's messages (its I/O thread beats while it trains) and the number of points in its beats. A
process that is killed, frozen or cut off gives neither, and counts as lost; one that beats but does not finish a
single point has code that does not return, which no other worker would do better.
"""

from __future__ import annotations

from collections.abc import Iterable

from flegel.machine.events import Patience
from flegel.messages import Answer, Beat
from flegel.sync.base import View

AWAY = 3.0  # seconds between two looks: longer, and it was the coordinator itself that was away
BEATS = 0.5  # beats a second that a worker must have given all the time: one that was frozen meanwhile has not


class Watch:
    """Told of every message and order; asked now and then."""

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self.asked_at: dict[int, float] = {}
        self._heard_at: dict[int, float] = {}
        self._visits: dict[int, tuple[int, float, int]] = {}
        """Points done by the last beat, since when there are no more, and beats that said so."""
        self._looked_at: float | None = None

    def look(self, now: float) -> None:
        """Called before anybody is judged. Where the coordinator was held up itself, by a long hook or because its host
        slept, it has not listened, and nobody is to blame for that time."""
        away = now - self._looked_at if self._looked_at is not None else 0.0
        self._looked_at = now
        if away > AWAY:
            self._heard_at = {w: at + away for w, at in self._heard_at.items()}
            self._visits = {w: (visits, at + away, beats) for w, (visits, at, beats) in self._visits.items()}

    def expect(self, worker: int, now: float) -> None:
        """The worker was told to do something."""
        self.expect_all((worker,), now)

    def expect_all(self, workers: Iterable[int], now: float) -> None:
        visits, heard = self._visits, self._heard_at
        for worker in workers:
            self.asked_at[worker] = now
            if worker in visits:
                visits[worker] = (visits[worker][0], now, 0)
            else:
                visits[worker] = (-1, now, 0)
                heard.setdefault(worker, now)

    def hear(self, worker: int, body: Answer, now: float) -> None:
        self._heard_at[worker] = now
        if isinstance(body, Beat):
            visits, since, beats = self._visits.get(worker, (-1, now, 0))
            self._visits[worker] = (visits, since, beats + 1) if visits == body.visits else (body.visits, now, 0)

    def forget(self, worker: int) -> None:
        for book in (self.asked_at, self._heard_at, self._visits):
            book.pop(worker, None)

    def silent(self, now: float) -> list[tuple[int, str]]:
        """Workers that count as lost, and why."""
        return [
            (worker, f"has been silent for {now - heard:.0f} s")
            for worker, heard in self._heard_at.items()
            if now - heard > self.patience.silence
        ]

    def stuck(self, view: View, now: float) -> tuple[int, str] | None:
        """A worker that trains, beats, and does not get on."""
        for worker in view.training():
            visits, since, beats = self._visits.get(worker, (-1, now, 0))
            if visits >= 0 and now - since > self.patience.progress and beats > BEATS * self.patience.progress:
                return worker, (
                    f"Worker {worker} is alive, but has not finished a single point for {now - since:.0f} s in round "
                    f"{view.round}; does updateDataPoint return? A longer --worker-timeout gives it more time."
                )
        return None
