"""Which workers stop by their own clocks, and when, so that all reports arrive together (paper Section 5.2). Pure.

Most workers react to a signal at once. A worker that reacts slowly again and again, because it sleeps, waits for its
processor or is far away, is told before the round how long to train: η + δ_i, and does not begin a step that would end
later (`machine/worker/deadline_estimate.py`). δ_i is learned for each of these workers: from how much later than the
median worker's its reports arrive, beyond the scatter that all workers have; it is never positive.

Some workers cannot stop in time: one of their steps takes longer than η. No round is over before they report, so the
signal for all other workers comes later as well: `patience` says by how much.
"""

from __future__ import annotations

from collections.abc import Collection
from statistics import median

from flegel.configuration.active import active


class LocalTimers:
    """How late each worker's reports arrive, and what follows from it."""

    def __init__(self) -> None:
        self.delta: dict[int, float] = {}
        """By worker that stops by its own clock: δ in seconds."""
        self.patience = 0.0
        """Seconds beyond η that the round lasts, because some worker's steps are longer than η."""
        self._late: dict[int, list[float]] = {}
        """By worker: seconds after the median worker, in the last rounds that a signal ended."""
        self._mean: dict[int, float] = {}
        """By worker that stops by its own clock: mean seconds after the median worker, from which δ is learned."""
        self._usual = self._eta = 0.0
        """Seconds about the median within which reports usually arrive; η of the present round."""
        self._cut: float | None = None
        """When the present round was ended before η; None where it was not."""
        self._now: dict[int, float] = {}
        """By worker: when its report arrived in the present round."""
        self._moving: set[int] = set()
        """Workers whose points come or go in the present round."""

    def begin(self, eta: float, besides: Collection[int] = ()) -> dict[int, float]:
        """A round begins: how long workers that stop by their own clocks train. `besides`: more such workers."""
        self._cut, self._eta = None, eta
        self._now.clear()
        self._moving.clear()
        for worker, delta in self.delta.items():  # bounded, so that δ can recover within some rounds
            self.delta[worker] = max(delta, (active().barriers.shortest_training - 1) * eta)
        return dict.fromkeys(besides, eta) | {worker: eta + delta for worker, delta in self.delta.items()}

    def arrived(self, worker: int, now: float, moving: bool = False) -> None:
        """A report came. `moving`: points come or go, so a delay in this round says nothing about the worker."""
        self._now[worker] = now
        if moving:
            self._moving.add(worker)

    def cut(self, now: float) -> None:
        """The round is ended before η. Reports from now on say nothing about own clocks; a worker that stopped by its
        own clock before was early, and trains longer next time."""
        if self._cut is not None:
            return
        self._cut = now
        for worker, at in self._now.items():
            if worker in self.delta:
                self.delta[worker] = min(self.delta[worker] + active().barriers.lateness_weight * (now - at), 0.0)

    def close(self) -> None:
        """All reports have arrived: learn. A worker that finished its shard before the signal counts as arrived with
        it."""
        rules = active().barriers
        cut = self._cut
        times = {worker: at if cut is None else max(at, cut) for worker, at in self._now.items()}
        punctual = [at for worker, at in times.items() if worker not in self.delta] or list(times.values())
        if not punctual:
            return
        middle = median(punctual)
        usual = rules.usual_scatter * median(abs(at - middle) for at in punctual)
        if cut is None:
            self._usual += rules.lateness_weight * (usual - self._usual)
        for worker, at in times.items():
            if cut is None or self._now[worker] > cut:
                self._judge(worker, at - middle, max(self._usual, usual, rules.punctual_within_seconds))
        if cut is None:
            self._wait()

    def _judge(self, worker: int, late: float, usual: float) -> None:
        """Take in how late a worker was: it gets a timer of its own when usually late, and loses it when punctual
        again."""
        rules = active().barriers
        if worker in self._moving and worker not in self.delta:
            return
        seen = self._late.setdefault(worker, [])
        seen.append(late)
        del seen[: -rules.judged_rounds]
        typical = sum(sorted(seen)[:-1]) / max(len(seen) - 1, 1)
        if worker not in self.delta:
            if len(seen) >= rules.fewest_judged_rounds and typical > usual:
                self.delta[worker], self._mean[worker], self._late[worker] = 0.0, 0.0, []
            return
        if self._cut is None:
            self._mean[worker] += rules.lateness_weight * (late - self._mean[worker])
            mean = self._mean[worker]
            beyond = mean - self._usual if mean > self._usual else min(mean, 0.0)
            self.delta[worker] = min(self.delta[worker] - rules.lateness_weight * beyond, 0.0)
        if len(seen) == rules.judged_rounds and abs(typical) <= usual and self.delta[worker] > -usual:
            del self.delta[worker], self._late[worker]  # as punctual as the median worker: the signal suffices

    def _wait(self) -> None:
        """Adapt `patience` to the delay that remains in every one of the last rounds."""
        rules = active().barriers
        seen = [self._late[worker][-rules.fewest_judged_rounds :] for worker in self.delta if worker in self._now]
        last = max((min(each) for each in seen if each), default=-self._eta)
        change = rules.lateness_weight * min(max(last, -self._eta), self._eta)
        self.patience = rules.patience_kept * max(self.patience + change, 0.0)


class EveryTimer:
    """Every worker stops by its own clock at η ± δ_i, as the paper has it (`--timers all`).

    δ_i follows how much later than the median worker's its report arrives: slowness to respond and changed speed
    together. A late worker gets a shorter interval, an early one a longer one.
    """

    def __init__(self) -> None:
        self.delta: dict[int, float] = {}
        """By worker: δ in seconds."""
        self._now: dict[int, float] = {}
        """By worker: when its report arrived in the present round."""
        self._cut = False
        """The round was ended before η, so arrivals say nothing about clocks."""

    @property
    def patience(self) -> float:
        """Seconds beyond η after which the signal comes: no worker's own clock is later."""
        return max([*self.delta.values(), 0.0])

    def begin(self, eta: float, besides: Collection[int] = ()) -> dict[int, float]:
        """A round begins: how long each worker trains."""
        self._cut = False
        self._now.clear()
        most = (1 - active().barriers.shortest_training) * eta
        self.delta = {worker: min(max(delta, -most), most) for worker, delta in self.delta.items()}
        return dict.fromkeys(besides, eta) | {worker: eta + delta for worker, delta in self.delta.items()}

    def arrived(self, worker: int, now: float, moving: bool = False) -> None:
        self._now[worker] = now

    def cut(self, now: float) -> None:
        self._cut = True

    def close(self) -> None:
        """All reports have arrived: learn."""
        if self._cut or not self._now:
            return
        middle, weight = median(self._now.values()), active().barriers.lateness_weight
        self.delta = {w: self.delta.get(w, 0.0) - weight * (at - middle) for w, at in self._now.items()}
