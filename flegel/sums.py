"""Sums of many large arrays, for which everybody waits. Arrays only."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np

from flegel.tree import Array

PIECE = 1 << 15  # numbers that stay in a processor's own cache while all extras pass by
LARGE = 4 * PIECE  # numbers from which on several threads are quicker than one
HANDS = 4


def add_all(into: Array, extras: Sequence[Array]) -> None:
    """into += each extra. Every number gets its extras in this order, so threads do not change a bit.

    While reports are summed no worker of a synchronous model trains, so there are processors for several threads.
    """
    if len(extras) < 2 or into.size < LARGE or not all(a.flags.c_contiguous for a in (into, *extras)):
        for extra in extras:
            np.add(into, extra, into)
        return
    whole, parts = into.reshape(-1), [extra.reshape(-1) for extra in extras]

    def add_piece(start: int) -> None:
        piece = whole[start : start + PIECE]
        for part in parts:
            np.add(piece, part[start : start + PIECE], piece)

    list(_hands().map(add_piece, range(0, whole.size, PIECE)))


@cache
def _hands() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(HANDS, thread_name_prefix="sum")
