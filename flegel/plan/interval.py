"""How long the next interval should be: fixed, or halved while that pays. Pure; the multi-stage fit is `stages.py`.

An interval is told what the last round did and answers with the next `Step` and, where something changed, a reason.
It never sees workers, θ or a clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Round:
    """What one round between two barriers did."""

    visits: int
    seconds: float
    barrier_cost: float
    """φ of this round: seconds in which the average worker did not compute."""
    gain: float | None
    """Improvement of the objective; None before there are two values."""
    full_pass: float
    """Visits of all workers together when the fastest has gone through its share once."""
    laps: float
    """Passes of the fastest worker so far."""

    @property
    def rate(self) -> float:
        """Visits a second of all workers while they compute."""
        return self.visits / max(self.seconds - self.barrier_cost, 1e-9)


@dataclass(frozen=True)
class Step:
    """The next interval: so many seconds, or until a worker has done `fraction` of its share."""

    seconds: float | None
    reason: str = ""
    fraction: float = 1.0


class Interval(Protocol):
    """Says how long the next round should be."""

    def first(self) -> Step: ...

    def next(self, last: Round) -> Step: ...


class FixedInterval:
    """η as the user gave it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def first(self) -> Step:
        return Step(self.seconds, f"fixed interval of {milliseconds(self.seconds)}")

    def next(self, last: Round) -> Step:
        return Step(self.seconds)


class Halving:
    """Recursive search (paper Section 3.3): try η/λ, keep it while the objective improves faster, then stop.

    The trial of η/λ takes λ rounds, so that both sides are given the same training time. The size is in any unit;
    it is compared by progress a second, barriers included.
    """

    def __init__(self, size: float, factor: float = 2.0) -> None:
        self.size = size
        self.factor = factor
        self.settled = False
        self._rounds = max(2, round(factor))
        self._best: float | None = None  # progress a second at `size`
        self._gain = self._seconds = 0.0
        self._done = 0

    @property
    def trial(self) -> float:
        """The size of the next round."""
        return self.size if self.settled or self._best is None else self.size / self.factor

    def feed(self, gain: float | None, seconds: float) -> str:
        """The outcome of a round of size `trial`; says what was decided, if anything."""
        if self.settled or gain is None:
            return ""
        if self._best is None:
            self._best = gain / max(seconds, 1e-9)
            return f"progress {self._best:.3g}/s; trying 1/{self.factor:g} of it"
        self._gain += gain
        self._seconds += seconds
        self._done += 1
        if self._done < self._rounds:
            return ""
        tried = self._gain / max(self._seconds, 1e-9)
        self._gain = self._seconds = 0.0
        self._done = 0
        if tried > self._best:
            text = f"1/{self.factor:g} is better: progress {tried:.3g}/s against {self._best:.3g}/s"
            self.size /= self.factor
            self._best = tried
            return text
        self.settled = True
        return f"1/{self.factor:g} is no better: progress {tried:.3g}/s against {self._best:.3g}/s; settled"


class BinarySearch:
    """η by halving, from the time of a full pass of the fastest worker (FSPB)."""

    def __init__(self, first: float | None = None, factor: float = 2.0) -> None:
        self._given = first
        self._factor = factor
        self._search: Halving | None = Halving(first, factor) if first else None

    def first(self) -> Step:
        if self._given:
            return Step(self._given, f"search begins at {milliseconds(self._given)}, as given")
        return Step(None, "search begins at a full pass of the fastest worker")

    def next(self, last: Round) -> Step:
        if self._search is None:
            self._search = Halving(max(last.seconds - last.barrier_cost, 1e-4), self._factor)
        text = self._search.feed(last.gain, last.seconds)
        eta = self._search.trial
        return Step(eta, f"{text} → η {milliseconds(eta)}" if text else "")


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
