"""The cut fields of one slice of a report on their way: whole, only the units in which something changed, or nothing.

Workers on sparse data change few units of a slice (columns of the items that their rows have). Nothing is rounded: what
is left out is +0 and comes back as +0; −0 is sent, because sums of it have other bits. Pure.

    []                       nothing has changed
    [fields]                 whole
    [numbers, fields]        the units with these numbers, in rising order
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flegel.configuration.active import active
from flegel.core.pytree import Array

UNIT_NUMBER_BYTES = 4
"""Of the number (int32) that is sent with each unit."""


def packed(cut: list[Array], axes: Sequence[int]) -> list[Array]:
    """What has to be sent of these fields, which are cut along these axes."""
    units = cut[0].shape[axes[0]]
    step = max(units // active().transport.sampled_units, 1)
    if units >= active().transport.sampled_units:
        sample = changed([_units(a, axis, slice(None, None, step)) for a, axis in zip(cut, axes, strict=True)], axes)
        if np.count_nonzero(sample) > active().transport.mostly_changed_share * len(sample):
            return cut
    used = np.flatnonzero(changed(cut, axes))
    if not len(used):
        return []
    size = sum(a.nbytes for a in cut) / units
    if len(used) * (size + UNIT_NUMBER_BYTES) >= active().transport.picked_bytes_share * units * size:
        return cut
    return [used.astype(np.int32), *(np.take(a, used, axis) for a, axis in zip(cut, axes, strict=True))]


def changed(cut: Sequence[Array], axes: Sequence[int]) -> Array:
    """Whether anything in a unit is not zero, for each unit."""
    found = np.zeros(cut[0].shape[axes[0]], dtype=bool)
    for array, axis in zip(cut, axes, strict=True):
        others = tuple(each for each in range(array.ndim) if each != axis)
        found |= np.any(array, axis=others)
        if array.dtype.kind == "f":
            found |= np.any(np.signbit(array), axis=others)
    return found


def unpacked(part: list[Array], like: Sequence[Array], axes: Sequence[int]) -> list[Array]:
    """Whole fields again; `like` has their shapes and types."""
    if len(part) == len(like) and part:
        return part
    whole = [np.zeros_like(a) for a in like]
    if part:
        for into, axis, some in zip(whole, axes, part[1:], strict=True):
            _set_units(into, axis, part[0], some)
    return whole


def fits(part: list[Array], like: Sequence[Array], axes: Sequence[int]) -> bool:
    """Whether this can be a part of the slice that has fields like these."""
    if len(part) in (0, len(like)):
        return all(a.shape == b.shape for a, b in zip(part, like, strict=False))
    if len(part) != len(like) + 1 or part[0].ndim != 1 or part[0].dtype.kind != "i":
        return False
    numbers, units = part[0], like[0].shape[axes[0]]
    inside = bool(len(numbers)) and numbers[0] >= 0 and numbers[-1] < units and bool(np.all(np.diff(numbers) > 0))
    shapes = [(*a.shape[:axis], len(numbers), *a.shape[axis + 1 :]) for a, axis in zip(like, axes, strict=True)]
    return inside and [a.shape for a in part[1:]] == shapes


def _units(array: Array, axis: int, units: Array | slice) -> Array:
    """These units of a field that is cut along `axis`."""
    return array[(slice(None),) * axis + (units,)]


def _set_units(array: Array, axis: int, units: Array | slice, values: Array) -> None:
    """Write `values` in the place of these units of a field."""
    array[(slice(None),) * axis + (units,)] = values
