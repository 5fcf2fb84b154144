"""A trainer on virtual time: knows how long points take, and trains them really or not at all. No thread, no clock.

`Pace` is the speed of a worker, stragglers included, `CallPace` that of one that calls a library; `Learner` runs the
algorithm's own kernel on a shard, so that a simulated job gives the true objective. `Counter` only counts visits, for
jobs whose progress is a curve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from flegel.algorithm import Algorithm
from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.core.shard import Shard
from flegel.declarations.kernels import Kernel
from flegel.machine.worker.deadline_estimate import late
from flegel.plan.stragglers import NONE, Slowdown, Stragglers
from flegel.sim.speeds import Course

NO_STRAGGLERS = Stragglers()
SIGNALLED_CALL = 32  # points of a call in a round that a signal ends: a library's usual size of a micro-batch


class Pace:
    """Points a second of one worker, what holds it back when, and how its usual speed changes."""

    __slots__ = ("_course", "_steady", "call", "rate", "since_pause", "stragglers", "worker", "workers")

    def __init__(
        self,
        rate: float,
        stragglers: Stragglers = NO_STRAGGLERS,
        worker: int = 0,
        workers: int = 1,
        course: Course | None = None,
    ) -> None:
        """`rate`: points a second without stragglers; `course`: how the speed of the host changes over time."""
        self.rate, self.stragglers, self.worker, self.workers = rate, stragglers, worker, workers
        self.since_pause = 0
        self.call = 0.0
        """Seconds of each call besides its points, as a worker tells the coordinator."""
        self._course = course
        self._steady = stragglers.slowdown(worker, workers, 0.0) if stragglers.steady else None

    def slowdown(self, seconds: float) -> Slowdown:
        if self._steady is not None:
            return self._steady
        return self.stragglers.slowdown(self.worker, self.workers, seconds)

    def seconds_for(self, points: int, at: float) -> float:
        """How long so many points take from `at` on. Slowness made on purpose is that of the beginning."""
        slow = self.slowdown(at)
        if slow is NONE:
            seconds = points / self.rate
        else:
            pauses = (self.since_pause + points) // slow.every if slow.pause else 0
            seconds = points / self.rate * slow.factor * (1 + slow.load) + pauses * slow.pause
        return seconds if self._course is None else self._course.until(at, seconds) - at

    def points_in(self, seconds: float, at: float, most: int) -> tuple[int, float]:
        """Points begun within `seconds`, and when the last is done: a pause that has begun is slept to its end."""
        slow = self.slowdown(at)
        each = slow.factor * (1 + slow.load) / self.rate
        usable = seconds if self._course is None else self._course.work(at, at + seconds)
        if not slow.pause:
            points = min(most, math.floor(usable / each + 1e-9))
            took = points * each
        else:
            lead = min(self.since_pause, slow.every - 1)
            unit = slow.every * each + slow.pause
            whole, rest = divmod(usable + lead * each + 1e-12, unit)
            points = int(whole) * slow.every + min(slow.every, math.floor(rest / each)) - lead
            points = min(points, most)
            took = points * each + (self.since_pause + points) // slow.every * slow.pause
        if self._course is None:
            return points, max(seconds, took)
        if took > usable or not self._course.at(at + seconds):  # a pause goes on, or the machine is gone for now
            return points, max(seconds, self._course.until(at, max(took, usable + 1e-9)) - at)
        return points, seconds

    def in_time(self, seconds: float, at: float, most: int) -> tuple[int, float]:
        """Points that a worker with a clock of its own begins, and when the last is done: it sleeps no pause that would
        end too late, but one at least. Without pauses nothing is left to be foreseen, and it does as many as it can."""
        slow = self.slowdown(at)
        if not slow.pause or self._course is not None:
            return most, math.inf
        each = slow.factor * (1 + slow.load) / self.rate
        lead = min(self.since_pause, slow.every - 1)
        unit = slow.every * each + slow.pause
        pauses = max(int((seconds + lead * each) // unit), 1)
        end = pauses * unit - lead * each
        if end < seconds and not late(unit, seconds - end, self.workers - 1):
            pauses += 1
        points = min(pauses * slow.every - lead, most)
        return points, points * each + (self.since_pause + points) // slow.every * slow.pause

    def did(self, points: int, at: float) -> None:
        """So many points are done: the next pause comes so much sooner."""
        slow = self.slowdown(at)
        self.since_pause = (self.since_pause + points) % slow.every if slow.pause else 0


class CallPace(Pace):
    """The speed of a worker that trains in calls of a library, each of `call` seconds besides its points. A call that
    has begun is finished; a worker that knows when the round ends plans one that ends there, as in a real job."""

    __slots__ = ("_largest", "_planned", "_smallest")

    def __init__(self, pace: Pace, call: float, smallest: int, largest: int) -> None:
        """`pace`: how fast points are besides; `smallest`, `largest`: points of a call."""
        super().__init__(pace.rate, pace.stragglers, pace.worker, pace.workers, pace._course)
        self.call, self._smallest, self._largest = call, smallest, largest
        self._planned: tuple[int, float] | None = None
        """Points and seconds of the round that is under way, where the worker knew when it ends."""

    def _took(self, points: int, at: float, size: int) -> float:
        slow = self.slowdown(at)
        return super().seconds_for(points, at) + math.ceil(points / size) * self.call * slow.factor * (1 + slow.load)

    def seconds_for(self, points: int, at: float) -> float:
        self._planned = None
        return self._took(points, at, self._largest)

    def points_in(self, seconds: float, at: float, most: int) -> tuple[int, float]:
        """Calls are short where a signal may come: the one that it finds under way is finished."""
        if self._planned is not None:
            return self._planned
        size = min(SIGNALLED_CALL, self._largest)
        calls = max(math.ceil(seconds / self._took(size, at, size)), 1)
        points = min(calls * size, most)
        return points, max(seconds, self._took(points, at, size))

    def in_time(self, seconds: float, at: float, most: int) -> tuple[int, float]:
        """As many points as end in time, in calls of the largest size and a shorter one; a short call at least."""
        slow = self.slowdown(at)
        factor = slow.factor * (1 + slow.load)
        call, each = self.call * factor, factor / self.rate
        whole, rest = divmod(max(seconds, 0.0), call + self._largest * each)
        points = int(whole) * self._largest + max(math.floor((rest - call) / each + 1e-9), 0)
        points = min(max(points - points % self._smallest, self._smallest), most)
        self._planned = points, self._took(points, at, self._largest)
        return self._planned


class Learner(Protocol):
    """What training does to statistics."""

    points: int
    columns: int

    def train(self, parameter: Tree, start: int, end: int, iteration: int, shard: Shard | None = None) -> None: ...

    def clear(self) -> None: ...

    def changes(self) -> tuple[Array, ...]: ...


class KernelLearner:
    """The algorithm's own kernel on a shard, for a given number of points."""

    def __init__(self, algorithm: Algorithm, kernel: Kernel, shard: Shard, zero: Tree, flag: Array) -> None:
        self.algorithm, self.shard, self.points, self.columns = algorithm, shard, shard.points, shard.columns
        self._kernel, self._aggregator, self._flag = kernel, pytree.copy(zero), flag

    def train(self, parameter: Tree, start: int, end: int, iteration: int, shard: Shard | None = None) -> None:
        at, parameter = start, pytree.read_only(parameter)  # as on a worker, or the kernel would be compiled once more
        while at < end:
            at = self._kernel(shard or self.shard, parameter, self._aggregator, at, end, iteration, self._flag)

    def clear(self) -> None:
        pytree.clear(self._aggregator)

    def changes(self) -> tuple[Array, ...]:
        return tuple(a.copy() for a in pytree.flatten(self._aggregator))

    def add(self, changes: tuple[Array, ...]) -> None:
        pytree.add(self._aggregator, pytree.unflatten(self._aggregator, changes))


class BackendKernel(Protocol):
    """What a learner needs of the kernel of a backend (`runtime/backends/protocol.py`)."""

    def set_parameter(self, arrays: Sequence[Array]) -> None: ...

    def clear_statistics(self) -> None: ...

    def add_statistics(self, arrays: Sequence[Array]) -> None: ...

    def statistics(self) -> tuple[Array, ...]: ...

    def run(self, shard: Shard, start: int, end: int, iteration: int, flag: Array) -> int: ...


class BackendLearner:
    """The kernel of a backend that the algorithm asks for, such as that of networks, on a shard."""

    def __init__(self, algorithm: Algorithm, kernel: BackendKernel, shard: Shard, flag: Array) -> None:
        self.algorithm, self.shard, self.points, self.columns = algorithm, shard, shard.points, shard.columns
        self._kernel, self._flag = kernel, flag
        self._theta: tuple[Array, ...] = ()

    def train(self, parameter: Tree, start: int, end: int, iteration: int, shard: Shard | None = None) -> None:
        arrays = tuple(pytree.flatten(parameter))
        if not self._theta or any(new is not old for new, old in zip(arrays, self._theta, strict=True)):
            self._kernel.set_parameter(arrays)
            self._theta = arrays
        at = start
        while at < end:
            at = self._kernel.run(shard or self.shard, at, end, iteration, self._flag)

    def clear(self) -> None:
        self._kernel.clear_statistics()

    def changes(self) -> tuple[Array, ...]:
        return tuple(np.array(a) for a in self._kernel.statistics())

    def add(self, changes: tuple[Array, ...]) -> None:
        self._kernel.add_statistics(changes)


class Counter:
    """Statistics that only count visits: for jobs of very many workers."""

    __slots__ = ("_visits", "columns", "points")

    def __init__(self, points: int, columns: int = 1) -> None:
        self.points, self.columns = points, columns
        self._visits = 0.0

    def train(self, parameter: Tree, start: int, end: int, iteration: int, shard: Shard | None = None) -> None:
        self._visits += end - start

    def clear(self) -> None:
        self._visits = 0.0

    def changes(self) -> tuple[Array, ...]:
        return (np.array((self._visits,)),)
