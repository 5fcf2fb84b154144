"""Sums of many large arrays, for which everybody waits. Arrays only."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cache
from queue import SimpleQueue

import numpy as np

from flegel.tree import Array

PIECE = 1 << 15  # numbers that stay in a processor's own cache while all extras pass by
LARGE = 4 * PIECE  # numbers from which on several threads are quicker than one
HANDS = 4

Work = Callable[[], None]


def add_all(into: Array, extras: Sequence[Array]) -> None:
    """into += each extra. Every number gets its extras in this order, so threads do not change a bit.

    While reports are summed no worker of a synchronous model trains, so there are processors for several threads.
    """
    if len(extras) < 2 or into.size < LARGE or not all(a.flags.c_contiguous for a in (into, *extras)):
        for extra in extras:
            np.add(into, extra, into)
        return
    whole, parts = into.reshape(-1), [extra.reshape(-1) for extra in extras]
    starts = iter(range(0, whole.size, PIECE))

    def add_pieces() -> None:
        for start in starts:
            piece = whole[start : start + PIECE]
            for part in parts:
                np.add(piece, part[start : start + PIECE], piece)

    _together(add_pieces)


def _together(work: Work) -> None:
    """This thread works too, and waits for none that has not begun: there may be no others."""
    wanted, promises = _hands(os.getpid()), [Future[None]() for _ in range(HANDS - 1)]
    for promise in promises:
        wanted.put((work, promise))
    work()
    for promise in promises:
        if not promise.cancel():
            promise.result()


@cache
def _hands(process: int) -> SimpleQueue[tuple[Work, Future[None]]]:
    """Threads that take what is put here; each process has its own, for a fork inherits none.

    They are no executor's, because these refuse work as soon as the main thread has ended, jobs in others or not.
    """
    wanted: SimpleQueue[tuple[Work, Future[None]]] = SimpleQueue()
    with contextlib.suppress(RuntimeError):  # no more threads in this process
        for _ in range(HANDS - 1):
            threading.Thread(target=_serve, args=(wanted,), name="sum", daemon=True).start()
    return wanted


def _serve(wanted: SimpleQueue[tuple[Work, Future[None]]]) -> None:
    while True:
        _do(*wanted.get())


def _do(work: Work, promise: Future[None]) -> None:
    """In a function of its own, so that a thread that waits holds no arrays."""
    if promise.set_running_or_notify_cancel():
        try:
            work()
            promise.set_result(None)
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever wants the sum
            promise.set_exception(error)
