"""When a job is over (paper Section 5.3). Pure: time and values arrive as arguments.

Relative change is judged on its own clock, one full pass of every worker, not per barrier: with a short interval the
change from one barrier to the next is always small and would stop the job too early. A pass of the slowest is not
enough: while a fast worker with most points stands still, the others go over theirs again. An algorithm that
knows its distance to the minimum (`optimality`) is judged by that instead: a small change may also mean small steps.

Methods with gains that shrink slowly (`Learning.slow_gains`) must also have gained little in the second half of all
passes, and less in its end than in its beginning: each pass may gain a millionth, and all that are still to come a
percent.

A job has converged only where its objective is no worse than after the first pass and no worse than that of a trivial
model (`baseline`). Where a job comes to rest otherwise, the reason says what to do.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from flegel.configuration.active import active
from flegel.core.precision import SMALLEST_DIVISOR
from flegel.job import DEFAULT_TOLERANCE, Criteria
from flegel.wording import option

SOUND_OUTCOMES = ("converged", "target", "halted", "stopped")
"""Outcomes that quality brought about. The others: `limit` and those of `FAILED_OUTCOMES`."""
FAILED_OUTCOMES = ("stalled", "worse", "stuck", "diverged", "unsound", "unsynchronized", "excluded")
"""Outcomes after which the command line exits with 3: the model is not what was asked for."""


@dataclass(frozen=True)
class Verdict:
    """Why the job ends. `converged` is False where a limit rather than quality ended it."""

    converged: bool
    reason: str
    outcome: str = ""
    """One word: converged, target (reached), halted (every point), stopped (by a hook, callback or person), limit,
    stalled (short of the target), worse (than a trivial model or the start), stuck (no step improves it), diverged,
    unsound (the statistics are not what the points say), unsynchronized (a group that ended without the others),
    excluded (no worker, or not this group, passes the gate)."""


def unsound(verdict: Verdict, problem: str) -> Verdict:
    """The verdict of a job that has ended with statistics that an audit found wrong, also after all points were counted
    again. `verdict`: why it would have ended otherwise; `problem`: what the audit found, without a full stop."""
    return Verdict(
        converged=False,
        reason=f"the result cannot be trusted: {problem}; `flegel check` tests a class, and {option('sync', 'bsp')} "
        f"with {option('balance', 'off')} "
        f"leaves out most of the engine ({verdict.reason})",
        outcome="unsound",
    )


class Traversal(Protocol):
    """A worker's points and its visits so far."""

    points: int
    visits: int
    caught_up: int
    """Of the visits, those of points that were more than one pass behind others of the same worker."""


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
    constant: bool = False
    """What a point adds to the statistics does not depend on θ: once every point is counted, nothing changes."""
    baseline: float | None = None
    """The objective of a trivial model."""
    trivial: str = ""
    """What that model is, in words."""
    workers: Mapping[int, Traversal] | None = None
    """All of them, where they are known."""
    error: Callable[[], float] = lambda: 0.0
    """By how much the objective may be off, because statistics are rounded. Asked only where it decides."""


class Termination:
    """Keeps the first objective, the one at the last check, and, where there is a target, those of the last passes."""

    def __init__(self, criteria: Criteria, maximize: bool, slow_gains: bool = False) -> None:
        """`slow_gains`: a pass may gain little when there is still much to gain (`Learning.slow_gains`)."""
        self._criteria = criteria
        self._slow = slow_gains
        self._marks: list[tuple[float, float]] = []
        """Passes and objective at earlier checks, of a method with slow gains."""
        self._sign = -1.0 if maximize else 1.0
        self._checked_at = 0.0
        self._visits: dict[int, int] = {}
        """Of each worker, at the last check."""
        self._behind = -1
        """A worker that had not made a further pass when everybody was looked at."""
        self._checked: float | None = None
        self._first: float | None = None
        """The first objective, with which later ones are compared to see that a job diverges."""
        self._recent: deque[float] = deque(maxlen=active().termination.stall_passes + 1)
        """Objectives of the last passes."""

    @property
    def _tolerance(self) -> float:
        given = self._criteria.tolerance
        return DEFAULT_TOLERANCE if given is None else given

    def due(self, progress: Progress) -> bool:
        """A further full pass of every worker is over: time for the checks that need one."""
        if progress.slowest_pass - self._checked_at < 1.0 - active().termination.equal_within:
            return False
        workers = progress.workers or {}
        if self._behind in workers and self._lacks(self._behind, workers[self._behind]):
            return False
        self._behind = next((i for i, w in workers.items() if self._lacks(i, w)), -1)
        return self._behind < 0

    def _lacks(self, worker: int, seen: Traversal) -> bool:
        """Whether a worker has visited fewer points since the last check than it owns. A new worker counts from now
        on. Points that catch up with others are visited again and again before these, so that such visits do not
        count."""
        visits = _in_order(seen)
        before = self._visits.get(worker, visits if self._checked_at else 0)
        before = self._visits[worker] = min(before, visits)  # one that was replaced begins anew
        return visits - before < seen.points * (1.0 - active().termination.equal_within)

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
                verdict = verdict or self._sound(
                    progress, Verdict(converged=True, reason="terminationCheck said so", outcome="stopped")
                )
            self._checked_at = progress.slowest_pass  # not its whole part: 1.99 and 2.01 are no pass apart
            self._visits = {i: _in_order(w) for i, w in (progress.workers or {}).items()}
            self._checked = value if progress.exact else None
            self._mark(progress)
            verdict = verdict or self._stalled(progress)
        if verdict:
            return verdict
        if criteria.max_iterations and progress.iteration >= criteria.max_iterations:
            return self._at_limit(progress, f"reached {criteria.max_iterations} iterations")
        if criteria.max_passes and progress.slowest_pass >= criteria.max_passes:
            return self._at_limit(progress, f"reached {criteria.max_passes:g} passes")
        if criteria.max_seconds and progress.seconds >= criteria.max_seconds:
            return self._at_limit(progress, f"reached {criteria.max_seconds:g} s")
        return None

    def _at_limit(self, progress: Progress, reason: str) -> Verdict:
        """A limit ends the job. Where there is a target, it was not reached: that would have ended the job before."""
        target = self._criteria.target
        if target is not None:
            reason += f" with {_standing(progress)}, short of the target {target:.6g}"
        return Verdict(converged=False, reason=reason, outcome="limit")

    def _within_target(self, progress: Progress, verdict: Verdict) -> Verdict:
        """The verdict, unless there is a target that the objective has not reached: no job ends above it in silence."""
        target, value = self._criteria.target, progress.objective
        if target is None or (value is not None and progress.exact and self._worse(value, target) <= 0):
            return verdict
        return self._short_of(target, progress, verdict.reason)

    def reconsidered(self, verdict: Verdict | None) -> Verdict | None:
        """The statistics change under the feet of a job: changes are measured anew. Only a limit still ends it."""
        self._checked = None
        self._marks.clear()
        self._recent.clear()
        return verdict if verdict is not None and verdict.outcome == "limit" else None

    def resumed(self, slowest_pass: float) -> None:
        """The job goes on from a checkpoint: no pass is awaited that lies before what it says of the workers."""
        self._checked_at = min(self._checked_at, slowest_pass)
        self._marks = [(passes, value) for passes, value in self._marks if passes <= slowest_pass]

    def rebased(self) -> None:
        """The objective is one over other points from now on: nothing from before is compared with it."""
        self._first = self._checked = None
        self._recent.clear()

    def _divergence(self, progress: Progress) -> Verdict | None:
        """Numbers that are not finite, or an objective that is `diverged_multiple` times worse than the first."""
        value, where = progress.objective, f"in iteration {progress.iteration}"
        if progress.diverged:
            return Verdict(converged=False, reason=f"diverged: {progress.diverged} {where}", outcome="diverged")
        if value is None:
            return None
        if not math.isfinite(value):
            return Verdict(
                converged=False, reason=f"diverged: the objective became {value} {where}", outcome="diverged"
            )
        if not progress.exact:
            return None  # an estimate from the first few points says little
        if self._first is None:
            self._first = value
        if self._worse(value, self._first) > active().termination.diverged_multiple * max(
            abs(self._first), SMALLEST_DIVISOR
        ):
            return Verdict(
                converged=False,
                reason=f"diverged: the objective went from {self._first:.4g} to {value:.4g} {where}; a smaller step, "
                "more frequent barriers or less staleness may help",
                outcome="diverged",
            )
        return None

    def _worse(self, value: float, other: float) -> float:
        """By how much `value` is worse than `other`; negative where it is better."""
        return self._sign * (value - other)

    def _clearly_worse(self, value: float, other: float, progress: Progress) -> bool:
        """Worse by more than rounding explains."""
        worse = self._worse(value, other)
        return worse > active().termination.equal_within * abs(other) and worse > progress.error()

    def _quality(self, progress: Progress) -> Verdict | None:
        """The verdict where all points voted to halt or are counted in constant statistics, where the algorithm says
        that training is over, or the target is reached."""
        target, value = self._criteria.target, progress.objective
        if progress.points and progress.halted >= progress.points:
            return self._within_target(
                progress, Verdict(converged=True, reason="every point voted to halt", outcome="halted")
            )
        if progress.constant and progress.exact:
            reason = "every point is counted, and further passes would change nothing"
            return self._within_target(progress, Verdict(converged=True, reason=reason, outcome="converged"))
        if progress.finished:
            return self._within_target(progress, Verdict(converged=True, reason=progress.finished, outcome="stopped"))
        if target is not None and value is not None and progress.exact and self._worse(value, target) <= 0:
            return Verdict(
                converged=True, reason=f"objective {value:.6g} reached the target {target:.6g}", outcome="target"
            )
        return None

    def _change(self, progress: Progress) -> Verdict | None:
        """Converged by distance to the minimum where the algorithm tells it, else by change over a pass; or stuck."""
        tolerance, value = self._tolerance, progress.objective
        if progress.optimality is not None and math.isnan(progress.optimality):
            return Verdict(
                converged=False,
                reason="no step improves the objective any more, short of the minimum; see the warnings",
                outcome="stuck",
            )
        if tolerance and progress.exact and progress.optimality is not None:
            if progress.optimality <= tolerance:
                reason = f"relative distance {progress.optimality:.2g} to the minimum is within {tolerance:g}"
                return self._sound(progress, Verdict(converged=True, reason=reason, outcome="converged"))
            return None
        if not tolerance or value is None or self._checked is None or not progress.exact:
            return None
        change = abs(value - self._checked) / max(abs(self._checked), SMALLEST_DIVISOR)
        if change <= tolerance and self._rests(progress, value):
            reason = f"relative change {change:.2g} over a full pass is within {tolerance:g}"
            return self._sound(progress, Verdict(converged=True, reason=reason, outcome="converged"))
        return None

    def _mark(self, progress: Progress) -> None:
        if not self._slow or not progress.exact or progress.objective is None:
            return
        if not self._marks or progress.slowest_pass >= active().termination.kept_objectives_ratio * self._marks[-1][0]:
            self._marks.append((progress.slowest_pass, progress.objective))

    def _rests(self, progress: Progress, value: float) -> bool:
        """The second half of all passes has gained little and gains shrink; true of methods without slow gains."""
        rules = active().termination
        if not self._slow:
            return True
        size = max(abs(value), active().termination.equal_within * abs(progress.baseline or 0.0), SMALLEST_DIVISOR)
        # After a half and three quarters of all passes.
        passes, then, before = progress.slowest_pass, self._at(0.5, progress), self._at(0.75, progress)
        if then is None or before is None:
            return False
        if self._worse(then, value) > rules.half_gain * self._tolerance * size:
            return False
        last, earlier = self._worse(before, value), self._worse(then, before)
        # The last quarter of all passes.
        return last <= rules.shrinking_gain * earlier or last <= rules.steady_gain * self._tolerance * size * passes / 4

    def _at(self, part: float, progress: Progress) -> float | None:
        """The objective when this part of all passes was done."""
        known = [then for passes, then in self._marks if passes <= part * progress.slowest_pass]
        return known[-1] if known else None

    def _sound(self, progress: Progress, verdict: Verdict) -> Verdict:
        """The verdict, unless the model is worse than where it began or than a trivial one, or misses the target."""
        if (told := self._within_target(progress, verdict)) is not verdict:
            return told
        value, first, trivial = progress.objective, self._first, progress.baseline
        if value is None or not progress.exact:
            return verdict
        if trivial is not None and self._clearly_worse(value, trivial, progress):
            return Verdict(
                converged=False,
                reason=f"{verdict.reason}, but objective {value:.6g} is worse than the {trivial:.6g} of "
                f"{progress.trivial}: this is no usable model; scale the columns ({option('scale', 'standard')}), or "
                f"try another start ({option('seed')})",
                outcome="worse",
            )
        if first is not None and self._clearly_worse(value, first, progress):
            return Verdict(
                converged=False,
                reason=f"{verdict.reason}, but objective {value:.6g} is worse than the {first:.6g} after the first "
                f"pass: try {option('sync', 'bsp')}, a smaller step or another start ({option('seed')})",
                outcome="worse",
            )
        return verdict

    def _stalled(self, progress: Progress) -> Verdict | None:
        """The target is out of reach: so little progress in so many passes that it would take thousands more."""
        rules = active().termination
        target, value, recent = self._criteria.target, progress.objective, self._recent
        if target is None or value is None or not progress.exact:
            return None
        recent.append(value)
        distance, gained = self._worse(value, target), self._worse(recent[0], value)
        if len(recent) <= rules.stall_passes or gained > rules.stall_part * distance:
            return None
        return self._short_of(target, progress, f"{rules.stall_passes} passes gained {max(gained, 0.0):.2g}")

    def _short_of(self, target: float, progress: Progress, why: str) -> Verdict:
        return Verdict(
            converged=False,
            reason=f"stalled at {_standing(progress)}, short of the target {target:.6g}: {why}; try another start "
            f"({option('seed')}) "
            "or a target that can be reached",
            outcome="stalled",
        )


def _standing(progress: Progress) -> str:
    """The objective in words."""
    if progress.objective is None:
        return "an objective that is not known"
    return f"objective {progress.objective:.6g}" + ("" if progress.exact else " (an estimate: points are unvisited)")


def _in_order(worker: Traversal) -> int:
    """Visits of points in their turn."""
    return worker.visits - worker.caught_up
