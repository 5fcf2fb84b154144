"""How fast workers are, from their rounds, and how far that can be relied on. Pure arithmetic.

V is *seconds per point*. Rounds are slowly forgotten, and faster as soon as a speed has clearly changed.
"""

from __future__ import annotations

import math
from copy import copy

from flegel.plan.balance.settings import BalanceSettings

BLOCK = 4  # rounds: who sleeps in every other one has rounds that differ much, and blocks of them that do not


class DecayingMean:
    """Seconds per point over rounds that are slowly forgotten, and how far that can be relied on."""

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._weight = self._points = self._seconds = self._square = self._weight2 = 0.0
        self._off = self._square_of_blocks = 0.0
        self._rounds = 0

    def note(self, points: float, seconds: float) -> None:
        keep = self._memory
        self._weight = keep * self._weight + 1
        self._weight2 = keep * keep * self._weight2 + 1
        self._points = keep * self._points + points
        self._seconds = keep * self._seconds + seconds
        off = seconds - points * self.value if points else seconds
        self._square = keep * self._square + off * off
        self._off += off
        self._rounds += 1
        if self._rounds % BLOCK == 0:
            self._square_of_blocks = keep**BLOCK * self._square_of_blocks + self._off * self._off
            self._off = 0.0

    @property
    def value(self) -> float:
        """Infinite while nothing is known."""
        return self._seconds / self._points if self._points else math.inf

    @property
    def doubt(self) -> float:
        """Relative standard error; that of few rounds is itself in doubt, and taken as larger (Student)."""
        if self._weight <= 1 or not self._seconds:
            return 1.0
        rounds = self._weight * self._weight / self._weight2
        square = self._square if self._rounds < 3 * BLOCK else min(self._square, self._square_of_blocks)
        spread = math.sqrt(square / self._weight) * (1 + 10 / rounds**2)
        return spread * math.sqrt(self._weight2) / self._seconds


class Speed:
    """V of one worker from its rounds. A long memory, because moves are planned for a long time; a short one as soon
    as it clearly says something else, because speeds change."""

    def __init__(self, rules: BalanceSettings) -> None:
        self._rules = rules
        self._long, self._short = DecayingMean(rules.long_memory), DecayingMean(rules.memory)

    def note(self, points: float, seconds: float) -> None:
        """A round in which so many points took so long. None at all are a measurement too: of a worker that is away for
        longer than a round, other rounds alone would say that it is faster."""
        if seconds <= 0:
            return
        self._long.note(points, seconds)
        self._short.note(points, seconds)
        apart = abs(self._long.value - self._short.value)
        if apart > self._rules.certainty * self._short.doubt * self._short.value + 1e-3 * self._short.value:
            self._long = copy(self._short)
            self._long._memory = self._rules.long_memory

    @property
    def seconds(self) -> float:
        """Seconds per point; infinite while nothing is known."""
        return self._long.value

    @property
    def doubt(self) -> float:
        return self._long.doubt


class DutyCycle:
    """The part of the time that passes in which one worker can train; the rest goes to barriers and to waiting there.

    Each worker has its own: those that are asleep or at work when a round ends keep the others waiting, not themselves.
    """

    def __init__(self, rules: BalanceSettings) -> None:
        self._part = Speed(rules)
        """Seconds of training for each second that passes."""

    def note(self, passed: float, open_: float) -> None:
        """A round took so long, and for so much of it the worker trained, or could have if it had had more points."""
        self._part.note(passed, min(open_, passed))

    @property
    def value(self) -> float:
        return self._part.seconds if self._part.seconds < math.inf else 1.0
