"""How fast simulated workers are, and how that changes: constant, unequal, drifting, revoked, recorded. Seeded.

A `Course` is the speed of one worker over virtual time as a staircase; `draw` makes the courses of a cluster from a few
numbers. Stragglers made on purpose (`plan/stragglers.py`) come on top, in `Pace`.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from flegel.errors import UsageError
from flegel.options import parse_seconds

SPREADS = "equal, lognormal:0.3, uniform:0.5-2 or tiers:1x0.7+0.25x0.3"
SECONDS_PER_HOUR = 3600  # by the definition of the hour
DRIFT_MEMORY = 0.9
"""A drifting speed keeps so much of its last logarithm; the random rest keeps its spread the same over time."""


class Course:
    """Factors of a worker's usual speed from time 0 on; the last one lasts. Grows as it is asked for."""

    def __init__(self, steps: Iterator[tuple[float, float]]) -> None:
        """`steps` yields (from when, factor), the first from 0."""
        self._steps = steps
        time, factor = next(steps)
        self._times, self._factors = [time], [factor]
        self._has_more_steps = True

    def _reach(self, time: float) -> None:
        """Read the course of speeds up to this time."""
        while self._has_more_steps and self._times[-1] <= time:
            step = next(self._steps, None)
            if step is None:
                self._has_more_steps = False
            else:
                time_of_step, factor = step
                self._times.append(time_of_step)
                self._factors.append(factor)

    def at(self, time: float) -> float:
        self._reach(time)
        return self._factors[bisect_right(self._times, time) - 1]

    def work(self, begin: float, end: float) -> float:
        """Seconds of usual speed that lie between two times."""
        self._reach(end)
        i, done, at = bisect_right(self._times, begin) - 1, 0.0, begin
        while at < end:
            until = min(end, self._times[i + 1] if i + 1 < len(self._times) else math.inf)
            done += (until - at) * self._factors[i]
            at, i = until, i + 1
        return done

    def until(self, begin: float, work: float) -> float:
        """When so many seconds of usual speed are done; infinity where they never are."""
        at = begin
        self._reach(at)
        i = bisect_right(self._times, at) - 1
        while True:
            if i + 1 >= len(self._times):
                self._reach(self._times[-1])
            end = self._times[i + 1] if i + 1 < len(self._times) else math.inf
            factor = self._factors[i]
            if factor > 0 and at + work / factor <= end:
                return at + work / factor
            if math.isinf(end):
                return math.inf
            work -= (end - at) * factor
            at, i = end, i + 1


def recorded(times: Sequence[float], factors: Sequence[float]) -> Course:
    """What was measured from each of these times on."""
    steps = list(zip(times, factors, strict=True))
    if not steps or steps[0][0] > 0:
        steps.insert(0, (0.0, steps[0][1] if steps else 1.0))
    return Course(iter(steps))


@dataclass(frozen=True)
class Spot:
    """Machines that are taken away and come back."""

    per_hour: float
    """Revocations of one worker in an hour, on average."""
    outage: float
    """Seconds until it is back. Its points and its place are kept; nothing is computed and nothing is answered."""


@dataclass(frozen=True)
class Drift:
    """Speed wanders."""

    size: float
    """Standard deviation of ln(speed)."""
    every: float
    """Seconds between two changes; memory of the old speed fades over ten of them."""


@dataclass(frozen=True)
class Speeds:
    """What a cluster is like."""

    spread: str = "equal"
    drift: Drift | None = None
    spot: Spot | None = None


def draw(speeds: Speeds, workers: int, seed: int) -> tuple[list[float], dict[int, Course]]:
    """Usual speed of each worker relative to the typical one, and the courses of those that change."""
    factors = parse_spread(speeds.spread)(np.random.default_rng([seed, 1]), workers)
    courses: dict[int, Course] = {}
    if speeds.drift is not None or speeds.spot is not None:
        for worker in range(workers):
            courses[worker] = Course(_steps(speeds, seed, worker))
    return [float(f) for f in factors], courses


def _steps(speeds: Speeds, seed: int, worker: int) -> Iterator[tuple[float, float]]:
    """Drift and revocations together, in the order of time."""
    rng = np.random.default_rng([seed, 2, worker])
    level = rng.normal() * speeds.drift.size if speeds.drift else 0.0
    turn = speeds.drift.every if speeds.drift else math.inf
    gone = rng.exponential(SECONDS_PER_HOUR / speeds.spot.per_hour) if speeds.spot else math.inf
    back = math.inf
    up = True
    yield 0.0, math.exp(level)
    while True:
        now = min(turn, gone, back)
        if now == turn and speeds.drift:
            level = DRIFT_MEMORY * level + math.sqrt(1 - DRIFT_MEMORY**2) * speeds.drift.size * rng.normal()
            turn += speeds.drift.every
        elif now == gone and speeds.spot:
            up, gone, back = False, math.inf, now + speeds.spot.outage
        elif speeds.spot:
            up, gone, back = True, now + rng.exponential(SECONDS_PER_HOUR / speeds.spot.per_hour), math.inf
        yield now, math.exp(level) if up else 0.0


def parse_spread(text: str) -> Callable[[np.random.Generator, int], Sequence[float]]:
    """Speeds relative to the typical worker. Tiers are `factor x share`, such as 1x0.7+0.25x0.3."""
    kind, _, rest = text.strip().partition(":")
    if kind == "equal" and not rest:
        return lambda rng, n: [1.0] * n
    if kind == "lognormal" and (sigma := _number(rest)) is not None and 0 < sigma <= 3:
        return lambda rng, n: np.exp(rng.normal(0.0, sigma, n)).tolist()
    if kind == "uniform" and (match := re.fullmatch(r"([\d.]+)-([\d.]+)", rest)):
        low, high = _number(match[1]), _number(match[2])
        if low is not None and high is not None and 0 < low <= high:
            return lambda rng, n: rng.uniform(low, high, n).tolist()
    if kind == "tiers":
        pairs = [[_number(p) for p in part.split("x")] for part in rest.split("+")]
        if all(len(p) == 2 and None not in p and p[0] > 0 and p[1] > 0 for p in pairs):  # type: ignore[operator]
            return lambda rng, n: _tiers([(p[0], p[1]) for p in pairs], n)  # type: ignore[misc]
    raise UsageError(f"--spread {text!r} is not known; write for instance {SPREADS}.")


def _tiers(pairs: list[tuple[float, float]], count: int) -> list[float]:
    """Each tier has its share of the workers, in this order."""
    ends = np.cumsum([share for _, share in pairs])
    places = (np.arange(count) + 0.5) / count * ends[-1]
    return [pairs[min(i, len(pairs) - 1)][0] for i in np.searchsorted(ends, places).tolist()]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def parse_drift(text: str) -> Drift:
    """`0.2~10s`: the standard deviation of ln(speed), and how often it changes."""
    size, tilde, every = text.partition("~")
    value = _number(size)
    if not tilde or value is None or not 0 < value <= 3:
        raise UsageError(f"--drift {text!r} is not known; write for instance 0.2~10s (how much, and how often).")
    return Drift(value, parse_seconds(every))


def parse_spot(text: str) -> Spot:
    """`0.5/h:30s`: revocations of one worker in an hour, and how long it is away."""
    match = re.fullmatch(r"\s*([\d.]+)\s*/\s*h\s*:\s*(.+)", text)
    rate = _number(match[1]) if match else None
    if not match or not rate:
        raise UsageError(f"--spot {text!r} is not known; write for instance 0.5/h:30s (how often, and how long).")
    return Spot(rate, parse_seconds(match[2]))
