"""Predictive synchronous parallelism: each worker does as many iterations as fit before the others are ready.

An iteration is one of `batches` parts of a pass. From the speeds of the last round the model predicts how long an
iteration takes on each worker, and chooses, within a bounded horizon, the whole numbers of iterations that leave the
least idle time (a least common multiple of measured times does not exist). Who is done early reports, and goes on
training until the new θ comes; what it learns meanwhile is part of its next report. Networks wait instead: nothing
interrupts their micro-batches.
"""

from __future__ import annotations

import math

from flegel.configuration.active import active
from flegel.sync.policy import (
    NOTHING,
    USUAL_BATCHES_PER_PASS,
    Decision,
    Event,
    Reported,
    Started,
    SyncModel,
    TrainWorkers,
    Update,
    Updated,
    View,
)


class PSP(SyncModel):
    """Iteration counts from predicted speeds. Its batches are finer than those of other models, so that whole numbers
    of them fit."""

    name = "psp"
    summary = "predicts how many iterations fit; who is early goes on training"

    def __init__(self, batches: int = 2 * USUAL_BATCHES_PER_PASS) -> None:
        self.batches = batches

    def decide(self, event: Event, view: View, now: float) -> Decision:
        """Give each worker the number of iterations that keeps all of them busy until the barrier."""
        match event:
            case Started():
                return self._train(view, dict.fromkeys(view.workers, 1), "one iteration each, to measure speeds")
            case Updated():
                times = {w.id: self._seconds(w.points, w.rate) for w in view.workers.values()}
                # One less than a pass at most: who is done early needs points that this θ has not seen.
                rules = active().barriers
                nearly = rules.psp_shorter_horizon_of_networks if view.in_batches else rules.psp_shorter_horizon
                counts, use = iterations(times, max(self.batches - 1, 1), nearly)
                shown = ", ".join(f"{w}:{n}" for w, n in list(counts.items())[:16])
                return self._train(view, counts, f"iterations {shown}; predicted utilization {use:.1%}")
            case Reported() if view.all_reported():
                return Decision((Update(tuple(view.workers)),))
        return NOTHING

    def _seconds(self, points: int, rate: float) -> float:
        return points / self.batches / rate if rate > 0 else 0.0

    def _train(self, view: View, counts: dict[int, int], reason: str) -> Decision:
        points = {
            w.id: min(w.points, max(1, math.ceil(counts[w.id] * w.points / self.batches)))
            for w in view.workers.values()
        }
        # A micro-batch that was begun while waiting is not interrupted by the new θ: the update would wait for it.
        return Decision((TrainWorkers(tuple(view.workers), points, linger=not view.in_batches),), reason)


def iterations(times: dict[int, float], most: int, nearly: float | None = None) -> tuple[dict[int, int], float]:
    """Counts 1 … `most` by worker that keep all busy, and the utilization they promise (Eq. 1 of the PSP paper).

    Candidate horizons are the moments at which some worker would end an iteration; within each, everybody does as many
    as fit, one at least. Among those that promise nearly the best, the shortest is taken: θ is fresher.
    """
    nearly = active().barriers.psp_shorter_horizon if nearly is None else nearly
    slow = max(times.values(), default=0.0)
    if slow <= 0:
        return dict.fromkeys(times, 1), 1.0
    distinct = sorted({max(round(t / slow, 3), 0.001) for t in times.values() if t > 0})
    furthest = {t: min(most, int(active().barriers.psp_max_horizon / t)) for t in distinct}
    ends = sorted({round(t * k, 6) for t in distinct for k in range(1, furthest[t] + 1) if t * k >= 1.0 - 1e-3})
    best: list[tuple[float, float, dict[int, int]]] = []
    for end in ends or [1.0]:
        counts = {w: _fitting(end * slow, t, most) for w, t in times.items()}
        spent = [counts[w] * t for w, t in times.items()]
        best.append((sum(spent) / (len(spent) * max(spent)), end, counts))
    top = max(use for use, _, _ in best)
    use, _, counts = next(b for b in best if b[0] >= top - nearly)
    return counts, use


def _fitting(horizon: float, seconds: float, most: int) -> int:
    if seconds * most <= horizon:  # also where the quotient would not be finite
        return most
    return min(most, max(1, math.floor(horizon / seconds * 1.02)))
