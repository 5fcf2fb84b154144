"""Sums and copies of large arrays, for which everybody waits: by several threads. Arrays only."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cache
from queue import SimpleQueue
from typing import TypeVar

import numpy as np

from flegel.configuration.active import active
from flegel.core.pytree import Array

CACHED_NUMBERS = 1 << 15  # numbers that stay in a processor's own cache while all extras pass by
ADDING_THREADS = 4  # threads of a process that add sums, where it has few processors
MAX_ADDING_THREADS = 8
"""At most half the processors, and no more than these: much of the time a thread waits for what another has written."""

Work = Callable[[], None]
T = TypeVar("T")


def add_fields(intos: Sequence[Array], columns: Sequence[Sequence[Array]]) -> None:
    """into += each of its extras, for every array. A number gets its extras in this order, so threads do not change a
    bit. All arrays go through the same threads: four small ones that one alone adds take as long as a large one that
    many add."""
    pieces: list[tuple[Array, list[Array], int]] = []
    large = sum([into.size for into in intos]) >= active().processors.threaded_sum_from_numbers
    for into, extras in zip(intos, columns, strict=True):
        if large and len(extras) > 1 and all(a.flags.c_contiguous for a in (into, *extras)):
            flat = into.reshape(-1), [extra.reshape(-1) for extra in extras]
            pieces += [(*flat, start) for start in range(0, into.size, CACHED_NUMBERS)]
        else:
            for extra in extras:
                np.add(into, extra, into)

    def add(piece: tuple[Array, list[Array], int]) -> None:
        whole, parts, start = piece
        part_of_it = whole[start : start + CACHED_NUMBERS]
        for part in parts:
            np.add(part_of_it, part[start : start + CACHED_NUMBERS], part_of_it)

    if pieces:
        _share_out(pieces, add)


def copy_bytes(into: Array, source: Array) -> None:
    """Both in one dimension. To write where many processors have just read is slow for one alone."""
    if source.nbytes < 8 * active().processors.threaded_sum_from_numbers:
        into[:] = source
        return

    def copy(start: int, end: int) -> None:
        into[start:end] = source[start:end]

    in_pieces(len(source), 8 * CACHED_NUMBERS, copy)


def in_pieces(count: int, piece: int, work: Callable[[int, int], None]) -> None:
    """work(start, end) for all of 0 … count, by several threads: it should be long and hold no lock.

    While reports are summed no worker of a synchronous model trains, so there are processors for them.
    """
    _share_out(range(0, count, piece), lambda start: work(start, min(start + piece, count)))


def _share_out(pieces: Sequence[T], work: Callable[[T], None]) -> None:
    """Whoever is done with a piece takes the next; nobody else is woken for the only one."""
    if len(pieces) == 1:
        return work(pieces[0])
    left = iter(pieces)

    def some() -> None:
        for piece in left:
            work(piece)

    _together(some, len(pieces) - 1)


def _together(work: Work, others: int) -> None:
    """Do the work in this thread and at most `others` more. This thread waits for none that has not begun: there may be
    no others."""
    number, wanted = _hands(os.getpid())
    promises = [Future[None]() for _ in range(min(number, others))]
    for promise in promises:
        wanted.put((work, promise))
    work()
    for promise in promises:
        if not promise.cancel():
            promise.result()


@cache
def _hands(process: int) -> tuple[int, SimpleQueue[tuple[Work, Future[None]]]]:
    """How many threads there are, and what they take work from; each process has its own, for a fork inherits none.

    They are no executor's, because these refuse work as soon as the main thread has ended, jobs in others or not.
    """
    number = max(min(processors() // 2, MAX_ADDING_THREADS), ADDING_THREADS) - 1
    wanted: SimpleQueue[tuple[Work, Future[None]]] = SimpleQueue()
    with contextlib.suppress(RuntimeError):  # no more threads in this process
        for _ in range(number):
            threading.Thread(target=_serve, args=(wanted,), name="sum", daemon=True).start()
    return number, wanted


def processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _serve(wanted: SimpleQueue[tuple[Work, Future[None]]]) -> None:
    while True:
        _do(*wanted.get())


def _do(work: Work, promise: Future[None]) -> None:
    """Do one piece of work. A function of its own, so that a thread that waits holds no arrays."""
    if promise.set_running_or_notify_cancel():
        try:
            work()
            promise.set_result(None)
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever wants the sum
            promise.set_exception(error)
