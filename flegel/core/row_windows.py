"""Rows that are fetched and laid out at once, so that no second copy of all rows is needed. No I/O of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from flegel.configuration.active import active
from flegel.core.mapped_arrays import release
from flegel.core.pytree import Array

ShareOut = Callable[[int, int, Callable[[int, int], None]], None]
"""`share_out(count, piece, work)`: work(start, end) for all of 0 … count, in pieces, by one thread or by several."""


def at_once(count: int, piece: int, work: Callable[[int, int], None]) -> None:
    """work(0, count), by the calling thread; `parallel_sums.in_pieces` does it by several."""
    work(0, count)


class RowWindow(NamedTuple):
    """Some rows among others: `rows[order]`, valid until the next window."""

    rows: Array
    """Read-only, as rows in shared memory are: to compiled code these are different types."""
    order: Array


class RowWindows:
    """Dense rows that `read` brings one window after the other, each a multiple of `TILE` rows but the last."""

    def __init__(
        self,
        shape: tuple[int, int],
        dtype: np.dtype[Any],
        read: Callable[[], Iterator[RowWindow]],
        complain: Callable[[], None] = lambda: None,
    ) -> None:
        """`complain` is called where a value is not finite."""
        self.shape, self.dtype = shape, dtype
        self._read_rows, self._complain = read, complain

    def __len__(self) -> int:
        return self.shape[0]

    def lay_out(self, put: Callable[[RowWindow, int], bool]) -> None:
        """Each window and the number of its first row; `put` says whether all values are finite."""
        first, sound = 0, True
        for window in self._read_rows():
            sound = put(window, first) and sound
            first += len(window.order)
        if not sound:
            self._complain()

    def in_place(self, share_out: ShareOut = at_once) -> Array | None:
        """All rows without a copy, where they lie side by side in one array of this process; None where not. They are
        searched for values that are not finite by the threads of `share_out`."""
        windows = self._read_rows()
        rows, order = next(windows)
        here = len(order) == len(self) and rows.flags.c_contiguous and bool((np.diff(order) == 1).all())
        if not here:
            return None
        found: Array = rows[int(order[0]) : int(order[0]) + len(order)] if len(order) else rows[:0]
        sound: list[bool] = []
        piece = max(1, active().processors.threaded_sum_from_numbers // max(1, self.shape[1]))
        share_out(len(found), piece, lambda start, end: sound.append(_sound(found[start:end])))
        if not all(sound):
            self._complain()
        return found

    def whole(self, empty: Callable[[tuple[int, ...], Any], Array] = np.empty) -> Array:
        """Read all rows into one array."""
        into = empty(self.shape, self.dtype)

        def put(window: RowWindow, first: int) -> bool:
            part = into[first : first + len(window.order)]
            np.take(window.rows, window.order, axis=0, out=part, mode="clip")  # other modes make a second copy first
            sound = _sound(part)
            release(into, first, first + len(part))
            return sound

        self.lay_out(put)
        return into


def _sound(rows: Array) -> bool:
    """Whether all values are finite; mostly their sum tells."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(rows.sum()) or np.isfinite(rows).all())
