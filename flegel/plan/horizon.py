"""How long training will probably still take: T of the balance plan (paper Sections 3.3 and 4.2). Pure.

Each criterion that could end the job gives an estimate, and the earliest counts. The objective is fitted by a straight
line over its recent course, as the paper does; that underestimates, because progress slows down, and the plan copes
by planning in splits. Where nothing can be predicted, the job is taken to be half over.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from flegel.spec import Criteria

RECENT = 0.25  # the part of the elapsed time over which the objective's course is fitted


@dataclass(frozen=True)
class Moment:
    seconds: float
    objective: float
    slowest_pass: float


class Horizon:
    """Told the state at each barrier; answers T and why."""

    def __init__(self, criteria: Criteria) -> None:
        self._criteria = criteria
        self._moments: deque[Moment] = deque()
        self._seconds = 0.0
        self._iteration = 0

    def note(self, seconds: float, iteration: int, objective: float | None, slowest_pass: float) -> None:
        self._seconds, self._iteration = seconds, iteration
        if objective is None or not math.isfinite(objective):
            return
        self._moments.append(Moment(seconds, objective, slowest_pass))
        while len(self._moments) > 2 and self._moments[1].seconds < seconds * (1 - RECENT):
            self._moments.popleft()

    def remaining(self) -> tuple[float, str]:
        """T > 0 in seconds."""
        guesses = [g for g in (self._by_limit(), self._by_count(), self._by_target(), self._by_change()) if g]
        if not guesses:
            return max(self._seconds, 1e-6), "nothing known, so as long again as until now"
        return min(guesses)

    def _by_limit(self) -> tuple[float, str] | None:
        limit = self._criteria.max_seconds
        return (max(limit - self._seconds, 1e-6), "time limit") if limit else None

    def _by_count(self) -> tuple[float, str] | None:
        most = self._criteria.max_iterations
        if not most or not self._iteration:
            return None
        return max(most - self._iteration, 0) * self._seconds / self._iteration + 1e-6, "iterations left"

    def _by_target(self) -> tuple[float, str] | None:
        target, speed = self._criteria.target, self._speed()
        if target is None or not speed:
            return None
        return abs(self._moments[-1].objective - target) / speed + 1e-6, "objective on its line to the target"

    def _by_change(self) -> tuple[float, str] | None:
        """Relative change over a pass decays; when will it be within the tolerance?

        With f(t) falling like e^(−λt) the change of a pass falls like that too; λ comes from the two halves of the
        recent course.
        """
        tolerance = self._criteria.tolerance
        if not tolerance or self._criteria.target is not None or len(self._moments) < 4:
            return None
        first, last = self._moments[0], self._moments[-1]
        middle = min(self._moments, key=lambda m: abs(m.seconds - (first.seconds + last.seconds) / 2))
        one, two = abs(first.objective - middle.objective), abs(middle.objective - last.objective)
        half = (last.seconds - first.seconds) / 2
        passes = last.slowest_pass - first.slowest_pass
        if not (one > two > 0) or half <= 0 or passes <= 0:
            return None
        decay = math.log(one / two) / half
        per_pass = (one + two) / max(abs(first.objective), 1e-300) / passes
        if per_pass <= tolerance:
            return (last.seconds - first.seconds) / passes, "change of a pass is nearly within the tolerance"
        return math.log(per_pass / tolerance) / decay, "change of a pass decays to the tolerance"

    def _speed(self) -> float:
        """|Δf| a second over the recent course (the paper's linear stage)."""
        if len(self._moments) < 2:
            return 0.0
        first, last = self._moments[0], self._moments[-1]
        return abs(last.objective - first.objective) / max(last.seconds - first.seconds, 1e-12)
