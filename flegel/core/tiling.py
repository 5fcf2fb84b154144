"""Rows into tiles and back, compiled: a plain NumPy transpose costs as much as ten passes of training.

Knows layouts only, not shards. Called through an entry point, since numba takes a second to import.
"""

from __future__ import annotations

from typing import Any

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
def fill_rows(packed: Any, rows: Any) -> None:
    """The way back: rows[i, t] = packed[i // TILE, t, i % TILE]."""
    points, columns = rows.shape
    lanes = packed.shape[2]
    for i in range(points):
        tile, lane = divmod(i, lanes)
        for t in range(columns):
            rows[i, t] = packed[tile, t, lane]
