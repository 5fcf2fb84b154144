"""Estimates of workers' speeds and their standard errors, from the rounds. Pure arithmetic; plans nothing.

V is *seconds per point*, an exponentially weighted mean with a long memory; a short one replaces it when the speed
has changed by more than the error.
"""

from __future__ import annotations

import math
from copy import copy

from flegel.configuration.active import active
from flegel.configuration.balance import BalanceSettings


class DecayingMean:
    """Exponentially weighted seconds per point, with its relative standard error."""

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._weight = self._points = self._seconds = self._square = self._weight2 = 0.0
        self._off = self._square_of_blocks = 0.0
        self._rounds = 0

    def note(self, points: float, seconds: float) -> None:
        """A round of `points` points in `seconds`; earlier rounds count less. The error is estimated from single rounds
        and from blocks of rounds, because errors of neighbouring rounds are related."""
        keep = self._memory
        self._weight = keep * self._weight + 1
        self._weight2 = keep * keep * self._weight2 + 1
        self._points = keep * self._points + points
        self._seconds = keep * self._seconds + seconds
        off = seconds - points * self.value if points else seconds
        self._square = keep * self._square + off * off
        self._off += off
        self._rounds += 1
        block = active().moves.speed_rounds_per_block
        if self._rounds % block == 0:
            self._square_of_blocks = keep**block * self._square_of_blocks + self._off * self._off
            self._off = 0.0

    @property
    def value(self) -> float:
        """Seconds per point; infinite before the first point."""
        return self._seconds / self._points if self._points else math.inf

    @property
    def relative_error(self) -> float:
        """Relative standard error, enlarged for few rounds as in Student's t distribution."""
        if self._weight <= 1 or not self._seconds:
            return 1.0
        rounds = self._weight * self._weight / self._weight2
        few = self._rounds < 3 * active().moves.speed_rounds_per_block  # blocks are too few to estimate from
        square = self._square if few else min(self._square, self._square_of_blocks)
        spread = math.sqrt(square / self._weight) * (1 + 10 / rounds**2)
        return spread * math.sqrt(self._weight2) / self._seconds


class Speed:
    """V of one worker. The long-memory mean is used, because moves are planned for a long time; if it differs from the
    short-memory mean by more than the error, the speed has changed and the short one takes its place."""

    def __init__(self, rules: BalanceSettings) -> None:
        self._rules = rules
        self._long, self._short = DecayingMean(rules.long_memory), DecayingMean(rules.short_memory)

    def note(self, points: float, seconds: float) -> None:
        """A round in which `points` took `seconds`. Rounds with 0 points count: without them a worker that sleeps for
        longer than a round would look faster than it is."""
        if seconds <= 0:
            return
        self._long.note(points, seconds)
        self._short.note(points, seconds)
        apart = abs(self._long.value - self._short.value)
        if (
            apart
            > self._rules.error_multiple * self._short.relative_error * self._short.value + 1e-3 * self._short.value
        ):
            self._long = copy(self._short)
            self._long._memory = self._rules.long_memory

    @property
    def seconds(self) -> float:
        """Seconds per point; infinite before the first measurement."""
        return self._long.value

    @property
    def relative_error(self) -> float:
        return self._long.relative_error


class DutyCycle:
    """Share of elapsed time in which one worker can train; the rest is spent at barriers.

    Measured per worker: one that is late at a barrier makes the others wait, not itself.
    """

    def __init__(self, rules: BalanceSettings) -> None:
        self._part = Speed(rules)
        """Seconds of training for each second that passes."""

    def note(self, passed: float, open_: float) -> None:
        """A round took `passed` seconds; for `open_` of them the worker trained, or could have with more points."""
        self._part.note(passed, min(open_, passed))

    @property
    def value(self) -> float:
        return self._part.seconds if self._part.seconds < math.inf else 1.0
