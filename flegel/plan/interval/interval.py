"""What an interval is: told of each round, it says how long the next one is, and why. Pure.

One protocol for all who synchronize: barriers of a job (`sync`), rounds of groups at several sites
(`machine/group`), barriers of the ranks of PyTorch (`torch/flexible`). Each measures its rounds as `Round` and
obeys the `Step` that comes back; `search.py`, `multi_stage.py` and `gradient_noise.py` have the intervals that are
found. An interval never sees workers, θ or a clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from flegel.core.pytree import Array

PARTS = 2.0 ** (np.arange(-96, 1) / 8)
"""Fractions of a pass, from 1/4096 to 1, at which an algorithm gives the worth of a visit (its `efficiency`)."""


MARK, REWIND = "mark", "rewind"
"""What a round does with the order of visits: note where it begins, or visit again what was visited since it was
noted."""


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
    """Visits of all workers together by the time the fastest has traversed its shard once."""
    points: float
    """Visits of a pass over all data; larger than `full_pass` if some worker finishes its shard before the others."""
    laps: float
    """Passes of the fastest worker so far."""
    worth: Array | None = None
    """Worth of a visit at the intervals `PARTS`, if the algorithm gives it."""
    noise: float | None = None
    """The gradient noise scale in visits, for gradient methods; not a number while it is not known yet."""
    held: bool = False
    """θ stays until every point has been visited with it."""
    alike: bool = False
    """No worker is much slower than the mean: what a barrier costs does not depend on the interval."""
    local_updates: bool = False
    """The only worker makes θ anew by itself between barriers: what a visit is worth does not depend on the
    interval."""
    alone: bool = False
    """There is one worker: nobody waits for it at a barrier."""
    indivisible: float = 0.0
    """Seconds of the smallest piece of training that the slowest worker can end with; 0 where that is no matter."""
    call: float = 0.0
    """Seconds that a worker's call of a library takes in each round besides its visits; 0 where they are not known."""

    @property
    def rate(self) -> float:
        """Visits a second of all workers while they compute."""
        return self.visits / max(self.seconds - self.barrier_cost, 1e-9)


@dataclass(frozen=True)
class Step:
    """The next interval: a number of seconds, or until a worker has trained `fraction` of its shard."""

    seconds: float | None
    reason: str = ""
    fraction: float = 1.0
    whole: bool = False
    """Everybody goes through its whole share, and `seconds` only says how long that takes."""
    cursor: str = ""
    """`MARK`, `REWIND`, or neither."""


class Interval(Protocol):
    """Decides how long the next round is."""

    def first(self, least: float) -> Step:
        """`least` is the share of the first pass below which an update would rest on too few points."""
        ...

    def next(self, last: Round) -> Step: ...


class FixedInterval:
    """η as the user gave it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def first(self, least: float) -> Step:
        return Step(self.seconds, f"fixed interval of {milliseconds(self.seconds)}")

    def next(self, last: Round) -> Step:
        return Step(self.seconds)


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
