"""How long groups train between two synchronizations, found from measured costs by the adjuster of flexible barriers.

A synchronization costs φ, the seconds from a contribution to its result: training goes on meanwhile, but what it learns
reaches the others one round later. `MultiStage` weighs φ against what a longer interval loses, as it does between the
workers of a group. Every group finds its own interval; a round takes as long as its slowest group. Pure.
"""

from __future__ import annotations

from flegel.plan.interval.multi_stage import MultiStage
from flegel.plan.interval.search import Round

MAX_PASSES_ALONE = 8.0
"""Passes of a group over its own rows between two exchanges: after more it is near its own optimum and learns nothing
new."""


class AutoInterval:
    """Told of commits, contributions and results; says when the next contribution is due."""

    def __init__(self) -> None:
        self._adjuster = MultiStage()
        self._visits = self._all_visits = 0
        self._points = 1
        self._objective: float | None = None
        self._before: float | None = None
        self._began: float | None = None
        self._sent: tuple[float, int] | None = None
        self.seconds = 0.0
        self.reason = ""
        """Why the interval was changed last; taken by `explain`."""

    def commit(self, visits: int, points: int, objective: float | None) -> None:
        """A barrier of the group; a smaller objective is better."""
        self._visits, self._all_visits = self._visits + visits, self._all_visits + visits
        self._points, self._objective = max(points, 1), objective

    def sent(self, now: float) -> None:
        self._sent = (now, self._visits)

    def opened(self, now: float, comparable: bool) -> float:
        """A result was applied: seconds until the next contribution. `comparable`: with the same groups as before, so
        that the objective says how much was gained."""
        if self._sent is not None and self._began is not None:
            self._learn(now, comparable)
        elif not self.reason:
            self.reason = self._adjuster.first(0.0).reason
        self._before = self._objective if comparable else None
        self._began, self._sent, self._visits = now, None, 0
        return self.seconds

    def _learn(self, now: float, comparable: bool) -> None:
        """Tell the adjuster what the last exchange cost and gained, and take the next interval from it."""
        assert self._sent is not None and self._began is not None
        at, visits = self._sent
        if not visits:
            return  # it rests
        gain = None
        if comparable and self._before is not None and self._objective is not None:
            gain = self._before - self._objective
        whole = MAX_PASSES_ALONE * self._points
        step = self._adjuster.next(
            Round(
                visits=visits,
                seconds=max(now - self._began, 1e-6),
                barrier_cost=max(now - at, 0.0),
                gain=gain,
                full_pass=whole,
                points=whole,
                laps=self._all_visits / whole,
            )
        )
        if step.seconds is not None:
            self.seconds = step.seconds
        self.reason = step.reason or self.reason

    def explain(self) -> str:
        """What was decided since the last call; empty where nothing was."""
        said, self.reason = self.reason, ""
        return said
