"""A change of statistics of which few rows differ from zero: the numbers of these rows, and the rows. Arrays only.

A late round of k-means with thousands of clusters changes few of them. Arrays of such a change are read once to find
these, and then only they are written, sent, added and kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from flegel.configuration.active import active
from flegel.core.pytree import Array

COMPARED_NUMBERS = 1 << 16  # of two arrays that are compared at a time: they stay in a cache


class ChangedRows(NamedTuple):
    """Rows of each field that are not zero; all fields have as many rows."""

    numbers: Array
    """Of these rows, ascending."""
    fields: tuple[Array, ...]

    def add_to(self, intos: Sequence[Array]) -> None:
        """Add it to statistics."""
        for into, rows in zip(intos, self.fields, strict=True):
            into[self.numbers] += rows

    def arrays(self) -> tuple[Array, ...]:
        """As they travel."""
        return (self.numbers, *self.fields)


class RowsOfStep(NamedTuple):
    """In which rows the arrays of θ differ from those of the step before, where whoever made them knows it."""

    step: int
    """Counts the θ of one maker."""
    rows: tuple[Array | None, ...]
    """By field, ascending; None: any may differ."""


class ArraysOfStep(tuple[Array, ...]):
    """Arrays of θ that come with it."""

    made: RowsOfStep | None = None


def changed_rows(arrays: Sequence[Array]) -> ChangedRows | None:
    """What is not zero in a change; None where it is small, has fields of several lengths, or changes in most rows."""
    rules = active().transport
    if sum([a.nbytes for a in arrays]) < rules.changed_rows_from_bytes:
        return None
    if len({a.shape[:1] for a in arrays}) != 1 or not arrays[0].ndim:
        return None
    count = len(arrays[0])
    differs = np.zeros(count, bool)
    for a in sorted(arrays, key=lambda one: one.nbytes):  # the small ones tell most rows
        rest = np.flatnonzero(~differs)
        if len(rest) < (1 - rules.max_changed_part) * count:
            return None
        differs |= _not_zero(a)
    numbers = np.flatnonzero(differs)
    if len(numbers) > rules.max_changed_part * count:
        return None
    return ChangedRows(numbers, tuple(np.ascontiguousarray(a[numbers]) for a in arrays))


def differing_rows(one: Array, other: Array) -> Array:
    """Numbers of the rows in which two arrays of one form differ in any bit."""
    first, second = (_in_bits(np.atleast_1d(a)) for a in (one, other))
    step = max(COMPARED_NUMBERS // max(first.shape[1], 1), 1)
    parts = [
        np.flatnonzero((first[at : at + step] != second[at : at + step]).any(axis=1)) + at
        for at in range(0, len(first), step)
    ]
    return np.concatenate(parts) if parts else np.empty(0, np.intp)


def _in_bits(array: Array) -> Array:
    """Rows of unsigned integers: NaN equals itself, and 0 is not -0."""
    rows = np.ascontiguousarray(array).reshape(len(array), array.size // max(len(array), 1))
    return rows.view({8: np.uint64, 4: np.uint32, 2: np.uint16, 1: np.uint8}[rows.itemsize])


def _not_zero(array: Array) -> Array:
    """Which rows have a bit that is set: quicker than to compare numbers."""
    return np.asarray(np.bitwise_or.reduce(_in_bits(array), axis=1) != 0)


def read_changed_rows(arrays: Sequence[Array], like: Sequence[Array], who: str) -> ChangedRows:
    """Arrays that travelled; `ValueError` where they are no rows of statistics like these."""
    numbers, fields = arrays[0], tuple(arrays[1:])
    sound = numbers.ndim == 1 and numbers.dtype.kind == "i" and len(fields) == len(like)
    if sound and len(numbers):
        sound = int(numbers[0]) >= 0 and int(numbers[-1]) < len(like[0]) and bool((np.diff(numbers) > 0).all())
    wanted = [(len(numbers), *into.shape[1:]) for into in like]
    if not sound or [field.shape for field in fields] != wanted:
        shapes = ", ".join(str(a.shape) for a in arrays)
        raise ValueError(f"{who} committed rows of statistics in the shapes {shapes}, which do not fit")
    return ChangedRows(numbers, fields)
