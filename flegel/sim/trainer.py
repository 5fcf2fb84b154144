"""A trainer on virtual time: knows how long points take, and trains them really or not at all. No thread, no clock.

`Pace` is the speed of a worker, stragglers included; `Learner` runs the algorithm's own kernel on a share, so that
a simulated job gives the true objective.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

from flegel import tree
from flegel.algorithm import Algorithm, Kernel
from flegel.plan.straggler import NONE, Slowdown, Stragglers
from flegel.share import Share
from flegel.tree import Array, Tree


@dataclass
class Pace:
    """Points a second of one worker, and what holds it back when."""

    rate: float
    stragglers: Stragglers = field(default_factory=Stragglers)
    worker: int = 0
    workers: int = 1
    since_pause: int = 0

    def slowdown(self, seconds: float) -> Slowdown:
        return self.stragglers.slowdown(self.worker, self.workers, seconds) if self.stragglers else NONE

    def seconds_for(self, points: int, at: float) -> float:
        """How long so many points take from `at` on. Slowness is that of the beginning."""
        slow = self.slowdown(at)
        pauses = (self.since_pause + points) // slow.every if slow.pause else 0
        return points / self.rate * slow.factor * (1 + slow.load) + pauses * slow.pause

    def points_in(self, seconds: float, at: float, most: int) -> tuple[int, float]:
        """Points begun within `seconds`, and when the last is done: a pause that has begun is slept to its end."""
        slow = self.slowdown(at)
        each = slow.factor * (1 + slow.load) / self.rate
        if not slow.pause:
            points = min(most, math.floor(seconds / each + 1e-9))
            return points, max(seconds, points * each)
        lead = min(self.since_pause, slow.every - 1)
        unit = slow.every * each + slow.pause
        whole, rest = divmod(seconds + lead * each + 1e-12, unit)
        points = int(whole) * slow.every + min(slow.every, math.floor(rest / each)) - lead
        points = min(points, most)
        return points, max(seconds, self.seconds_for(points, at))

    def did(self, points: int, at: float) -> None:
        """So many points are done: the next pause comes so much sooner."""
        slow = self.slowdown(at)
        self.since_pause = (self.since_pause + points) % slow.every if slow.pause else 0


class Learner(Protocol):
    """What training does to statistics."""

    points: int
    columns: int

    def train(self, parameter: Tree, start: int, end: int, iteration: int, share: Share | None = None) -> None: ...

    def clear(self) -> None: ...

    def changes(self) -> tuple[Array, ...]: ...

    def add(self, changes: tuple[Array, ...]) -> None: ...


class KernelLearner:
    """The algorithm's own kernel on a share, for a given number of points."""

    def __init__(self, algorithm: Algorithm, kernel: Kernel, share: Share, zero: Tree, flag: Array) -> None:
        self.algorithm, self.share, self.points, self.columns = algorithm, share, share.points, share.columns
        self._kernel, self._aggregator, self._flag = kernel, tree.copy(zero), flag

    def train(self, parameter: Tree, start: int, end: int, iteration: int, share: Share | None = None) -> None:
        at = start
        while at < end:
            at = self._kernel(share or self.share, parameter, self._aggregator, at, end, iteration, self._flag)

    def clear(self) -> None:
        tree.clear(self._aggregator)

    def changes(self) -> tuple[Array, ...]:
        return tuple(a.copy() for a in tree.flatten(self._aggregator))

    def add(self, changes: tuple[Array, ...]) -> None:
        tree.add(self._aggregator, tree.unflatten(self._aggregator, changes))


class Counter:
    """Statistics that only count visits: for jobs of very many workers."""

    def __init__(self, points: int, columns: int = 1) -> None:
        self.points, self.columns = points, columns
        self._visits = 0.0

    def train(self, parameter: Tree, start: int, end: int, iteration: int, share: Share | None = None) -> None:
        self._visits += end - start

    def clear(self) -> None:
        self._visits = 0.0

    def changes(self) -> tuple[Array, ...]:
        import numpy as np

        return (np.array([self._visits]),)

    def add(self, changes: tuple[Array, ...]) -> None:
        self._visits += float(changes[0][0])
