"""Threads of one process that visit the points of one shard together: a team. Decides nothing about training.

A call of `run` cuts its points into blocks; whoever is free takes the next one from a shared cursor, so a thread that
is held up takes fewer. Each thread adds to statistics of its own, which the caller sums up when all have arrived.
Blocks are visited to their end: the stop flag is looked at between them, so the points that were visited are always
the first ones.

With `fixed` blocks their length depends on sizes alone, each has statistics of its own, and these are added in the
order of the blocks: the sums are the same to the last bit, however many threads there are and whoever took what.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flegel.algorithm import Algorithm
from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.core.shard import TILE, Shard, aligned
from flegel.core.stop_flag import new_flag
from flegel.declarations.kernels import Kernel, KernelHooks
from flegel.declarations.optional import hook
from flegel.runtime import clock
from flegel.runtime.backends.numba.backend import NumbaBackend, NumbaKernel
from flegel.runtime.backends.numba.kernels import another, build_kernel
from flegel.runtime.backends.protocol import ShardKernel

FIXED_BLOCK_WORK = 1 << 22
"""Multiplications in a fixed block: 0.2 to 1 ms, so that the call of a kernel, some 10 µs, costs little."""
BLOCK_WORK_PER_STATISTIC = 64
"""Multiplications in a fixed block for each number of the statistics, which are cleared and added for each block."""
BLOCK_ROWS_OF_UNKNOWN_WORK = 1024
"""Points of a fixed block where nobody knows what a visit costs."""
BLOCK_MULTIPLE = 1024
"""Points of a fixed block are a multiple of it: whole tiles, and what kernels keep of runs of rows."""
BLOCK_STATISTICS_BYTES = 64 << 20
"""Memory for the statistics of fixed blocks; with more blocks all threads meet in between."""
LONGEST_BLOCK_SECONDS = 5e-4
"""Of a block whose length may depend on speed: so long a thread does not look at the stop flag."""
REMEMBERED_CALLS = 8
"""Calls whose cost besides visits is remembered; the least of them counts, in others a thread waited for its core."""
FEWEST_POINTS_PER_THREAD = 2048
"""Points of the first calls, for each thread."""
CACHE_LINE_NUMBERS = 8


class Team:
    """Threads that wait for work, and the caller."""

    def __init__(self, threads: int) -> None:
        self._wanted: list[threading.Lock] = []
        self._work: Callable[[int], None] | None = None
        self._left = itertools.count()
        self._others = 0
        self._arrived = threading.Lock()
        self._arrived.acquire()
        self._error: BaseException | None = None
        for number in range(1, threads):
            begin = threading.Lock()
            begin.acquire()
            thread = threading.Thread(target=self._serve, args=(number, begin), name=f"team-{number}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads in this process
                break
            self._wanted.append(begin)

    @property
    def threads(self) -> int:
        return 1 + len(self._wanted)

    def together(self, work: Callable[[int], None], threads: int) -> None:
        """`work(number)` by this thread, 0, and by others, so many in all; returns when all have, and raises what the
        first of them raised. It has no bound of its own: a hook that never returns is noticed by the job."""
        self._others = min(threads, self.threads) - 1
        if not self._others:
            work(0)
            return
        self._work, self._left, self._error = work, itertools.count(1), None
        for begin in self._wanted[: self._others]:
            begin.release()
        try:
            work(0)
        finally:
            self._arrived.acquire()
            self._work = None
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the threads; those in the middle of something end afterwards."""
        self._work = None
        for begin in self._wanted:
            begin.release()
        self._wanted = []

    def _serve(self, number: int, begin: threading.Lock) -> None:
        while begin.acquire() and self._serve_once(number):
            pass

    def _serve_once(self, number: int) -> bool:
        """In a function of its own, so that a thread that waits holds no arrays."""
        work = self._work
        if work is None:
            return False
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            self._error = error
        del work
        if next(self._left) == self._others:
            self._arrived.release()
        return True


class Sums:
    """Statistics whose fields lie beside each other in memory, so that they are cleared and added at once."""

    def __init__(self, empty: Tree) -> None:
        arrays = pytree.flatten(empty)
        self.flat: list[Array] = []
        fields: list[Array] = []
        kinds = {a.dtype for a in arrays}
        if len(kinds) == 1:
            starts = [0, *itertools.accumulate(-(-a.size // CACHE_LINE_NUMBERS) * CACHE_LINE_NUMBERS for a in arrays)]
            whole = aligned((starts[-1],), kinds.pop())
            whole[:] = 0
            self.flat = [whole]
            fields = [whole[at : at + a.size].reshape(a.shape) for at, a in zip(starts, arrays, strict=False)]
        else:
            fields = [np.zeros_like(a) for a in arrays]
            self.flat = fields
        self.tree: Tree = pytree.unflatten(empty, fields)

    def clear(self) -> None:
        for part in self.flat:
            part[...] = 0

    def add(self, other: Sums) -> None:
        for into, extra in zip(self.flat, other.flat, strict=True):
            np.add(into, extra, into)


def fixed_block(work: float, numbers: int) -> int:
    """Points of a fixed block, where a visit takes so many multiplications and the statistics have so many numbers."""
    if not math.isfinite(work):
        return BLOCK_ROWS_OF_UNKNOWN_WORK
    wanted = max(FIXED_BLOCK_WORK, BLOCK_WORK_PER_STATISTIC * numbers) / max(work, 1.0)
    return max(math.ceil(wanted / BLOCK_MULTIPLE), 1) * BLOCK_MULTIPLE


class TeamKernel:
    """A kernel for processors whose calls are made by a team. See `flegel.runtime.backends.protocol.ShardKernel`."""

    device = "cpu"
    library = ""
    room = 0

    def __init__(
        self, kernels: Sequence[Kernel], kind: str, note: str, parameter: Tree, empty: Tree, fixed: int
    ) -> None:
        """`kernels`: one for each thread. `fixed`: points of fixed blocks; 0: as long as speed makes them."""
        self.kind, self.note = kind, note
        self._kernels, self._team, self._fixed = kernels, Team(len(kernels)), fixed
        self.grid: int = fixed or 1
        self.least_points = FEWEST_POINTS_PER_THREAD * self._team.threads if kind == "hand-written" else 1
        self._prepare: Callable[[Shard, Tree], None] | None = getattr(kernels[0], "prepare", None)
        self._prepared: tuple[Any, Any] = (None, None)
        self._parameter = pytree.read_only(parameter)
        self._statistics = Sums(empty)
        size = sum(part.nbytes for part in self._statistics.flat)
        self._own = [Sums(empty) for _ in range(self._team.threads)]
        self._most_blocks = max(BLOCK_STATISTICS_BYTES // max(size, 1), self._team.threads)
        self._empty = empty
        self._speed = 0.0
        """Points a second of one thread."""
        self._costs: list[float] = []
        self._never = new_flag()

    @property
    def overhead(self) -> float:
        """Seconds that a call takes besides visits: until all have begun, and from the last one to the sum."""
        return min(self._costs, default=0.0)

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
        if self._prepare is not None and self._prepared != (id(shard), id(self._parameter)):
            self._prepare(shard, self._parameter)
            self._prepared = (id(shard), id(self._parameter))
        while start < end and not flag[0]:
            before = start
            start = (self._fixed_blocks if self._fixed else self._free_blocks)(shard, start, end, iteration, flag)
            if start == before:
                break
        return start

    def _fixed_blocks(self, shard: Shard, start: int, end: int, iteration: int, flag: Array) -> int:
        """As many blocks as there is room for; they end at multiples of their length."""
        step = self._fixed
        edges: list[int] = [start, *range((start // step + 1) * step, end, step), end][: self._most_blocks + 1]
        while len(self._own) < len(edges) - 1:
            self._own.append(Sums(self._empty))
        own = self._own

        def begin(number: int, block: int) -> Tree:
            own[block].clear()
            return own[block].tree

        reached = self._visit(shard, edges, iteration, flag, begin)
        for block in range(reached):
            self._statistics.add(own[block])
        return edges[reached]

    def _free_blocks(self, shard: Shard, start: int, end: int, iteration: int, flag: Array) -> int:
        """Large ones first, smaller ones in the end, so that all threads arrive together."""
        edges = self._edges(start, end)
        own, begun = self._own, [False] * self._team.threads

        def begin(number: int, block: int) -> Tree:
            if not begun[number]:
                begun[number] = True
                own[number].clear()
            return own[number].tree

        reached = self._visit(shard, edges, iteration, flag, begin)
        for number, took_part in enumerate(begun):
            if took_part:
                self._statistics.add(own[number])
        return edges[reached]

    def _edges(self, start: int, end: int) -> list[int]:
        """Where blocks begin and end: each half of what a thread's part of the rest is."""
        threads, edges = self._team.threads, [start]
        longest = int(self._speed * LONGEST_BLOCK_SECONDS) or FEWEST_POINTS_PER_THREAD
        least = max(longest // 8, TILE)
        while edges[-1] < end:
            at = edges[-1]
            size = min(max((end - at) // (2 * threads), least), max(longest, TILE))
            edge = -(-(at + size) // TILE) * TILE
            edges.append(edge if edge + TILE < end else end)
        return edges

    def _visit(
        self, shard: Shard, edges: list[int], iteration: int, flag: Array, begin: Callable[[int, int], Tree]
    ) -> int:
        """Visit blocks until none is left or the flag is up; how many were visited. `begin(number, block)`: the
        statistics that this thread adds this block to."""
        blocks, cursor, parameter = len(edges) - 1, itertools.count(), self._parameter
        threads = min(self._team.threads, blocks)
        last, busy = [-1] * threads, [0.0] * threads
        began = clock.now()

        def work(number: int) -> None:
            kernel, entered, never = self._kernels[number], clock.now(), self._never
            while not flag[0]:
                block = next(cursor)
                if block >= blocks:
                    break
                kernel(shard, parameter, begin(number, block), edges[block], edges[block + 1], iteration, never)
                last[number] = block
            busy[number] = clock.now() - entered

        self._team.together(work, threads)
        reached = max(last) + 1
        self._learn(edges[reached] - edges[0], busy, clock.now() - began)
        return reached

    def _learn(self, points: int, busy: list[float], took: float) -> None:
        if points > 0 and sum(busy) > 0:
            self._speed = max(points / sum(busy), self._speed / 2)
        self._costs = [*self._costs[1 - REMEMBERED_CALLS :], max(took - max(busy), 0.0)]

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
        self._team.close()


class TeamBackend(NumbaBackend):
    """Kernels for processors that a team of threads runs; one that has to be interpreted is run by one thread."""

    def __init__(self, threads: int, fixed_blocks: bool) -> None:
        self._threads, self._fixed_blocks = threads, fixed_blocks

    def build(self, algorithm: Algorithm, shard: Shard, parameter: Tree, empty: Tree, interpret: bool) -> ShardKernel:
        built = build_kernel(algorithm, shard, parameter, empty, interpret)
        if built.kind == "interpreted":
            return NumbaKernel(built, parameter, empty)
        kernels = [built.kernel, *(another(algorithm, built, shard) for _ in range(self._threads - 1))]
        numbers = sum(array.size for array in pytree.flatten(empty))
        block = fixed_block(hook(algorithm, KernelHooks.work)(shard.columns), numbers) if self._fixed_blocks else 0
        return TeamKernel(kernels, built.kind, built.note, parameter, empty, block)
