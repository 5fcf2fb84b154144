"""Rows into tiles and back, compiled: a plain NumPy transpose costs as much as ten passes of training.

Knows layouts only, not shards. Called through an entry point, since numba takes a second to import.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flegel.core.code_cache import njit


@njit(nogil=True, cache=True)
def fill_tiles(rows: Any, packed: Any) -> None:
    """packed[i // TILE, t, i % TILE] = rows[i, t]; lanes behind the last row stay as they are."""
    points, columns = rows.shape
    lanes = packed.shape[2]
    for tile in range(-(-points // lanes)):
        first = tile * lanes
        filled = min(lanes, points - first)
        for t in range(columns):
            for lane in range(filled):
                packed[tile, t, lane] = rows[first + lane, t]


@njit(nogil=True, cache=True)
def gather_tiles(rows: Any, order: Any, packed: Any) -> int:
    """packed[i // TILE, t, i % TILE] = rows[order[i], t]; returns how many of these values are not finite."""
    points, columns = len(order), rows.shape[1]
    lanes = packed.shape[2]
    near = np.empty((lanes, columns), packed.dtype)  # rows of a tile, fetched many at a time, before any is waited for
    wrong = 0
    for tile in range(-(-points // lanes)):
        first = tile * lanes
        filled = min(lanes, points - first)
        for lane in range(filled):
            row = order[first + lane]
            for t in range(columns):
                near[lane, t] = rows[row, t]
        here = np.int32(0)  # as wide as a value: the loop is vectorized then
        for t in range(columns):
            for lane in range(filled):
                value = near[lane, t]
                packed[tile, t, lane] = value
                here += np.int32(value - value != 0)
        wrong += int(here)
    return wrong


@njit(nogil=True, cache=True)
def fill_rows(packed: Any, rows: Any) -> None:
    """The way back: rows[i, t] = packed[i // TILE, t, i % TILE]."""
    points, columns = rows.shape
    lanes = packed.shape[2]
    for i in range(points):
        tile, lane = divmod(i, lanes)
        for t in range(columns):
            rows[i, t] = packed[tile, t, lane]
