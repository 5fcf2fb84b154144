"""Points counted again by the worker that holds them: the same kernel, fresh states, nothing of training touched.

The statistics of one pass over points that were never visited do not depend on anything that training has kept. Runs in
the thread that owns the points, between two rounds. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from flegel.algorithm import Algorithm
from flegel.configuration.active import active
from flegel.core import pytree
from flegel.core.precision import SMALLEST_DIVISOR, rounding
from flegel.core.pytree import Array, Tree
from flegel.core.shard import TILE, Shard, Sparse, pack_tiles
from flegel.core.stop_flag import new_flag
from flegel.declarations.kernels import COUNTING
from flegel.machine.worker.checksums import GOLDEN_RATIO_PART
from flegel.machine.worker.point_store import PointStore
from flegel.params.objective_error import objective_error

States = Callable[[int], Array]
Value = TypeVar("Value")


class PointRun(NamedTuple):
    """Neighbouring points of one shard, from `start` up to `end`."""

    shard: Shard
    start: int
    end: int


class RecountKernel(Protocol):
    """What a recount needs of the kernel of a job."""

    def set_parameter(self, arrays: Sequence[Array]) -> None: ...

    def clear_statistics(self) -> None: ...

    def add_statistics(self, arrays: Sequence[Array]) -> None: ...

    def statistics(self) -> tuple[Array, ...]: ...

    def run(self, shard: Shard, start: int, end: int, iteration: int, flag: Array) -> int: ...

    def put_states(self, shards: Sequence[Shard], start: int = 0, end: int | None = None) -> None: ...

    def forget(self, shard: Shard) -> None: ...

    @property
    def least_points(self) -> int: ...


class Recount:
    """The kernel of a job, θ(0) and states of points that were never visited."""

    def __init__(
        self, algorithm: Algorithm, kernel: RecountKernel, parameter: Tree, empty: Tree, fresh: States
    ) -> None:
        """`parameter`: θ(0), another θ than the present one, to see whether changes are differences."""
        self._algorithm, self._kernel, self._unvisited_states, self._empty = algorithm, kernel, fresh, empty
        self._first_parameter = pytree.copy(parameter)
        self._unvisited: Array | None = None
        self._unvisited_points = 0
        self._working_states = np.empty(0)
        """States of a chunk of points before their first visit, and where copies of them are used."""

    def whole(self, store: PointStore, theta: Sequence[Array]) -> tuple[Array, ...]:
        """The statistics of all points here under θ."""
        try:
            return self._apart(lambda: self._sum(held_runs(store), theta, COUNTING))
        finally:
            self._unvisited, self._working_states = None, np.empty(0)

    def visit_error(self, store: PointStore, theta: Sequence[Array], points: int, turn: int) -> float:
        """Relative difference between what `points` points contribute in a visit under θ(0) followed by one under
        `theta`, and in a visit under `theta` alone: 0 where both are the same, as they must be.

        `turn` chooses the points, others at each turn. 0 also where a visit depends on the last one by design."""
        if not self._algorithm.state.memoryless or not store.schedule.owned:
            return 0.0
        return self._apart(lambda: self._visit_error(store, theta, points, turn))

    def _visit_error(self, store: PointStore, theta: Sequence[Array], points: int, turn: int) -> float:
        """How far the contributions of some points differ when they are made in one visit and in two with different θ
        before: 0 where the difference is within rounding, else the relative difference."""
        shard, start, end = _some(store, points, turn)
        direct = self._sum([PointRun(shard, start, end)], theta)
        part, start, end = _cut(shard, start, end)
        self._kernel.clear_statistics()
        self._visit(self._clone(part), start, end, (pytree.flatten(self._first_parameter), theta))
        twice = [a.copy() for a in self._kernel.statistics()]
        worst, spent = 0.0, self._algorithm.statistics.spent
        for name, one, two in zip(pytree.names(self._empty), direct, twice, strict=True):
            if name in spent:
                continue  # two visits add twice there
            scale = max(float(np.abs(one).sum()), float(np.abs(two).sum()), SMALLEST_DIVISOR)
            worst = max(worst, float(np.abs(one - two).max(initial=0.0)) / scale)
        precision = rounding(_type_of(shard))
        if worst <= max(active().audit.equal_statistics_within, precision):
            return 0.0
        if self._same_objective(direct, twice, theta, precision):
            return 0.0
        return worst

    def _same_objective(
        self, direct: Sequence[Array], twice: Sequence[Array], theta: Sequence[Array], precision: float
    ) -> bool:
        """Whether two statistics of the same points have one objective under `theta`: ties that were decided otherwise
        change statistics and not their objective. `direct`: after one visit under `theta`; `twice`: after another one
        before it, under the first θ."""
        present = pytree.present(pytree.unflatten(self._first_parameter, theta))

        def objective(statistics: Tree) -> Any:
            return self._algorithm.objective(pytree.present(statistics), present)

        whole = pytree.unflatten(self._empty, direct)
        one, two = objective(whole), objective(pytree.unflatten(self._empty, twice))
        if one is None or two is None:
            return False
        apart = abs(one - two)
        near: bool = apart <= active().audit.equal_objectives_within * max(abs(one), abs(two))
        return near or apart <= objective_error(objective, whole, float(one), precision)

    # -- visits --------------------------------------------------------------------------------------------

    def _apart(self, work: Callable[[], Value]) -> Value:
        """Changes that are not reported yet stay what they are."""
        kept = [a.copy() for a in self._kernel.statistics()]
        try:
            return work()
        finally:
            self._kernel.clear_statistics()
            self._kernel.add_statistics(kept)

    def _sum(self, runs: Sequence[PointRun], theta: Sequence[Array], iteration: int = 0) -> tuple[Array, ...]:
        """The statistics of these runs of points (shard, start, end) under `theta`, as if never visited; in chunks,
        because each needs fresh states."""
        self._kernel.clear_statistics()
        for shard, first, last in runs:
            rules = active().audit
            fitting = rules.recounted_state_bytes // max(shard.state.nbytes // max(shard.points, 1), 1) // TILE * TILE
            most = max(rules.recounted_points, fitting, rules.recounted_calls * self._kernel.least_points)
            for start, end in _chunks(shard, first, last, most):
                part, low, high = _cut(shard, start, end)
                self._visit(self._clone(part), low, high, (theta,), iteration)
        return tuple(a.copy() for a in self._kernel.statistics())

    def _clone(self, part: Shard) -> Shard:
        """The same rows as if never visited."""
        known = self._unvisited is not None and self._unvisited.shape == part.state.shape
        if not known or self._unvisited_points < part.points:  # the last tile of fewer points is in part padding
            self._unvisited_points = part.points
            fresh = np.asarray(self._unvisited_states(part.points), part.state.dtype)
            made = pack_tiles(fresh) if part.layout == "tiles" else fresh.reshape(part.state.shape)
            self._unvisited, self._working_states = made, np.empty_like(made)
        assert self._unvisited is not None
        np.copyto(self._working_states, self._unvisited)
        return replace(part, state=self._working_states, halted=np.zeros_like(part.halted))

    def _visit(self, clone: Shard, start: int, end: int, thetas: Sequence[Sequence[Array]], iteration: int = 0) -> None:
        """Visit these points under one θ after the other. States are put once: a kernel may keep them on its device,
        where those of the last visit are."""
        self._kernel.put_states([clone])
        try:
            for theta in thetas:
                self._kernel.set_parameter(theta)
                self._kernel.run(clone, start, end, iteration, new_flag())
        finally:
            self._kernel.forget(clone)


def _type_of(shard: Shard) -> np.dtype[Any]:
    features = shard.features
    return np.dtype(features.values.dtype if isinstance(features, Sparse) else features.dtype)


def held_runs(store: PointStore) -> list[PointRun]:
    """The points that this worker owns."""
    return [PointRun(store.shards[s.shard], s.start, s.end) for s in store.schedule.held()]


def _chunks(shard: Shard, start: int, end: int, most: int) -> Iterator[tuple[int, int]]:
    """Sparse rows at once: a part of them would have other arrays than the kernel was compiled for."""
    sparse = isinstance(shard.features, Sparse)
    while start < end:
        edge = end if sparse else min(end, (start // TILE) * TILE + most)
        yield start, edge
        start = edge


def _cut(shard: Shard, start: int, end: int) -> PointRun:
    """The tiles that these points lie in, and where in them the points are."""
    if isinstance(shard.features, Sparse):
        return PointRun(shard, start, end)
    low = start // TILE * TILE if shard.layout == "tiles" else start
    high = min(-(-end // TILE) * TILE, shard.points) if shard.layout == "tiles" else end
    return PointRun(shard.part(low, high), start - low, end - low)


def _some(store: PointStore, points: int, turn: int) -> PointRun:
    """A few neighbours among the points here, others at each turn."""
    held = held_runs(store)
    at = int((turn * GOLDEN_RATIO_PART) % 1.0 * sum(end - start for _, start, end in held))
    for shard, start, end in held:
        if at < end - start:
            first = min(start + at, max(end - points, start))
            return PointRun(shard, first, min(first + points, end))
        at -= end - start
    return held[0]._replace(end=min(held[0].start + points, held[0].end))
