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
    train_on,
)


class PSP(SyncModel):
    """Iteration counts from predicted speeds. Its batches are finer than those of other models, so that whole numbers
    of them fit."""

    name = "psp"
    summary = "predicts how many iterations fit; who is early goes on training"

    def __init__(
        self, batches: int = 2 * USUAL_BATCHES_PER_PASS, counts: str = "fitting", waiting: str = "interruptible"
    ) -> None:
        """`counts`: those that fit a bounded horizon best, or the `multiple` of Eq. 2; `waiting`: who trains on until
        the new θ comes: those that a new θ can interrupt, all (`training`), or nobody (`idle`)."""
        self.batches = batches
        self._common_multiple, self._waiting = counts == "multiple", waiting

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
                most = max(self.batches - 1, 1)
                if self._common_multiple:
                    counts, use = by_common_multiple(times, most)
                else:
                    counts, use = iterations(times, most, nearly)
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
        linger = train_on(self._waiting, view)
        return Decision((TrainWorkers(tuple(view.workers), points, linger=linger),), reason)


class PublishedPSP(PSP):
    """What Section 3.2 and Algorithm 1 of the paper say, where ours differs. Networks with `local` steps send their
    model and are averaged, as there."""

    name = "psp:published"
    summary = "psp as its paper prints it: iterations by a common multiple of times; networks train on while they wait"

    def __init__(
        self, batches: int = 2 * USUAL_BATCHES_PER_PASS, counts: str = "multiple", waiting: str = "training"
    ) -> None:
        super().__init__(batches, counts, waiting)


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


def by_common_multiple(times: dict[int, float], most: int) -> tuple[dict[int, int], float]:
    """T / t_i iterations with T the least common multiple of the times (Eq. 2), and the utilization they promise.

    Measured times have none, so they are rounded to whole multiples of the shortest one. At most `most` iterations:
    where the multiple is larger, everybody does as many as fit into those of the fastest worker.
    """
    known = {w: t for w, t in times.items() if t > 0}
    if len(known) < len(times) or not known:
        return dict.fromkeys(times, 1), 1.0
    shortest = min(known.values())
    ratios = {w: max(round(t / shortest), 1) for w, t in known.items()}
    multiple = min(math.lcm(*ratios.values()), most)
    counts = {w: max(multiple // ratio, 1) for w, ratio in ratios.items()}
    spent = [counts[w] * t for w, t in known.items()]
    return counts, sum(spent) / (len(spent) * max(spent))


def _fitting(horizon: float, seconds: float, most: int) -> int:
    if seconds * most <= horizon:  # also where the quotient would not be finite
        return most
    return min(most, max(1, math.floor(horizon / seconds * 1.02)))
