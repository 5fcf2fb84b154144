"""Rows divided by their Euclidean length, for algorithms that compare directions (`RowHooks.unit_rows`). No I/O.

Lengths are taken in float64 and without overflow. A row of zeros has no direction and stays as it is, and so do rows
whose length is 1 but for rounding: rows of unit length are never copied. Otherwise they are changed in place where the
caller owns them, and copied where it does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flegel.core.pytree import Array

NUMBERS_AT_ONCE = 1 << 18  # numbers that are divided at a time: they stay in a processor's own cache
ROUNDINGS = 8
"""Roundings of the rows' precision by which a squared length may differ from 1: dividing by a length that was itself
rounded leaves two or three. What is left changes a distance between unit rows by its square only."""
LEAST_SQUARE = 1e-280  # squared lengths below it have lost digits


def unit_dense(features: Array, own: bool) -> Array:
    """Dense rows with length 1. `own`: they may be changed."""
    step = max(NUMBERS_AT_ONCE // max(features.shape[1], 1), 1)
    for first in range(0, len(features), step):
        part = features[first : first + step]
        factors = _divisors(part, part.dtype)
        if factors is None:
            continue
        if not (own and features.flags.writeable):
            features, own = np.array(features, order="C"), True
            part = features[first : first + step]
        np.divide(part, factors[:, None], out=part, casting="same_kind")
    return features


def unit_tiles(tiles: Array) -> None:
    """The same for rows that are laid out in tiles of one's own, in place."""
    step = max(NUMBERS_AT_ONCE // max(tiles[:1].size, 1), 1)
    for first in range(0, len(tiles), step):
        part = tiles[first : first + step]
        rows = part.transpose(0, 2, 1)
        factors = _divisors(rows, part.dtype)
        if factors is not None:
            np.divide(part, factors[:, None, :], out=part, casting="same_kind")


def lengths_of(rows: Array) -> Array:
    """The Euclidean length of each row (along the last axis), in float64."""
    squares = np.einsum("...j,...j->...", rows, rows, dtype=np.float64)
    found = np.sqrt(squares)
    odd = ~((squares > LEAST_SQUARE) & (squares < np.inf))
    if odd.any():  # zeros, and rows whose squares leave the range of float64
        some = rows[odd].astype(np.float64)
        largest = np.abs(some).max(axis=-1, initial=0.0)
        with np.errstate(under="ignore"):
            scaled = some / np.where(largest > 0, largest, 1.0)[..., None]
            found[odd] = largest * np.sqrt((scaled**2).sum(axis=-1))
    return np.asarray(found)


def unit_entries(indptr: Array, values: Array, own: bool) -> Array:
    """The stored entries of sparse rows (CSR) with length 1, in blocks of whole rows. `own`: they may be changed."""
    count = len(indptr) - 1
    first = 0
    while first < count:
        stop = int(np.searchsorted(indptr, indptr[first] + NUMBERS_AT_ONCE, side="right")) - 1
        stop = min(max(stop, first + 1), count)
        low, high = int(indptr[first]), int(indptr[stop])
        entries = np.diff(indptr[first : stop + 1])
        lengths = _sparse_lengths(values[low:high], entries)
        if not _are_unit(lengths, values.dtype):
            if not (own and values.flags.writeable):
                values, own = np.array(values), True
            part = values[low:high]
            divisors = np.repeat(np.where(lengths > 0, lengths, 1.0), entries)
            np.divide(part, divisors, out=part, casting="same_kind")
        first = stop
    return values


def _divisors(rows: Array, kind: np.dtype[Any]) -> Array | None:
    """What each row is divided by; None where nothing changes."""
    lengths = lengths_of(rows)
    if _are_unit(lengths, kind):
        return None
    return np.where(lengths > 0, lengths, 1.0)


def _are_unit(lengths: Array, kind: np.dtype[Any]) -> bool:
    within = ROUNDINGS * float(np.finfo(kind).eps)
    return bool(((np.abs(lengths - 1.0) <= within) | (lengths == 0)).all())


def _sparse_lengths(values: Array, entries: Array) -> Array:
    """The length of each sparse row, also where squares overflow or underflow. `entries`: how many values each row
    has."""
    row = np.repeat(np.arange(len(entries)), entries)
    exact = values.astype(np.float64)
    with np.errstate(over="ignore", under="ignore"):
        squares = np.bincount(row, exact * exact, minlength=len(entries))
    found = np.sqrt(squares)
    odd = ~((squares > LEAST_SQUARE) & (squares < np.inf)) & (entries > 0)
    if odd.any():
        largest = np.zeros(len(entries))
        np.maximum.at(largest, row, np.abs(exact))
        with np.errstate(under="ignore"):
            scaled = exact / np.where(largest > 0, largest, 1.0)[row]
            exactly = largest * np.sqrt(np.bincount(row, scaled * scaled, minlength=len(entries)))
        found[odd] = exactly[odd]
    return np.asarray(found)
