"""What a group measures of its rounds, so that an interval (`plan/interval`) can say how long the next one is. Pure.

A synchronization costs φ, the seconds from a contribution to its result: training goes on meanwhile, but what it learns
reaches the others one round later. `MultiStage` weighs φ against what a longer interval loses, as it does between the
workers of a group. Every group finds its own interval; a round takes as long as its slowest group.
"""

from __future__ import annotations

from flegel.configuration.active import active
from flegel.plan.interval.interval import Round


class RoundMeter:
    """Told of commits, contributions and results."""

    def __init__(self) -> None:
        self._visits = self._all_visits = 0
        self._points = 1
        self._objective: float | None = None
        self._objective_at_opening: float | None = None
        self._opened_at: float | None = None
        self._contribution: tuple[float, int] | None = None
        """When it was sent, and the visits that it holds."""

    def commit(self, visits: int, points: int, objective: float | None) -> None:
        """A barrier of the group; a smaller objective is better."""
        self._visits, self._all_visits = self._visits + visits, self._all_visits + visits
        self._points, self._objective = max(points, 1), objective

    def sent(self, now: float) -> None:
        self._contribution = (now, self._visits)

    def opened(self, now: float, comparable: bool) -> Round | None:
        """A result was applied: the round that it ended; None where nothing was contributed, or by a group that rested.
        `comparable`: with the same groups as before, so that the objective says how much was gained."""
        ended = self._round(now, comparable)
        self._objective_at_opening = self._objective if comparable else None
        self._opened_at, self._contribution, self._visits = now, None, 0
        return ended

    def _round(self, now: float, comparable: bool) -> Round | None:
        """The measurements of the round that ends now, for the choice of the next interval; None where no contribution
        was sent. `comparable`: the objective may be compared with the one before, which gives the gain."""
        if self._contribution is None or self._opened_at is None or not self._contribution[1]:
            return None
        sent_at, visits = self._contribution
        gain = None
        if comparable and self._objective_at_opening is not None and self._objective is not None:
            gain = self._objective_at_opening - self._objective
        whole = active().groups.max_passes_alone * self._points
        return Round(
            visits=visits,
            seconds=max(now - self._opened_at, 1e-6),
            barrier_cost=max(now - sent_at, 0.0),
            gain=gain,
            full_pass=whole,
            points=whole,
            laps=self._all_visits / whole,
        )
