"""Sums over all workers of a job, kept up to date where only a few of them have changed. Pure bookkeeping.

Under a model without barriers θ is updated for each report. Looking at every worker each time would make the
coordinator's work grow with the square of their number.
"""

from __future__ import annotations

from collections.abc import Sequence

from flegel.configuration.active import active
from flegel.sync.policy import View


class Totals:
    """Points that were never seen, votes to halt, points, and the passes of the slowest worker."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._counted_votes: dict[int, tuple[int, int]] = {}
        """By worker: unseen and halted points that are in the totals."""
        self._slowest_worker = -1
        self.stale = True
        """Something else than a report may have changed a worker: count everybody next time."""
        self.unseen = self.halted = self.points = 0
        self.slowest_pass = 0.0

    def count(self, workers: Sequence[int]) -> None:
        """Update the sums over all workers after these workers have reported."""
        everybody = self._view.workers
        most = len(everybody) / active().barriers.workers_per_changed_worker
        if self.stale or len(self._counted_votes) != len(everybody) or len(workers) >= most:
            self._recount()
            return
        for worker in workers:
            w = everybody[worker]
            unseen, halted = self._counted_votes[worker]
            self.unseen += w.unseen - unseen
            self.halted += w.halted - halted
            self._counted_votes[worker] = (w.unseen, w.halted)
            if worker == self._slowest_worker and w.passes > self.slowest_pass:
                self._find_slowest()

    def _recount(self) -> None:
        """Sum over all workers anew, where something else than reports may have changed them."""
        everybody = self._view.workers.values()
        known = [(w.unseen, w.halted) for w in everybody]
        self._counted_votes = dict(zip(self._view.workers, known, strict=True))
        self.unseen = sum([unseen for unseen, _ in known])
        self.halted = sum([halted for _, halted in known])
        self.points = sum([w.points for w in everybody])
        self._find_slowest()
        self.stale = False

    def _find_slowest(self) -> None:
        """Reports tend to come in order, so that of several the last will stay slowest for longest."""
        slowest, least = -1, 0.0
        for w in reversed(self._view.workers.values()):
            if w.points and ((passes := (w.visits + w.carried) / w.points) < least or slowest < 0):
                slowest, least = w.id, passes
        self._slowest_worker, self.slowest_pass = slowest, least
