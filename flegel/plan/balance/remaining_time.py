"""Prediction of the remaining training time T of the balance plan (paper Sections 3.3 and 4.2). Pure; no clock.

Each criterion that could end the job gives an estimate; the earliest counts. The paper extrapolates the objective
linearly (`linear`). Where progress slows down, that predicts an early end at every barrier and no move pays; so the
extrapolation uses the exponential decay of recent progress. Where nothing can be predicted, T is the elapsed time,
which is also the upper limit of the decaying extrapolation.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from flegel.configuration.active import active
from flegel.core.precision import SMALLEST_DIVISOR
from flegel.job import Criteria


class TimeLeft(NamedTuple):
    """T > 0 in seconds, the criterion that gives it, and whether it is known (a limit) or guessed (the objective)."""

    seconds: float
    why: str
    sure: bool = False


@dataclass(frozen=True)
class ProgressSample:
    seconds: float
    objective: float
    slowest_pass: float


class Decay(NamedTuple):
    """Progress that falls like e^(−rate·t)."""

    rate: float
    """λ, in 1/s."""
    change_per_second: float
    """|Δf| per second now."""


class RemainingTime:
    """Is given the state at each barrier; returns T and the criterion that gives it."""

    def __init__(self, criteria: Criteria, linear: bool = False) -> None:
        """`linear`: T = |f − target| / g, as the paper has it, and no guess from the change per pass."""
        self._criteria = criteria
        self._linear = linear
        self._moments: deque[ProgressSample] = deque()
        self._seconds = 0.0
        self._iteration = 0

    def note(self, seconds: float, iteration: int, objective: float | None, slowest_pass: float) -> None:
        """A barrier: seconds of training, iteration, objective and passes; only the last part of the time is kept for
        the fit."""
        self._seconds, self._iteration = seconds, iteration
        if objective is None or not math.isfinite(objective):
            return
        self._moments.append(ProgressSample(seconds, objective, slowest_pass))
        rules = active().termination
        oldest = seconds * (1 - rules.fitted_share_of_time)
        while len(self._moments) > rules.fewest_fitted_barriers and self._moments[1].seconds < oldest:
            self._moments.popleft()

    def remaining(self) -> TimeLeft:
        change = None if self._linear else self._by_change()
        guesses = [g for g in (self._by_limit(), self._by_count(), self._by_target(), change) if g]
        if not guesses:
            return TimeLeft(max(self._seconds, 1e-6), "no criterion predicts an end: the elapsed time")
        return min(guesses)

    def _by_limit(self) -> TimeLeft | None:
        limit = self._criteria.max_seconds
        if not limit or math.isinf(limit):
            return None
        return TimeLeft(max(limit - self._seconds, 1e-6), "time limit", sure=True)

    def _by_count(self) -> TimeLeft | None:
        most = self._criteria.max_iterations
        if not most or not self._iteration:
            return None
        left = max(most - self._iteration, 0) * self._seconds / self._iteration
        return TimeLeft(left + 1e-6, "iterations left", sure=True)

    def _by_target(self) -> TimeLeft | None:
        """Seconds until the objective reaches the target, by its present speed, or with decaying progress where that
        takes longer; None without a target."""
        target, speed = self._criteria.target, self._speed()
        if target is None or not speed:
            return None
        gap = abs(self._moments[-1].objective - target)
        line = gap / speed + 1e-6
        fitted = len(self._moments) >= active().termination.fewest_fitted_barriers
        bent = min(self._bent(gap) if fitted else math.inf, self._seconds)
        if bent > line and not self._linear:
            return TimeLeft(bent, "objective extrapolated to the target with decaying progress")
        return TimeLeft(line, "objective extrapolated linearly to the target")

    def _bent(self, gap: float) -> float:
        """With progress v·e^(−λt) per second, `gap` takes −ln(1 − λ·gap/v)/λ; a gap of v/λ or more is never closed."""
        decay = self._decay()
        if decay is None:
            return 0.0
        reach = decay.change_per_second / decay.rate
        return -math.log1p(-gap / reach) / decay.rate if gap < reach else math.inf

    def _decay(self) -> Decay | None:
        """λ and the present |Δf| per second, from the two halves of the fit; None unless the first was faster."""
        if len(self._moments) < active().termination.fewest_fitted_barriers:
            return None
        first, last = self._moments[0], self._moments[-1]
        middle = min(self._moments, key=lambda m: abs(m.seconds - (first.seconds + last.seconds) / 2))
        one, two = _speed(first, middle), _speed(middle, last)
        apart = (last.seconds - first.seconds) / 2
        if not (one > two > 0) or apart <= 0:
            return None
        rate = math.log(one / two) / apart
        return Decay(rate, two * math.exp(-rate * (last.seconds - middle.seconds) / 2))

    def _by_change(self) -> TimeLeft | None:
        """Time until the relative change over a pass is within the tolerance.

        With f(t) falling like e^(−λt) the change per pass decays with the same λ, from the two halves of the fit.
        """
        tolerance, decay = self._criteria.tolerance, self._decay()
        if not tolerance or self._criteria.target is not None or decay is None:
            return None  # with a target, a small change ends no job before the target is reached (plan/termination.py)
        first, last = self._moments[0], self._moments[-1]
        passes = last.slowest_pass - first.slowest_pass
        if passes <= 0:
            return None
        above_zero = max(abs(first.objective), SMALLEST_DIVISOR)
        per_pass = abs(first.objective - last.objective) / above_zero / passes
        if per_pass <= tolerance:
            nearly = "change per pass is nearly within the tolerance"
            return TimeLeft((last.seconds - first.seconds) / passes, nearly)
        return TimeLeft(math.log(per_pass / tolerance) / decay.rate, "change per pass decays to the tolerance")

    def _speed(self) -> float:
        """|Δf| per second over the fit (the paper's linear stage)."""
        return _speed(self._moments[0], self._moments[-1]) if len(self._moments) > 1 else 0.0


def _speed(first: ProgressSample, last: ProgressSample) -> float:
    return abs(last.objective - first.objective) / max(last.seconds - first.seconds, 1e-12)
