"""When a job is over (paper Section 5.3). Pure: time and values arrive as arguments.

Relative change is judged on its own clock, one full pass of the slowest worker, not per barrier: with a short
interval the change from one barrier to the next is always small and would stop the job too early. An algorithm that
knows its distance to the minimum (`optimality`) is judged by that instead: a small change may also mean small steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from flegel.job import Criteria

FAR_WORSE = 10.0  # multiples of the first objective's size: transients of converging runs stay below


@dataclass(frozen=True)
class Verdict:
    """Why the job ends. `converged` is False where a limit rather than quality ended it."""

    converged: bool
    reason: str


@dataclass(frozen=True)
class Progress:
    """The state of the job at a barrier."""

    iteration: int
    seconds: float
    objective: float | None
    exact: bool
    slowest_pass: float
    """Passes of the worker that has the fewest."""
    halted: int
    points: int
    diverged: str = ""
    """What is no longer finite; empty if all is."""
    optimality: float | None = None
    """What the algorithm says of its distance to the minimum, relative to the objective."""
    finished: str = ""
    """Why the algorithm says that training is over."""


class Termination:
    """Keeps the first objective and the one at the last check, nothing else."""

    def __init__(self, criteria: Criteria, maximize: bool) -> None:
        self._criteria = criteria
        self._sign = -1.0 if maximize else 1.0
        self._checked_at = 0.0
        self._checked: float | None = None
        self._first: float | None = None

    def due(self, progress: Progress) -> bool:
        """A further full pass of the slowest worker is over: time for the checks that need one."""
        return progress.slowest_pass - self._checked_at >= 1.0

    def judge(self, progress: Progress, user_says_stop: bool) -> Verdict | None:
        """Called at every barrier; `user_says_stop` is `terminationCheck`, asked only when due."""
        criteria = self._criteria
        value = progress.objective
        if lost := self._divergence(progress):
            return lost
        verdict = self._quality(progress)
        if self.due(progress):
            verdict = verdict or self._change(progress)
            if user_says_stop:
                verdict = verdict or Verdict(True, "terminationCheck said so")
            self._checked_at = math.floor(progress.slowest_pass)
            self._checked = value if progress.exact else None
        if verdict:
            return verdict
        if criteria.max_iterations and progress.iteration >= criteria.max_iterations:
            return Verdict(False, f"reached {criteria.max_iterations} iterations")
        if criteria.max_seconds and progress.seconds >= criteria.max_seconds:
            return Verdict(False, f"reached {criteria.max_seconds:g} s")
        return None

    def _divergence(self, progress: Progress) -> Verdict | None:
        """Numbers that are not finite, or an objective that is `FAR_WORSE` times worse than the first."""
        value, where = progress.objective, f"in iteration {progress.iteration}"
        if progress.diverged:
            return Verdict(False, f"diverged: {progress.diverged} {where}")
        if value is None:
            return None
        if not math.isfinite(value):
            return Verdict(False, f"diverged: the objective became {value} {where}")
        if not progress.exact:
            return None  # an estimate from the first few points says little
        if self._first is None:
            self._first = value
        worse = self._sign * (value - self._first)
        if worse > FAR_WORSE * max(abs(self._first), 1e-300):
            return Verdict(
                False,
                f"diverged: the objective went from {self._first:.4g} to {value:.4g} {where}; a smaller step, "
                "more frequent barriers or less staleness may help",
            )
        return None

    def _quality(self, progress: Progress) -> Verdict | None:
        if progress.points and progress.halted >= progress.points:
            return Verdict(True, "every point voted to halt")
        if progress.finished:
            return Verdict(True, progress.finished)
        target, value = self._criteria.target, progress.objective
        if target is not None and value is not None and progress.exact and self._sign * (value - target) <= 0:
            return Verdict(True, f"objective {value:.6g} reached the target {target:.6g}")
        return None

    def _change(self, progress: Progress) -> Verdict | None:
        tolerance, value = self._criteria.tolerance, progress.objective
        if progress.optimality is not None and math.isnan(progress.optimality):
            return Verdict(False, "no step improves the objective any more, short of the minimum; see the warnings")
        if tolerance and progress.exact and progress.optimality is not None:
            if progress.optimality <= tolerance:
                return Verdict(
                    True, f"relative distance {progress.optimality:.2g} to the minimum is within {tolerance:g}"
                )
            return None
        if not tolerance or value is None or self._checked is None or not progress.exact:
            return None
        change = abs(value - self._checked) / max(abs(self._checked), 1e-300)
        if change <= tolerance:
            return Verdict(True, f"relative change {change:.2g} over a full pass is within {tolerance:g}")
        return None
