"""Rows that are read window by window, so that whoever lays them out needs no second copy of all. No I/O of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from flegel.core.pytree import Array


class RowWindows:
    """Dense rows that `read` brings one window after the other, each a multiple of `step` rows but the last.

    A window is valid until the next one, and read-only, as rows in shared memory are: to compiled code these are
    different types.
    """

    def __init__(
        self, shape: tuple[int, int], dtype: np.dtype[Any], step: int, read: Callable[[], Iterator[Array]]
    ) -> None:
        self.shape, self.dtype, self.step = shape, dtype, step
        self._read = read

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[tuple[int, Array]]:
        """Number of the first row, and the rows."""
        first = 0
        for window in self._read():
            shown = window.view()
            shown.flags.writeable = False
            yield first, shown
            first += len(window)

    def changed(self, change: Callable[[Array], Array]) -> RowWindows:
        """The same rows, each window changed, which may be done in place."""
        return RowWindows(self.shape, self.dtype, self.step, lambda: map(change, self._read()))

    def whole(self, empty: Callable[[tuple[int, ...], Any], Array] = np.empty) -> Array:
        """All rows in one array."""
        rows = empty(self.shape, self.dtype)
        for first, window in self:
            rows[first : first + len(window)] = window
        return rows
