"""The visits before the first pass is over: a growing part of a worker's points, again and again.

The part is the first points of the native shard, which lie in a random order (`partition` shuffle), so it is like the
whole, however the rows of a file are sorted. New points are visited first, then all of the part, until one more visit
gains too little (`flegel.plan.growing_part`). On such a part, where a visit costs little, the algorithm may name
another θ (`LearningHooks.alternative`); after a few visits the better one of the two is kept, until a trial gains no
more than as many visits would have gained without it. When the part would be everything, it is over: the schedule goes
on with the points that were never visited, and from then on all points are visited equally often. Statistics are at all
times one term for each point that was visited. No I/O, no clock.

A worker that is alone makes θ anew after a few points (`GrowingPart`). One of several (`PartAmongOthers`) visits its
part once under each θ that the coordinator sends, and looks at the objective of its own points under the next one; no
other θ is tried, because that would be for all workers to do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from flegel.configuration.active import active
from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.machine.worker.local_updates import Call, LocalUpdates
from flegel.machine.worker.visit_schedule import VisitRun, VisitSchedule
from flegel.plan.growing_part import first_part, next_part, worthwhile

Decision = Literal["go on", "try another", "go back"]
Noise = Callable[[float, int], float | None]
"""What the algorithm says of the noise in its objective over so many points (`LearningHooks.part_noise`)."""


class PartLimits(NamedTuple):
    """What a part is made of."""

    points: int
    columns: int
    numbers: int
    """Of θ, as far as they are parameters of the model."""
    grid: int
    """Sizes are multiples of it."""
    maximize: bool
    noise: Noise


class GrowingPart:
    """Ask it for runs of points, tell it what was visited, and at the end of each visit what the objective is."""

    def __init__(self, points: int, columns: int, numbers: int, grid: int, maximize: bool, noise: Noise) -> None:
        """`numbers`: of θ, as far as they are parameters of the model."""
        self._points, self._grid, self._noise = points, grid, noise
        self._sign = -1.0 if maximize else 1.0
        self.size = first_part(points, columns, numbers, grid)
        """Points of the part; all: it is over."""
        self.theta_is_fixed = False
        """θ stays as it is until all of the part has been visited: its points count where another θ put them."""
        self._visited_until = 0
        """Points of the part that were visited in the present visit of it."""
        self._visits = 0
        self._trial_visits_left = 0
        """Visits until the θ that is tried is compared."""
        self._going_back = False
        """θ was put back to the one before a trial, and the part is visited once more under it."""
        self._last_objective: float | None = None
        """The objective after the last visit of these points."""
        self._objective_before_trial, self._gain_without_trial = 0.0, 0.0
        """The objective before a trial; what a visit gains without one."""

    @property
    def over(self) -> bool:
        return self.size >= self._points

    @property
    def complete(self) -> bool:
        """All of the part has been visited once more: `judge` it."""
        return self._visited_until >= self.size

    def next(self, most: int) -> VisitRun:
        """The next run of at most so many points."""
        return VisitRun(0, self._visited_until, min(self._visited_until + most, self.size))

    def advance(self, run: VisitRun, reached: int) -> None:
        """The kernel was given `run` and came to `reached`."""
        self._visits += max(reached - run.start, 0)
        self._visited_until = max(reached, run.start)

    def update_due(self, enough: bool) -> bool:
        """Make θ anew now? `enough`: so many points were visited as an update should rest on."""
        return self.complete or (enough and not self.theta_is_fixed)

    def follow(self, local: LocalUpdates) -> list[Array] | None:
        """The part has been visited and θ was made anew: decide, and return the θ to go on with where it is another."""
        decision = self.judge(local.objective())
        if decision == "go back":
            return local.put(local.kept)
        if decision == "try another":
            other = local.alternative()
            if other is not None:
                return local.put(other)
            self.grow()
        return None

    def judge(self, objective: float | None) -> Decision:
        """The part has been visited, and this is its objective under the θ that followed."""
        last, self._last_objective, self._visited_until, self.theta_is_fixed = self._last_objective, objective, 0, False
        noise = None if objective is None or not math.isfinite(objective) else self._noise(objective, self.size)
        if objective is None or noise is None:
            self.size = self._points
            return "go on"
        if self._going_back:
            self._going_back = False
            return self.grow()
        gain = math.inf if last is None else self._sign * (last - objective)
        if self._trial_visits_left:
            return self._tried(objective, gain)
        if worthwhile(gain, noise) and not self._visits_used_up:
            return "go on"
        self._gain_without_trial = max(gain, 0.0)
        return self._try_next(objective)

    def grow(self) -> Decision:
        """Train on a larger part: its new points are visited first."""
        assert self._last_objective is not None
        old, noise = self.size, self._noise(self._last_objective, self.size)
        ended = noise is None or self._visits_used_up
        self.size = (
            self._points if ended else next_part(self._points, old, self._gain_without_trial, noise or 0.0, self._grid)
        )
        self._last_objective, self._visited_until, self.theta_is_fixed, self._trial_visits_left = None, old, False, 0
        return "go on"

    @property
    def _visits_used_up(self) -> bool:
        return self._visits >= active().training.max_passes_over_parts * self._points

    def _try_next(self, objective: float) -> Decision:
        if self._visits_used_up:
            return self.grow()
        self._objective_before_trial, self._trial_visits_left, self.theta_is_fixed = (
            objective,
            active().training.visits_before_comparison,
            True,
        )
        return "try another"

    def _tried(self, objective: float, gain: float) -> Decision:
        """The θ under trial was visited once more. After the last visit: if it is no better, go back to the θ before;
        if it is clearly better, try yet another; otherwise keep it and grow the part."""
        self._trial_visits_left -= 1
        if self._trial_visits_left:
            return "go on"
        gained = self._sign * (self._objective_before_trial - objective)
        if gained <= 0:
            self._going_back = self.theta_is_fixed = True
            return "go back"
        enough = gained >= active().training.visits_before_comparison * self._gain_without_trial
        # Near the optimum visits gain less and less: the last visit of the trial bounds what one gains now.
        self._gain_without_trial = min(self._gain_without_trial, max(gain, 0.0))
        return self._try_next(objective) if enough else self.grow()


class OwnStatistics:
    """The sum of a worker's reports, and the objective of its points."""

    def __init__(self, parameter: Tree, empty: Tree, call: Call) -> None:
        self._parameter, self._call = parameter, call
        self._sums, self._last_report = pytree.copy(empty), pytree.copy(empty)

    def reported(self, statistics: Sequence[Array]) -> None:
        """These changes go into the coming report."""
        self._last_report = pytree.copy(pytree.unflatten(self._sums, statistics))

    def merged(self) -> None:
        """A θ came, so the last report was added to all others."""
        pytree.add(self._sums, self._last_report)
        pytree.clear(self._last_report)

    def objective(self, theta: Sequence[Array]) -> float | None:
        value = self._call("objective", self._sums, pytree.unflatten(self._parameter, theta))
        return None if value is None else float(value)


class PartAmongOthers:
    """The part of one of several workers. Its points are visited in turns, each at most once under one θ."""

    def __init__(self, limits: PartLimits, workers: int, own: OwnStatistics) -> None:
        self._limits, self._workers, self._own = limits, workers, own
        everybody = first_part(limits.points * workers, limits.columns, limits.numbers)
        own_share = -(-everybody // workers)
        self.size = min(-(-own_share // limits.grid) * limits.grid, limits.points)
        """Points of the part; all: it is over."""
        self._cursor = 0
        self._room = self.size
        """Points that may be visited under this θ."""
        self._until_judged = self.size
        """Visits until the part is judged."""
        self._visits = 0
        self._last_objective: float | None = None

    @property
    def over(self) -> bool:
        return self.size >= self._limits.points

    def end(self) -> None:
        """All points come next."""
        self.size = self._limits.points

    def begin(self, theta: Sequence[Array], in_order: bool = True) -> None:
        """A new θ: judge the part where all of it has been visited since it was judged. `in_order`: no place in the
        order of visits is marked; where one is, all points come next."""
        self._own.merged()
        if not in_order:
            self.end()
        if not self.over and self._until_judged <= 0:
            self._judge(self._own.objective(theta))
        self._room = self.size

    def reported(self, statistics: Sequence[Array]) -> None:
        """These changes go into the coming report."""
        self._own.reported(statistics)

    def next(self, most: int) -> VisitRun | None:
        """The next run of at most so many points; None when all of the part were visited under this θ."""
        if self._room <= 0:
            return None
        return VisitRun(0, self._cursor, min(self._cursor + min(most, self._room), self.size))

    def advance(self, run: VisitRun, reached: int) -> None:
        """The kernel was given `run` and came to `reached`."""
        done = max(reached - run.start, 0)
        self._visits += done
        self._room -= done
        self._until_judged -= done
        self._cursor = (run.start + done) % self.size

    def update_due(self, enough: bool) -> bool:
        """θ is made by the coordinator."""
        return False

    def _judge(self, objective: float | None) -> None:
        """θ was fitted to the parts of all workers, which are about as large as this one."""
        finite = objective is not None and math.isfinite(objective)
        noise = self._limits.noise(objective, self.size * self._workers) if objective is not None and finite else None
        if objective is None or noise is None or self._visits >= self._most_visits:
            self.end()
            return
        last, self._last_objective = self._last_objective, objective
        gain = math.inf if last is None else (objective - last if self._limits.maximize else last - objective)
        if worthwhile(gain, noise):
            self._until_judged = self.size
            return
        before = self.size
        self.size = next_part(self._limits.points, before, max(gain, 0.0), noise, self._limits.grid)
        self._cursor, self._until_judged, self._last_objective = before, self.size - before, None

    @property
    def _most_visits(self) -> float:
        return active().training.max_passes_over_parts * self._limits.points


Part = GrowingPart | PartAmongOthers


def in_use(part: Part | None, local: LocalUpdates | None, schedule: VisitSchedule) -> Part | None:
    """The part, unless it is over: also where θ is not made here (any more), or points have moved."""
    if isinstance(part, PartAmongOthers):
        if not schedule.whole:
            part.end()
        return None if part.over else part
    useful = local is not None and local.useful
    return part if part is not None and useful and not part.over else None
