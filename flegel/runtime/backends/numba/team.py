"""Threads of one process that visit the points of one shard together: a team. Decides nothing about training.

A call of `run` cuts its points into blocks; whoever is free takes the next one from a shared cursor, so a thread that
is held up takes fewer. Each thread adds to statistics of its own, which are summed up when all blocks are done. Blocks
are visited to their end: the stop flag is looked at between them, so the points that were visited are always the first
ones.

A `TwoStepKernel` has one set of statistics for all threads, and gives the same sums whatever the blocks are. Of others,
with `fixed` blocks their length depends on sizes alone, each has statistics of its own, and these are added in the
order of the blocks: the sums are the same to the last bit, however many threads there are and whoever took what.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

from flegel.algorithm import Algorithm
from flegel.configuration.active import active
from flegel.core import pytree
from flegel.core.counting_kernel import stored_columns
from flegel.core.pytree import Array, Tree
from flegel.core.shard import TILE, Shard
from flegel.declarations.kernels import Kernel, KernelHooks, TeamCode
from flegel.declarations.optional import hook
from flegel.runtime import clock
from flegel.runtime.backends.numba.backend import BACKEND, NumbaKernel
from flegel.runtime.backends.numba.kernels import another, build_kernel
from flegel.runtime.backends.numba.team_threads import (
    CompiledCalls,
    InterpretedCalls,
    Sums,
    Team,
    TwoStepCalls,
    flat_size,
)

BLOCK_MULTIPLE = 1024
"""Points of a fixed block are a multiple of it: whole tiles, and what kernels keep of runs of rows."""

_compiling: list[bool] = []


@contextlib.contextmanager
def compiling_loops() -> Iterator[None]:
    """Inside, loops of teams that are not in the cache are compiled, for jobs to come; a job itself does without."""
    _compiling.append(True)
    try:
        yield
    finally:
        _compiling.pop()


def fixed_block(work: float, numbers: int, by_calls: bool) -> int:
    """Points of a fixed block, where a visit takes so many multiplications and the statistics have so many numbers.
    `by_calls`: the kernel has no loop for teams, so the interpreter calls it."""
    rules = active().processors
    if not math.isfinite(work):
        return rules.block_rows_of_unknown_work
    least = rules.fixed_block_work_by_calls if by_calls else rules.fixed_block_work
    wanted = max(least, rules.block_work_per_statistic * numbers)
    return max(math.ceil(wanted / max(work, 1.0) / BLOCK_MULTIPLE), 1) * BLOCK_MULTIPLE


def rows_at_once(work: float, numbers: int) -> int:
    """Points that a block has, however long they take: more than a few where the statistics have many numbers, because
    a kernel makes as many ready for each call. A visit takes so many multiplications."""
    rules = active().processors
    if numbers < rules.large_statistics_numbers or not math.isfinite(work):
        return 1
    return int(max(min(rules.work_of_large_statistics / max(work, 1.0), rules.rows_of_large_statistics), 1))


def _shrinking_blocks(start: int, end: int, longest: int, least: int, unit: int, parts: int) -> list[int]:
    """Borders of blocks: each is the rest divided by `parts`, within these bounds, and ends at a multiple of `unit`.
    Written for its speed: a barrier of sixteen threads takes some tens of microseconds, and this is a part of it."""
    edges, at, last = [start], start, end - unit
    while at < end:
        size = (end - at) // parts
        if size < least:
            size = least
        elif size > longest:
            size = longest
        at += size
        at -= at % unit
        if at >= last:
            at = end
        edges.append(at)
    return edges


def has_two_steps(kernel: Kernel) -> bool:
    """Whether it is a `TwoStepKernel`."""
    return hasattr(kernel, "decide")


class TeamKernel:
    """A kernel for processors whose calls are made by a team. See `flegel.runtime.backends.protocol.ShardKernel`."""

    device = "cpu"
    library = ""
    room = 0
    abandoned = 0

    def __init__(
        self,
        kernels: Sequence[Kernel],
        kind: str,
        note: str,
        parameter: Tree,
        empty: Tree,
        fixed: int,
        home: Shard | None = None,
        rows_at_once: int = 1,
    ) -> None:
        """`kernels`: one for each thread. `fixed`: points of fixed blocks; 0: as long as speed makes them. `home`: the
        shard that nearly all calls are about. `rows_at_once`: points that a block may have however long they take."""
        self.kind, self.note = kind, note
        self._kernels, self._team, self._fixed_block_points = kernels, Team(len(kernels)), fixed
        threads = self._team.threads
        self.grid: int = fixed or 1
        self.least_points = active().processors.fewest_points_per_thread * threads if kind == "hand-written" else 1
        self._unit: int = getattr(kernels[0], "unit", TILE)
        self._rows_at_once: int = max(getattr(kernels[0], "rows_at_once", 1), rows_at_once)
        """A block may have so many points however long they take: with fewer the kernel is slower."""
        self._parameter = pytree.read_only(parameter)
        self._statistics = Sums(empty)
        size = sum(part.nbytes for part in self._statistics.flat)
        self._most_blocks = max(active().processors.block_statistics_bytes // max(size, 1), threads)
        shared: Any = kernels[0]
        self._has_two_steps = has_two_steps(shared)
        self._interpreted = (
            TwoStepCalls(self._team, shared)
            if self._has_two_steps
            else InterpretedCalls(self._team, kernels, empty, bool(fixed))
        )
        self._most_points = 0
        """Of a block in the compiled loop (`TeamCode.most_points`); 0 where there is none, so no bound."""
        self._compiled = self._compiled_calls(home, parameter, empty) if threads > 1 and home is not None else None
        self._thread_speed = 0.0
        """Points a second of one thread."""
        self._call_overheads: list[float] = []
        """Seconds that each of the last calls took besides visits."""

    def _compiled_calls(self, home: Shard, parameter: Tree, empty: Tree) -> CompiledCalls | None:
        """None where the kernel has no such code, or it is not in the cache."""
        code: TeamCode | None = getattr(self._kernels[0], "team", None)
        if code is None or not flat_size(empty) or self._fixed_block_points > code.most_points:
            return None
        blocks = (
            min(-(-home.points // self._fixed_block_points) + 1, self._most_blocks) if self._fixed_block_points else 0
        )
        made = CompiledCalls(self._team, code, home, parameter, empty, blocks)
        if not made.ready(self._statistics, bool(_compiling)):
            return None
        self._most_points = code.most_points
        return made

    @property
    def has_compiled_loop(self) -> bool:
        """Threads take blocks inside compiled code."""
        return self._compiled is not None

    def expect_speed(self, points_per_second: float) -> None:
        """Of one thread: the next call is cut into blocks by it."""
        self._thread_speed = points_per_second

    @property
    def overhead(self) -> float:
        """Seconds that a call takes besides visits: until all have begun, and from the last one to the sum."""
        return min(self._call_overheads, default=0.0)

    def set_parameter(self, arrays: Sequence[Array]) -> None:
        self._parameter = pytree.read_only(pytree.unflatten(self._parameter, arrays))

    def clear_statistics(self) -> None:
        self._statistics.clear()

    def add_statistics(self, arrays: Sequence[Array]) -> None:
        pytree.add(self._statistics.tree, pytree.unflatten(self._statistics.tree, arrays))

    def statistics(self) -> tuple[Array, ...]:
        return tuple(pytree.flatten(self._statistics.tree))

    def run(self, shard: Shard, start: int, end: int, iteration: int, flag: Array) -> int:
        end = min(end, shard.points)
        if self.kind != "hand-written":
            iteration = max(iteration, 0)
        while start < end and not flag[0]:
            reached = self._visit(shard, self._edges(start, end), iteration, flag)
            if reached == start:
                break
            start = reached
        return start

    def _visit(self, shard: Shard, edges: list[int], iteration: int, flag: Array) -> int:
        """Visit these blocks; returns the first point that was not visited. Also measures the speed of a thread and
        what a call takes besides visits, by which the next calls are cut into blocks."""
        began, compiled, theta = clock.now(), self._compiled, self._parameter
        if compiled is not None and compiled.serves(shard, iteration):
            edges = edges[: compiled.most_blocks + 1]
            overhead = active().processors.compiled_call_seconds
            reached = edges[compiled.visit(theta, edges, flag, self._statistics)]
            thread_seconds = (clock.now() - began - overhead) * self._team.threads
        else:
            if compiled is not None:
                compiled.leave()  # threads that wait inside compiled code must be free for calls of the interpreter
            reached, overhead, thread_seconds = self._interpreted.visit(
                shard, theta, edges, iteration, flag, self._statistics
            )
        if reached > edges[0] and thread_seconds > 0:
            # At least half as fast as before: one call in which a thread was delayed must not make blocks tiny.
            self._thread_speed = max((reached - edges[0]) / thread_seconds, self._thread_speed / 2)
        self._call_overheads = [*self._call_overheads[1 - active().processors.remembered_calls :], max(overhead, 0.0)]
        return reached

    def _edges(self, start: int, end: int) -> list[int]:
        """Where blocks begin and end. Fixed ones end at multiples of their length; others are large first and smaller
        in the end, half of what a thread's part of the rest is, so that all threads arrive together. Where there are
        too many fixed blocks, the last one ends before `end`: `run` calls again."""
        if step := self._fixed_block_points:
            return [start, *range((start // step + 1) * step, end, step), end][: self._most_blocks + 1]
        twice, rules = 2 * self._team.threads, active().processors
        # Threads take turns at the interpreter's lock, so blocks are longer the more threads there are.
        interpreted_seconds = 0.0 if self._compiled is not None else rules.called_block_seconds_per_thread * twice / 2
        seconds = rules.two_step_block_seconds if self._has_two_steps else rules.longest_block_seconds
        longest = int(self._thread_speed * max(seconds, interpreted_seconds)) or rules.fewest_points_per_thread
        unit = self._unit
        longest = min(longest, self._most_points or longest)  # a kernel's compiled loop may take no longer ones
        longest = max(longest, self._rows_at_once)
        longest = max(longest // unit, 1) * unit
        least = max(longest // 8, unit)  # an eighth at least: to take a block costs time, too
        return _shrinking_blocks(start, end, longest, least, unit, twice)

    def fetch_states(self, shards: Sequence[Shard], start: int = 0, end: int | None = None) -> None:
        """Nothing to do: kernels write to the arrays of the shard."""

    def put_states(self, shards: Sequence[Shard], start: int = 0, end: int | None = None) -> None:
        """Nothing to do: kernels read the arrays of the shard."""

    def forget(self, shard: Shard) -> None:
        """Some kernels keep what they have found out about rows."""
        for kernel in self._kernels:
            forget = getattr(kernel, "forget", None)
            if forget is not None:
                forget(shard)

    def close(self) -> None:
        if self._compiled is not None:
            self._compiled.leave()
        self._team.close()


class TeamBackend:
    """Kernels for processors that a team of threads runs; one that has to be interpreted is run by one thread."""

    device = "cpu"

    def __init__(self, threads: int, fixed_blocks: bool) -> None:
        self._threads, self._fixed_blocks = threads, fixed_blocks

    def on(self, device: str) -> TeamBackend:
        return self

    def layout(self, algorithm: Algorithm, columns: int, interpret: bool) -> str:
        return BACKEND.layout(algorithm, columns, interpret)

    def build(
        self, algorithm: Algorithm, shard: Shard, parameter: Tree, empty: Tree, interpret: bool
    ) -> NumbaKernel | TeamKernel:
        built = build_kernel(algorithm, shard, parameter, empty, interpret)
        if built.kind == "interpreted":
            return NumbaKernel(built, parameter, empty)
        if has_two_steps(built.kernel):
            if self._threads == 1:  # the same sums in one step
                return NumbaKernel(built, parameter, empty)
            shared: Any = built.kernel
            shared.prepare(shard, pytree.read_only(parameter))  # compiles what it needs before training
            return TeamKernel([shared] * self._threads, built.kind, built.note, parameter, empty, 0)
        kernels = [built.kernel, *(another(algorithm, built, shard) for _ in range(self._threads - 1))]
        numbers = sum(array.size for array in pytree.flatten(empty))
        work, by_calls = hook(algorithm, KernelHooks.work), not hasattr(built.kernel, "team")
        block = fixed_block(work(shard.columns), numbers, by_calls) if self._fixed_blocks else 0
        few = rows_at_once(work(stored_columns(shard)), numbers)
        return TeamKernel(kernels, built.kind, built.note, parameter, empty, block, shard, few)
