"""A team's share of a call inside compiled code: blocks from a shared cursor, without the interpreter and its lock.

    serve = team_loop(train)   # train(features, state, weights, parameter, sums, start, end, flag, *rest)

One thread leads: it puts the cursor in place, takes blocks like the others, closes the cursor and waits until every
block that was taken is done. The others stay in compiled code between calls: they look for the next generation for some
microseconds, then sleep until they are woken. A thread that is held up elsewhere is not waited for unless it has taken
a block.

The cursor is one number of 64 bits: generation, number of blocks, next block. Whoever adds 1 to it knows from the old
value alone whether it has taken a block. As long as that is not done the leader does not go on, so edges and θ are
those of the block. Knows no algorithm. Imports the compiler.
"""

from __future__ import annotations

import platform
import sys
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from flegel.configuration.compiled import kernel_settings
from flegel.core.atomic_flag import raised
from flegel.core.code_cache import njit
from flegel.core.team_control import (
    CURSOR,
    DONE,
    FAILED,
    GENERATION,
    GENERATION_BITS,
    INDEX_BITS,
    LEADER_SLEEPS,
    OVER,
    SLEEPERS,
    TAKES_PART,
    TIMEOUT,
)

LOOKS_BEFORE_SLEEP = kernel_settings().team_looks_before_sleep
FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 0) if sys.platform == "linux" else 0
"""The number of the system call by which threads sleep until a number changes; 0: they sleep for a while."""
WAIT_HERE, WAKE_HERE, EVERYBODY = 128, 129, 1 << 30  # of threads of this process
NAP_MICROSECONDS = 50  # between two looks where the system has no futex
INDEX_MASK, GENERATION_MASK = (1 << INDEX_BITS) - 1, (1 << GENERATION_BITS) - 1  # of the cursor

_syscall: Any = types.ExternalFunction("syscall", types.int64(*[types.int64] * 7))
_usleep: Any = types.ExternalFunction("usleep", types.int32(types.uint32))


def _place(context: Any, builder: Any, kind: Any, value: Any, index: Any) -> Any:
    return builder.gep(context.make_array(kind)(context, builder, value).data, [index])


@intrinsic  # type: ignore[untyped-decorator]
def look(typing_context: Any, array: Any, index: Any) -> Any:
    """array[index], by an atomic load."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_place(context, builder, signature.args[0], *args), "seq_cst", 8)

    return types.int64(array, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def put(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """array[index] = value, atomically; returns what was there."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _place(context, builder, signature.args[0], args[0], args[1])
        return builder.atomic_rmw("xchg", place, args[2], "seq_cst")

    return types.int64(array, types.intp, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def count(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """array[index] += value, atomically; returns what was there."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _place(context, builder, signature.args[0], args[0], args[1])
        return builder.atomic_rmw("add", place, args[2], "seq_cst")

    return types.int64(array, types.intp, types.int64), generate


@njit(nogil=True)
def wake(control, place):
    """Wake all that sleep until this number changes."""
    if FUTEX:
        _syscall(FUTEX, control.ctypes.data + 8 * place, WAKE_HERE, EVERYBODY, 0, 0, 0)


@njit(nogil=True)
def doze(control, place, seen):
    """Sleep until this number is no longer `seen`, or for the time at TIMEOUT."""
    if FUTEX:
        address = control.ctypes.data
        _syscall(FUTEX, address + 8 * place, WAIT_HERE, seen & 0xFFFFFFFF, address + 8 * TIMEOUT, 0, 0)
    else:
        _usleep(NAP_MICROSECONDS)


@njit(nogil=True, cache=True)
def end_team(control):
    """All but the leader return to the interpreter."""
    put(control, OVER, 1)
    count(control, GENERATION, 1)
    wake(control, GENERATION)


@njit(nogil=True)
def _publish(control, blocks):
    """Open the cursor for so many blocks, and wake who sleeps; returns the generation."""
    generation = (look(control, GENERATION) + 1) & GENERATION_MASK
    put(control, DONE, 0)
    put(control, CURSOR, (generation << (2 * INDEX_BITS)) | (blocks << INDEX_BITS))
    put(control, GENERATION, generation)
    if look(control, SLEEPERS) > 0:
        wake(control, GENERATION)
    return generation


@njit(nogil=True)
def _close(control, generation, blocks):
    """No block is taken any more; wait for those that were. Returns their number, or -1 where a thread has failed."""
    taken = min(put(control, CURSOR, generation << (2 * INDEX_BITS)) & INDEX_MASK, blocks)
    looks = 0
    while True:
        done = look(control, DONE)
        if done >= taken:
            return taken
        if look(control, FAILED):
            return -1
        looks += 1
        if looks > LOOKS_BEFORE_SLEEP:
            put(control, LEADER_SLEEPS, 1)
            if look(control, DONE) == done:
                doze(control, DONE, done)
            put(control, LEADER_SLEEPS, 0)


@njit(nogil=True)
def _sum_up(control, generation, taken, table, flats, total):
    """Add what was counted: block by block in their order where there is a table, else thread by thread."""
    if table.shape[0]:
        for block in range(taken):
            for i in range(total.size):
                total[i] += table[block, i]
        return
    for number in range(flats.shape[0]):
        if look(control, TAKES_PART + 8 * number) == generation:
            for i in range(total.size):
                total[i] += flats[number, i]


def taker(train: Any) -> Any:
    """`take(number, …)`: visit blocks until none is left or the flag is up; arguments as those of `team_loop`."""

    @njit(nogil=True)
    def take(number, control, edges, table, flats, flag, never, features, state, weights, parameter, sums, rest):
        mine = np.int64(-1)
        while not raised(flag):
            ticket = count(control, CURSOR, 1)
            block, blocks = ticket & INDEX_MASK, (ticket >> INDEX_BITS) & INDEX_MASK
            if block >= blocks:
                break
            generation = ticket >> (2 * INDEX_BITS)
            if generation != mine or table.shape[0]:
                flats[number, :] = 0.0
            if generation != mine:
                mine = generation
                put(control, TAKES_PART + 8 * number, generation)
            train(features, state, weights, parameter, sums, edges[block], edges[block + 1], never, *rest)
            if table.shape[0]:
                table[block, :] = flats[number, : table.shape[1]]
            count(control, DONE, 1)
            if look(control, LEADER_SLEEPS):
                wake(control, DONE)

    return take


def team_loop(train: Any) -> Any:
    """`serve(number, blocks, control, edges, table, flats, total, flag, never, features, state, weights, parameter,
    sums, rest)`.

    Number 0 leads: it visits `blocks` blocks together with the others until `flag` is up, adds what they counted to
    `total` and returns how many were visited, or -1 where another thread has failed. Other numbers return when the team
    is over. `edges`: where blocks begin and end. `flats`: by thread the memory of its statistics, `sums`. `table`: a
    row for each fixed block, or none. `never`: a flag that is not raised.
    """
    take = taker(train)

    @njit(nogil=True, cache=True, error_model="numpy")
    def serve(
        number, blocks, control, edges, table, flats, total, flag, never,
        features, state, weights, parameter, sums, rest,
    ):  # fmt: skip
        if number == 0:
            generation = _publish(control, blocks)
            take(0, control, edges, table, flats, flag, never, features, state, weights, parameter, sums, rest)
            taken = _close(control, generation, blocks)
            if taken > 0:
                _sum_up(control, generation, taken, table, flats, total)
            return taken
        seen, looks = np.int64(-1), 0
        while not look(control, OVER):
            now = look(control, GENERATION)
            if now != seen:
                seen, looks = now, 0
                take(
                    number, control, edges, table, flats, never, never, features, state, weights, parameter, sums, rest
                )  # fmt: skip
                continue
            looks += 1
            if looks > LOOKS_BEFORE_SLEEP:
                count(control, SLEEPERS, 1)
                doze(control, GENERATION, seen)
                count(control, SLEEPERS, -1)
                looks = 0
        return 0

    return serve
