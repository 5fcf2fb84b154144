"""The threads of a team, and how they visit blocks: by calls from the interpreter, or inside compiled code."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from typing import Any, NamedTuple

import numpy as np

from flegel.core import pytree
from flegel.core.entry_point import Code, EntryPoint
from flegel.core.pytree import Array, Tree
from flegel.core.shard import Shard, aligned
from flegel.core.stop_flag import new_flag
from flegel.core.team_control import FAILED, MAX_BLOCKS, new_control
from flegel.declarations.kernels import Kernel, TeamCode, TwoStepKernel
from flegel.errors import FlegelError
from flegel.runtime import clock

CACHE_LINE_NUMBERS = 8  # float64 numbers of a cache line
MAX_EDGES = 4096  # blocks of a call inside compiled code whose statistics are kept by thread
_END_TEAM = EntryPoint("flegel.core.team_loop", "end_team")


class Team:
    """Threads that wait for work, and the caller."""

    def __init__(self, threads: int) -> None:
        """Start the helper threads, as many as this process gets; each waits for its lock."""
        self._start_locks: list[threading.Lock] = []
        self._work: Callable[[int], None] | None = None
        self._context = Context()
        self._finished = itertools.count()
        self._helpers = 0
        self._last_arrived = threading.Lock()
        self._last_arrived.acquire()
        self._error: BaseException | None = None
        for number in range(1, threads):
            begin = threading.Lock()
            begin.acquire()
            thread = threading.Thread(target=self._serve, args=(number, begin), name=f"team-{number}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads in this process
                break
            self._start_locks.append(begin)

    @property
    def threads(self) -> int:
        return 1 + len(self._start_locks)

    def together(self, work: Callable[[int], None], threads: int) -> None:
        """Call `work(number)` in `threads` threads, of which the caller is number 0; returns when all calls have, and
        raises what the first of them raised."""
        self.begin(work, threads)
        try:
            work(0)
        finally:
            self.wait()
        self.check()

    def begin(self, work: Callable[[int], None], threads: int) -> None:
        """Have helper threads call `work(number)`, with numbers from 1 to `threads` − 1, and return at once.

        They have the settings of the caller's job."""
        self._context = copy_context()
        self._helpers = min(threads, self.threads) - 1
        self._work, self._finished, self._error = work, itertools.count(1), None
        for begin in self._start_locks[: self._helpers]:
            begin.release()

    def wait(self) -> None:
        """Wait until all helpers that began have returned. There is no time limit: the job notices a hook that never
        returns."""
        if self._helpers:
            self._last_arrived.acquire()
        self._work = None

    def check(self) -> None:
        """Raise what one of them raised."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the threads; those in the middle of something end afterwards."""
        self._work = None
        for begin in self._start_locks:
            begin.release()
        self._start_locks = []

    def _serve(self, number: int, begin: threading.Lock) -> None:
        while begin.acquire() and self._serve_once(number):
            pass

    def _serve_once(self, number: int) -> bool:
        """Do the present work as thread `number`, and wake the thread in `wait` if this was the last to finish; False
        where the team was closed. A function of its own, so that a thread that waits holds no arrays."""
        work = self._work
        if work is None:
            return False
        try:
            self._context.copy().run(work, number)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            self._error = error
        del work
        if next(self._finished) == self._helpers:
            self._last_arrived.release()
        return True


class Sums:
    """Statistics whose fields lie beside each other in memory, so that they are cleared and added at once."""

    def __init__(self, empty: Tree, memory: Array | None = None) -> None:
        """`memory`: where they lie, `flat_size` numbers."""
        arrays = pytree.flatten(empty)
        kinds = {a.dtype for a in arrays}
        if len(kinds) == 1:
            starts = [0, *itertools.accumulate(_padded(a.size) for a in arrays)]
            whole = aligned((starts[-1],), kinds.pop()) if memory is None else memory
            whole[:] = 0
            self.flat = [whole]
            fields = [whole[at : at + a.size].reshape(a.shape) for at, a in zip(starts, arrays, strict=False)]
        else:
            self.flat = fields = [np.zeros_like(a) for a in arrays]
        self.tree: Tree = pytree.unflatten(empty, fields)

    def clear(self) -> None:
        for part in self.flat:
            part[...] = 0

    def add(self, other: Sums) -> None:
        for into, extra in zip(self.flat, other.flat, strict=True):
            np.add(into, extra, into)


def _padded(numbers: int) -> int:
    return -(-numbers // CACHE_LINE_NUMBERS) * CACHE_LINE_NUMBERS


def flat_size(empty: Tree) -> int:
    """Numbers of such statistics in memory; 0 where they are not float64 alone."""
    arrays = pytree.flatten(empty)
    return sum(_padded(a.size) for a in arrays) if {a.dtype for a in arrays} == {np.dtype(np.float64)} else 0


class InterpretedVisit(NamedTuple):
    """How a call by the interpreter went."""

    reached: int
    """The first point that was not visited."""
    cost: float
    """Seconds that it took beside visits."""
    worked: float
    """Seconds that processors worked, of all threads together: without waiting for the interpreter's lock."""


class InterpretedCalls:
    """The interpreter calls the kernel for each block; threads take turns at its lock, some 10 µs for a block."""

    def __init__(self, team: Team, kernels: Sequence[Kernel], empty: Tree, by_block: bool) -> None:
        """`by_block`: statistics are kept for each block, not for each thread, and added up in the order of the blocks:
        sums then have the same bits whichever thread took which block, as models with repeatable results need them."""
        self._team, self._kernels, self._empty, self._by_block = team, kernels, empty, by_block
        self._partial_sums = [Sums(empty) for _ in range(team.threads)]
        """Of each thread, or with `by_block` of each block: as many as any call so far has needed."""
        self._never = new_flag()
        """A flag that is never raised, for kernels: a block that was begun is finished."""

    def visit(
        self, shard: Shard, parameter: Tree, edges: list[int], iteration: int, flag: Array, total: Sums
    ) -> InterpretedVisit:
        """Visit blocks until none is left or the flag is up, and add them to `total`. `edges`: the first point of each
        block, and the end of the last one."""
        blocks, cursor = len(edges) - 1, itertools.count()
        threads = min(self._team.threads, blocks)
        last, busy, begun, worked = [-1] * threads, [0.0] * threads, [False] * threads, [0.0] * threads
        own, by_block = self._partial_sums, self._by_block
        while by_block and len(own) < blocks:
            own.append(Sums(self._empty))
        began = clock.now()

        def work(number: int) -> None:
            """As thread `number`: take one block after the other until none is left or the flag is raised."""
            kernel, entered, never = self._kernels[number], clock.now(), self._never
            before = clock.thread_seconds()
            while not flag[0]:
                block = next(cursor)
                if block >= blocks:
                    break
                sums = own[block if by_block else number]
                if by_block or not begun[number]:
                    sums.clear()
                    begun[number] = True
                kernel(shard, parameter, sums.tree, edges[block], edges[block + 1], iteration, never)
                last[number] = block
            busy[number], worked[number] = clock.now() - entered, clock.thread_seconds() - before

        self._team.together(work, threads)
        reached = max(last) + 1
        for place in range(reached) if by_block else [number for number in range(threads) if begun[number]]:
            total.add(own[place])
        return InterpretedVisit(edges[reached], clock.now() - began - max(busy), sum(worked))


class TwoStepCalls:
    """The interpreter calls a `TwoStepKernel`: all threads decide blocks, then all add to parts of the statistics."""

    def __init__(self, team: Team, kernel: TwoStepKernel) -> None:
        self._team, self._kernel = team, kernel

    def visit(
        self, shard: Shard, parameter: Tree, edges: list[int], iteration: int, flag: Array, total: Sums
    ) -> InterpretedVisit:
        """As `InterpretedCalls.visit`. Unlike there a block may end early, when the flag is up; what was decided behind
        it is forgotten, so that the visited points are the first ones."""
        began, kernel = clock.now(), self._kernel
        kernel.prepare(shard, parameter)
        came = edges[:-1]

        def decide(block: int) -> None:
            if not flag[0]:
                span = edges[block], edges[block + 1]
                came[block] = kernel.decide(shard, parameter, total.tree, *span, iteration, flag)

        busy, worked = self._share_out(len(came), decide)
        reached = next((at for at, end in zip(came, edges[1:], strict=True) if at < end), edges[-1])
        parts = kernel.collect(shard, edges[0], reached)
        more_busy, more_worked = self._share_out(parts, lambda part: kernel.add(shard, parameter, total.tree, part))
        return InterpretedVisit(reached, clock.now() - began - busy - more_busy, worked + more_worked)

    def _share_out(self, count: int, work: Callable[[int], None]) -> tuple[float, float]:
        """Call `work` for each number below `count`, whoever is free the next one. Returns how many seconds the thread
        that was busy longest took, and how many processors worked in all."""
        threads, cursor = min(self._team.threads, count), itertools.count()
        if not threads:
            return 0.0, 0.0
        busy, worked = [0.0] * threads, [0.0] * threads

        def serve(number: int) -> None:
            entered, before = clock.now(), clock.thread_seconds()
            while (place := next(cursor)) < count:
                work(place)
            busy[number], worked[number] = clock.now() - entered, clock.thread_seconds() - before

        self._team.together(serve, threads)
        return max(busy), sum(worked)


class CompiledCalls:
    """The threads stay in compiled code from call to call of one shard (`flegel.core.team_loop`)."""

    def __init__(self, team: Team, code: TeamCode, home: Shard, parameter: Tree, empty: Tree, blocks: int) -> None:
        """`home`: the shard. `blocks`: of a call whose statistics are kept by block; 0: they are kept by thread."""
        size, threads = flat_size(empty), team.threads
        self._team, self._entry, self._further_arguments = team, code.serve, code.rest
        self._prepare = code.prepare
        self._home, self._arrays = home, (home.features, home.state, home.weights, home.labels)
        self._theta = pytree.copy(parameter)
        self._last_parameter: Any = None
        self._control, self._never = new_control(threads), new_flag()  # the latter is never raised
        self.most_blocks = min(blocks or MAX_EDGES, MAX_BLOCKS)
        self._edges = np.zeros(self.most_blocks + 1, np.int64)
        self._table = aligned((self.most_blocks if blocks else 0, size), np.float64)
        self._flats = aligned((threads, size), np.float64)
        self._sums = [Sums(empty, self._flats[number]).tree for number in range(threads)]
        self._shared_arrays = (self._control, self._edges, self._table, self._flats)
        self._fixed_arguments = (*self._arrays[:3], pytree.read_only(self._theta))
        self._code: Code | None = None
        self._inside = False

    def ready(self, total: Sums, compile_it: bool) -> bool:
        """Whether the code is there; `compile_it`: it is compiled where it is not."""
        if compile_it:
            self._control[:] = new_control(self._team.threads)
            self._entry(*self._arguments(0, 0, new_flag(), total.flat[0]))  # no blocks
            _END_TEAM(new_control(1))
        self._code = self._entry.code_for(*self._arguments(0, 0, new_flag(), total.flat[0]))
        return self._code is not None and _END_TEAM.code_for(self._control) is not None

    def serves(self, shard: Shard, iteration: int) -> bool:
        """Whether calls about this shard are made here."""
        now = (shard.features, shard.state, shard.weights, shard.labels)
        same = all(one is other for one, other in zip(now, self._arrays, strict=True))
        return shard is self._home and same and self._further_arguments(iteration) == self._further_arguments(0)

    def visit(self, parameter: Tree, edges: list[int], flag: Array, total: Sums) -> int:
        """As `InterpretedCalls.visit`; returns how many blocks were visited."""
        if parameter is not self._last_parameter:
            for into, value in zip(pytree.flatten(self._theta), pytree.flatten(parameter), strict=True):
                into[...] = value
            if self._prepare is not None:
                self._prepare(self._home, parameter)
            self._last_parameter = parameter
        if not self._inside:
            self._enter(total)
        self._edges[: len(edges)] = edges
        assert self._code is not None
        try:
            reached = int(self._code(*self._arguments(0, len(edges) - 1, flag, total.flat[0])))
        except BaseException:
            self.leave()
            raise
        if reached < 0:
            self.leave()
            self._team.check()
            raise FlegelError("A thread of the team has failed.")
        return reached

    def leave(self) -> None:
        """The threads return to the interpreter, for other work."""
        if self._inside:
            self._inside = False
            _END_TEAM(self._control)
            self._team.wait()

    def _enter(self, total: Sums) -> None:
        """All threads but this one enter the compiled loop, and stay there until `leave`. A thread that fails says so
        in `control`, so that the one in `visit` does not wait for it."""
        self._control[:] = new_control(self._team.threads)
        code, control, flat = self._code, self._control, total.flat[0]
        assert code is not None

        def work(number: int) -> None:
            try:
                code(*self._arguments(number, 0, self._never, flat))
            except BaseException:
                control[FAILED] = 1
                raise

        self._inside = True
        self._team.begin(work, self._team.threads)

    def _arguments(self, number: int, blocks: int, flag: Array, total: Array) -> tuple[Any, ...]:
        flags = (total, flag, self._never)
        return (
            number,
            blocks,
            *self._shared_arrays,
            *flags,
            *self._fixed_arguments,
            self._sums[number],
            self._further_arguments(0),
        )
